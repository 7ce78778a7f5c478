"""Indexes of a cache: groups of objects by values that a function finds in them."""

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Generic, TypeVar

from ..model.meta import HasMeta

log = logging.getLogger(__name__)

T = TypeVar("T", bound=HasMeta)


def by_namespace(obj: HasMeta) -> Iterable[str]:
    """Group by namespace."""
    return (obj.metadata.namespace,)


def by_owner(obj: HasMeta) -> Iterable[str]:
    """Group by the uids of all owners."""
    return tuple(owner.uid for owner in obj.metadata.owner_references)


def by_label(name: str) -> Callable[[HasMeta], Iterable[str]]:
    """Make a function that groups by the value of a label, leaving out objects without it."""

    def values(obj: HasMeta) -> Iterable[str]:
        value = obj.metadata.labels.get(name)
        return () if value is None else (value,)

    return values


class Index(Generic[T]):
    """Keeps groups current as single objects come, change and go."""

    def __init__(self, name: str, values: Callable[[T], Iterable[str]]) -> None:
        self._name = name
        self.function = values
        self._groups: dict[str, dict[str, T]] = {}

    def get(self, value: str) -> Collection[T]:
        """The objects of a group; a live view, not to be held over an ``await``."""
        group = self._groups.get(value)
        return () if group is None else group.values()

    def change(self, key: str, old: T | None, new: T | None) -> None:
        """Move the object *key* from the groups of *old* to those of *new*."""
        before = () if old is None else self._values(old)
        after = () if new is None else self._values(new)
        for value in before:
            if value not in after:
                group = self._groups[value]
                del group[key]
                if not group:
                    del self._groups[value]
        if new is not None:
            for value in after:
                self._groups.setdefault(value, {})[key] = new

    def groups(self) -> dict[str, set[str]]:
        """The keys of each group."""
        return {value: set(group) for value, group in self._groups.items()}

    def _values(self, obj: T) -> tuple[str, ...]:
        """The object's values, each once; none if the function fails, which is logged."""
        try:
            return tuple(dict.fromkeys(self.function(obj)))
        except Exception:
            log.exception(
                "an index function failed",
                extra={"index": self._name, "key": obj.metadata.key},
            )
            return ()
