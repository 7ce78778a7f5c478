"""``resourcequota``: admits gangs only within the resource quotas of their namespace.

The API server rejects pods beyond a quota, so a gang that exceeds it is not admitted. Limits and
numbers of pods in a quota are compared, too: ``minResources`` contains both.
"""

from collections.abc import Mapping

from ...model.podgroup import PodGroupPhase
from ..state.cache.cache import SchedulerCache
from ..state.cache.resource_quotas import quota_only_amounts
from ..state.gangs.diagnosis import Shortage
from ..state.gangs.gang import Gang, positive_difference, sum_amounts
from ..state.resources import Amounts
from .extension_points import Rejection
from .queue_limits import insufficient


class ResourceQuotaPlugin:
    """Compares the minimum of gangs with the quotas of their namespace."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Ignore the arguments: there are none."""
        self._cache: SchedulerCache | None = None
        self._admitted: dict[str, dict[str, Gang]] = {}
        """Gangs that this plugin has counted and that are not started, by namespace."""

    def on_session_open(self, cache: SchedulerCache) -> None:
        """Keep the quotas."""
        self._cache = cache

    def job_enqueueable(self, gang: Gang) -> Rejection | bool | None:
        """Reject a gang whose minimum exceeds a quota."""
        quotas = self._cache.resource_quotas.of(gang.namespace) if self._cache else ()
        if not gang.min_resources or not quotas:
            return True
        expected, missing = self._expected(gang.namespace), _missing(gang)
        for quota in quotas:
            shortages = tuple(
                Shortage(name, units, quota.hard[name], used, resource_quota=quota.name)
                for name, units in sorted(missing.items())
                if name in quota.hard
                and units + (used := quota.used.get(name, 0) + expected.get(name, 0))
                > quota.hard[name]
            )
            if shortages:
                return insufficient(f'resource quota "{quota.name}"', shortages)
        return True

    def job_enqueued(self, gang: Gang) -> None:
        """Count the minimum of an admitted gang until its pods exist."""
        self._admitted.setdefault(gang.namespace, {})[gang.key] = gang

    def _expected(self, namespace: str) -> Amounts:
        """Return what admitted gangs will use beyond their existing pods."""
        gangs = self._admitted.pop(namespace, {})
        waiting = {key: gang for key, gang in gangs.items() if self._is_waiting(gang)}
        if waiting:
            self._admitted[namespace] = waiting
        return sum_amounts(map(_missing, waiting.values()))

    def _is_waiting(self, gang: Gang) -> bool:
        known = self._cache is not None and self._cache.gangs.get(gang.key) is gang
        return known and gang.phase == PodGroupPhase.INQUEUE and not gang.is_ready()


def _missing(gang: Gang) -> Amounts:
    """Return what *gang* needs for its minimum beyond its existing pods, which quotas count.

    The limits of single pods are not known here, so those of the minimum count in full until its
    pods exist.
    """
    missing = positive_difference(gang.min_resources, gang.requested)
    if gang.podgroup is not None and gang.counts.valid < gang.min_member:
        missing |= quota_only_amounts(gang.podgroup.spec.min_resources)
    return missing
