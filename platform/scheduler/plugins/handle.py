"""What a plugin gets at its construction, to report changes outside the cluster."""

from collections.abc import Callable
from inspect import Parameter, signature

from ..state.queue.scheduling_queue import ANY, ClusterEvent, plugin_event

PublishEvent = Callable[[ClusterEvent], object]
"""Wakes the gangs that wait for an event; may be called from any thread."""


def ignore(event: ClusterEvent) -> None:
    """ClusterEvent no gangs."""


class Handle:
    """Wakes gangs that a plugin has rejected. Its methods may be called from any thread.

    That of a plugin which is created for validation alone has no effect; nor has one before the
    scheduler runs, since all gangs are tried then.
    """

    def __init__(self, plugin: str, publish: PublishEvent = ignore) -> None:
        """Create the handle of the plugin with that name."""
        self._plugin = plugin
        self._publish = publish

    def event(self, name: str = "") -> ClusterEvent:
        """Return an event of this plugin, for :attr:`.Rejection.wake_on`."""
        return plugin_event(f"{self._plugin}/{name}")

    def wake(self, event: ClusterEvent = ANY) -> None:
        """Try the gangs again that wait for *event*, by default all that were rejected."""
        self._publish(event)


def takes_handle(factory: Callable[..., object]) -> bool:
    """Return whether *factory*, a plugin or a function that creates it, has a parameter
    ``handle``."""
    try:
        parameter = signature(factory).parameters.get("handle")
    except (TypeError, ValueError):  # some callables have no signature
        return False
    return parameter is not None and parameter.kind in (
        Parameter.KEYWORD_ONLY,
        Parameter.POSITIONAL_OR_KEYWORD,
    )
