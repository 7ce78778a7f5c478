"""Claims as folders: whoever asks for storage gets a folder, for as long as the claim is there."""

import asyncio
import logging
import shutil
from pathlib import Path

from ...kube.client import Client
from ...kube.errors import (
    ApiError,
    ConnectionLostError,
    NotFoundError,
    UnreadableAnswerError,
)
from ...model.meta import HasMeta, ObjectMeta
from ...model.names import PERSISTENTVOLUMECLAIMS
from .objects import Marked
from .sources import SourceBook
from .volumes import folder_of

log = logging.getLogger(__name__)


class ClaimFolders:
    """Removes the folders of claims that were deleted, once no pod uses them."""

    def __init__(self, client: Client, sources: SourceBook, base: Path) -> None:
        self._client = client
        self._sources = sources
        self._base = base
        self._gone: dict[str, ObjectMeta] = {}

    def note(self, old: HasMeta | None, new: HasMeta | None) -> None:
        """Hear of a change of a claim."""
        if old is not None and new is None:
            self._gone[old.metadata.uid] = old.metadata

    async def tidy(self) -> None:
        """Remove what can be removed now."""
        for uid, meta in list(self._gone.items()):
            if self._sources.is_read(PERSISTENTVOLUMECLAIMS, meta.key):
                continue
            try:
                there = await self._is_there(meta)
            except (ApiError, ConnectionLostError, UnreadableAnswerError):
                continue  # the next time will do
            self._gone.pop(uid, None)
            folder = folder_of(self._base, namespace=meta.namespace, name=meta.name, uid=uid)
            if not there and folder.is_dir():
                log.info("a claim's folder is removed", extra={"claim": meta.key})
                await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)

    async def _is_there(self, claim: ObjectMeta) -> bool:
        """Files are removed on the server's word alone, not because a list was short."""
        claims = PERSISTENTVOLUMECLAIMS
        try:
            now = await self._client.get(claims, claim.name, namespace=claim.namespace, view=Marked)
        except NotFoundError:
            return False
        return now.metadata.uid == claim.uid
