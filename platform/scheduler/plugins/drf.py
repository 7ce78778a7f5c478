"""``drf``: among gangs, the one goes first whose largest part of anything is smallest."""

from collections.abc import Mapping

from ..state.cache import SchedulerCache
from ..state.gangs import Gang
from ..state.resources import Amounts


class DrfPlugin:
    """Orders gangs by their dominant share of the cluster."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Take no arguments."""
        self._total: Amounts = {}

    def on_session_open(self, cache: SchedulerCache) -> None:
        """Note what the cluster has."""
        self._total = cache.node_matrix.total()

    def job_order(self, gang: Gang) -> float:
        """The gang's dominant share."""
        shares = (gang.allocated.get(name, 0) / units for name, units in self._total.items())
        return max(shares, default=0.0)
