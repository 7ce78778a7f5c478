"""``gang``: gangs need all their minimum members, and are ordered by readiness."""

from collections.abc import Mapping

from ..state.diagnosis import Stage
from ..state.gangs import Gang, Task, TaskCounts, TaskStatus
from .extension_points import Rejection

NOT_ENOUGH_TASKS = "NotEnoughTasks"
NOT_ENOUGH_PODS_OF_TASK = "NotEnoughPodsOfTask"
SCHEDULING_GATED = "SchedulingGated"


class GangPlugin:
    """Rejects gangs with missing members."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Ignore the arguments: there are none."""

    def job_valid(self, gang: Gang) -> Rejection | None:
        """Reject a gang with missing or gated members."""
        for role, minimum in sorted(gang.role_minima.items()):
            valid = gang.role_counts(role).valid
            if valid < minimum:
                message = f"{valid} of the {minimum} pods that task {role} needs exist"
                message += _failed_members(gang.role_counts(role))
                return Rejection(NOT_ENOUGH_PODS_OF_TASK, message, Stage.GANG)
        valid = gang.counts.valid
        if valid < gang.min_member:
            message = f"{valid} of the {gang.min_member} pods that the group needs exist"
            message += _failed_members(gang.counts)
            return Rejection(NOT_ENOUGH_TASKS, message, Stage.GANG)
        return _gate_rejection(gang)

    def job_order(self, gang: Gang) -> float:
        """Gangs that are not ready first."""
        return float(gang.is_ready())


def _failed_members(counts: TaskCounts) -> str:
    """Return the part of a message about members that failed."""
    failed = counts[TaskStatus.FAILED]
    return f", {failed} failed" if failed else ""


def _gate_rejection(gang: Gang) -> Rejection | None:
    """Reject a gang whose minimum includes gated members."""
    if not gang.gated_tasks:
        return None
    for role, minimum in sorted(gang.role_minima.items()):
        gated = [task for task in gang.gated_tasks.values() if task.role == role]
        if gated and gang.role_counts(role).valid - len(gated) < minimum:
            return _gated_rejection(gated)
    gated = list(gang.gated_tasks.values())
    return _gated_rejection(gated) if gang.counts.valid - len(gated) < gang.min_member else None


def _gated_rejection(gated: list[Task]) -> Rejection:
    gates = sorted({gate for task in gated for gate in task.gates})
    first = min(gated, key=Task.sort_key)
    others = f" and {len(gated) - 1} more" if len(gated) > 1 else ""
    kind = "gate" if len(gates) == 1 else "gates"
    message = f"{first.name}{others}: held back by the scheduling {kind} {', '.join(gates)}"
    return Rejection(SCHEDULING_GATED, message, Stage.GANG)
