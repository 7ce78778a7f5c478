"""Errors of plugins; each message names the plugin, for an event on the job."""

from asyncio import CancelledError
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class PluginError(Exception):
    """A plugin that a job names has failed."""

    def __init__(self, plugin: str, problem: str) -> None:
        super().__init__(f"job plugin {plugin!r} {problem}")
        self.plugin = plugin
        self.problem = problem


class UnknownPluginError(PluginError):
    """No plugin of that name is installed."""

    def __init__(self, plugin: str, known: Iterable[str]) -> None:
        super().__init__(plugin, f"is not installed; known are {', '.join(sorted(known))}")


@contextmanager
def plugin_errors(plugin: str, operation: str) -> Iterator[None]:
    """Convert any exception in the block, even SystemExit, to a PluginError that names *plugin*.

    The block does not await, so that a CancelledError is raised by the plugin itself.

    Raises:
        PluginError: the block raised an exception.
    """
    try:
        yield
    except PluginError:
        raise
    except (Exception, SystemExit, CancelledError) as error:
        problem = f"failed in {operation}: {type(error).__name__}: {error}"
        raise PluginError(plugin, problem) from error
