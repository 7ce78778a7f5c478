"""Filling a cache: what a list tells, brought together with the changes since.

A list shows all objects as they were at one version, known once it is complete. While it comes,
changes may go on, each of a later version than the one that they are followed from; the list is of
no earlier version than that. So of what both tell about an object the later is true, and what the
list lacks is gone unless it changed after the list's version.

Versions are compared between list and changes alone, which come from one history. What was held
before may be of another (a server put back from a backup counts its versions anew): there only
"the same or not" counts.
"""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Generic, Protocol, TypeVar

from ...model.meta import HasMeta, ObjectMeta

T = TypeVar("T", bound=HasMeta)

YIELD_EVERY = 200
"""Objects handled before other tasks get a turn: a few milliseconds."""


class RelistTarget(Protocol[T]):
    """What is being filled; the cache."""

    @property
    def objects(self) -> Mapping[str, T]:
        """What is held, by key."""
        ...

    @property
    def is_synced(self) -> bool:
        """It was filled before."""
        ...

    def put(self, obj: T) -> None:
        """Hold *obj* in place of its former state; a namesake with another uid goes first."""
        ...

    def delete(self, key: str) -> None:
        """The object is gone; its last state is not known."""
        ...


class Relist(Generic[T]):
    """One filling. Of the list no more is kept than its keys and what differs from *held*."""

    def __init__(self, target: RelistTarget[T]) -> None:
        self.is_complete = False
        """The list is told in full."""
        self._target = target
        self._listed_keys: set[str] = set()
        self._listed_changes: dict[str, T] = {}
        self._changed_versions: dict[str, int] = {}
        self._list_version = 0

    def restart(self) -> None:
        """The list broke off and begins again; the changes went on."""
        self._listed_keys.clear()
        self._listed_changes.clear()

    def add_listed(self, obj: T) -> None:
        """The list has *obj*."""
        key = obj.metadata.key
        self._listed_keys.add(key)
        held = self._target.objects.get(key)
        if held is None or _is_changed(held.metadata, obj.metadata):
            self._listed_changes[key] = obj
        else:
            self._listed_changes.pop(key, None)

    def drop_listed(self, key: str) -> None:
        """The list takes back what it told of *key*."""
        self._listed_keys.discard(key)
        self._listed_changes.pop(key, None)

    def add_undecodable(self, meta: ObjectMeta) -> None:
        """The list has an object that cannot be read; its former state, if any, stays."""
        self.drop_listed(meta.key)
        held = self._target.objects.get(meta.key)
        if held is not None and held.metadata.uid == meta.uid:
            self._listed_keys.add(meta.key)

    def is_newer_than_list(self, version: str) -> bool:
        """Whether *version* is later than that of the list, if that is known."""
        return int(version or 0) > self._list_version

    def should_apply(self, meta: ObjectMeta) -> bool:
        """Whether a change is to be told, which the caller then does: the list didn't tell it."""
        if not self.is_newer_than_list(meta.resource_version):
            return False
        if not self.is_complete:
            self._changed_versions[meta.key] = int(meta.resource_version or 0)
        return True

    async def apply_list(self, version: str) -> None:
        """The list was complete, and of *version*: tell what it brought, in slices.

        First what went, then what is other than it was, then what is new, in the order in which it
        was made; the first list of all comes as it is.
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
        news, held = self._listed_changes, self._target
        if not held.is_synced:
            return news.values()
        known = [obj for key, obj in news.items() if key in held.objects]
        new = [obj for key, obj in news.items() if key not in held.objects]
        return [*known, *sorted(new, key=lambda obj: _creation_order(obj.metadata))]


def _is_changed(one: ObjectMeta, other: ObjectMeta) -> bool:
    return (one.uid, one.resource_version) != (other.uid, other.resource_version)


def _creation_order(meta: ObjectMeta) -> tuple[str, int]:
    return meta.creation_timestamp or "", int(meta.resource_version or 0)
