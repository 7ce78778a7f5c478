"""The status of a JobFlow. Pure."""

from collections import defaultdict
from collections.abc import Mapping
from datetime import datetime

import msgspec

from ..model import durations, times
from ..model.flow import (
    FlowCondition,
    FlowJobStatus,
    FlowPhase,
    FlowState,
    JobFlowStatus,
    RunningHistory,
)
from ..model.job import JobPhase
from .core_types import Job
from .phases import RULES
from .view import FlowView

MAX_HISTORIES = 20
"""Phases kept for each Job, the latest ones: a Job that restarts again and again has many."""

_LISTS: Mapping[str, str] = {
    JobPhase.PENDING: "pending_jobs",
    JobPhase.RUNNING: "running_jobs",
    JobPhase.FAILED: "failed_jobs",
    JobPhase.COMPLETED: "completed_jobs",
    JobPhase.TERMINATED: "terminated_jobs",
}
_UNKNOWN = ("", JobPhase.ABORTING, JobPhase.ABORTED, JobPhase.RESTARTING)
"""Phases listed in ``unKnowJobs``; Completing and Terminating are in no list, as in Volcano."""


def next_status(view: FlowView, now: datetime) -> JobFlowStatus:
    """Return the status that the Jobs require; its phase is at most one step further."""
    jobflow = view.jobflow
    phase = jobflow.phase
    step = RULES[phase].next_phase(view.flow_progress())
    names = _job_names(view)
    recorded = {each.name: each for each in jobflow.status.job_status_list}
    lists: dict[str, list[str]] = defaultdict(list)
    for name in names:
        if listed := _list_of(view, name):
            lists[listed].append(name)
    return JobFlowStatus(
        **{name: tuple(jobs) for name, jobs in lists.items()},
        job_status_list=tuple(
            _job_status(view, recorded.get(name, FlowJobStatus(name=name)), now) for name in names
        ),
        conditions=_conditions(view, names),
        state=FlowState(phase=FlowPhase(step or phase)),
    )


def _job_names(view: FlowView) -> list[str]:
    """Return the names of all Jobs so far: in the order of the flows, then those of no flow."""
    known = view.jobs.keys() | view.deleted.keys()
    declared = [view.jobflow.job_name(flow) for flow in view.flows]
    declared = [name for name in declared if name in known]
    return declared + sorted(known - set(declared))


def _list_of(view: FlowView, name: str) -> str:
    """Return the list that a Job belongs to; a Job deleted before it ended is unknown."""
    phase = view.phase(name)
    final = (JobPhase.COMPLETED, JobPhase.FAILED, JobPhase.TERMINATED)
    if phase in _UNKNOWN or (name not in view.jobs and phase not in final):
        return "un_know_jobs"
    return _LISTS.get(phase, "")


def _job_status(view: FlowView, recorded: FlowJobStatus, now: datetime) -> FlowJobStatus:
    name = recorded.name
    phase = view.phase(name)
    changed = msgspec.structs.replace(
        recorded,
        state=phase,
        running_histories=_histories(recorded.running_histories, phase, now),
    )
    job = view.jobs.get(name)
    if job is None:
        return changed
    return msgspec.structs.replace(
        changed,
        start_timestamp=job.metadata.creation_timestamp,
        end_timestamp=_end(job),
        restart_count=job.status.retry_count,
    )


def _histories(
    histories: tuple[RunningHistory, ...], phase: str, now: datetime
) -> tuple[RunningHistory, ...]:
    """Return *histories* with the change to *phase*, if it is one."""
    if not phase or (histories and histories[-1].state == phase):
        return histories
    moment = times.format(now)
    closed = [msgspec.structs.replace(each, end_timestamp=moment) for each in histories[-1:]]
    entered = RunningHistory(start_timestamp=moment, state=phase)
    return (*histories[:-1], *closed, entered)[-MAX_HISTORIES:]


def _end(job: Job) -> str | None:
    """Return when a Job ended; ``None`` if it has not."""
    created, duration = job.metadata.creation_timestamp, job.status.running_duration
    if not created or not duration:
        return None
    try:
        return times.format(times.parse(created) + durations.parse(duration))
    except (ValueError, OverflowError):  # not written by a job controller
        return None


def _conditions(view: FlowView, names: list[str]) -> dict[str, FlowCondition]:
    failures = {each.job: each for each in view.failures}
    passed = _passed_probes(view)
    conditions = {}
    for name in names:
        condition = view.jobflow.status.conditions.get(name, FlowCondition())
        if (job := view.jobs.get(name)) is not None:
            condition = msgspec.structs.replace(
                condition,
                phase=job.phase,
                create_time=job.metadata.creation_timestamp,
                running_duration=job.status.running_duration,
                task_status_count=job.status.task_status_count,
            )
        failure = failures.get(name) or view.failure(name)
        conditions[name] = msgspec.structs.replace(
            condition,
            reason=failure.reason if failure is not None else condition.reason,
            message=failure.message if failure is not None else condition.message,
            passed_probes=tuple(sorted({*condition.passed_probes, *passed.get(name, ())})),
        )
    return conditions


def _passed_probes(view: FlowView) -> dict[str, list[str]]:
    """Return the flows whose probe has passed, by the name of the target's Job."""
    passed = defaultdict(list)
    for flow in view.flows.values():
        for target in dict.fromkeys(flow.targets):
            if view.is_probed(flow, target) and view.passed(flow, target):
                passed[view.jobflow.job_name(target)].append(flow.name)
    return passed
