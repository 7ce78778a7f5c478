"""Which image each container runs, if any."""

import os
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn

from ..runtime.image_run import RunImage
from ..runtime.runs import LaunchSpec, RunDir
from ..state.core_types import Container, ImageVolumeSource, Volume
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
            reference = self._parse(container.image)
        except ImageUnavailableError:
            if self._falls_back:
                return None
            raise
        found = self.store.find(reference)
        pulls = self._pulls(container.image_pull_policy, reference, is_stored=found is not None)
        if found is None and not pulls:
            if self._falls_back:
                return None
            self._never_pulled(container.image)
        if error_message := await self._support.error():
            if self._falls_back:
                return None
            raise ContainerConfigError(f"containers cannot run images here: {error_message}")
        if pulls:
            return await self._puller.start(container.image, reference, keyring, record)
        text = f'Container image "{container.image}" already present on machine'
        record("Pulled", text, False)
        return found

    async def image_of_volume(
        self, volume: Volume, *, keyring: GetKeyring, record: RecordEvent
    ) -> StoredImage | Pull:
        """Return the image whose files *volume* has, in every mode; otherwise as `image_of`.

        Raises:
            ContainerConfigError: it cannot be mounted.
        """
        source = volume.image or ImageVolumeSource()
        name = source.reference
        reference = self._parse(name)
        if error_message := await self._support.error():
            raise ContainerConfigError(
                f"volume {volume.name}: images cannot be mounted here: {error_message}"
            )
        found = self.store.find(reference)
        if self._pulls(source.pull_policy, reference, is_stored=found is not None):
            return await self._puller.start(name, reference, keyring, record)
        if found is not None:
            record("Pulled", f'Container image "{name}" already present on machine', False)
            return found
        if source.pull_policy == _NEVER:
            self._never_pulled(name)
        text = (
            f'the image "{name}" is not stored, and its registry {reference.registry} was not '
            "named: `batholith image load` stores it, `batholith up --registry` permits to pull it"
        )
        raise ImageUnavailableError("ErrImagePull", text, retry_after=self._retry)

    def _pulls(self, policy: str, reference: Reference, *, is_stored: bool) -> bool:
        """Return whether the image has to be pulled, if not all are, from named registries only."""
        every = self.mode is RunMode.IMAGES
        if policy == _NEVER or not (every or self._puller.is_configured(reference)):
            return False
        return policy == _ALWAYS or not is_stored

    def _parse(self, name: str) -> Reference:
        """Return the reference of an image, or raise ImageUnavailableError."""
        try:
            return references.parse(name)
        except ImageError as error:
            text = f"Failed to apply default image tag: {error}"
            raise ImageUnavailableError("InvalidImageName", text, retry_after=self._retry) from None

    def _never_pulled(self, name: str) -> NoReturn:
        text = f'Container image "{name}" is not present with pull policy of Never'
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
        """Prepare a run; if it has files of images, from then on its layers are not removed.

        Raises:
            ImageUnavailableError: they were removed before.
            OSError: a file cannot be written.
        """
        if not launch.images:
            run.prepare(launch)
            return
        with self.store.in_use():
            for image in launch.images:
                if not all(map(self.store.layer, image.chains)):
                    text = f'the image "{image.name}" was removed'
                    raise ImageUnavailableError("ErrImagePull", text, retry_after=0.0)
            run.prepare(launch)
