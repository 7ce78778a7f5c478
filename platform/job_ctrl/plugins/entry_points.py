"""Plugins of other packages: the entry points of the group ``batholith.job_plugins``.

Admission only needs their names, which are read without running any of their code.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

from .base import Factory
from .errors import PluginError, plugin_errors

log = logging.getLogger(__name__)

GROUP = "batholith.job_plugins"


def names() -> frozenset[str]:
    """Return the names of the installed plugins."""
    return frozenset(entry.name for entry in entry_points(group=GROUP))


def load() -> dict[str, Factory]:
    """Return the factories; that of a plugin that cannot be loaded raises its error."""
    found: dict[str, Factory] = {}
    for entry in entry_points(group=GROUP):
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "no package"
        try:
            found[entry.name] = _load_factory(entry, package)
        except PluginError as error:
            log.exception("cannot load job plugin", extra={"plugin": entry.name})
            found[entry.name] = _FailedPlugin(error)
        else:
            log.info("loaded job plugin", extra={"plugin": entry.name, "package": package})
    return found


def _load_factory(entry: EntryPoint, package: str) -> Factory:
    with plugin_errors(entry.name, f"{entry.value} of {package}"):
        factory: Factory = entry.load()
        if not callable(factory):
            raise TypeError("it is neither a class nor a function that returns a plugin")
        return factory


@dataclass(frozen=True, slots=True)
class _FailedPlugin:
    """Placeholder factory of a plugin that cannot be loaded."""

    error: PluginError

    def __call__(self, arguments: Sequence[str], /) -> object:
        """Report why the plugin cannot be loaded.

        Raises:
            PluginError: always.
        """
        raise PluginError(self.error.plugin, self.error.problem) from self.error
