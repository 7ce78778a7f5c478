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
from .puller import GetKeyring, ImageUnavailableError, Pull, Puller, RecordEvent
from .references import Reference
from .store import ImageStore, StoredImage
from .support import ImageSupport, first_id

_NEVER, _ALWAYS = "Never", "Always"
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


class ImageManager:
    """Finds the images of containers."""

    def __init__(
        self, data_dir: Path, mode: RunMode, support: ImageSupport, *, puller: Puller, retry: float
    ) -> None:
        self.mode = mode
        self.store = ImageStore(data_dir)
        self._support = support
        self._puller = puller
        self._retry = retry

    @property
    def label(self) -> str:
        """What the node's label shows."""
        return str(
            RunMode.PROCESSES if self._falls_back and self._support.known_error else self.mode
        )

    @property
    def _falls_back(self) -> bool:
        return self.mode is RunMode.AUTO

    async def image_of(
        self, container: Container, *, keyring: GetKeyring, record: RecordEvent
    ) -> StoredImage | Pull | None:
        """Return the image that a container runs; ``None`` for programs of the machine.

        *keyring* returns the credentials of the pod, *record* records an event about it.

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
        pulls = self._pulls(container, reference, is_stored=found is not None)
        if found is None and not pulls:
            self._missing(container)
            return None
        if error_message := await self._support.error():
            if self._falls_back:
                return None
            raise ContainerConfigError(f"containers cannot run images here: {error_message}")
        if pulls:
            return await self._puller.start(container.image, reference, keyring, record)
        text = f'Container image "{container.image}" already present on machine'
        record("Pulled", text, False)
        return found

    def _pulls(self, container: Container, reference: Reference, *, is_stored: bool) -> bool:
        """Return whether the image has to be pulled: in auto mode only if its registry is named."""
        policy = container.image_pull_policy
        if policy == _NEVER or (self._falls_back and not self._puller.is_configured(reference)):
            return False
        return policy == _ALWAYS or not is_stored

    def _missing(self, container: Container) -> None:
        """Fall back to programs of the machine, or raise ImageUnavailableError."""
        if self._falls_back:
            return
        text = f'Container image "{container.image}" is not present with pull policy of Never'
        raise ImageUnavailableError("ErrImageNeverPull", text, retry_after=self._retry)

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
