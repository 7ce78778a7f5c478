"""What the cluster shall be told of a gang: the status of its PodGroup, and why its pods wait.

Pure: it looks at a gang as a cycle left it and says what ought to stand there; whether and when
that is written is the business of ``scribe``.

The phase follows Volcano with one exception: pods that are being bound keep a started group
Running, as pods that are being deleted do; neither starts one. A group short of members is
given a moment before its conditions and pods say so: the missing pods are just being created.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from ...model.podgroup import PodGroup, PodGroupCondition, PodGroupPhase, PodGroupStatus
from ..plugins.gang import GATED, NOT_ENOUGH_OF_ROLE, NOT_ENOUGH_TASKS
from ..state.gangs import Finding, Gang, Lacking, Task, TaskStatus

SCHEDULED, UNSCHEDULABLE = "Scheduled", "Unschedulable"
SCHEDULABLE = "Schedulable"
READY = "tasks in gang are ready to be scheduled"
GRACE, LONGEST_GRACE = 1.0, 10.0
"""Seconds without a new member after which something is made of a group that lacks some: at first,
and where a busy server explains the gap, or they have been coming in for so long that it may."""

GRACE_SHARE = 0.25
"""The grace as a share of the time for which members have been coming in."""

NOTE_PAUSE = 1.0
"""Seconds between two looks at what each single pod of a gang is to be told."""

_LACKING = (NOT_ENOUGH_TASKS, NOT_ENOUGH_OF_ROLE, GATED)
_STARTED = (PodGroupPhase.RUNNING, PodGroupPhase.UNKNOWN, PodGroupPhase.COMPLETED)
_SETTLED = (TaskStatus.BOUND, TaskStatus.RUNNING, TaskStatus.SUCCEEDED, TaskStatus.FAILED)


@dataclass(frozen=True, slots=True)
class Note:
    """Why one pod waits: the PodScheduled=False condition that it ought to have."""

    namespace: str
    name: str
    uid: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Report:
    """What ought to stand in the cluster about one gang."""

    key: str
    group: PodGroup | None
    status: PodGroupStatus
    """Conditions without times; those of ``group`` that say the same keep theirs."""

    notes: tuple[Note, ...] = ()
    again_in: float | None = None
    """Seconds after which the gang is to be looked at again, whatever happens."""


def report(gang: Gang, *, now: float, busy: bool = False) -> Report:
    """Say what ought to stand about *gang*; moves its phase, and remembers what was said.

    *now* is a steady clock's; it only measures how long members have been missing. *busy* says
    that much is going on in the cluster, so that those of a new gang may come slowly.
    """
    slow = busy and gang.phase not in _STARTED
    left = _patience(gang, now, LONGEST_GRACE if slow else GRACE)
    finding = None if left else gang.finding
    if not gang.single and gang.group is not None:
        gang.phase = phase(gang)
    status = PodGroupStatus(
        phase=gang.phase,
        conditions=_conditions(gang, finding),
        running=gang.tally[TaskStatus.RUNNING],
        succeeded=gang.tally[TaskStatus.SUCCEEDED],
        failed=gang.tally[TaskStatus.FAILED],
    )
    gang.said = status
    notes: tuple[Note, ...] = ()
    if finding:
        left = max(gang.noted_at + NOTE_PAUSE - now, 0.0)
        if not left:
            gang.noted_at = now
            notes = tuple(_notes(gang, finding))
    return Report(gang.key, gang.group, status, notes, left or None)


def _patience(gang: Gang, now: float, grace: float) -> float:
    """Seconds for which nothing is to be made of missing members: they are coming in.

    At least *grace* after the last one.
    """
    if gang.is_pending or not _lacks_members(gang.finding):
        gang.lacking = Lacking()
        return 0.0
    lacking = gang.lacking
    if lacking.seen <= gang.tally.valid:
        since = now if lacking.seen == 0 else lacking.since
        gang.lacking = lacking = Lacking(gang.tally.valid + 1, last=now, since=since)
    share = GRACE_SHARE * (lacking.last - lacking.since)
    grace = min(max(grace, share), LONGEST_GRACE)
    return max(grace - (now - lacking.last), 0.0)


def phase(gang: Gang) -> str:
    """Return the phase that follows the present one of *gang*.

    A gang whose members run and that is short of others is Unknown; one that lost all of them is
    Pending and has to be admitted again.
    """
    tally = gang.tally
    if tally[TaskStatus.RUNNING] and not gang.is_ready() and not gang.is_terminating():
        return PodGroupPhase.UNKNOWN
    count = sum(tally[status] for status in _SETTLED)
    if gang.phase in _STARTED:
        count += gang.leaving + tally[TaskStatus.BINDING]
    if gang.tasks and count and count >= gang.min_member:
        done = count == tally.completed and not tally[TaskStatus.BINDING]
        return PodGroupPhase.COMPLETED if done else PodGroupPhase.RUNNING
    return PodGroupPhase.INQUEUE if gang.phase == PodGroupPhase.INQUEUE else PodGroupPhase.PENDING


def summary(gang: Gang, finding: Finding) -> str:
    """Why *gang* waits, in the words that Volcano's users know."""
    missing = max(gang.min_member - gang.tally.ready - len(finding.fitting), 0)
    head = f"{missing}/{gang.min_member} tasks in gang unschedulable"
    if finding.message:
        return f"{head}: {finding.message}"
    counts = [
        f"{count} {status.name.capitalize()}"
        for status in TaskStatus
        if (count := gang.tally[status])
    ]
    standing = ", ".join(sorted([*counts, f"{gang.min_member} minAvailable"]))
    reasons = Counter(_reason(task, finding) for task in gang.waiting.values())
    pending = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
    parts = [f"{head}: pod group is not ready, {standing}"]
    parts += [f"; Pending: {pending}"] if pending else []
    origin = next(iter(finding.misfits.values()), None)
    parts += [f". Origin reason is {origin.task}: {origin.message}"] if origin else []
    return "".join(parts)


def _lacks_members(finding: Finding | None) -> bool:
    return finding is not None and finding.reason in _LACKING


def _conditions(gang: Gang, finding: Finding | None) -> tuple[PodGroupCondition, ...]:
    """The conditions as they stand, with those replaced that are true now; none ever goes."""
    standing = {condition.type: condition for condition in gang.said.conditions}
    if gang.tasks and gang.is_ready():
        standing[SCHEDULED] = PodGroupCondition(type=SCHEDULED, status="True", reason=READY)
    elif finding:
        standing[UNSCHEDULABLE] = PodGroupCondition(
            type=UNSCHEDULABLE,
            status="True",
            reason=finding.reason,
            message=summary(gang, finding),
        )
    return tuple(standing.values())


def _notes(gang: Gang, finding: Finding) -> Iterator[Note]:
    for task in gang.waiting.values():
        reason, message = _reason(task, finding), _message(gang, task, finding)
        yield Note(task.namespace, task.name, task.uid, reason, message)


def _reason(task: Task, finding: Finding) -> str:
    return SCHEDULABLE if task.uid in finding.fitting else UNSCHEDULABLE


def _message(gang: Gang, task: Task, finding: Finding) -> str:
    """Numbers only for the pod that was tried: the others' text need not follow every change."""
    if finding.message:
        return finding.message
    if task.uid in finding.fitting:
        return f"fits, but waits for the other pods that {gang.name} needs to start"
    misfit = finding.misfits.get(task.role)
    if misfit is None:
        misfit = next(iter(finding.misfits.values()), None)
    if misfit is None:
        return f"waits until {gang.name} can start"
    if misfit.uid == task.uid:
        return misfit.message
    return f"not tried, since {misfit.task} found no place: see there"


def stamped(
    wanted: PodGroupStatus, standing: PodGroupStatus, *, now: datetime, transition: str
) -> tuple[PodGroupCondition, ...]:
    """The conditions of *wanted* with times: those that say what they said keep theirs."""
    before = {condition.type: condition for condition in standing.conditions}
    at = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return tuple(
        before[each.type]
        if each.type in before and says(each) == says(before[each.type])
        else PodGroupCondition(
            type=each.type,
            status=each.status,
            reason=each.reason,
            message=each.message,
            transition_id=transition,
            last_transition_time=at,
        )
        for each in wanted.conditions
    )


def says(condition: PodGroupCondition) -> tuple[str, str, str, str]:
    """What *condition* says, its times aside."""
    return condition.type, condition.status, condition.reason, condition.message


def same(left: PodGroupStatus, right: PodGroupStatus) -> bool:
    """Whether two statuses say the same, times aside."""
    return _plain(left) == _plain(right)


def _plain(status: PodGroupStatus) -> tuple[object, ...]:
    conditions = [says(each) for each in status.conditions]
    return status.phase, conditions, status.running, status.succeeded, status.failed
