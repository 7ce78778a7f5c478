# mypy: disable-error-code="type-abstract"
"""The configured plugins by extension point."""

from collections.abc import Iterable
from typing import TypeVar

from ..plugins.extension_points import (
    AllocatablePlugin,
    AllocationListener,
    FieldsPlugin,
    FilterPlugin,
    JobEnqueueablePlugin,
    JobOrderPlugin,
    JobPipelinedPlugin,
    JobStarvingPlugin,
    JobValidPlugin,
    NodeLimitPlugin,
    NodeScorePlugin,
    NormalizedScorePlugin,
    OverusedPlugin,
    PodFilterPlugin,
    PodScorePlugin,
    PreBindPlugin,
    PreemptablePlugin,
    PreemptivePlugin,
    QueueOrderPlugin,
    ReclaimablePlugin,
    ReservePlugin,
    RetryTimePlugin,
    ScorePlugin,
    SessionOpenPlugin,
    StaticScorePlugin,
    TaskOrderPlugin,
    VictimQueueOrderPlugin,
)
from ..plugins.handle import Handle, PublishEvent, ignore
from ..plugins.registry import PluginOption, Tiers
from ..state.declared_fields import union

P = TypeVar("P")

ConfiguredPlugins = Iterable[tuple[PluginOption, object]]


class Framework:
    """The plugins of each extension point, in the order of the configuration.

    A flag of a plugin that is false removes it from the extension points that the flag guards.
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
        self.pod_fields = union(each.pod_fields for each in _having(FieldsPlugin, every))
        """What the plugins read of pods."""
        self.reserve = _having(ReservePlugin, every)
        self.pre_bind = _having(PreBindPlugin, every)
        self.session_open = _having(SessionOpenPlugin, every)
        self.allocation_listeners = _having(AllocationListener, every)
        self.queue_order = _having(QueueOrderPlugin, every, "enableQueueOrder")
        self.job_order = _having(JobOrderPlugin, every, "enableJobOrder")
        self.task_order = _having(TaskOrderPlugin, every, "enableTaskOrder")
        self.job_valid = _having(JobValidPlugin, every)
        self.job_enqueueable = [
            _having(JobEnqueueablePlugin, tier, "enableJobEnqueued") for tier in by_tier
        ]
        self.job_pipelined = [
            _having(JobPipelinedPlugin, tier, "enableJobPipelined") for tier in by_tier
        ]
        self.job_starving = [
            _having(JobStarvingPlugin, tier, "enableJobStarving") for tier in by_tier
        ]
        self.preemptable = [
            _having(PreemptablePlugin, tier, "enablePreemptable") for tier in by_tier
        ]
        self.reclaimable = [
            _having(ReclaimablePlugin, tier, "enableReclaimable") for tier in by_tier
        ]
        self.preemptive = _having(PreemptivePlugin, every, "enablePreemptive")
        self.victim_queue_order = _having(VictimQueueOrderPlugin, every)
        self.allocatable = _having(AllocatablePlugin, every, "enabledAllocatable")
        self.overused = _having(OverusedPlugin, every, "enabledOverused")
        self.filters = _having(FilterPlugin, every, "enablePredicate")
        self.node_limits = _having(NodeLimitPlugin, every, "enablePredicate")
        self.node_scorers = _having(NodeScorePlugin, every, "enableNodeOrder")
        self.normalized_scorers = _having(NormalizedScorePlugin, every, "enableNodeOrder")
        self.pod_filters = _having(PodFilterPlugin, every, "enablePredicate")
        self.pod_scorers = _having(PodScorePlugin, every, "enableNodeOrder")
        self.retry_times = _having(RetryTimePlugin, every)
        self.scorers = _having(ScorePlugin, every, "enableNodeOrder")
        self.static_scorers = _having(StaticScorePlugin, every, "enableNodeOrder")

    def suits_members_without_pods(self) -> bool:
        """Return whether members may get nodes before they have pods: those have no fields that
        plugins declare, and are never bound."""
        return not (self.pod_fields or self.reserve or self.pre_bind)


def _having(kind: type[P], plugins: ConfiguredPlugins, flag: str = "") -> list[P]:
    """Return the plugins with the methods of *kind* whose *flag* is not false."""
    return [
        plugin
        for option, plugin in plugins
        if isinstance(plugin, kind) and flag not in option.disabled
    ]
