"""``conformance``: protects critical pods from eviction."""

from collections.abc import Mapping, Sequence

from ..state.gangs.gang import Task
from ..state.gangs.task_table import TaskTable
from ..state.gangs.victim_columns import CRITICAL
from ..state.resources import BoolVector, IntVector
from .extension_points import Preemptor


class ConformancePlugin:
    """Excludes pods of the system priority classes, and those of kube-system."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Ignore the arguments: there are none."""

    def preemptable(self, preemptor: Preemptor, candidates: Sequence[Task]) -> list[Task]:
        """Permit all but critical pods."""
        return [task for task in candidates if not task.traits.critical]

    reclaimable = preemptable

    def victim_mask(self, preemptor: Preemptor, table: TaskTable, slots: IntVector) -> BoolVector:
        """Exclude critical pods."""
        return ~CRITICAL.values(table, slots)
