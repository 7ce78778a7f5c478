"""Tasks in runs of equal ones, which are allocated at once."""

from collections.abc import Iterator, Sequence
from itertools import groupby

from ..state.gangs.gang import Task
from ..state.podinfo.equivalence import EquivalenceClass


def grouped(tasks: Sequence[Task]) -> list[Task]:
    """Return *tasks* grouped by equivalence class and role, to allocate each group at once.

    For use when all are needed, so that their order has no effect.
    """
    groups: dict[tuple[EquivalenceClass, str], list[Task]] = {}
    for task in tasks:
        groups.setdefault((task.eq_class, task.role), []).append(task)
    return [task for group in groups.values() for task in group]


def runs(tasks: Sequence[Task]) -> Iterator[tuple[EquivalenceClass, list[Task]]]:
    """Yield *tasks* in order, those in succession with the same class and role together."""
    for (eq_class, _), run in groupby(tasks, key=lambda task: (task.eq_class, task.role)):
        yield eq_class, list(run)
