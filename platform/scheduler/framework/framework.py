"""The plugins of a configuration, sorted once by what each can do."""

from collections.abc import Iterable

from ..conf import PLUGINS, Conf, PluginConf
from ..plugins.extension_points import (
    AllocatablePlugin,
    FilterPlugin,
    JobEnqueueablePlugin,
    JobOrderPlugin,
    JobValidPlugin,
    QueueOrderPlugin,
    ScorePlugin,
    SessionOpenPlugin,
    StaticScorePlugin,
    TaskOrderPlugin,
)

ConfiguredPlugins = Iterable[tuple[PluginConf, object]]


class Framework:
    """Who has a say in what, in the order of the configuration."""

    def __init__(self, conf: Conf) -> None:
        """Make the plugins of *conf*."""
        tiers = [[(each, PLUGINS[each.name](each.arguments)) for each in t] for t in conf.tiers]
        every = [pair for tier in tiers for pair in tier]
        ordering = _enabled(every, "enableNodeOrder")
        self.session_open = [each for _, each in every if isinstance(each, SessionOpenPlugin)]
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
            for tier in tiers
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
        self.scorers = [each for each in ordering if isinstance(each, ScorePlugin)]
        self.static_scorers = [each for each in ordering if isinstance(each, StaticScorePlugin)]


def _enabled(plugins: ConfiguredPlugins, key: str) -> list[object]:
    """Those plugins for whom *key* is not turned off."""
    return [plugin for conf, plugin in plugins if key not in conf.disabled]
