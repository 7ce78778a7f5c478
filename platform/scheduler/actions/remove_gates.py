"""``lift_gates``: pods that wait at the gate of their queue are let in when it has room for them.

A cluster that grows on demand looks at pods for which no node has room. Those that only wait for
their queue shall not count there, and are gated until then.

1. Admitted gangs with such pods are taken in the order of their queues, then their own.
2. Whoever has been let in already and is not placed yet counts as if it were.
3. A gang that is not ready is let in up to its minimum at least, or not at all and is told why.
"""

from typing import TYPE_CHECKING

from ..framework.statement import Need
from ..plugins.extension_points import Refusal
from ..state.gangs import Finding, Gang, Queue, Task, add, total

if TYPE_CHECKING:
    from ..framework.session import Cycle


def lift_gates(cycle: "Cycle") -> None:
    """Let pods in whose queue has room for them."""
    gangs = [
        gang
        for gang in cycle.cluster.waiting.values()
        if gang.at_queue and not gang.is_pending and not cycle.is_stale(gang)
    ]
    queue_of = cycle.cluster.queue_of
    for gang in sorted(
        gangs, key=lambda each: (cycle.rank_queue(queue_of(each)), cycle.rank(each))
    ):
        _serve(cycle, gang, queue_of(gang))


def _serve(cycle: "Cycle", gang: Gang, queue: Queue) -> None:
    tasks = [task for task in cycle.tasks(gang, at_queue=True) if not task.lifted]
    if not tasks:
        return
    flaw = cycle.flaw(gang)
    if flaw:
        cycle.refuse(gang, Finding(flaw.reason, flaw.message))
        return
    promised = total(cycle.cluster.gangs[key].promised for key in queue.gangs)
    add(queue.allocated, promised)
    fitting, refusal = _fitting(cycle, queue, tasks)
    add(queue.allocated, promised, -1)
    need = Need(gang)
    for task in (*gang.waiting.values(), *gang.at_queue.values()):
        if not task.gates or task.lifted:
            need.took(task.role, 1)
    for task in fitting:
        need.took(task.role, 1)
    if fitting and need.met:
        cycle.let_in(gang, fitting)
    elif refusal and (gang.is_entering() or not gang.waiting):
        cycle.refuse(gang, Finding(refusal.reason, refusal.message))


def _fitting(cycle: "Cycle", queue: Queue, tasks: list[Task]) -> tuple[list[Task], Refusal | None]:
    """Those of *tasks* that *queue* has room for, and why it has none for the first other."""
    fitting: list[Task] = []
    refusal: Refusal | None = None
    for task in tasks:
        shape = task.shape
        if shape.best_effort or cycle.room(queue, shape) > 0:
            add(queue.allocated, shape.request)
            fitting.append(task)
        elif refusal is None:
            refusal = cycle.limit(queue, shape)
    for task in fitting:
        add(queue.allocated, task.shape.request, -1)
    return fitting, refusal
