"""Keep the reservations of gangs that wait for evicted pods, and end them."""

import math
from collections.abc import Collection
from functools import partial

from ..state.cache.cache import SchedulerCache
from ..state.gangs.gang import Gang, TaskStatus
from ..state.planning.reservations import Purpose, Reservation
from .session import Session


def update_reservations(cache: SchedulerCache) -> None:
    """Restore reservations after a restart, and end those that expired; to be called before a
    session.

    A gang is tried again once all that is held for it is free. A reservation
    whose nodes will not have what is held is kept until its gang has been tried again: what they
    have is still for that gang.
    """
    reservations = cache.reservations
    reservations.restore(now=cache.cycle_time, longest_grace=partial(longest_grace, cache))
    if not reservations:
        return
    for each in reservations:
        if each.until == math.inf and each.purpose is Purpose.KEPT:
            each.until = cache.cycle_time + each.gang.keep_seconds
    for expired in reservations.expire(cache.cycle_time):
        _wake(cache, expired.gang)
    for reservation in reservations.changed():
        if reservations.is_free(reservation):
            _wake(cache, reservation.gang)
        if reservation.purpose is Purpose.PREEMPTION:
            backed = reservations.is_backed(reservation)
            if reservation.backed and not backed:
                _wake(cache, reservation.gang)  # other victims may be chosen
            reservation.backed = backed


def clear_nominations(session: Session) -> None:
    """Clear the nominated nodes of tasks for which nothing is held any more."""
    for reservation in session.cache.reservations.pop_ended():
        clear_nominations_of(session, reservation)


def drop_unbacked_reservations(session: Session) -> None:
    """End the reservations whose nodes will not have what is held, after other victims were tried.

    To be called after the actions.
    """
    for reservation in list(session.cache.reservations):
        if not reservation.backed and session.starving.is_exhausted(reservation.gang):
            _drop_reservation(session, reservation.gang)


def _drop_reservation(session: Session, gang: Gang) -> None:
    """End the reservation of *gang*, if there is one."""
    dropped = session.cache.reservations.drop(gang.key)
    if dropped is not None:
        forget_reservation(session, dropped)


def forget_reservation(session: Session, reservation: Reservation) -> None:
    """Clear the nominations of a reservation that has ended, and try its gang again."""
    clear_nominations_of(session, reservation)
    session.retry(reservation.gang)


def clear_nominations_of(session: Session, reservation: Reservation) -> None:
    """Clear the nominated nodes of the pending tasks that *reservation* is for."""
    for uid in reservation.holds:
        task = session.cache.task(uid)
        if task is not None and task.status in (TaskStatus.PENDING, TaskStatus.PIPELINED):
            session.nominate(task, "")


def _wake(cache: SchedulerCache, gang: Gang) -> None:
    """Let *gang* be tried again."""
    if gang.key in cache.pending_gangs:
        cache.scheduling_queue.activate(gang)
        cache.changes.mark(gang)


def longest_grace(cache: SchedulerCache, node_indexes: Collection[int]) -> float:
    """Return the longest grace period of terminating tasks on *node_indexes*."""
    return max(
        (
            task.traits.grace_period
            for node_index in set(node_indexes)
            for task in cache.task_table.tasks_on(node_index)
            if task.status is TaskStatus.RELEASING
        ),
        default=0,
    )
