"""Profiles: other arguments of a plugin for the pods with one ``schedulerName``.

As in kube-scheduler, profiles share what concerns all pods: the order of queues and gangs, limits
and evictions. So only plugins that filter and score nodes have them.
"""

from collections.abc import Callable, Mapping
from typing import Any

from ..state.cache.cache import SchedulerCache
from ..state.podinfo.declared_fields import PodFields
from ..state.podinfo.equivalence import EquivalenceClass
from .extension_points import FilterPlugin, ScorePlugin, has_method

_BY_CLASS = tuple(
    name for point in (FilterPlugin, ScorePlugin) for name in vars(point) if name[0] != "_"
)
"""Methods whose first argument is an equivalence class."""


class ProfiledPlugin:
    """One plugin for each of some ``schedulerName``, and one for all other pods."""

    def __init__(self, default: Any, by_name: Mapping[str, Any]) -> None:
        """Ask the plugin of *by_name* about pods with this ``schedulerName``, else *default*."""
        self.pod_fields = PodFields(scheduler_name=True)
        self._default = default
        self._by_name = by_name
        for name in _BY_CLASS:
            if has_method(default, name):
                setattr(self, name, self._dispatching(name))
        if has_method(default, "on_session_open"):
            self.on_session_open = self._open_all

    def __getattr__(self, name: str) -> Any:
        """Return what concerns all pods."""
        return getattr(self._default, name)

    def _dispatching(self, method: str) -> Callable[..., Any]:
        def call(eq_class: EquivalenceClass, *arguments: Any) -> Any:
            name = self.pod_fields.of(eq_class).scheduler_name
            return getattr(self._by_name.get(name, self._default), method)(eq_class, *arguments)

        return call

    def _open_all(self, cache: SchedulerCache) -> None:
        for plugin in (self._default, *self._by_name.values()):
            plugin.on_session_open(cache)
