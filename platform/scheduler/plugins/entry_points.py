"""Plugins and actions of other packages: entry points ``batholith.scheduler_plugins`` and
``batholith.scheduler_actions``.

Only the code of those that the configuration names is run.
"""

import sys
from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

PLUGINS_GROUP = "batholith.scheduler_plugins"
ACTIONS_GROUP = "batholith.scheduler_actions"

Factory = Callable[[Mapping[str, object]], Any]


class EntryPointError(ValueError):
    """An entry point cannot be used; the message has its name, its package and the reason."""


class EntryPoints:
    """The entry points of one group, by name."""

    def __init__(self, group: str, built_in: Collection[str]) -> None:
        """Read the names of *group*.

        Raises:
            EntryPointError: a name is that of a *built_in*, or two packages have it.
        """
        self._by_name: dict[str, EntryPoint] = {}
        for entry in _installed(group, tuple(sys.path)):
            if entry.name in built_in:
                raise EntryPointError(f"{describe(entry)}: the name is that of a built-in one")
            known = self._by_name.setdefault(entry.name, entry)
            if known != entry:
                raise EntryPointError(f"{describe(entry)}: {describe(known)} has the same name")

    @property
    def names(self) -> list[str]:
        """The names, sorted."""
        return sorted(self._by_name)

    def load(self, name: str) -> Factory | None:
        """Return the factory *name*, or ``None`` if there is none.

        Raises:
            EntryPointError: its code cannot be loaded.
        """
        entry = self._by_name.get(name)
        if entry is None:
            return None
        try:
            factory: Factory = entry.load()
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            raise EntryPointError(f"{describe(entry)}: cannot be loaded: {problem}") from error
        if not callable(factory):
            raise EntryPointError(f"{describe(entry)}: is neither a class nor a function")
        return factory


@lru_cache(maxsize=4)
def _installed(group: str, path: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """Return the entry points of *group* in the packages on *path*, which are read once: that takes
    some 20 ms."""
    return tuple(entry_points(group=group))


def describe(entry: EntryPoint) -> str:
    """Return the name of *entry* with its package."""
    package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "no package"
    return f"entry point {entry.name!r} ({entry.value}) of {package}"
