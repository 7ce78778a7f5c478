"""Which images the pods of a data directory use."""

from collections.abc import Iterator
from pathlib import Path

from ..images.store import ImageUse
from ..runtime import image_run
from ..runtime.runs import RunDir
from .records import PodDir


def image_uses(data_dir: Path) -> Iterator[ImageUse]:
    """Yield the images of all pods that are not finished."""
    for pod_dir, record in PodDir.all(data_dir):
        for run in _runs(pod_dir):
            image = run.image()
            if image is not None and image_run.is_in_use(run.path):
                yield ImageUse(f"{record.namespace}/{record.name}", image.name, image.chains)


def _runs(pod_dir: PodDir) -> Iterator[RunDir]:
    for name in pod_dir.containers():
        yield from pod_dir.runs(name)
