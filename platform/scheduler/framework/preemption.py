"""Evict pods for a gang, which then waits for their resources; used by ``preempt`` and ``reclaim``,
and by ``gangpreempt`` and ``gangreclaim``.

The statement is committed only if the gang is ready once the evicted pods are deleted.
Victims that their gangs need for the minimum are considered only if it fails without them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..plugins.extension_points import NOT_ENOUGH_RESOURCES
from ..plugins.placement import GangRef
from ..state.gangs.diagnosis import Diagnosis
from ..state.gangs.gang import Gang, Task
from ..state.planning.reservations import EXPIRY_MARGIN, Purpose, Reservation
from ..state.queue.scheduling_queue import QueueingHints
from .decision import Eviction
from .domain_capacities import eviction_domains
from .preemption_attempt import PreemptionAttempt
from .queueing_hints import ANY_NODE_CHANGE
from .reservation_upkeep import clear_nominations_of, forget_reservation, longest_grace
from .session import Session
from .statement import Operation, OperationKind, Statement
from .victim_candidates import VictimCandidates
from .victim_pruning import victims_of
from .victims import Reach

_Plan = tuple[VictimCandidates, tuple[Operation, ...]]
"""What is evicted and pipelined in one domain, and the candidates from which that was chosen."""


@dataclass(frozen=True, slots=True)
class EvictionOptions:
    """When pods are evicted for a gang, and how much is compared before."""

    delay: float = 0.0
    """Seconds for which one of its pods must have waited."""

    compares_domains: bool = False
    """Whether the domain of the network is used that loses least, and not the first that fits."""

    max_domains: int | None = None
    """In how many domains, at most."""

    may_break: bool = True
    """Whether gangs may be left with less than their minimum."""


def evict_for(session: Session, gang: Gang, reach: Reach, options: EvictionOptions) -> bool:
    """Evict pods for *gang* if it can start then; returns whether it can.

    A gang that waits for evicted pods already is left alone.

    Raises:
        PluginError: a plugin raised.
        SearchInterruptedError: the search is to be continued in the next cycle.
    """
    reservations = session.cache.reservations
    held = reservations.get(gang.key)
    if held is not None and _is_waiting(session, held):
        _reject_waiting(session, gang, until=held.until)
        return False
    outranked = [each.gang.key for each in reservations if _outranks(session, gang, each)]
    retry_at: list[float] = []
    domains = eviction_domains(session, gang)[: options.max_domains]
    for breaking in (False, True) if options.may_break else (False,):
        breaks_gangs, plans = False, list[_Plan]()
        for option in domains:
            with (
                session.within(option),
                session.statement(gang) as statement,
                reservations.lent((gang.key, *outranked)),
            ):
                compares = options.compares_domains
                attempt = PreemptionAttempt(
                    session, statement, gang, reach, breaking=breaking, compares=compares
                )
                # Without victims it would hold resources of pods that may never terminate.
                if attempt.run() and (outranked or _evicts(statement)):
                    if not compares:
                        _commit(session, gang, statement, reach, outranked)
                        return True
                    plans.append((attempt.candidates, tuple(statement.operations)))
            candidates = attempt.candidates
            retry_at += [] if candidates.retry_at is None else [candidates.retry_at]
            breaks_gangs |= candidates.breaks_gangs
        if plans:
            with session.statement(gang) as statement, reservations.lent((gang.key, *outranked)):
                statement.redo(_cheapest(plans))
                _commit(session, gang, statement, reach, outranked)
            return True
        if not breaks_gangs:
            break
    if retry_at:
        session.cache.scheduling_queue.starving.retry_at(min(retry_at))
    return False


def _cheapest(plans: Sequence[_Plan]) -> Sequence[Operation]:
    """Return the operations that evict tasks of the lowest levels, and of these the fewest; the
    first of equal ones."""
    if len(plans) == 1:
        return plans[0][1]
    victims = [victims_of(operations) for _, operations in plans]
    slots = list({task.slot: None for each in victims for task in each})
    levels, _ = plans[0][0].order(np.array(slots, np.int64))
    by_slot = dict(zip(slots, levels.tolist(), strict=True))
    costs = [sorted((by_slot[task.slot] for task in each), reverse=True) for each in victims]
    return plans[costs.index(min(costs))][1]


def _is_waiting(session: Session, reservation: Reservation) -> bool:
    """Return whether enough is held for a gang, so that it only waits until that is free."""
    gang = reservation.gang
    return (
        reservation.purpose is Purpose.PREEMPTION
        and len(reservation.holds) >= gang.min_member - gang.counts.ready
        and session.cache.reservations.is_backed(reservation)
    )


def _outranks(session: Session, gang: Gang, reservation: Reservation) -> bool:
    """Return whether *gang* may take what is held by *reservation*."""
    holder = reservation.gang
    return session.may_take(gang, reservation) or (
        reservation.purpose is Purpose.PREEMPTION
        and holder.priority < gang.priority
        and session.cache.queues.of(holder) is session.cache.queues.of(gang)
    )


def _commit(
    session: Session, gang: Gang, statement: Statement, reach: Reach, outranked: Sequence[str]
) -> None:
    """Commit *statement*: request the evictions, and hold the resources for *gang*. What the gangs
    with the keys *outranked* have left is counted again."""
    cache = session.cache
    nodes: dict[str, int] = {}
    waiting: list[Task] = []
    victims: list[Task] = []
    for operation in statement.operations:
        tasks, indexes = operation.change.tasks, operation.change.node_indexes
        if operation.kind is OperationKind.EVICT:
            victims += tasks
        else:
            waiting += tasks
            nodes.update(zip((task.uid for task in tasks), indexes, strict=True))
    grace = max(
        max((task.traits.grace_period for task in victims), default=0),
        longest_grace(cache, nodes.values()),
    )
    message = f"evicted for {_described(gang)} ({reach.value})"
    session.evictions += [
        Eviction(
            namespace=task.namespace,
            name=task.name,
            uid=task.uid,
            message=message,
            gang=gang_ref(task.gang),
            timeout=EXPIRY_MARGIN,
        )
        for task in victims
    ]
    session.commit(gang, statement)
    before = cache.reservations.drop(gang.key)
    if before is not None:
        clear_nominations_of(session, before)
    until = cache.cycle_time + grace + EXPIRY_MARGIN
    session.reserve(gang, nodes, until=until)
    for task in waiting:
        session.nominate(task, cache.node_matrix.names[nodes[task.uid]])
    _reject_waiting(session, gang, until=until)
    for dropped in cache.reservations.recount(outranked):
        forget_reservation(session, dropped)


def _evicts(statement: Statement) -> bool:
    return any(each.kind is OperationKind.EVICT for each in statement.operations)


def _reject_waiting(session: Session, gang: Gang, *, until: float) -> None:
    """Let *gang* wait until the evicted pods have terminated, or until it fits elsewhere."""
    message = "waits until the pods that are evicted for it have terminated"
    diagnosis = Diagnosis(NOT_ENOUGH_RESOURCES, message)
    session.reject(gang, diagnosis, QueueingHints(ANY_NODE_CHANGE), retry_at=until)


def _described(gang: Gang) -> str:
    if not gang.single:
        return f"gang {gang.key}"
    return next((f"pod {task.key}" for task in gang.tasks.values()), gang.key)


def gang_ref(gang: Gang | None) -> GangRef | None:
    """Return the reference of *gang*, if that has a PodGroup."""
    return None if gang is None or gang.single else GangRef(gang.key, gang.podgroup)
