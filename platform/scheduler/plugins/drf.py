"""``drf``: dominant resource fairness among gangs."""

from collections.abc import Mapping, Sequence

from ..state.cache.cache import SchedulerCache
from ..state.gangs.gang import Gang, Task, add_amounts
from ..state.resources import Amounts
from .extension_points import Preemptor

_SHARE_TOLERANCE = 1e-6


class DrfPlugin:
    """Orders gangs by their dominant share of the cluster."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Ignore the arguments: there are none."""
        self._total: Amounts = {}

    def on_session_open(self, cache: SchedulerCache) -> None:
        """Sum up the resources of the cluster."""
        self._total = cache.node_matrix.total()

    def job_order(self, gang: Gang) -> float:
        """Return the dominant share of the gang."""
        return self._share(gang.allocated)

    def preemptable(self, preemptor: Preemptor, candidates: Sequence[Task]) -> list[Task]:
        """Permit the tasks of gangs whose share stays at least that of the preemptor."""
        wanted = dict(preemptor.gang.allocated)
        add_amounts(wanted, preemptor.eq_class.request, preemptor.count)
        share = self._share(wanted)
        allocated: dict[str, Amounts] = {}
        victims = []
        for task in candidates:
            if task.gang is None:
                continue
            rest = allocated.get(task.gang.key)
            rest = dict(task.gang.allocated if rest is None else rest)
            add_amounts(rest, task.eq_class.request, -1)
            if share <= self._share(rest) + _SHARE_TOLERANCE:
                allocated[task.gang.key] = rest
                victims.append(task)
        return victims

    def _share(self, allocated: Amounts) -> float:
        if not allocated:  # as for most gangs that wait
            return 0.0
        shares = (allocated.get(name, 0) / units for name, units in self._total.items())
        return max(shares, default=0.0)
