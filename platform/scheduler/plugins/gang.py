"""``gang``: gangs need all their minimum members, and are ordered by readiness."""

from collections.abc import Mapping, Sequence

import numpy as np

from ..state.gangs.diagnosis import Stage
from ..state.gangs.gang import Gang, SubGroup, SubGroups, Task, TaskCounts, TaskStatus
from ..state.gangs.sub_groups import SubGroupPolicy
from ..state.gangs.task_table import TaskTable
from ..state.resources import BoolVector, IntVector
from .extension_points import Preemptor, Rejection

NOT_ENOUGH_TASKS = "NotEnoughTasks"
NOT_ENOUGH_PODS_OF_TASK = "NotEnoughPodsOfTask"
SCHEDULING_GATED = "SchedulingGated"


class SurplusCounter:
    """Which tasks their gangs can lose without having less than their minimum."""

    def __init__(self) -> None:
        """Start with the tasks that the gangs have now."""
        self._left: dict[str, int] = {}
        self._left_by_role: dict[tuple[str, str], int] = {}
        self._spare_sub_groups: dict[SubGroupPolicy, int] = {}
        self._lost: dict[SubGroup, int] = {}

    def surplus(self, gang: Gang) -> int:
        """Return how many more tasks *gang* can lose, regardless of their roles."""
        if gang.key not in self._left:
            spare = 0 if gang.is_evicted_whole else gang.counts.ready - gang.min_member
            self._left[gang.key] = spare
        return self._left[gang.key]

    def consume(self, task: Task) -> bool:
        """Count *task* as lost if its gang can lose it; returns whether it can."""
        gang = task.gang
        if gang is None:
            return True
        if self.surplus(gang) <= 0:
            return False
        minimum = gang.role_minima.get(task.role, 0)
        key = (gang.key, task.role)
        left = self._left_by_role.get(key, gang.role_counts(task.role).ready - minimum)
        if minimum and left <= 0:
            return False
        if task.sub_group is not None and not self._consume_of(task.sub_group, gang):
            return False
        self._left_by_role[key] = left - 1
        self._left[gang.key] -= 1
        return True

    def _consume_of(self, sub_group: SubGroup, gang: Gang) -> bool:
        """Count a task of *sub_group* as lost, if the sub-group stays whole without it, or need not
        stay so; returns whether that is so."""
        policy, lost = sub_group.policy, self._lost.get(sub_group, 0)
        if not sub_group.missing and sub_group.counts.ready - lost == policy.size:
            if policy not in self._spare_sub_groups:
                whole = sum(
                    each.policy is policy and not each.missing for each in gang.sub_groups or ()
                )
                self._spare_sub_groups[policy] = whole - policy.minimum
            if self._spare_sub_groups[policy] <= 0:
                return False
            self._spare_sub_groups[policy] -= 1
        self._lost[sub_group] = lost + 1
        return True


class GangPlugin:
    """Rejects gangs with missing members, and victims that their gang needs."""

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
        if gang.sub_groups is not None and (short := _sub_group_rejection(gang.sub_groups)):
            return short
        valid = gang.counts.valid
        if valid < gang.min_member:
            message = f"{valid} of the {gang.min_member} pods that the group needs exist"
            message += _failed_members(gang.counts)
            return Rejection(NOT_ENOUGH_TASKS, message, Stage.GANG)
        return _gate_rejection(gang)

    def job_order(self, gang: Gang) -> float:
        """Gangs that are not ready first."""
        return float(gang.is_ready())

    def job_starving(self, gang: Gang) -> bool:
        """Return whether members are missing; minima of roles do not count."""
        return gang.is_starving()

    def job_pipelined(self, gang: Gang) -> bool:
        """Permit a gang that has its minimum once its tasks need not wait any more."""
        return gang.is_pipelined()

    def preemptable(self, preemptor: Preemptor, candidates: Sequence[Task]) -> list[Task]:
        """Permit the tasks that gangs have beyond their minimum, and no more."""
        surplus = SurplusCounter()
        return [task for task in candidates if surplus.consume(task)]

    reclaimable = preemptable

    def victim_mask(self, preemptor: Preemptor, table: TaskTable, slots: IntVector) -> BoolVector:
        """Exclude the tasks of gangs without any surplus."""
        return np.isin(table.gang[slots], gangs_with_surplus(table, slots))


def gangs_with_surplus(table: TaskTable, slots: IntVector) -> IntVector:
    """Return the numbers of the gangs of *slots* that have more than their minimum."""
    surplus = SurplusCounter()
    numbers, first = np.unique(table.gang[slots], return_index=True)
    tasks = (table.tasks[slot] for slot in slots[first].tolist())
    has_surplus = [
        task is not None and task.gang is not None and surplus.surplus(task.gang) > 0
        for task in tasks
    ]
    return numbers[np.array(has_surplus, np.bool_)].astype(np.int64)


def _sub_group_rejection(sub_groups: SubGroups) -> Rejection | None:
    """Reject a gang of which fewer sub-groups than it needs have all their pods."""
    short = sub_groups.short(lambda each: each.counts.valid >= each.policy.size)
    for position, count in sorted(short.items()):
        policy = sub_groups.policies[position]
        message = (
            f"{policy.minimum - count} of the {policy.minimum} sub-groups of {policy.name} that "
            f"the group needs have {policy.size} pods"
        )
        return Rejection(NOT_ENOUGH_TASKS, message, Stage.GANG)
    return None


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
