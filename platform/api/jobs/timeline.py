"""The phases of a job with their times, as far as its status knows them. Pure.

The status of a Volcano job keeps the last entry into each phase, conditions of other kinds the last
transition. So a job that was restarted has lost times: what is not known is null, not estimated.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from ...model.job import JobPhase
from ...model.training.types import ConditionType
from .summaries import JobSummary, Phase
from .views import CachedBatchJob, CachedJob, CachedObject, CachedTrainingJob

_BATCH = {
    "Suspended": Phase.SUSPENDED,
    "SuccessCriteriaMet": Phase.COMPLETING,
    "FailureTarget": Phase.TERMINATING,
    "Complete": Phase.COMPLETED,
    "Failed": Phase.FAILED,
}
_TRAINING: Mapping[str, Phase] = {
    ConditionType.CREATED: Phase.PENDING,
    ConditionType.RUNNING: Phase.RUNNING,
    ConditionType.RESTARTING: Phase.RESTARTING,
    ConditionType.SUSPENDED: Phase.SUSPENDED,
    ConditionType.SUCCEEDED: Phase.COMPLETED,
    ConditionType.FAILED: Phase.FAILED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEntry:
    """A phase that a job has, or had."""

    phase: Phase
    entered_at: str | None = None
    """Null if it is not known."""

    left_at: str | None = None
    """Null in the current phase, and if it is not known."""

    reason: str = ""
    message: str = ""


def timeline(job: CachedObject, summary: JobSummary) -> list[PhaseEntry]:
    """Return the phases of *job* in the order in which they were entered last."""
    if isinstance(job, CachedJob):
        return _volcano(job, summary)
    if isinstance(job, CachedBatchJob):
        return _batch(job, summary)
    return _training(job, summary)


def pods_by_phase(summary: JobSummary) -> dict[str, int]:
    """Return the number of pods of all tasks by phase, as the status counts them."""
    counts: dict[str, int] = {}
    for task in summary.tasks:
        for phase, count in task.phases.items():
            counts[phase] = counts.get(phase, 0) + count
    return dict(sorted(counts.items()))


def _volcano(job: CachedJob, summary: JobSummary) -> list[PhaseEntry]:
    entries = [
        PhaseEntry(phase=_phase(each.status), entered_at=each.last_transition_time)
        for each in job.status.conditions
    ]
    if not entries or entries[-1].phase is not summary.phase:
        # A status that another client wrote, or none yet.
        at = job.status.state.last_transition_time or job.metadata.creation_timestamp
        entries.append(PhaseEntry(phase=summary.phase, entered_at=at))
    entries[-1] = replace(entries[-1], reason=summary.reason, message=summary.message)
    return _with_exits(entries, certain_from=_first_certain(entries, job))


def _phase(text: str) -> Phase:
    return Phase(text) if text in JobPhase.__members__.values() else Phase.UNKNOWN


def _first_certain(entries: list[PhaseEntry], job: CachedJob) -> int:
    """Return the index from which on each phase was left by entering the next one.

    A phase can be entered again only after a restart. What followed the phases before the last
    restart may be missing, unless that was the first and nothing has followed it.
    """
    for index, entry in enumerate(entries):
        if entry.phase is Phase.RESTARTING:
            is_first = index == len(entries) - 1 and job.status.version <= 1
            return 0 if is_first else index
    return 0


def _with_exits(entries: list[PhaseEntry], *, certain_from: int = 0) -> list[PhaseEntry]:
    """Set the time at which each phase was left, which is that of the next entry."""
    return [
        replace(entry, left_at=following.entered_at)
        if index >= certain_from and entry.left_at is None
        else entry
        for index, (entry, following) in enumerate(pairwise(entries))
    ] + entries[-1:]


def _batch(job: CachedBatchJob, summary: JobSummary) -> list[PhaseEntry]:
    entries = [PhaseEntry(phase=Phase.PENDING, entered_at=job.metadata.creation_timestamp)]
    has_run = summary.phase is Phase.RUNNING or summary.succeeded or summary.failed
    if has_run:
        # That pods run is no condition, so the time is not known.
        entries.append(PhaseEntry(phase=Phase.RUNNING))
    entries += _from_conditions(
        (_BATCH[each.type], each.status, each.last_transition_time, each.reason, each.message)
        for each in job.status.conditions
        if each.type in _BATCH
    )
    return _current_last(entries, summary)


def _training(job: CachedTrainingJob, summary: JobSummary) -> list[PhaseEntry]:
    entries = _from_conditions(
        (_TRAINING[each.type], each.status, each.last_transition_time, each.reason, each.message)
        for each in job.status.conditions
        if each.type in _TRAINING
    )
    return _current_last(entries, summary)


def _from_conditions(
    conditions: Iterable[tuple[Phase, str, str | None, str, str]],
) -> list[PhaseEntry]:
    """Return an entry for each condition; one that is False now was left then."""
    entries = []
    for phase, status, time, reason, message in conditions:
        if status == "True":
            entries.append(PhaseEntry(phase=phase, entered_at=time, reason=reason, message=message))
        elif status == "False":
            entries.append(PhaseEntry(phase=phase, left_at=time))
    return sorted(entries, key=lambda entry: entry.entered_at or entry.left_at or "")


def _current_last(entries: list[PhaseEntry], summary: JobSummary) -> list[PhaseEntry]:
    """Return *entries* with the current phase as the last one, without an end."""
    current = [entry for entry in entries if entry.phase is summary.phase]
    others = [entry for entry in entries if entry.phase is not summary.phase]
    last = current[-1] if current else PhaseEntry(phase=summary.phase)
    if last.left_at is not None:
        last = PhaseEntry(phase=last.phase)
    if last.entered_at is not None:
        others = [
            replace(entry, left_at=entry.left_at or _next_entry(others, index, last.entered_at))
            for index, entry in enumerate(others)
        ]
    return [*others, last]


def _next_entry(entries: list[PhaseEntry], index: int, last: str) -> str | None:
    """Return when the phase after that at *index* was entered; None if it is not known."""
    if index + 1 == len(entries):
        return last
    return entries[index + 1].entered_at
