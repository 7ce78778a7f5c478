"""Directories of PersistentVolumeClaims: the volume of a claim, and removal after deletion."""

import asyncio
import logging
from pathlib import Path
from typing import Protocol

from ....kube.client.client import Client
from ....kube.errors import (
    ApiError,
    ConnectionLostError,
    DecodeError,
    NotFoundError,
)
from ....model.meta import HasMeta, ObjectMeta
from ....model.names import DIR_PROVISIONER, PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES, Resource
from ..runtime.removal import remove_tree
from ..state.core_types import MetadataOnly, PersistentVolume
from ..state.environment import ClaimVolume
from .volumes import pvc_dir

_RETAIN = "Retain"


class ReferenceLookup(Protocol):
    """Finds which objects the pods of the node refer to."""

    def is_referenced(self, resource: Resource, key: str) -> bool:
        """Return whether a pod that is not terminated refers to the object ``namespace/name``."""
        ...


def claim_volume(uid: str, volume: PersistentVolume, *, has_dirs: bool) -> ClaimVolume:
    """Return the volume of the claim *uid*, which is bound to *volume*.

    *has_dirs*: the directories of claims are on this machine.
    """
    spec, name = volume.spec, volume.metadata.name
    if spec.volume_mode == "Block":
        return ClaimVolume(error=f'persistentvolume "{name}" is a block device')
    if spec.csi is not None and spec.csi.driver == DIR_PROVISIONER:
        if not has_dirs:
            text = f'persistentvolume "{name}" is a directory of the machine of the API server'
            return ClaimVolume(error=text)
        return ClaimVolume(uid=uid, handle=spec.csi.volume_handle, read_only=spec.csi.read_only)
    source = spec.host_path or spec.local
    if source is None:
        return ClaimVolume(error=f'persistentvolume "{name}" has an unsupported type')
    return ClaimVolume(uid=uid, host_path=source.path, host_path_type=source.type)


log = logging.getLogger(__name__)


class PvcDirs:
    """Removes the directories of deleted claims, once no pod uses them."""

    def __init__(self, client: Client, sources: ReferenceLookup, base: Path) -> None:
        self._client = client
        self._sources = sources
        self._base = base
        self._deleted: dict[str, ObjectMeta] = {}

    def on_event(self, old: HasMeta | None, new: HasMeta | None) -> None:
        """Handle an event of a claim."""
        if old is not None and new is None:
            self._deleted[old.metadata.uid] = old.metadata

    async def clean_up(self) -> None:
        """Remove the directories that are no longer used."""
        for uid, meta in list(self._deleted.items()):
            if self._sources.is_referenced(PERSISTENTVOLUMECLAIMS, meta.key):
                continue
            try:
                kept = await self._exists(meta) or await self._is_retained(meta)
            except (ApiError, ConnectionLostError, DecodeError):
                continue  # the next clean-up retries
            self._deleted.pop(uid, None)
            path = pvc_dir(self._base, namespace=meta.namespace, name=meta.name, uid=uid)
            if not kept and path.is_dir():
                await asyncio.to_thread(remove_tree, path)
                log.info("removed PVC directory", extra={"claim": meta.key})

    async def _exists(self, claim: ObjectMeta) -> bool:
        """Ask the API server whether the claim exists: an informer's list may be incomplete."""
        claims = PERSISTENTVOLUMECLAIMS
        try:
            now = await self._client.get(
                claims, claim.name, namespace=claim.namespace, view=MetadataOnly
            )
        except NotFoundError:
            return False
        return now.metadata.uid == claim.uid

    async def _is_retained(self, claim: ObjectMeta) -> bool:
        """Return whether the volume of a deleted claim has the reclaim policy Retain."""
        name, volumes = f"pvc-{claim.uid}", PERSISTENTVOLUMES
        try:
            volume = await self._client.get(volumes, name, view=PersistentVolume)
        except NotFoundError:
            return False
        return volume.spec.persistent_volume_reclaim_policy == _RETAIN
