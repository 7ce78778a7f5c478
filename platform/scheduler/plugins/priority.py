"""``priority``: order by priority class and pod priority."""

from collections.abc import Mapping

from ..state.gangs import Gang, Task


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
