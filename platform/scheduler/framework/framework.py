"""The configured plugins by extension point."""

from collections.abc import Iterable

from ..plugins.extension_points import (
    AllocatablePlugin,
    AllocationListener,
    FilterPlugin,
    JobEnqueueablePlugin,
    JobOrderPlugin,
    JobValidPlugin,
    NodeLimitPlugin,
    PodFilterPlugin,
    PodScorePlugin,
    QueueOrderPlugin,
    ScorePlugin,
    SessionOpenPlugin,
    StaticScorePlugin,
    TaskOrderPlugin,
)
from ..plugins.registry import PluginOption, Tiers

ConfiguredPlugins = Iterable[tuple[PluginOption, object]]


class Framework:
    """The plugins of each extension point, in the order of the configuration."""

    def __init__(self, tiers: Tiers) -> None:
        """Create the plugins of *tiers*."""
        plugins_by_tier = [[(each, each.factory(each.arguments)) for each in t] for t in tiers]
        every = [pair for tier in plugins_by_tier for pair in tier]
        self.plugin_names = {id(each): option.name for option, each in every}
        ordering = _enabled(every, "enableNodeOrder")
        self.session_open = [each for _, each in every if isinstance(each, SessionOpenPlugin)]
        self.allocation_listeners = [
            each for _, each in every if isinstance(each, AllocationListener)
        ]
        self.queue_order = [
            each
            for each in _enabled(every, "enableQueueOrder")
            if isinstance(each, QueueOrderPlugin)
        ]
        self.job_order = [
            each for each in _enabled(every, "enableJobOrder") if isinstance(each, JobOrderPlugin)
        ]
        self.task_order = [
            each for each in _enabled(every, "enableTaskOrder") if isinstance(each, TaskOrderPlugin)
        ]
        self.job_valid = [each for _, each in every if isinstance(each, JobValidPlugin)]
        self.job_enqueueable = [
            [
                each
                for each in _enabled(tier, "enableJobEnqueued")
                if isinstance(each, JobEnqueueablePlugin)
            ]
            for tier in plugins_by_tier
        ]
        self.allocatable = [
            each
            for each in _enabled(every, "enabledAllocatable")
            if isinstance(each, AllocatablePlugin)
        ]
        self.overused = [
            each
            for each in _enabled(every, "enabledOverused")
            if isinstance(each, AllocatablePlugin)
        ]
        self.filters = [
            each for each in _enabled(every, "enablePredicate") if isinstance(each, FilterPlugin)
        ]
        self.node_limits = [
            each for each in _enabled(every, "enablePredicate") if isinstance(each, NodeLimitPlugin)
        ]
        self.pod_filters = [
            each for each in _enabled(every, "enablePredicate") if isinstance(each, PodFilterPlugin)
        ]
        self.pod_scorers = [each for each in ordering if isinstance(each, PodScorePlugin)]
        self.scorers = [each for each in ordering if isinstance(each, ScorePlugin)]
        self.static_scorers = [each for each in ordering if isinstance(each, StaticScorePlugin)]


def _enabled(plugins: ConfiguredPlugins, key: str) -> list[object]:
    """Return the plugins in whose options *key* is not set to false."""
    return [plugin for option, plugin in plugins if key not in option.disabled]
