"""The placements for which plugins have reserved something, until their pods are bound.

Entries are added during a cycle; all else happens between cycles, in the event loop.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from ..plugins.extension_points import ReservePlugin
from ..plugins.placement import Placement
from ..state.gangs.gang import Task, TaskStatus
from .framework import Framework
from .plugin_calls import PluginCalls, PluginError, PluginFailure


@dataclass(slots=True)
class _Reserved:
    placement: Placement
    framework: Framework
    """The plugins that have reserved. A reload of the configuration replaces it for later ones."""
    is_in_binder: bool = True
    """Whether it may still be bound."""


class ReservedPlacements:
    """Calls ``reserve`` and ``unreserve`` of plugins."""

    def __init__(self) -> None:
        """Start without placements."""
        self._by_uid: dict[str, _Reserved] = {}

    def reserve(
        self, framework: Framework, calls: PluginCalls, placements: Sequence[Placement]
    ) -> None:
        """Let the plugins of *framework* reserve what *placements*, of one gang, need.

        Raises:
            PluginError: one raised; nothing is reserved.
        """
        if not placements or not (framework.reserve or framework.pre_bind):
            return
        for position, plugin in enumerate(framework.reserve, start=1):
            try:
                calls.call(plugin, "reserve", partial(plugin.reserve, placements))
            except PluginError:
                _unreserve(framework.reserve[:position], calls, placements)
                raise
        for each in placements:
            self._by_uid[each.uid] = _Reserved(each, framework)

    def release_lost(self, task_of: Callable[[str], Task | None]) -> tuple[PluginFailure, ...]:
        """Let plugins release what is reserved for pods that do not get their node; returns what
        failed.

        *task_of* returns the task of the pod with a uid.
        """
        lost: dict[tuple[int, str], list[_Reserved]] = {}
        for uid, each in list(self._by_uid.items()):
            task, placement = task_of(uid), each.placement
            if each.is_in_binder:
                continue
            if task is None or task.node != placement.node:
                lost.setdefault((id(each.framework), placement.group_key), []).append(each)
            elif task.status is TaskStatus.BINDING:
                continue
            del self._by_uid[uid]
        failures: list[PluginFailure] = []
        for group in lost.values():
            framework = group[0].framework
            calls = PluginCalls(framework.plugin_names)
            _unreserve(framework.reserve, calls, [each.placement for each in group])
            failures += calls.failures()
        return tuple(failures)

    def needs_pre_bind(self, placement: Placement) -> bool:
        """Return whether a plugin is to be called before *placement* is bound."""
        known = self._by_uid.get(placement.uid)
        return known is not None and bool(known.framework.pre_bind)

    def framework_of(self, placement: Placement) -> Framework:
        """Return the plugins of the cycle that has decided on *placement*."""
        return self._by_uid[placement.uid].framework

    def finish(self, uid: str, *, bound: bool) -> None:
        """Note that the binder has bound the pod with *uid*, or does not try it again."""
        if bound:
            self._by_uid.pop(uid, None)
        elif uid in self._by_uid:
            self._by_uid[uid].is_in_binder = False


def _unreserve(
    plugins: Sequence[ReservePlugin], calls: PluginCalls, placements: Sequence[Placement]
) -> None:
    """Call *plugins* in reverse order; one that raises is recorded only."""
    for plugin in reversed(plugins):
        try:
            calls.call(plugin, "unreserve", partial(plugin.unreserve, placements))
        except PluginError as error:
            calls.record(error)
