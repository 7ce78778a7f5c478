"""What is reserved on nodes for gangs that wait: what is held for them, and for planned starts."""

import math
from collections.abc import Iterable, Iterator

from ...model.scheduler_questions import (
    MAX_RESERVATIONS,
    MAX_RESERVED_NODES,
    NodeReservation,
    Reservations,
    ReservedNode,
)
from ..framework.backfilling.start_plan import StartReservation
from ..state.cache.cache import SchedulerCache
from ..state.gangs.gang import Gang, add_amounts
from ..state.planning.reservations import Reservation
from ..state.resources import Amounts, to_resource_list
from .job_refs import job_of
from .trial import SchedulerCopy

START = "start"
"""The purpose of a start reservation."""


def list_reservations(scheduler: SchedulerCopy) -> Reservations:
    """Return what is reserved on nodes, and for whom: first what is held, then the planned starts
    in their order."""
    cache = scheduler.cache
    found: list[NodeReservation] = []
    entries = 0
    for each in _all(cache, scheduler.runner.start_plan):
        entries += len(each.nodes)
        if len(found) == MAX_RESERVATIONS or entries > MAX_RESERVED_NODES:
            return Reservations(tuple(found), is_complete=False)
        found.append(each)
    return Reservations(tuple(found))


def _all(cache: SchedulerCache, plan: Iterable[StartReservation]) -> Iterator[NodeReservation]:
    for held in sorted(cache.reservations, key=lambda each: each.gang.key):
        yield _held(cache, held)
    for planned in plan:
        gang = cache.gangs.get(planned.waiting.key)
        if gang is not None and planned.is_kept:
            yield _planned(cache, gang, planned)


def _held(cache: SchedulerCache, held: Reservation) -> NodeReservation:
    amounts: dict[int, Amounts] = {}
    for hold in held.holds.values():
        add_amounts(amounts.setdefault(hold.node_index, {}), hold.eq_class.request)
    names = cache.node_matrix.names
    return NodeReservation(
        job=job_of(held.gang),
        queue=cache.queues.of(held.gang).name,
        purpose=held.purpose.value,
        nodes=tuple(
            ReservedNode(names[index], _without_pods(found))
            for index, found in sorted(amounts.items())
        ),
        until=held.until if math.isfinite(held.until) else None,
    )


def _planned(cache: SchedulerCache, gang: Gang, planned: StartReservation) -> NodeReservation:
    index, names = cache.node_matrix.resource_index, cache.node_matrix.names
    occupation = planned.occupation
    return NodeReservation(
        job=job_of(gang),
        queue=cache.queues.of(gang).name,
        purpose=START,
        nodes=tuple(
            ReservedNode(names[node], _without_pods(index.amounts(occupation.amounts[:, column])))
            for column, node in enumerate(occupation.nodes.tolist())
        ),
        start=planned.start if math.isfinite(planned.start) else None,
    )


def _without_pods(amounts: Amounts) -> dict[str, str]:
    return to_resource_list({name: units for name, units in amounts.items() if name != "pods"})
