"""Claims as folders: what a claim is bound to, and when its folder goes."""

import asyncio
import logging
import shutil
from pathlib import Path
from typing import Protocol

from ...kube.client.client import Client
from ...kube.errors import (
    ApiError,
    ConnectionLostError,
    DecodeError,
    NotFoundError,
)
from ...model.meta import HasMeta, ObjectMeta
from ...model.names import DIR_PROVISIONER, PERSISTENTVOLUMECLAIMS, PERSISTENTVOLUMES, Resource
from ..state.core_types import MetadataOnly, PersistentVolume
from ..state.environment import ClaimVolume
from .volumes import pvc_dir

_RETAIN = "Retain"


class ReferenceLookup(Protocol):
    """Who knows what the pods of the node read."""

    def is_referenced(self, resource: Resource, key: str) -> bool:
        """Whether a pod that is not at its end names the object ``namespace/name``."""
        ...


def claim_volume(uid: str, volume: PersistentVolume) -> ClaimVolume:
    """What the claim *uid* finds in the volume that it is bound to."""
    spec, name = volume.spec, volume.metadata.name
    if spec.volume_mode == "Block":
        return ClaimVolume(error=f'persistentvolume "{name}" is a block device')
    if spec.csi is not None and spec.csi.driver == DIR_PROVISIONER:
        return ClaimVolume(uid=uid, handle=spec.csi.volume_handle, read_only=spec.csi.read_only)
    place = spec.host_path or spec.local
    if place is None:
        return ClaimVolume(error=f'persistentvolume "{name}" is of a type that is not known')
    return ClaimVolume(uid=uid, host_path=place.path)


log = logging.getLogger(__name__)


class PvcDirs:
    """Removes the folders of claims that were deleted, once no pod uses them."""

    def __init__(self, client: Client, sources: ReferenceLookup, base: Path) -> None:
        self._client = client
        self._sources = sources
        self._base = base
        self._deleted: dict[str, ObjectMeta] = {}

    def on_event(self, old: HasMeta | None, new: HasMeta | None) -> None:
        """Hear of a change of a claim."""
        if old is not None and new is None:
            self._deleted[old.metadata.uid] = old.metadata

    async def clean_up(self) -> None:
        """Remove what can be removed now."""
        for uid, meta in list(self._deleted.items()):
            if self._sources.is_referenced(PERSISTENTVOLUMECLAIMS, meta.key):
                continue
            try:
                kept = await self._exists(meta) or await self._is_retained(meta)
            except (ApiError, ConnectionLostError, DecodeError):
                continue  # the next time will do
            self._deleted.pop(uid, None)
            folder = pvc_dir(self._base, namespace=meta.namespace, name=meta.name, uid=uid)
            if not kept and folder.is_dir():
                log.info("a claim's folder is removed", extra={"claim": meta.key})
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _exists(self, claim: ObjectMeta) -> bool:
        """Files are removed on the server's word alone, not because a list was short."""
        claims = PERSISTENTVOLUMECLAIMS
        try:
            now = await self._client.get(
                claims, claim.name, namespace=claim.namespace, view=MetadataOnly
            )
        except NotFoundError:
            return False
        return now.metadata.uid == claim.uid

    async def _is_retained(self, claim: ObjectMeta) -> bool:
        """Whether the volume of a claim that is gone is to be kept for somebody to look at."""
        name, volumes = f"pvc-{claim.uid}", PERSISTENTVOLUMES
        try:
            volume = await self._client.get(volumes, name, view=PersistentVolume)
        except NotFoundError:
            return False
        return volume.spec.persistent_volume_reclaim_policy == _RETAIN
