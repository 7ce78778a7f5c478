"""The objects that a watch has reported, across relists. Pure.

A new connection without a position lists the objects first. The difference from what was reported
before is reported, so that no change is missed: also objects that were deleted in between.
"""

from collections.abc import Iterator
from enum import StrEnum
from typing import Generic, Protocol, TypeVar

from ..wire.base import Record


class ChangeType(StrEnum):
    """What happened to an object."""

    ADDED = "added"
    MODIFIED = "modified"
    DELETED = "deleted"


class Watched(Protocol):
    """An object of a watch."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def uid(self) -> str:
        """Its uid."""
        ...


ObjectT = TypeVar("ObjectT", bound=Watched)


class Change(Record, Generic[ObjectT], frozen=True):
    """A change of an object; of a deleted one, *object* is the last state."""

    type: ChangeType
    object: ObjectT


class WatchState(Generic[ObjectT]):
    """The reported objects by key."""

    def __init__(self) -> None:
        self._known: dict[str, ObjectT] = {}
        self._listed: dict[str, ObjectT] | None = None

    @property
    def is_listing(self) -> bool:
        """Whether a list has begun and is not complete."""
        return self._listed is not None

    def seed(self, known: ObjectT) -> None:
        """Add an object that was reported otherwise."""
        self._known[_key(known)] = known

    def begin_list(self) -> None:
        """Begin a new list; an incomplete one is discarded."""
        self._listed = {}

    def end_list(self) -> Iterator[Change[ObjectT]]:
        """Yield the changes between the reported objects and the list, which is complete."""
        if self._listed is None:
            return
        listed, self._listed = self._listed, None
        for key in [key for key in self._known if key not in listed]:
            yield Change(type=ChangeType.DELETED, object=self._known.pop(key))
        for found in listed.values():
            yield from self._store(found)

    def store(self, found: ObjectT) -> Iterator[Change[ObjectT]]:
        """Yield the change to the current state of an object; none if it is known."""
        if self._listed is not None:
            self._listed[_key(found)] = found
        else:
            yield from self._store(found)

    def delete(self, found: ObjectT) -> Iterator[Change[ObjectT]]:
        """Yield the deletion of an object, unless it is unknown or was created again."""
        objects = self._known if self._listed is None else self._listed
        known = objects.get(_key(found))
        if known is None or known.uid != found.uid:
            return
        del objects[_key(found)]
        if self._listed is None:
            yield Change(type=ChangeType.DELETED, object=found)

    def _store(self, found: ObjectT) -> Iterator[Change[ObjectT]]:
        key = _key(found)
        known = self._known.get(key)
        self._known[key] = found
        if known is None:
            yield Change(type=ChangeType.ADDED, object=found)
        elif known.uid != found.uid:
            yield Change(type=ChangeType.DELETED, object=known)
            yield Change(type=ChangeType.ADDED, object=found)
        elif known != found:
            yield Change(type=ChangeType.MODIFIED, object=found)


def _key(found: Watched) -> str:
    return f"{getattr(found, 'namespace', '')}/{found.name}"
