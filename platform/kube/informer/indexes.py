"""Indexes of an informer's store: objects by values that a function computes from them."""

import logging
from collections.abc import Callable, Collection, Iterable
from typing import Generic, TypeVar

from ...model.meta import HasMeta

log = logging.getLogger(__name__)

T = TypeVar("T", bound=HasMeta)


class Index(Generic[T]):
    """Maintains groups of objects on add, update and delete."""

    def __init__(self, name: str, index_func: Callable[[T], Iterable[str]]) -> None:
        self._name = name
        self.index_func = index_func
        self._groups: dict[str, dict[str, T]] = {}

    def get(self, value: str) -> Collection[T]:
        """Return the objects of a group; a live view, not to be kept over an ``await``."""
        group = self._groups.get(value)
        return () if group is None else group.values()

    def update(self, key: str, old: T | None, new: T | None) -> None:
        """Move the object *key* from the groups of *old* to those of *new*."""
        before = () if old is None else self.values(old)
        after = () if new is None else self.values(new)
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
        """Return the keys of each group."""
        return {value: set(group) for value, group in self._groups.items()}

    def values(self, obj: T) -> tuple[str, ...]:
        """Return the distinct values of an object; none if the function raises, which is logged."""
        try:
            return tuple(dict.fromkeys(self.index_func(obj)))
        except Exception:
            log.exception(
                "index function failed",
                extra={"index": self._name, "key": obj.metadata.key},
            )
            return ()
