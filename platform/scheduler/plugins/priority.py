"""``priority``: order by priority class and pod priority; victims have a lower one."""

from collections.abc import Mapping, Sequence

import numpy as np

from ..state.gangs.gang import Gang, Task
from ..state.gangs.task_table import TaskTable
from ..state.resources import BoolVector, IntVector
from .extension_points import Preemptor


class PriorityPlugin:
    """Orders gangs by their priority class, tasks by their pod's priority."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Ignore the arguments: there are none."""

    def job_order(self, gang: Gang) -> float:
        """Higher priority first."""
        return -gang.priority

    def task_order(self, task: Task) -> float:
        """Higher priority first."""
        return -task.priority

    def job_starving(self, gang: Gang) -> bool:
        """Return whether any task is not allocated."""
        return gang.counts.ready + gang.counts.waiting < len(gang.tasks)

    def preemptable(self, preemptor: Preemptor, candidates: Sequence[Task]) -> list[Task]:
        """Permit tasks of gangs with a lower priority, and own tasks with a lower priority."""
        return [task for task in candidates if _has_lower_priority(task, preemptor)]

    def victim_mask(self, preemptor: Preemptor, table: TaskTable, slots: IntVector) -> BoolVector:
        """Exclude what :meth:`preemptable` never permits."""
        gangs = table.gang[slots]
        own = gangs == table.gang_id(preemptor.gang)
        lower: BoolVector = table.gang_priority[gangs] < preemptor.gang.priority
        lower_task: BoolVector = table.priority[slots] < preemptor.priority
        return np.where(own, lower_task, lower)


def _has_lower_priority(task: Task, preemptor: Preemptor) -> bool:
    if task.gang is preemptor.gang:
        return task.priority < preemptor.priority
    return task.gang is not None and task.gang.priority < preemptor.gang.priority
