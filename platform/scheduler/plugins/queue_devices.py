"""What queues have of the devices that a queue deserves: ``deviceclass/NAME``, and capacities of
these devices.

Devices are no amounts of pods, which may share a claim: a claim counts once in the queue of its
pods. Unlike for the limits of queues, what evicted pods have does not count: their queue loses it.
"""

from collections import Counter
from collections.abc import Mapping

from ..state.cache.cache import SchedulerCache
from ..state.gangs.device_demands import needed
from ..state.gangs.gang import QueueInfo, TaskStatus, add_amounts, sum_amounts
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.resources import Amounts
from .extension_points import Allocation

_NOT_COUNTED = (TaskStatus.PENDING, TaskStatus.RELEASING, TaskStatus.SUCCEEDED, TaskStatus.FAILED)


class QueueDevices:
    """What the queues of a session have of the devices with some names."""

    def __init__(self, cache: SchedulerCache, names: frozenset[str]) -> None:
        """Count what is allocated."""
        self._claims = cache.pod_classes.device_claims
        self._names = names
        self._allocated: dict[str, Amounts] = {}
        self._pods: Counter[str] = Counter()
        """Pods that use a claim, by its key."""
        for key, uids in self._claims.users():
            devices = self._claims.devices_of(key)
            for uid in uids if devices else ():
                task = cache.task(uid)
                if task is not None and task.gang is not None and task.status not in _NOT_COUNTED:
                    self._count(cache.queues.of(task.gang), key, devices, 1)

    def of(self, queue: QueueInfo) -> Amounts:
        """Return what *queue* itself has."""
        return self._allocated.get(queue.name, _NOTHING)

    def change(self, change: Allocation, *, allocated: bool) -> None:
        """Count *change*, which the session has allocated, or else deallocated."""
        times = len(change.tasks) if allocated else -len(change.tasks)
        for key in change.eq_class.devices.held:
            self._count(change.queue, key, self._claims.devices_of(key), times)
        for claim in change.eq_class.devices.pending:
            if claim.key:
                self._count(change.queue, claim.key, needed(claim.devices)[0], times)
            else:
                self._add(change.queue, needed(claim.devices)[0], times)

    def needed_by(self, eq_class: EquivalenceClass) -> Amounts:
        """Return which devices a pod of *eq_class* needs."""
        return sum_amounts(
            self._known(needed(each.devices)[0]) for each in eq_class.devices.pending
        )

    def lost_with(self, eq_class: EquivalenceClass, lost: set[str]) -> Amounts:
        """Return which devices a queue loses with a pod of *eq_class*, without those of claims that
        are *lost* already."""
        keys = (key for key in eq_class.devices.held if key not in lost)
        return sum_amounts(self._known(self._claims.devices_of(key)) for key in keys)

    # -- private -------------------------------------------------------------------------------

    def _count(self, queue: QueueInfo, key: str, devices: Mapping[str, int], pods: int) -> None:
        before = self._pods[key]
        self._pods[key] = after = before + pods
        self._add(queue, devices, (after > 0) - (before > 0))

    def _add(self, queue: QueueInfo, devices: Mapping[str, int], times: int) -> None:
        add_amounts(self._allocated.setdefault(queue.name, {}), self._known(devices), times)

    def _known(self, devices: Mapping[str, int]) -> Amounts:
        return {name: units for name, units in devices.items() if name in self._names}


_NOTHING: Amounts = {}
