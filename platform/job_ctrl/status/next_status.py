"""Compute the next status of a Job. Pure: the caller supplies the time.

A condition is added when the job enters a phase; the counts follow the pods. In the final phases,
finished pods remain counted after their deletion.
"""

from collections.abc import Mapping
from datetime import datetime

import msgspec

from ...model import durations, times
from ...model.command import Command
from ...model.controlled_resources import (
    COMMAND_PHASE,
    COMMAND_UID,
    MET_DEPENDENCIES,
    PLUGIN_PREFIX,
    PVC_PREFIX,
    RESTART_TARGET,
    SECONDS_RUN,
    OperationResult,
    with_result,
)
from ...model.job import FINAL_PHASES, Job, JobCondition, JobPhase, JobState, JobStatus, TaskState
from ...model.job_actions import Transition
from ...model.job_reasons import Reason
from ...model.pod import FINISHED, PodPhase
from ..tracker.pod_info import PodCounts
from .job_view import JobView
from .restarts import RestartTarget

_PLUGINS_WITHOUT_OBJECTS = frozenset({"hcclrank", "array"})
"""Plugins without a mark: the first as in Volcano, which has no other."""

_BLOCKING_REASONS = frozenset(
    {
        Reason.WAITING,
        Reason.PVC_ERROR,
        Reason.PLUGIN_ERROR,
        Reason.PODGROUP_ERROR,
        Reason.FAILED_CREATE,
        Reason.GANG_UNSATISFIABLE,
        Reason.PODGROUP_PENDING,
    }
)


def initial_status(view: JobView) -> JobStatus:
    """Return the first status of a new job, Pending since its creation."""
    status = msgspec.structs.replace(
        view.job.status,
        min_available=view.job.spec.min_available,
        controlled_resources=view.job.status.controlled_resources | _plugin_keys(view.job),
    )
    # If this status is not written, the next decision must find the same time.
    created = view.job.metadata.creation_timestamp
    since = min(times.parse(created), view.now) if created else view.now
    return _enter_phase(status, JobState(phase=JobPhase.PENDING), since)


def apply_transition(
    view: JobView,
    transition: Transition,
    *,
    reason: str = "",
    message: str = "",
    command: Command | None = None,
    target: RestartTarget | None = None,
) -> JobStatus:
    """Return the status after *transition*, which *command* or *target* may have caused.

    Without *reason* the job keeps its reason, message and restart target until it runs. Pods that
    the new phase deletes count as terminating, because their deletion follows this write.
    """
    before = view.job.status
    kept = (
        JobState()
        if transition.to is JobPhase.RUNNING
        else _with_blocking_reason(before.state, None)
    )
    state = JobState(
        phase=transition.to,
        reason=reason or kept.reason,
        message=message if reason else kept.message,
    )
    status = msgspec.structs.replace(
        before,
        version=before.version + transition.bumps_version,
        retry_count=before.retry_count + transition.counts_as_retry,
        controlled_resources=_update_marks(
            before,
            transition,
            command=command,
            target=target,
            keep_target=not reason and transition.to is not JobPhase.RUNNING,
        ),
    )
    if view.seconds_left is not None and view.phase is JobPhase.RUNNING:
        ran = {SECONDS_RUN: str(view.seconds_run)}
        marks = status.controlled_resources | ran
        status = msgspec.structs.replace(status, controlled_resources=marks)
    status = _enter_phase(status, state, view.now)
    entered = msgspec.structs.replace(view, job=msgspec.structs.replace(view.job, status=status))
    return _with_counts(entered, entered.pod_counts.with_terminating(entered.pods_to_restart()))


def _update_marks(
    before: JobStatus,
    transition: Transition,
    *,
    command: Command | None,
    target: RestartTarget | None,
    keep_target: bool,
) -> dict[str, str]:
    """Return the marks with those of a transition, which replace earlier ones of the same key."""
    marks: Mapping[str, str] = before.controlled_resources
    if command is not None and command.operation:
        result = OperationResult(operation=command.operation, executed=True, text=transition.to)
        marks = with_result(before, result)
    updated = {key: value for key, value in marks.items() if keep_target or key != RESTART_TARGET}
    if command is not None:
        updated |= {COMMAND_UID: command.metadata.uid, COMMAND_PHASE: transition.to}
    if target is not None and not target.is_whole_job:
        updated[RESTART_TARGET] = target.mark
    return updated


def with_refusal(status: JobStatus, operation: str, reason: str) -> JobStatus:
    """Return the status after the Command of *operation* was not executed, because of *reason*."""
    result = OperationResult(operation=operation, executed=False, text=reason)
    return msgspec.structs.replace(status, controlled_resources=with_result(status, result))


def with_met_dependencies(view: JobView, met: str) -> JobStatus:
    """Return the status with the mark of the dependencies that were met."""
    status = update_counts(view)
    marks = status.controlled_resources | {MET_DEPENDENCIES: met}
    return msgspec.structs.replace(status, controlled_resources=marks)


def update_counts(view: JobView) -> JobStatus:
    """Return the status with current counts, in its current phase."""
    return _with_counts(view, view.pod_counts)


def _with_counts(view: JobView, pods: PodCounts) -> JobStatus:
    job = view.job
    tasks = {task.name: dict(pods.tasks.get(task.name, {})) for task in job.spec.tasks}
    if view.phase in FINAL_PHASES:
        _keep_finished(tasks, job.status)
    total: dict[str, int] = dict.fromkeys(PodPhase, 0)
    for phases in tasks.values():
        for phase, number in phases.items():
            total[phase] += number
    syncing = view.is_active
    # Marked before the plugins' objects are created, so that a new leader deletes them.
    marks = _plugin_keys(job) | ({} if view.pvcs_stale else _pvc_keys(job)) if syncing else {}
    return msgspec.structs.replace(
        job.status,
        state=_with_blocking_reason(job.status.state, blocking_reason(view))
        if syncing
        else job.status.state,
        pending=total[PodPhase.PENDING],
        running=total[PodPhase.RUNNING],
        succeeded=total[PodPhase.SUCCEEDED],
        failed=total[PodPhase.FAILED],
        unknown=total[PodPhase.UNKNOWN],
        terminating=pods.terminating,
        task_status_count={
            task: TaskState(phase={str(phase): phases[phase] for phase in sorted(phases)})
            for task, phases in tasks.items()
            if phases
        },
        min_available=job.spec.min_available if syncing else job.status.min_available,
        controlled_resources=job.status.controlled_resources | marks,
        running_duration=None if syncing else _duration(job),
    )


def blocking_reason(view: JobView) -> tuple[Reason, str] | None:
    """Return why the job lacks pods or does not run; the first applicable reason."""
    if view.dependencies is not None and view.dependencies.waiting:
        return Reason.WAITING, view.dependencies.waiting
    errors = view.last_errors
    for reason in (Reason.PVC_ERROR, Reason.PLUGIN_ERROR, Reason.PODGROUP_ERROR):
        if reason in errors:
            return reason, errors[reason]
    if Reason.FAILED_CREATE in errors and view.is_missing_pods and view.admitted:
        return Reason.FAILED_CREATE, errors[Reason.FAILED_CREATE]
    if view.unsatisfiable_reason:
        return Reason.GANG_UNSATISFIABLE, view.unsatisfiable_reason
    found = view.unschedulable
    if found is not None and view.phase is JobPhase.PENDING:
        return Reason.PODGROUP_PENDING, found.message
    return None


def _with_blocking_reason(state: JobState, blocked_by: tuple[Reason, str] | None) -> JobState:
    """Return *state* with *blocked_by* as its reason, or without an outdated blocking reason."""
    if blocked_by is not None:
        return msgspec.structs.replace(state, reason=blocked_by[0], message=blocked_by[1])
    if state.reason in _BLOCKING_REASONS:
        return msgspec.structs.replace(state, reason="", message="")
    return state


def without_plugin_keys(status: JobStatus) -> JobStatus:
    """Return the status of a job whose plugins' objects are deleted."""
    kept = {
        key: value
        for key, value in status.controlled_resources.items()
        if not key.startswith(PLUGIN_PREFIX)
    }
    return msgspec.structs.replace(status, controlled_resources=kept)


def _plugin_keys(job: Job) -> dict[str, str]:
    return {
        f"{PLUGIN_PREFIX}{plugin}": plugin
        for plugin in job.spec.plugins
        if plugin not in _PLUGINS_WITHOUT_OBJECTS
    }


def _pvc_keys(job: Job) -> dict[str, str]:
    claims = (volume.volume_claim_name for volume in job.spec.volumes)
    return {f"{PVC_PREFIX}{claim}": claim for claim in claims if claim}


def _enter_phase(status: JobStatus, state: JobState, now: datetime) -> JobStatus:
    timestamp = times.format(now)
    others = tuple(one for one in status.conditions if one.status != state.phase)
    return msgspec.structs.replace(
        status,
        state=msgspec.structs.replace(state, last_transition_time=timestamp),
        conditions=(*others, JobCondition(status=state.phase, last_transition_time=timestamp)),
    )


def _keep_finished(tasks: dict[str, dict[str, int]], status: JobStatus) -> None:
    for task, state in status.task_status_count.items():
        for phase in FINISHED & state.phase.keys():
            phases = tasks.setdefault(task, {})
            phases[phase] = max(phases.get(phase, 0), state.phase[phase])


def _duration(job: Job) -> str | None:
    """Return the time from the creation of the job to its last transition, in Go's notation."""
    created, changed = job.metadata.creation_timestamp, job.status.state.last_transition_time
    if not created or not changed:
        return None
    return durations.format(times.parse(changed) - times.parse(created))
