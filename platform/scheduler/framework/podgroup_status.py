"""Desired status of a gang: the status of its PodGroup, and the conditions of its pending pods.

It does no I/O: the status updater decides whether and when a report is written.

The phase follows Volcano with one exception: pods that are being bound keep a started group
Running, and pods that are being deleted keep its phase; neither starts one. Missing members are
reported after a grace period only, since the job controller may still be creating them.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from ...model.podgroup import PodGroup, PodGroupCondition, PodGroupPhase, PodGroupStatus
from ..plugins.gang import NOT_ENOUGH_PODS_OF_TASK, NOT_ENOUGH_TASKS, SCHEDULING_GATED
from ..state.gangs.diagnosis import Diagnosis, FitError, Stage
from ..state.gangs.gang import Gang, QueueInfo, Task, TaskStatus
from ..state.gangs.member_arrival import MemberArrival
from ..state.planning.planned_gang import PlanNote
from ..state.resources import Amounts
from .completeness import SCHEDULED, STARTED_PHASES, is_complete, was_complete
from .explanations import GangExplanation
from .impossible import Impossible, why_impossible

UNSCHEDULABLE = "Unschedulable"
SCHEDULABLE = "Schedulable"
READY = "tasks in gang are ready to be scheduled"
MEMBER_GRACE_PERIOD, MAX_MEMBER_GRACE_PERIOD = 1.0, 10.0
"""Seconds without a new member after which missing members are reported: the default, and the
maximum, for a busy cluster or a gang whose members have been arriving for long."""

GRACE_PERIOD_FRACTION = 0.25
"""Grace period as a fraction of the time during which members have been arriving."""

CONDITION_INTERVAL = 1.0
"""Seconds between two reports that include the conditions of a gang's pods."""

_BINDING, _BOUND, _RUNNING = TaskStatus.BINDING, TaskStatus.BOUND, TaskStatus.RUNNING
_SUCCEEDED, _FAILED = TaskStatus.SUCCEEDED, TaskStatus.FAILED
_SCHEDULED_CONDITION = PodGroupCondition(type=SCHEDULED, status="True", reason=READY)
_MISSING_MEMBER_REASONS = (NOT_ENOUGH_TASKS, NOT_ENOUGH_PODS_OF_TASK, SCHEDULING_GATED)


@dataclass(frozen=True, slots=True)
class PodScheduledCondition:
    """The desired PodScheduled=False condition of one pod."""

    namespace: str
    name: str
    uid: str
    reason: str
    message: str
    observed: tuple[str, str] | None = None
    """Reason and message of the condition that the pod has, if any."""


class PodGroupReport(NamedTuple):
    """Desired status of one gang."""

    key: str
    podgroup: PodGroup | None
    status: PodGroupStatus
    """Conditions without transition times; equal ones of *podgroup* keep theirs."""

    pod_conditions: tuple[PodScheduledCondition, ...] = ()
    requeue_after: float | None = None
    """Seconds until the next report, if one is due without an event; 0: in the next cycle."""

    why: GangExplanation | None = None
    """Why the gang waits, if it does."""

    plan: PlanNote | None = None
    """What the annotation with the plan is to contain; ``None`` for what it contains."""

    domain: str = ""
    """The domain of the network that has all pods of the gang, if it has a constraint on that."""

    impossible: bool = False
    """Whether the gang waits, and could not start even if nothing else ran."""


def build_report(
    gang: Gang,
    *,
    now: float,
    busy: bool = False,
    queue: QueueInfo | None = None,
    total: Callable[[], Amounts] = dict,
    position: Callable[[Gang], tuple[int, int]] | None = None,
    plan: PlanNote | None = None,
) -> PodGroupReport:
    """Return the report on *gang*; updates its phase and what was last reported.

    *now* is a reading of a monotonic clock, to measure how long members have been missing. *busy*
    is true if the cluster changes at a high rate, so that members of a new gang may arrive slowly.
    *queue* is its queue, and *position* returns where it waits there and how many gangs do. *total*
    returns what all nodes together have.
    """
    was_pending = gang.is_pending
    slow = busy and gang.phase not in STARTED_PHASES
    left = _remaining_grace_period(
        gang, now, MAX_MEMBER_GRACE_PERIOD if slow else MEMBER_GRACE_PERIOD
    )
    diagnosis = None if left else gang.diagnosis
    if not gang.single and gang.podgroup is not None:
        gang.phase = next_phase(gang)
    is_pending = gang.is_pending
    if is_pending is not was_pending:
        gang.version += 1  # it is to be admitted again
    message, impossible = "", None
    if diagnosis is not None:
        impossible = _why_impossible(gang, diagnosis, queue, total)
        message = unschedulable_message(gang, diagnosis, impossible)
    counts = gang.counts.by_status
    status = PodGroupStatus(
        phase=gang.phase,
        conditions=_podgroup_conditions(gang, diagnosis, message),
        running=counts[TaskStatus.RUNNING],
        succeeded=counts[TaskStatus.SUCCEEDED],
        failed=counts[TaskStatus.FAILED],
    )
    gang.last_status = status
    pod_conditions: tuple[PodScheduledCondition, ...] = ()
    if diagnosis:
        left = max(gang.conditions_updated_at + CONDITION_INTERVAL - now, 0.0)
        if not left:
            gang.conditions_updated_at = now
            pod_conditions = tuple(_pod_conditions(gang, diagnosis, impossible))
    requeue_after = left or None
    if is_pending and not was_pending:
        # It is to be admitted again in the next cycle, independent of its last attempt.
        gang.version += 1
        requeue_after = 0.0
    why = None
    if diagnosis and gang.podgroup is not None:
        why = _explanation(gang, diagnosis, message, queue=queue, position=position)
    report = PodGroupReport(
        gang.key, gang.podgroup, status, pod_conditions, requeue_after, why, plan
    )
    return report if impossible is None else report._replace(impossible=True)


def _explanation(
    gang: Gang,
    diagnosis: Diagnosis,
    message: str,
    *,
    queue: QueueInfo | None,
    position: Callable[[Gang], tuple[int, int]] | None,
) -> GangExplanation:
    rank, waiting = position(gang) if position else (None, None)
    return GangExplanation(
        diagnosis,
        None if diagnosis.message else _first_fit_error(gang, diagnosis),
        message,
        queue.name if queue is not None else "",
        needed=gang.min_member,
        existing=gang.counts.valid,
        ready=gang.counts.ready,
        position=rank,
        waiting=waiting,
        start=gang.estimated_start,
    )


def _remaining_grace_period(gang: Gang, now: float, grace_period: float) -> float:
    """Return for how many seconds missing members are not reported.

    That is at least *grace_period* after the arrival of the last member.
    """
    if gang.is_pending or not _is_missing_members(gang.diagnosis):
        gang.member_arrival = _NO_ARRIVAL
        return 0.0
    arrival = gang.member_arrival
    if arrival.next_count <= gang.counts.valid:
        since = now if arrival.next_count == 0 else arrival.missing_since
        gang.member_arrival = arrival = MemberArrival(
            gang.counts.valid + 1, last_arrival=now, missing_since=since
        )
    fraction = GRACE_PERIOD_FRACTION * (arrival.last_arrival - arrival.missing_since)
    grace_period = min(max(grace_period, fraction), MAX_MEMBER_GRACE_PERIOD)
    return max(grace_period - (now - arrival.last_arrival), 0.0)


_NO_ARRIVAL = MemberArrival()


def next_phase(gang: Gang) -> str:
    """Return the next phase of *gang*.

    A gang with running and missing members is Unknown; a gang that lost all members is Pending and
    has to be admitted again.
    """
    counts = gang.counts.by_status  # not its properties: this is called for each change
    is_started = gang.phase in STARTED_PHASES
    running, binding = counts[_RUNNING], counts[_BINDING]
    # A gang that never was complete has not started: policies of its job do not react to it.
    if (
        running
        and not gang.is_ready()
        and not gang.is_terminating()
        and (is_started or was_complete(gang))
    ):
        return PodGroupPhase.UNKNOWN
    completed = counts[_SUCCEEDED] + counts[_FAILED]
    count = counts[_BOUND] + running + completed - gang.rejected
    if is_started:
        count += binding
    least = max(gang.min_member, 1)
    if count >= least:
        # With pods that are being deleted it is not completed: they may be replaced.
        others = binding + gang.releasing + gang.rejected
        done = count == completed - gang.rejected and not others
        return PodGroupPhase.COMPLETED if done else PodGroupPhase.RUNNING
    if is_started and count + gang.releasing + gang.rejected >= least:
        return gang.phase
    return PodGroupPhase.INQUEUE if gang.phase == PodGroupPhase.INQUEUE else PodGroupPhase.PENDING


def _why_impossible(
    gang: Gang, diagnosis: Diagnosis, queue: QueueInfo | None, total: Callable[[], Amounts]
) -> Impossible | None:
    if queue is None:
        return None
    fit_error = None if diagnosis.message else _first_fit_error(gang, diagnosis)
    return why_impossible(gang, diagnosis, fit_error, queue=queue, total=total())


def unschedulable_message(
    gang: Gang, diagnosis: Diagnosis, impossible: Impossible | None = None
) -> str:
    """Return the message of the Unschedulable condition: how many pods the gang lacks, and why.

    *impossible* is why it cannot run at all, if that is so; it counts more than what is free now.
    """
    missing = _missing_count(gang, diagnosis)
    head = f"{missing} of {gang.min_member} pods cannot be scheduled"
    if impossible is not None:
        head = f"{head}: {impossible.message}"
        if impossible.is_missing:
            return head
    if diagnosis.message:
        return f"{head}: {diagnosis.message}"
    fit_error = _first_fit_error(gang, diagnosis)
    return f"{head}: {fit_error.task_name}: {fit_error.message}" if fit_error else head


def _missing_count(gang: Gang, diagnosis: Diagnosis) -> int:
    """Return how many members of the minimum are neither ready nor fit, roles included."""
    fitting = [gang.tasks[uid].role for uid in diagnosis.fitting_uids if uid in gang.tasks]
    missing = gang.min_member - gang.counts.ready - len(fitting)
    fitting_by_role = Counter(fitting)
    missing_by_role = (
        minimum - gang.role_counts(role).ready - fitting_by_role[role]
        for role, minimum in gang.role_minima.items()
    )
    missing_in_sub_groups = 0
    if gang.sub_groups is not None:
        whole = gang.sub_groups.short(lambda each: not each.missing)
        sizes = (gang.sub_groups.policies[at].size * count for at, count in whole.items())
        missing_in_sub_groups = max(sum(sizes) - len(fitting), 0)
    by_role = sum(max(each, 0) for each in missing_by_role)
    return max(missing, by_role, missing_in_sub_groups, 0)


def _first_fit_error(gang: Gang, diagnosis: Diagnosis) -> FitError | None:
    """Return the fit error of the first task in task order, so that the message is stable."""

    def order(error: FitError) -> tuple[float | str, ...]:
        task = gang.tasks.get(error.uid)
        return (math.inf,) if task is None else (-task.priority, *task.sort_key())

    return min(diagnosis.fit_errors.values(), key=order, default=None)


def _is_missing_members(diagnosis: Diagnosis | None) -> bool:
    """Return whether only pods that do not exist yet are missing, of the gang or of sub-groups."""
    if diagnosis is None or diagnosis.reason in _MISSING_MEMBER_REASONS:
        return diagnosis is not None
    errors = diagnosis.fit_errors.values()
    return bool(errors) and all(each.sub_group and each.stage is Stage.GANG for each in errors)


def _podgroup_conditions(
    gang: Gang, diagnosis: Diagnosis | None, message: str
) -> tuple[PodGroupCondition, ...]:
    """Return the last conditions with those that hold now set; none is ever removed."""
    conditions = {condition.type: condition for condition in gang.last_status.conditions}
    if gang.tasks and is_complete(gang):
        conditions[SCHEDULED] = _SCHEDULED_CONDITION
    elif diagnosis and not gang.is_ready():
        conditions[UNSCHEDULABLE] = PodGroupCondition(
            type=UNSCHEDULABLE,
            status="True",
            reason=diagnosis.reason,
            message=message,
        )
    return tuple(conditions.values())


def _pod_conditions(
    gang: Gang, diagnosis: Diagnosis, impossible: Impossible | None
) -> Iterator[PodScheduledCondition]:
    missing = impossible.message if impossible is not None and impossible.is_missing else ""
    for task in gang.pending_tasks.values():
        # Other tools know the reasons that kube-scheduler writes.
        reason = UNSCHEDULABLE if gang.native is not None else _pod_reason(task, diagnosis)
        message = missing or _pod_message(gang, task, diagnosis)
        yield PodScheduledCondition(
            task.namespace, task.name, task.uid, reason, message, observed=task.reported_condition
        )


def _pod_reason(task: Task, diagnosis: Diagnosis) -> str:
    return SCHEDULABLE if task.uid in diagnosis.fitting_uids else UNSCHEDULABLE


def _pod_message(gang: Gang, task: Task, diagnosis: Diagnosis) -> str:
    """Return the message; only the pod with the fit error has numbers, which change often."""
    if unsupported := task.unsupported_message():
        return unsupported
    if diagnosis.message:
        return diagnosis.message
    if task.uid in diagnosis.fitting_uids:
        return f"fits, but waits for the other pods that {gang.name} needs to start"
    fit_error = diagnosis.fit_errors.get(task.role)
    if fit_error is None:
        fit_error = _first_fit_error(gang, diagnosis)
    if fit_error is None:
        return f"waits until {gang.name} can start"
    if fit_error.uid == task.uid:
        return fit_error.message
    return f"not tried, since {fit_error.task_name} is unschedulable: see that pod"


def with_transition_times(
    desired: PodGroupStatus, observed: PodGroupStatus, *, now: datetime, transition: str
) -> tuple[PodGroupCondition, ...]:
    """Return the conditions of *desired* with transition times; unchanged ones keep theirs."""
    before = {condition.type: condition for condition in observed.conditions}
    at = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return tuple(
        before[each.type]
        if each.type in before and condition_key(each) == condition_key(before[each.type])
        else PodGroupCondition(
            type=each.type,
            status=each.status,
            reason=each.reason,
            message=each.message,
            transition_id=transition,
            last_transition_time=at,
        )
        for each in desired.conditions
    )


def condition_key(condition: PodGroupCondition) -> tuple[str, str, str, str]:
    """Return the fields of *condition* without times."""
    return condition.type, condition.status, condition.reason, condition.message


def is_equal_status(left: PodGroupStatus, right: PodGroupStatus) -> bool:
    """Return whether two statuses are equal but for times."""
    counts = left.running, left.succeeded, left.failed
    return (
        left.phase == right.phase
        and counts == (right.running, right.succeeded, right.failed)
        and list(map(condition_key, left.conditions)) == list(map(condition_key, right.conditions))
    )
