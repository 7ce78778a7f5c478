"""``overcommit``: admits gangs up to the idle resources times a factor.

A gang that is admitted without a chance to start only creates pending pods.
"""

from collections.abc import Mapping

from ..state.cache.cache import SchedulerCache
from ..state.gangs.diagnosis import Shortage
from ..state.gangs.gang import Gang, add_amounts
from ..state.queue.scheduling_queue import FREED, RESERVED, TOTAL, LimitNeed
from ..state.resources import Amounts, format_amount
from .arguments import number
from .extension_points import NOT_ENOUGH_RESOURCES, Rejection


class OvercommitPlugin:
    """Compares the minimum of gangs with the idle resources, times a factor."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Parse the factor; one below 1 is replaced by the default."""
        factor = number(arguments, "overcommit-factor", default=1.2)
        self._factor = factor if factor >= 1 else 1.2
        self._cache: SchedulerCache | None = None
        self._limit: Amounts = {}
        """What is allocatable in the cluster, times the factor."""
        self._idle: Amounts = {}
        """What of that is neither used nor reserved."""

    def on_session_open(self, cache: SchedulerCache) -> None:
        """Compute the idle resources that are not reserved."""
        self._cache = cache
        total = cache.node_matrix.total()
        self._limit = {name: int(n * self._factor) for name, n in total.items()}
        self._idle = self._current_idle("")

    def job_enqueueable(self, gang: Gang) -> Rejection | bool | None:
        """Reject a gang whose minimum exceeds the idle resources."""
        if not gang.min_resources:
            return True
        shortages = tuple(
            Shortage(name, units, self._limit.get(name, 0), self._used(name), self._factor)
            for name, units in sorted(gang.min_request.items())
            if name != "pods" and units > max(self._idle.get(name, 0), 0)
        )
        if not shortages:
            return True
        insufficient = [
            f"insufficient {each.resource} "
            f"(requested {format_amount(each.resource, each.requested)}, "
            f"free {format_amount(each.resource, max(each.limit - each.used, 0))}, "
            f"overcommit factor {each.factor:g})"
            for each in shortages
        ]
        request = tuple((name, n) for name, n in gang.min_request.items() if n and name != "pods")
        message = f"resource in cluster is overused: {', '.join(insufficient)}"
        return Rejection(
            NOT_ENOUGH_RESOURCES,
            message,
            shortages=shortages,
            wake_on=frozenset({FREED, RESERVED, TOTAL}),
            shared=True,
            limit_need=LimitNeed(frozenset({FREED, RESERVED}), request, self._current_idle),
        )

    def job_enqueued(self, gang: Gang) -> None:
        """Reserve the minimum of the gang."""
        add_amounts(self._idle, gang.min_request, -1)

    def _current_idle(self, _: str) -> Amounts:
        """Return what is neither used nor reserved now, of the limit as of the last session."""
        idle = dict(self._limit)
        if self._cache is not None:
            add_amounts(idle, self._cache.node_matrix.used(), -1)
            add_amounts(idle, self._cache.queues.reserved, -1)
        return idle

    def _used(self, name: str) -> int:
        return self._limit.get(name, 0) - self._idle.get(name, 0)
