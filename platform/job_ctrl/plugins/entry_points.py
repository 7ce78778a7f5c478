"""Plugins of other packages: the entry points of the group ``batholith.job_plugins``.

Their names can be asked for without running any of their code, which is all that admission needs.
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
    """The names of all that are installed."""
    return frozenset(entry.name for entry in entry_points(group=GROUP))


def load() -> dict[str, Factory]:
    """Their factories; of one that cannot be loaded, a factory that says so to each of its jobs."""
    found: dict[str, Factory] = {}
    for entry in entry_points(group=GROUP):
        package = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "no package"
        try:
            found[entry.name] = _load_factory(entry, package)
        except PluginError as error:
            log.exception("a job plugin cannot be loaded", extra={"plugin": entry.name})
            found[entry.name] = _FailedPlugin(error)
        else:
            log.info("job plugin", extra={"plugin": entry.name, "package": package})
    return found


def _load_factory(entry: EntryPoint, package: str) -> Factory:
    with plugin_errors(entry.name, f"{entry.value} of {package}"):
        factory: Factory = entry.load()
        if not callable(factory):
            raise TypeError("it is no class, and no function that makes a plugin")
        return factory


@dataclass(frozen=True, slots=True)
class _FailedPlugin:
    """Stands in for a plugin that cannot be loaded."""

    error: PluginError

    def __call__(self, arguments: Sequence[str], /) -> object:
        """Say why there is no plugin.

        Raises:
            PluginError: always.
        """
        raise PluginError(self.error.plugin, self.error.problem) from self.error
