"""Failures of plugins: one that raises affects what it was asked about, never the process.

A filter, a limit or a vote that raises has not agreed, so the gang is unschedulable and its
condition names the plugin. An order or a score that raises is skipped. A plugin that raises at the
start of a session counts as raising wherever it is called in that session.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from ..plugins.extension_points import Rejection
from ..state.gangs.diagnosis import Stage

log = logging.getLogger(__name__)

T = TypeVar("T")
P = TypeVar("P")

PLUGIN_ERROR = "PluginError"
"""Reason of a rejection because a plugin raised."""


class PluginError(Exception):
    """A plugin raised; the cause is the exception."""

    def __init__(self, plugin: object, extension_point: str) -> None:
        super().__init__(extension_point)
        self.plugin = plugin
        self.extension_point = extension_point


@dataclass(frozen=True, slots=True)
class PluginFailure:
    """How often a plugin raised at one extension point in a cycle."""

    plugin: str
    extension_point: str
    count: int


class PluginCalls:
    """Calls plugins in one session, and counts their failures."""

    def __init__(self, plugin_names: Mapping[int, str]) -> None:
        """Start without failures; *plugin_names* are by the id of the plugin."""
        self._names = plugin_names
        self._counts: Counter[tuple[str, str]] = Counter()
        self._failed_opens: dict[int, Exception] = {}

    def failures(self) -> tuple[PluginFailure, ...]:
        """Return the failures so far."""
        return tuple(PluginFailure(*key, count) for key, count in self._counts.items())

    @property
    def has_failed(self) -> bool:
        """Whether a plugin raised at the start of the session."""
        return bool(self._failed_opens)

    def open(self, plugin: object, function: Callable[[], object]) -> None:
        """Call *function* at the start of the session."""
        try:
            function()
        except Exception as error:
            self._failed_opens[id(plugin)] = error
            failure = PluginError(plugin, "on_session_open")
            failure.__cause__ = error
            self.record(failure)

    def call(self, plugin: object, extension_point: str, function: Callable[[], T]) -> T:
        """Return what *function* returns, which calls *plugin*.

        Raises:
            PluginError: it raised, or *plugin* did at the start of the session.
        """
        self.require_open((plugin,))
        try:
            return function()
        except Exception as error:
            raise PluginError(plugin, extension_point) from error

    def order(self, plugin: object, extension_point: str, function: Callable[[], float]) -> float:
        """Return the sort key that *function* returns, or 0 if it raises."""
        try:
            return self.call(plugin, extension_point, lambda: order_number(function()))
        except PluginError as error:
            self.record(error)
            return 0.0

    def order_key(
        self,
        plugin: object,
        extension_point: str,
        function: Callable[[], float | tuple[float, ...]],
    ) -> tuple[float, ...]:
        """Return the sort key that *function* returns, or 0 if it raises."""
        try:
            return self.call(plugin, extension_point, lambda: order_key(function()))
        except PluginError as error:
            self.record(error)
            return (0.0,)

    def require_open(self, plugins: Iterable[object]) -> None:
        """Check that none of *plugins* raised at the start of the session.

        Raises:
            PluginError: one did.
        """
        if not self._failed_opens:
            return
        for plugin in plugins:
            error = self._failed_opens.get(id(plugin))
            if error is not None:
                raise PluginError(plugin, "on_session_open") from error

    def opened(self, plugins: list[P]) -> list[P]:
        """Return those of *plugins* that did not raise at the start of the session."""
        if not self._failed_opens:
            return plugins
        return [each for each in plugins if id(each) not in self._failed_opens]

    def record(self, error: PluginError) -> Rejection:
        """Count and log *error*; returns the rejection of what the plugin was asked about."""
        name = self._names.get(id(error.plugin), type(error.plugin).__name__)
        key = (name, error.extension_point)
        if key not in self._counts:
            # Once for each cycle: a plugin that fails may do so for thousands of gangs.
            extra = {"plugin": name, "extension_point": error.extension_point}
            log.error("plugin failed", extra=extra, exc_info=error.__cause__)
        self._counts[key] += 1
        cause = error.__cause__
        detail = f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
        message = f'plugin "{name}" failed in {error.extension_point}: {detail}'
        return Rejection(PLUGIN_ERROR, message, Stage.SCHEDULER)


def order_number(value: float) -> float:
    """Return *value*, the result of a plugin, as a number that can be compared.

    Raises:
        ValueError: it is NaN: lists with it could not be sorted.
    """
    number = float(value)
    if math.isnan(number):
        raise ValueError("the order is not a number")
    return number


def order_key(value: float | tuple[float, ...]) -> tuple[float, ...]:
    """Return *value*, the result of a plugin, as numbers that are compared in order.

    Raises:
        ValueError: one is NaN.
    """
    return tuple(map(order_number, value)) if isinstance(value, tuple) else (order_number(value),)
