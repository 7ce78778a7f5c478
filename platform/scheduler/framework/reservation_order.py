"""Which gangs precede what resources are reserved for: an incomplete gang, one that restarts, or a
pod that another scheduler has nominated."""

from collections.abc import Callable

from ..state.cache.cache import SchedulerCache
from ..state.gangs.gang import Gang, QueueInfo
from ..state.planning.reservations import Purpose, Reservation
from .victims import SortKey


def may_take(
    cache: SchedulerCache,
    queue_order: Callable[[QueueInfo], SortKey],
    gang: Gang,
    reservation: Reservation,
) -> bool:
    """Return whether *gang* may use what is held by *reservation*.

    In the same queue, and for single pods, the priority decides, else the order of the queues. What
    was freed for a gang by evictions is for that gang. For a nominated pod the priority decides, as
    in kube-scheduler.
    """
    holder = reservation.gang
    if reservation.purpose is Purpose.NOMINATED:
        return gang.priority > holder.priority
    if reservation.purpose not in (Purpose.STRANDED, Purpose.KEPT) or holder is gang:
        return False
    if gang.single:  # it has the priority of its pod, and a gang that of its class
        priorities = (task.priority for task in holder.tasks.values())
        return gang.priority > max(priorities, default=holder.priority)
    queue, other = cache.queues.of(gang), cache.queues.of(holder)
    if queue is other:
        return gang.priority > holder.priority
    return queue_order(queue) < queue_order(other)
