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

SLICE = 200
"""Objects handled before other tasks get a turn: a few milliseconds."""


class Held(Protocol[T]):
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

    def forget(self, key: str) -> None:
        """The object is gone; its last state is not known."""
        ...


class Filling(Generic[T]):
    """One filling. Of the list no more is kept than its keys and what differs from *held*."""

    def __init__(self, held: Held[T]) -> None:
        self.complete = False
        """The list is told in full."""
        self._held = held
        self._keys: set[str] = set()
        self._news: dict[str, T] = {}
        self._changed: dict[str, int] = {}
        self._version = 0

    def restart(self) -> None:
        """The list broke off and begins again; the changes went on."""
        self._keys.clear()
        self._news.clear()

    def listed(self, obj: T) -> None:
        """The list has *obj*."""
        key = obj.metadata.key
        self._keys.add(key)
        held = self._held.objects.get(key)
        if held is None or _differ(held.metadata, obj.metadata):
            self._news[key] = obj
        else:
            self._news.pop(key, None)

    def unlisted(self, key: str) -> None:
        """The list takes back what it told of *key*."""
        self._keys.discard(key)
        self._news.pop(key, None)

    def listed_unreadable(self, meta: ObjectMeta) -> None:
        """The list has an object that cannot be read; its former state, if any, stays."""
        self.unlisted(meta.key)
        held = self._held.objects.get(meta.key)
        if held is not None and held.metadata.uid == meta.uid:
            self._keys.add(meta.key)

    def goes_beyond(self, version: str) -> bool:
        """Whether *version* is later than that of the list, if that is known."""
        return int(version or 0) > self._version

    def takes(self, meta: ObjectMeta) -> bool:
        """Whether a change is to be told, which the caller then does: the list didn't tell it."""
        if not self.goes_beyond(meta.resource_version):
            return False
        if not self.complete:
            self._changed[meta.key] = int(meta.resource_version or 0)
        return True

    async def finish(self, version: str) -> None:
        """The list was complete, and of *version*: tell what it brought, in slices.

        First what went, then what is other than it was, then what is new, in the order in which it
        was made; the first list of all comes as it is.
        """
        self._version = int(version or 0)
        for number, key in enumerate(self._gone(), 1):
            if self._changed.get(key, 0) <= self._version:
                self._held.forget(key)
            if number % SLICE == 0:
                await asyncio.sleep(0)
        for number, obj in enumerate(self._in_order(), 1):
            meta = obj.metadata
            changed = self._changed.get(meta.key)
            if changed is None or changed < int(meta.resource_version or 0):
                self._held.put(obj)
            if number % SLICE == 0:
                await asyncio.sleep(0)
        self.complete = True
        self._keys, self._news, self._changed = set(), {}, {}

    def _gone(self) -> Iterable[str]:
        return [key for key in self._held.objects if key not in self._keys]

    def _in_order(self) -> Iterable[T]:
        news, held = self._news, self._held
        if not held.is_synced:
            return news.values()
        known = [obj for key, obj in news.items() if key in held.objects]
        new = [obj for key, obj in news.items() if key not in held.objects]
        return [*known, *sorted(new, key=lambda obj: _age(obj.metadata))]


def _differ(one: ObjectMeta, other: ObjectMeta) -> bool:
    return (one.uid, one.resource_version) != (other.uid, other.resource_version)


def _age(meta: ObjectMeta) -> tuple[str, int]:
    return meta.creation_timestamp or "", int(meta.resource_version or 0)
