"""``enqueue``: gangs enter their queue when there is hope for them.

1. Gangs that have not entered yet are lined up: queues by rank, gangs by rank within.
2. The queue whose turn it is sends its first gang, which is admitted or refused.
3. A refused gang does not hold up smaller ones behind it, and is told why.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..plugins.extension_points import Refusal
from ..state.gangs import Finding, Gang, Queue

if TYPE_CHECKING:
    from ..framework.session import Cycle

OPEN = "Open"


def enqueue(cycle: "Cycle") -> None:
    """Admit gangs to their queues."""
    for gang in list(_in_turn(cycle)):
        _enter(cycle, gang, cycle.admission(gang) if gang.min_resources else None)


def enter_unasked(cycle: "Cycle") -> None:
    """Admit gangs to open queues without asking plugins: for ``allocate`` without ``enqueue``."""
    for gang in list(_in_turn(cycle)):
        _enter(cycle, gang, None)


def _enter(cycle: "Cycle", gang: Gang, refusal: Refusal | None) -> None:
    refusal = closed(cycle.cluster.queue_of(gang)) or refusal
    if refusal:
        cycle.refuse(gang, Finding(refusal.reason, refusal.message))
    else:
        cycle.admit(gang)


def closed(queue: Queue) -> Refusal | None:
    """Why nobody may enter *queue*, if that is so."""
    if queue.object is None:
        return Refusal("QueueNotFound", f'queue "{queue.name}" does not exist')
    if queue.state != OPEN:
        state = queue.state or "not set yet"
        return Refusal("QueueNotOpen", f'queue "{queue.name}" takes no jobs, it is {state}')
    return None


def _in_turn(cycle: "Cycle") -> Iterator[Gang]:
    """Pending gangs, queue by queue and round after round, one from each."""
    queues: dict[str, list[Gang]] = {}
    for gang in cycle.cluster.waiting.values():
        if gang.is_pending and gang.group is not None and not cycle.is_stale(gang):
            queues.setdefault(cycle.cluster.queue_of(gang).name, []).append(gang)
    for gangs in queues.values():
        gangs.sort(key=cycle.rank, reverse=True)
    order = sorted(queues, key=lambda name: cycle.rank_queue(cycle.cluster.queue_named(name)))
    while order:
        for name in order:
            yield queues[name].pop()
        order = [name for name in order if queues[name]]
