"""``backfill``: pods that ask for nothing fill what is left.

1. Admitted gangs with such pods to place are taken in order; no queue limit concerns them.
2. A gang that is not ready yet, and has none but such pods to place, is placed whole or not at all.
3. A gang that is ready gets as many more as find a node.
"""

from typing import TYPE_CHECKING

from ..framework.statement import Need
from ..state.gangs import Finding, Gang

if TYPE_CHECKING:
    from ..framework.session import Cycle


def backfill(cycle: "Cycle") -> None:
    """Place pods that ask for nothing."""
    for gang in sorted(_waiting(cycle), key=cycle.rank):
        refusal = cycle.flaw(gang)
        if refusal:
            cycle.refuse(gang, Finding(refusal.reason, refusal.message))
        else:
            _serve(cycle, gang)


def _waiting(cycle: "Cycle") -> list[Gang]:
    return [
        gang
        for gang in cycle.cluster.waiting.values()
        if not gang.is_pending
        and gang.wants_nodes()
        and (gang.is_ready() or not gang.wants_room())
        and not gang.is_entering()
    ]


def _serve(cycle: "Cycle", gang: Gang) -> None:
    tasks = [task for task in cycle.tasks(gang) if task.shape.best_effort]
    with cycle.trial(gang) as trial:
        need = Need(gang)
        trial.fill(tasks, need)
        if need.met:
            placed = {task.uid for task, _ in trial.placed}
            trial.extend([task for task in tasks if task.uid not in placed], len(tasks))
        finding = trial.finding()
        if need.met:
            cycle.keep(gang, trial)
    if finding.misfits and not gang.wants_room():
        cycle.refuse(gang, finding)
