"""``resourcequota``: admits gangs only within the resource quotas of their namespace.

The API server rejects pods beyond a quota; a gang that it would reject in part is not admitted.
"""

from collections.abc import Mapping

from ..state.cache import SchedulerCache
from ..state.diagnosis import Shortage
from ..state.gangs import Gang, add_amounts
from ..state.resource_quotas import NamespaceQuotas
from ..state.resources import Amounts, format_amount
from .extension_points import NOT_ENOUGH_RESOURCES, Rejection


class ResourceQuotaPlugin:
    """Compares the minimum of gangs with the quotas of their namespace."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Ignore the arguments: there are none."""
        self._quotas = NamespaceQuotas()
        self._admitted: dict[str, Amounts] = {}
        """What gangs admitted in this cycle will use, by namespace."""

    def on_session_open(self, cache: SchedulerCache) -> None:
        """Read the quotas."""
        self._quotas = cache.resource_quotas
        self._admitted = {}

    def job_enqueueable(self, gang: Gang) -> Rejection | bool | None:
        """Reject a gang whose minimum exceeds a quota."""
        if not gang.min_resources:
            return True
        admitted = self._admitted.get(gang.namespace, {})
        for quota in self._quotas.of(gang.namespace):
            shortages = tuple(
                Shortage(name, units, quota.hard[name], used)
                for name, units in sorted(gang.min_request.items())
                if name in quota.hard
                and units + (used := quota.used.get(name, 0) + admitted.get(name, 0))
                > quota.hard[name]
            )
            if shortages:
                return _rejection(quota.name, shortages)
        return True

    def job_enqueued(self, gang: Gang) -> None:
        """Count the minimum of an admitted gang until the quota's status has its pods."""
        add_amounts(self._admitted.setdefault(gang.namespace, {}), gang.min_request)


def _rejection(quota: str, shortages: tuple[Shortage, ...]) -> Rejection:
    insufficient = [
        f"insufficient {each.resource} "
        f"(requested {format_amount(each.resource, each.requested)}, "
        f"free {format_amount(each.resource, max(each.limit - each.used, 0))} "
        f"of {format_amount(each.resource, each.limit)})"
        for each in shortages
    ]
    message = f'resource quota "{quota}" insufficient: {", ".join(insufficient)}'
    return Rejection(NOT_ENOUGH_RESOURCES, message, shortages=shortages)
