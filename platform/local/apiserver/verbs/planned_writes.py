"""Planned writes, and the results of executed ones."""

import asyncio
from typing import NamedTuple

from ..http.requests import Json
from ..managedfields.entries import Entries
from ..storage.object_store import PendingWrite
from ..storage.resource_store import ResourceStore
from ..storage.stored_objects import StoredObject


class WriteResult(NamedTuple):
    """Result of a write; wait for :meth:`committed` before sending the response."""

    data: bytes
    done: "asyncio.Future[None] | None" = None
    removed: bool = False
    uid: str = ""
    managed: Entries = ()
    """The ``managedFields`` of the object, which are not in the data."""

    created: bool = False
    entry: StoredObject | None = None
    """The object as it is stored, unless nothing is."""

    @classmethod
    def from_pending(cls, pending: PendingWrite, *, removed: bool = False) -> "WriteResult":
        """Return the result of a queued write."""
        entry = pending.entry
        return cls(entry.data, pending.done, removed, entry.uid, entry.managed, entry=entry)

    async def committed(self) -> bytes:
        """Return the object once it is on disk.

        Raises:
            StatusError: 500, the disk write failed.
        """
        if self.done is not None:
            await self.done
        return self.data


class PlannedWrite(NamedTuple):
    """A write planned against the state of its resource store; nothing is changed yet."""

    resource_store: ResourceStore
    old: StoredObject | None
    """Object that is replaced."""

    obj: Json
    """Object to store, in the storage version."""

    name: str
    removed: bool = False
    """Whether the write deletes the object."""

    response: bytes | None = None
    """Response if nothing is stored: a dry run, or no change."""

    managed: Entries = ()
    """The ``managedFields`` of the object."""
