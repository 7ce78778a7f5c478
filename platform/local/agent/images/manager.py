"""Which image each container runs, if any."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Any

from ..runtime.image_run import RunImage
from ..runtime.runs import LaunchSpec, RunDir
from ..state.core_types import Container
from ..state.environment import ContainerConfigError
from . import references
from .errors import ImageError
from .references import Reference
from .store import ImageStore, StoredImage
from .support import ImageSupport, first_id

_NEVER = "Never"
RUN_MODE_LABEL = "batholith.io/pods"
"""Label of a node: what its containers run."""

_MAX_NODE_IMAGES = 50
"""Images in a node's status, as in kubelet's."""


class RunMode(StrEnum):
    """What containers run."""

    PROCESSES = "processes"
    """Programs of the machine."""

    IMAGES = "images"
    """Their images."""

    AUTO = "auto"
    """Their images if they are stored, otherwise programs of the machine."""


class ImageUnavailableError(ContainerConfigError):
    """A container cannot have its image; *reason* is that of its waiting state."""

    def __init__(self, reason: str, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.reason = reason
        self.retry_after = retry_after

    @property
    def summary(self) -> str:
        """The reason: other events have the message."""
        return self.reason


class ImageManager:
    """Finds the images of containers."""

    def __init__(
        self, data_dir: Path, mode: RunMode, support: ImageSupport, *, retry: float
    ) -> None:
        self._retry = retry
        self.mode = mode
        self.store = ImageStore(data_dir)
        self._support = support

    @property
    def label(self) -> str:
        """What the node's label shows."""
        return str(
            RunMode.PROCESSES if self._falls_back and self._support.known_error else self.mode
        )

    @property
    def _falls_back(self) -> bool:
        return self.mode is RunMode.AUTO

    async def image_of(self, container: Container) -> StoredImage | None:
        """Return the image that a container runs; ``None`` for programs of the machine.

        Raises:
            ContainerConfigError: it must run its image, and cannot.
        """
        if self.mode is RunMode.PROCESSES:
            return None
        try:
            reference = references.parse(container.image)
        except ImageError as error:
            if self._falls_back:
                return None
            message = f"Failed to apply default image tag: {error}"
            raise ImageUnavailableError(
                "InvalidImageName", message, retry_after=self._retry
            ) from None
        found = self.store.find(reference)
        if found is None and self._falls_back:
            return None
        if error := await self._support.error():
            if self._falls_back:
                return None
            raise ContainerConfigError(f"containers cannot run images here: {error}")
        return found or self._missing(container, reference)

    def _missing(self, container: Container, reference: Reference) -> StoredImage:
        if container.image_pull_policy == _NEVER:
            raise ImageUnavailableError(
                "ErrImageNeverPull",
                f'Container image "{container.image}" is not present with pull policy of Never',
                retry_after=self._retry,
            )
        raise ImageUnavailableError(
            "ErrImagePull",
            f'the image "{reference}" is not stored; load it with `batholith image load`',
            retry_after=self._retry,
        )

    def node_images(self) -> list[dict[str, Any]]:
        """Return the entries of the node's ``status.images``, the largest first."""
        if self.mode is RunMode.PROCESSES:
            return []
        found = sorted(self.store.images(), key=lambda image: (-image.size, image.name))
        return [
            {
                "names": sorted({image.name, image.image_id} - {image.id}),
                "sizeBytes": image.size,
            }
            for image in found[:_MAX_NODE_IMAGES]
        ]

    def run_image(self, image: StoredImage, *, working_dir: str, read_only: bool) -> RunImage:
        """Return the root of a container that runs *image*, which `image_of` returned."""
        volumes = [os.path.normpath("/" + v.lstrip("/")) for v in image.process.volumes or ()]
        return RunImage(
            name=image.name,
            image_id=image.image_id,
            chains=image.layers,
            directories=tuple(str(self.store.layer_dir(each)) for each in reversed(image.layers)),
            first_id=first_id(),
            overlay=self._support.overlay,
            working_dir=working_dir,
            volumes=tuple(each for each in volumes if each.strip("/")),
            read_only=read_only,
        )

    def prepare(self, run: RunDir, launch: LaunchSpec) -> None:
        """Prepare a run of an image; from then on its layers are not removed.

        Raises:
            ImageUnavailableError: they were removed before.
            OSError: a file cannot be written.
        """
        image = launch.image
        if image is None:
            run.prepare(launch)
            return
        with self.store.in_use():
            if not all(map(self.store.layer, image.chains)):
                raise ImageUnavailableError(
                    "ErrImagePull", f'the image "{image.name}" was removed', retry_after=0.0
                )
            run.prepare(launch)
