"""The image of a run, as in its `launch.json`, and the directory of what its container writes."""

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from .removal import remove_tree

WRITABLE = "image"
"""Directory in that of the run."""


class RunImage(msgspec.Struct, frozen=True, kw_only=True):
    """The root file system of a container that runs an image."""

    name: str
    image_id: str
    chains: tuple[str, ...]
    """Chain ids of the layers, the lowest first."""

    directories: tuple[str, ...]
    """Directories of the layers, the uppermost first."""

    first_id: int | None
    """First of the user ids that own the layers; ``None``: the agent's user owns all files."""

    overlay: bool = True
    """Whether overlayfs stacks the layers; otherwise they are copied."""

    working_dir: str = "/"
    volumes: tuple[str, ...] = ()
    """Directories that remain writable in a read-only root."""

    read_only: bool = False


class VolumeImage(msgspec.Struct, frozen=True, kw_only=True):
    """A volume with the files of an image, which the shim mounts for one container."""

    image: RunImage
    target: str
    """Directory of the agent at which it is mounted, in the container's mount namespace."""

    copy: str
    """Directory for a copy of the layers, where overlayfs cannot stack them."""

    @property
    def name(self) -> str:
        """The name of the volume in its pod."""
        return os.path.basename(self.target)


def volume_image(run: Path, target: Path, image: RunImage) -> VolumeImage:
    """Return the volume at *target* of a run, with the files of *image*."""
    copy = run / WRITABLE / "volumes" / target.name
    return VolumeImage(image=image, target=str(target), copy=str(copy))


def prepare(run: Path, volumes: Iterable[VolumeImage]) -> None:
    """Create the directories of what the container of a run writes, and of its volumes' copies."""
    own = (run / WRITABLE / name for name in ("upper", "work"))
    for path in (*own, *(Path(each.copy) for each in volumes)):
        path.mkdir(parents=True, mode=0o700, exist_ok=True)


def is_in_use(run: Path) -> bool:
    """Return whether the run has, or had until it exited, layers of images in its mounts."""
    return os.path.isdir(run / WRITABLE)


def clear(runs: Iterable[Path]) -> None:
    """Remove what the containers of finished runs have written."""
    for run in runs:
        remove_tree(run / WRITABLE)
