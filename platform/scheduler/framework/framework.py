"""The plugins of a configuration, sorted once by what each can do."""

from collections.abc import Iterable

from ..conf import PLUGINS, Conf, PluginConf
from ..plugins.extension_points import (
    AdmitsGangs,
    FiltersNodes,
    JudgesGangs,
    LimitsQueues,
    OpensCycle,
    PrefersNodes,
    RanksGangs,
    RanksQueues,
    RanksTasks,
    ScoresNodes,
)

Pairs = Iterable[tuple[PluginConf, object]]


class Rules:
    """Who has a say in what, in the order of the configuration."""

    def __init__(self, conf: Conf) -> None:
        """Make the plugins of *conf*."""
        tiers = [[(each, PLUGINS[each.name](each.arguments)) for each in t] for t in conf.tiers]
        every = [pair for tier in tiers for pair in tier]
        ordering = _on(every, "enableNodeOrder")
        self.openers = [each for _, each in every if isinstance(each, OpensCycle)]
        self.queue_ranks = [
            each for each in _on(every, "enableQueueOrder") if isinstance(each, RanksQueues)
        ]
        self.gang_ranks = [
            each for each in _on(every, "enableJobOrder") if isinstance(each, RanksGangs)
        ]
        self.task_ranks = [
            each for each in _on(every, "enableTaskOrder") if isinstance(each, RanksTasks)
        ]
        self.judges = [each for _, each in every if isinstance(each, JudgesGangs)]
        self.admission = [
            [each for each in _on(tier, "enableJobEnqueued") if isinstance(each, AdmitsGangs)]
            for tier in tiers
        ]
        self.limits = [
            each for each in _on(every, "enabledAllocatable") if isinstance(each, LimitsQueues)
        ]
        self.overuse = [
            each for each in _on(every, "enabledOverused") if isinstance(each, LimitsQueues)
        ]
        self.filters = [
            each for each in _on(every, "enablePredicate") if isinstance(each, FiltersNodes)
        ]
        self.scorers = [each for each in ordering if isinstance(each, ScoresNodes)]
        self.preferences = [each for each in ordering if isinstance(each, PrefersNodes)]


def _on(plugins: Pairs, key: str) -> list[object]:
    """Those plugins for whom *key* is not turned off."""
    return [plugin for conf, plugin in plugins if key not in conf.off]
