"""Relist: merge a list into the store while changes continue to be applied.

A list returns all objects as of one version, known once it is complete. Changes may be applied
concurrently, each newer than the version that the watch started from; the list is not older than
that version. So for each object the newer of listed and watched state wins, and an object that the
list lacks is deleted unless it changed after the list's version.

Versions are compared between list and watch only, which have a common history. The store's content
may stem from another (a server restored from a backup restarts its versions): it is only
compared for equality.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Generic, Protocol, TypeVar

from ...model.meta import HasMeta, ObjectMeta

T = TypeVar("T", bound=HasMeta)

YIELD_EVERY = 200
"""Objects processed before yielding to other tasks: a few milliseconds."""


class RelistTarget(Protocol[T]):
    """Store that a relist updates; the informer's."""

    @property
    def objects(self) -> Mapping[str, T]:
        """The stored objects by key."""
        ...

    @property
    def is_synced(self) -> bool:
        """Whether an earlier list was applied."""
        ...

    def wants(self, obj: T) -> bool:
        """Return whether the store keeps *obj*."""
        ...

    def put(self, obj: T) -> None:
        """Add or update *obj*; an object of its name with another uid is deleted first."""
        ...

    def delete(self, key: str) -> None:
        """Delete the object; its final state is unknown."""
        ...


class Relist(Generic[T]):
    """One relist. Keeps only the keys of the list and the objects that differ from the store."""

    def __init__(self, target: RelistTarget[T]) -> None:
        self.is_complete = False
        """Whether the list has been applied."""
        self._target = target
        self._listed_keys: set[str] = set()
        self._listed_changes: dict[str, T] = {}
        self._changed_versions: dict[str, int] = {}
        self._list_version = 0

    def restart(self) -> None:
        """Discard a partial list; the changes applied since are kept."""
        self._listed_keys.clear()
        self._listed_changes.clear()

    def add_listed(self, obj: T) -> None:
        """Add *obj* of the list; one that the store does not want is as good as missing."""
        key = obj.metadata.key
        if not self._target.wants(obj):
            self.drop_listed(key)
            return
        self._listed_keys.add(key)
        previous = self._target.objects.get(key)
        if previous is None or _is_changed(previous.metadata, obj.metadata):
            self._listed_changes[key] = obj
        else:
            self._listed_changes.pop(key, None)

    def drop_listed(self, key: str) -> None:
        """Remove *key* from the list: it was deleted during the list."""
        self._listed_keys.discard(key)
        self._listed_changes.pop(key, None)

    def add_undecodable(self, meta: ObjectMeta) -> None:
        """Add an undecodable object of the list; its previous state, if any, is kept."""
        self.drop_listed(meta.key)
        previous = self._target.objects.get(meta.key)
        if previous is not None and previous.metadata.uid == meta.uid:
            self._listed_keys.add(meta.key)

    def is_newer_than_list(self, version: str) -> bool:
        """Return whether *version* is newer than the list's, if that is known."""
        return int(version or 0) > self._list_version

    def should_apply(self, meta: ObjectMeta) -> bool:
        """Return whether the caller must apply a change, which the list does not include."""
        if not self.is_newer_than_list(meta.resource_version):
            return False
        if not self.is_complete:
            self._changed_versions[meta.key] = int(meta.resource_version or 0)
        return True

    async def apply_list(self, version: str) -> None:
        """Apply the complete list of *version*, in slices.

        First deletes, then updates, then adds by creation time; the initial list in its own order.
        """
        self._list_version = int(version or 0)
        for number, key in enumerate(self._missing_keys(), 1):
            if self._changed_versions.get(key, 0) <= self._list_version:
                self._target.delete(key)
            if number % YIELD_EVERY == 0:
                await asyncio.sleep(0)
        for number, obj in enumerate(self._ordered_changes(), 1):
            meta = obj.metadata
            changed = self._changed_versions.get(meta.key)
            if changed is None or changed < int(meta.resource_version or 0):
                self._target.put(obj)
            if number % YIELD_EVERY == 0:
                await asyncio.sleep(0)
        self.is_complete = True
        self._listed_keys, self._listed_changes, self._changed_versions = set(), {}, {}

    def _missing_keys(self) -> Iterable[str]:
        return [key for key in self._target.objects if key not in self._listed_keys]

    def _ordered_changes(self) -> Iterable[T]:
        changes, stored = self._listed_changes, self._target.objects
        if not self._target.is_synced:
            return changes.values()
        updated = [obj for key, obj in changes.items() if key in stored]
        new = [obj for key, obj in changes.items() if key not in stored]
        return [*updated, *sorted(new, key=lambda obj: _creation_order(obj.metadata))]


def _is_changed(one: ObjectMeta, other: ObjectMeta) -> bool:
    return (one.uid, one.resource_version) != (other.uid, other.resource_version)


def _creation_order(meta: ObjectMeta) -> tuple[str, int]:
    return meta.creation_timestamp or "", int(meta.resource_version or 0)
