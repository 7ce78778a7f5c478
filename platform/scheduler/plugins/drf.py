"""``drf``: dominant resource fairness among gangs."""

from collections.abc import Mapping

from ..state.cache import SchedulerCache
from ..state.gangs import Gang
from ..state.resources import Amounts


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
        shares = (gang.allocated.get(name, 0) / units for name, units in self._total.items())
        return max(shares, default=0.0)
