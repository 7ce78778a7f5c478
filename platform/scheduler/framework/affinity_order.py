"""The order of tasks of a gang that need each other nearby."""

from collections.abc import Sequence

from ..state.gangs.gang import Task
from ..state.podinfo.equivalence import EquivalenceClass


def in_affinity_order(tasks: Sequence[Task]) -> Sequence[Task]:
    """Return *tasks* with those first to which others require affinity.

    Otherwise a gang whose first role needs a later one nearby would never fit. The order is kept
    among the others, and among tasks that need each other.
    """
    classes = {task.eq_class for task in tasks}
    if not any(each.terms.affinity for each in classes):
        return tasks
    needed = {
        each: [
            other
            for other in classes
            if each.terms.affinity in other.matched_by and each.terms.affinity is not None
        ]
        if each.terms.affinity not in each.matched_by
        else []
        for each in classes
    }
    ranks: dict[EquivalenceClass, int] = {}
    for eq_class in classes:
        _rank(eq_class, needed, ranks)
    return sorted(tasks, key=lambda task: ranks[task.eq_class])


def _rank(
    eq_class: EquivalenceClass,
    needed: dict[EquivalenceClass, list[EquivalenceClass]],
    ranks: dict[EquivalenceClass, int],
) -> int:
    """Set and return the length of the longest chain of tasks that need each other; a loop ends a
    chain."""
    if eq_class not in ranks:
        ranks[eq_class] = 0
        ranks[eq_class] = max(
            (1 + _rank(other, needed, ranks) for other in needed[eq_class]), default=0
        )
    return ranks[eq_class]
