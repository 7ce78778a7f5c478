"""``allocate``: whole gangs get nodes, or none of their pods does.

0. Where ``enqueue`` is not configured, pending gangs of open queues are admitted. Pods that wait at
   the gate of their queue are let in; they are placed once it is gone.
1. Admitted gangs with pods to place are lined up by queue; those that were refused before and for
   whom nothing has opened since are left out.
2. The queue whose turn it is sends its first gang; a queue that has had its part sends none.
3. A gang that is not ready yet is placed up to its minimum, or not at all and is told why.
4. A gang that is ready gets its further pods one at a time (large ones in small portions), so that
   it takes turns with others; when nobody else waits it gets all at once.
5. While something was placed and pods are left, the gang lines up again.
"""

import heapq
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..framework.statement import Need
from ..plugins.extension_points import NOT_ENOUGH_RESOURCES
from ..state.gangs import Finding, Gang, Misfit, Queue, Task
from .enqueue import enter_unasked
from .remove_gates import lift_gates

if TYPE_CHECKING:
    from ..framework.session import Cycle, Rank


_PORTIONS = 32
"""A gang with more pods left than this gets more than one a turn."""


@dataclass(slots=True)
class Waiter:
    """A gang in line, and what of it is still to be tried in this cycle."""

    gang: Gang
    tasks: list[Task]
    """In order; pods that ask for nothing come last."""

    misfits: dict[str, Misfit] = field(default_factory=dict)
    """Those for whom there was no place, by role."""


def allocate(cycle: "Cycle") -> None:
    """Place gangs, and further pods of gangs that run."""
    if not cycle.enqueues:
        enter_unasked(cycle)
    lift_gates(cycle)
    lines = _lines(cycle)
    turns = [(cycle.rank_queue(cycle.cluster.queue_named(name)), name) for name in lines]
    heapq.heapify(turns)
    while turns:
        _, name = heapq.heappop(turns)
        queue, line = cycle.cluster.queue_named(name), lines[name]
        if name and cycle.overused(queue):
            _turn_away(cycle, queue, [waiter.gang for _, _, waiter in line])
            continue
        if not line:
            continue
        waiter = heapq.heappop(line)[2]
        if _serve(cycle, waiter, alone=not turns and not line):
            _line_up(cycle, line, waiter)
        heapq.heappush(turns, (cycle.rank_queue(queue), name))


def _lines(cycle: "Cycle") -> "dict[str, list[tuple[Rank, str, Waiter]]]":
    """Gangs worth a try, in heaps by queue; a gang that is not is told why."""
    lines: dict[str, list[tuple[Rank, str, Waiter]]] = {}
    for gang in list(cycle.cluster.waiting.values()):
        if gang.is_pending or cycle.is_stale(gang) or not gang.wants_room():
            continue
        if gang.is_entering():
            continue
        refusal = cycle.flaw(gang)
        if refusal:
            cycle.refuse(gang, Finding(refusal.reason, refusal.message))
        else:
            line = lines.setdefault(cycle.cluster.queue_of(gang).name, [])
            _line_up(cycle, line, Waiter(gang, cycle.tasks(gang)))
    return lines


def _turn_away(cycle: "Cycle", queue: Queue, gangs: list[Gang]) -> None:
    """Tell gangs of a queue that has had its part what they lack of it."""
    for gang in gangs:
        shape = cycle.tasks(gang)[0].shape
        refusal = cycle.limit(queue, shape)
        message = refusal.message if refusal else f'queue "{queue.name}" has had its share'
        cycle.refuse(gang, Finding(NOT_ENOUGH_RESOURCES, message))


def _line_up(cycle: "Cycle", line: "list[tuple[Rank, str, Waiter]]", waiter: Waiter) -> None:
    heapq.heappush(line, (cycle.rank(waiter.gang), waiter.gang.key, waiter))


def _serve(cycle: "Cycle", waiter: Waiter, *, alone: bool) -> bool:
    """Give a gang its turn; say whether it shall have another."""
    if Need(waiter.gang).met:
        return _extend(cycle, waiter, alone=alone)
    return _start(cycle, waiter)


def _start(cycle: "Cycle", waiter: Waiter) -> bool:
    """Place the minimum, or nothing."""
    need = Need(waiter.gang)
    with cycle.trial(waiter.gang) as trial:
        trial.fill(waiter.tasks, need)
        if not need.met:
            cycle.refuse(waiter.gang, trial.finding())
            return False
        placed = {task.uid for task, _ in trial.placed}
        cycle.keep(waiter.gang, trial)
    waiter.tasks = [
        task for task in waiter.tasks if task.uid not in placed and not task.shape.best_effort
    ]
    return bool(waiter.tasks)


def _extend(cycle: "Cycle", waiter: Waiter, *, alone: bool) -> bool:
    """Place a portion of the further pods, or all that fit if nobody else waits."""
    portion = len(waiter.tasks) if alone else max(len(waiter.tasks) // _PORTIONS, 1)
    wanted = waiter.tasks[:portion]
    with cycle.trial(waiter.gang) as trial:
        count = trial.extend(wanted, portion)
        placed = {task.uid for task, _ in trial.placed}
        cycle.keep(waiter.gang, trial)
    if count == portion:
        waiter.tasks = waiter.tasks[portion:]
    else:
        waiter.misfits.update(trial.misfits)
        left = [] if alone else waiter.tasks
        waiter.tasks = [t for t in left if t.uid not in placed and not trial.is_out(t)]
    if not waiter.tasks and waiter.misfits:
        cycle.refuse(waiter.gang, Finding(NOT_ENOUGH_RESOURCES, "", dict(waiter.misfits)))
    return bool(waiter.tasks)
