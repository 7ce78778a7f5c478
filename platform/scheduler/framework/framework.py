"""The configured plugins by the methods of the extension points."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from ..plugins.extension_points import (
    DEFAULT_BIND_TIMEOUT,
    DomainOrderPlugin,
    FieldsPlugin,
    FilterPlugin,
    JobEnqueueablePlugin,
    JobReadyPlugin,
    JobValidPlugin,
    OrderPlugin,
    PreBindPlugin,
    QueueLimitPlugin,
    ReservePlugin,
    ScorePlugin,
    Scores,
    SessionPlugin,
    VictimPlugin,
    VictimTasksPlugin,
    has_method,
)
from ..plugins.handle import Handle, PublishEvent, ignore
from ..plugins.registry import PluginOption, Tiers
from ..state.devices.allocator import DEFAULT_TIMEOUT
from ..state.podinfo.declared_fields import union
from ..state.podinfo.default_spread import DefaultSpread
from ..state.resources import IntVector, Matrix
from .plugin_calls import PluginError

T = TypeVar("T")

ConfiguredPlugins = Iterable[tuple[PluginOption, object]]


class Framework:
    """The plugins that have each method, in the order of the configuration.

    A flag of a plugin that is false removes it from the methods that the flag guards.
    """

    def __init__(self, tiers: Tiers, publish: PublishEvent = ignore) -> None:
        """Create the plugins of *tiers*; *publish* wakes gangs, and is called from any thread."""
        by_tier = [
            [(option, option.create(Handle(option.name, publish))) for option in tier]
            for tier in tiers
        ]
        every = [pair for tier in by_tier for pair in tier]
        self.plugins = tuple(plugin for _, plugin in every)
        self.plugin_names = {id(plugin): option.name for option, plugin in every}
        declared: list[FieldsPlugin] = [p for p in self.plugins if hasattr(p, "pod_fields")]
        self.pod_fields = union(each.pod_fields for each in declared)
        """What the plugins read of pods."""
        self.session_open: list[SessionPlugin] = _having("on_session_open", every)
        self.session_close: list[SessionPlugin] = _having("on_session_close", every)
        self.allocation_listeners: list[SessionPlugin] = _having("allocated", every)
        self.queue_order: list[OrderPlugin] = _having("queue_order", every, "enableQueueOrder")
        self.victim_queue_order: list[OrderPlugin] = _having("victim_queue_order", every)
        self.job_order: list[OrderPlugin] = _having("job_order", every, "enableJobOrder")
        self.task_order: list[OrderPlugin] = _having("task_order", every, "enableTaskOrder")
        self.job_valid: list[JobValidPlugin] = _having("job_valid", every)
        self.retry_times: list[JobValidPlugin] = _having("retry_at", every)
        self.job_enqueueable: list[list[JobEnqueueablePlugin]] = [
            _having("job_enqueueable", tier, "enableJobEnqueued") for tier in by_tier
        ]
        self.job_ready: list[JobReadyPlugin] = _having("job_ready", every, "enableJobReady")
        self.job_pipelined: list[list[JobReadyPlugin]] = [
            _having("job_pipelined", tier, "enableJobPipelined") for tier in by_tier
        ]
        self.job_starving: list[list[JobReadyPlugin]] = [
            _having("job_starving", tier, "enableJobStarving") for tier in by_tier
        ]
        self.preemptable: list[list[VictimPlugin]] = [
            _having("preemptable", tier, "enablePreemptable") for tier in by_tier
        ]
        self.reclaimable: list[list[VictimPlugin]] = [
            _having("reclaimable", tier, "enableReclaimable") for tier in by_tier
        ]
        self.victim_tasks: list[VictimTasksPlugin] = _having("victim_tasks", every, "enabledVictim")
        self.allocatable: list[QueueLimitPlugin] = _having(
            "allocatable_count", every, "enabledAllocatable"
        )
        self.preemptive: list[QueueLimitPlugin] = _having(
            "preemptive_count", every, "enablePreemptive"
        )
        self.overused: list[QueueLimitPlugin] = _having("overused", every, "enabledOverused")
        self.filters: list[FilterPlugin] = _having("filter_node", every, "enablePredicate")
        self.node_limits: list[FilterPlugin] = _having("node_limit", every, "enablePredicate")
        self.pod_filters: list[FilterPlugin] = _having("pod_filters", every, "enablePredicate")
        self.scorers: list[ScorePlugin] = _having("score", every, "enableNodeOrder")
        self.static_scorers: list[ScorePlugin] = _having("static_score", every, "enableNodeOrder")
        self.normalized_scorers: list[ScorePlugin] = _having(
            "normalized_scores", every, "enableNodeOrder"
        )
        self.pod_scorers: list[ScorePlugin] = _having("pod_scores", every, "enableNodeOrder")
        self._domain_order: list[DomainOrderPlugin] = _having(
            "domain_scores", every, "enabledHyperNodeOrder"
        )
        self.reserve: list[ReservePlugin] = _having("reserve", every)
        self.pre_bind: list[PreBindPlugin] = _having("pre_bind", every)

    @property
    def label_tiers(self) -> Sequence[str]:
        """Labels of nodes that are tiers of the network where there are no HyperNodes."""
        return self._declared("label_tiers", ())

    @property
    def volume_bind_timeout(self) -> float:
        """Seconds within which volumes have to be bound once their pod has a node."""
        return self._declared("volume_bind_timeout", DEFAULT_BIND_TIMEOUT)

    @property
    def device_filter_timeout(self) -> float:
        """Seconds after which the search for the devices of a pod on one node ends."""
        return self._declared("device_filter_timeout", DEFAULT_TIMEOUT)

    @property
    def default_spread(self) -> DefaultSpread | None:
        """Topology spread constraints of pods that have none."""
        return self._declared("default_spread", None)

    @property
    def max_eviction_domains(self) -> int:
        """In how many domains of the network pods may be evicted for one gang, at most."""
        return self._declared("max_eviction_domains", 8)

    def _declared(self, name: str, default: T) -> T:
        """Return the attribute *name* of the first plugin that has it."""
        return next((getattr(each, name) for each in self.plugins if hasattr(each, name)), default)

    def score_domains(self, request: IntVector, allocatable: Matrix, used: Matrix) -> Scores:
        """Return the sum of the scores of domains for pods that request *request* together.

        Raises:
            PluginError: a plugin raised.
        """
        total: Scores = np.zeros(used.shape[1])
        for plugin in self._domain_order:
            try:
                total = total + plugin.domain_scores(request, allocatable, used)
            except Exception as error:
                raise PluginError(plugin, "domain_scores") from error
        return total

    def suits_members_without_pods(self) -> bool:
        """Return whether members may get nodes before they have pods: those have no fields that
        plugins declare, and are never bound."""
        return not (self.pod_fields or self.default_spread or self.reserve or self.pre_bind)


def _having(name: str, plugins: ConfiguredPlugins, flag: str = "") -> list[Any]:
    """Return the plugins with the method *name* whose *flag* is not false."""
    return [
        plugin
        for option, plugin in plugins
        if has_method(plugin, name) and flag not in option.disabled
    ]
