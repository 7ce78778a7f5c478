"""What can go wrong with a plugin; each text names it, and is for an event on the job."""

from asyncio import CancelledError
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class PluginError(Exception):
    """A plugin that a job names cannot do its part."""

    def __init__(self, plugin: str, problem: str) -> None:
        super().__init__(f"job plugin {plugin!r} {problem}")
        self.plugin = plugin
        self.problem = problem


class UnknownPluginError(PluginError):
    """There is no plugin of that name."""

    def __init__(self, plugin: str, known: Iterable[str]) -> None:
        super().__init__(plugin, f"is not installed; known are {', '.join(sorted(known))}")


@contextmanager
def plugin_errors(plugin: str, operation: str) -> Iterator[None]:
    """Name *plugin* in whatever its code raises in the block, even if it asks the process to exit.

    The block awaits nothing, so that a CancelledError is the plugin's own.

    Raises:
        PluginError: it raised.
    """
    try:
        yield
    except PluginError:
        raise
    except (Exception, SystemExit, CancelledError) as error:
        problem = f"failed in {operation}: {type(error).__name__}: {error}"
        raise PluginError(plugin, problem) from error
