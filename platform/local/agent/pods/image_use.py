"""Which images the pods of a data directory use."""

from collections.abc import Iterator
from pathlib import Path

import msgspec

from ..images.errors import ImageError
from ..images.store import ImageUse
from ..runtime import image_run
from ..runtime.runs import RunDir
from .records import PodDir


def image_uses(data_dir: Path) -> Iterator[ImageUse]:
    """Yield the images of all pods that are not finished.

    Raises:
        ImageError: the files of a pod are damaged, so that its image is not known.
    """
    for pod_dir, record in PodDir.all(data_dir):
        pod = f"{record.namespace}/{record.name}"
        for run in _runs(pod_dir):
            if not image_run.is_in_use(run.path):
                continue
            try:
                images = run.images()
            except (msgspec.DecodeError, OSError) as error:
                raise ImageError(f"cannot read which image the pod {pod} uses: {error}") from error
            for image in images:
                yield ImageUse(pod, image.name, image.chains)


def _runs(pod_dir: PodDir) -> Iterator[RunDir]:
    for name in pod_dir.containers():
        yield from pod_dir.runs(name)
