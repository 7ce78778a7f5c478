"""What a Job's status says after a decision. Pure: the time is given.

A phase's condition is written when the job enters it; counters follow the pods. In the phases that
a job never leaves, pods that succeeded or failed stay counted when somebody tidies them away.
"""

import dataclasses
from collections.abc import Mapping
from datetime import datetime

import msgspec

from ..model import durations, times
from ..model.job import FINAL_PHASES, Job, JobCondition, JobPhase, JobState, JobStatus, TaskState
from ..model.pod import FINISHED, PodPhase
from . import podgroups
from .effects import Reason
from .job_view import JobView
from .phases import RULES, SyncMode, Transition
from .pod_tracker import PodCounts

PLUGIN_KEY_PREFIX = "plugin-"
"""Prefix of the keys in ``controlledResources`` that name the job's plugins."""

_PLUGINS_WITHOUT_OBJECTS = frozenset({"hcclrank"})
"""Plugins without anything to take away."""

_BLOCKING_REASONS = frozenset(
    {
        Reason.PVC_ERROR,
        Reason.PLUGIN_ERROR,
        Reason.PODGROUP_ERROR,
        Reason.FAILED_CREATE,
        Reason.GANG_UNSATISFIABLE,
        Reason.PODGROUP_PENDING,
    }
)

PVC_KEY_PREFIX = "volume-pvc-"
"""Prefix of those that name the claims of its volumes."""


def initial_status(view: JobView) -> JobStatus:
    """The status of a job that nobody has looked at yet."""
    status = msgspec.structs.replace(
        view.job.status,
        min_available=view.job.spec.min_available,
        controlled_resources=view.job.status.controlled_resources | _plugin_keys(view.job),
    )
    return _enter_phase(status, JobState(phase=JobPhase.PENDING), view.now)


def apply_transition(
    view: JobView, transition: Transition, *, reason: str = "", message: str = ""
) -> JobStatus:
    """The status after *go*; without a reason the job keeps the one it has, until it runs.

    Pods that the new phase lets go count as going: they are asked to as soon as this is written.
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
    )
    status = _enter_phase(status, state, view.now)
    entered = dataclasses.replace(view, job=msgspec.structs.replace(view.job, status=status))
    return _with_counts(entered, entered.pod_counts.with_terminating(entered.pods_to_restart()))


def update_counts(view: JobView) -> JobStatus:
    """The status with the numbers of now, in the phase that it names."""
    return _with_counts(view, view.pod_counts)


def _with_counts(view: JobView, pods: PodCounts) -> JobStatus:
    job = view.job
    tasks = {task.name: dict(pods.tasks.get(task.name, {})) for task in job.spec.tasks}
    if view.phase in FINAL_PHASES:
        _keep_finished(tasks, job.status)
    serving = RULES[view.phase].sync_mode is SyncMode.SYNC
    # What plugins make must be marked beforehand, or nobody knows that it has to go.
    marks = _plugin_keys(job) | ({} if view.pvcs_stale else _pvc_keys(job)) if serving else {}
    return msgspec.structs.replace(
        job.status,
        state=_with_blocking_reason(job.status.state, blocking_reason(view))
        if serving
        else job.status.state,
        pending=_sum(tasks, PodPhase.PENDING),
        running=_sum(tasks, PodPhase.RUNNING),
        succeeded=_sum(tasks, PodPhase.SUCCEEDED),
        failed=_sum(tasks, PodPhase.FAILED),
        unknown=_sum(tasks, PodPhase.UNKNOWN),
        terminating=pods.terminating,
        task_status_count={
            task: TaskState(phase={str(phase): phases[phase] for phase in sorted(phases)})
            for task, phases in tasks.items()
            if phases
        },
        min_available=job.spec.min_available if serving else job.status.min_available,
        controlled_resources=job.status.controlled_resources | marks,
        running_duration=None if serving else _duration(job),
    )


def blocking_reason(view: JobView) -> tuple[Reason, str] | None:
    """What keeps the job from having its pods, or from running; what comes first counts."""
    obstacles = view.last_errors
    for reason in (Reason.PVC_ERROR, Reason.PLUGIN_ERROR, Reason.PODGROUP_ERROR):
        if reason in obstacles:
            return reason, obstacles[reason]
    if Reason.FAILED_CREATE in obstacles and view.is_missing_pods and view.admitted:
        return Reason.FAILED_CREATE, obstacles[Reason.FAILED_CREATE]
    if view.unsatisfiable_reason:
        return Reason.GANG_UNSATISFIABLE, view.unsatisfiable_reason
    found = podgroups.unschedulable_condition(view.podgroup) if view.podgroup is not None else None
    if found is not None and view.phase is JobPhase.PENDING:
        return Reason.PODGROUP_PENDING, found.message
    return None


def _with_blocking_reason(state: JobState, blocked_by: tuple[Reason, str] | None) -> JobState:
    """The state with what the job is hindered *by* as its reason, or with no such one any more."""
    if blocked_by is not None:
        return msgspec.structs.replace(state, reason=blocked_by[0], message=blocked_by[1])
    if state.reason in _BLOCKING_REASONS:
        return msgspec.structs.replace(state, reason="", message="")
    return state


def without_plugin_keys(status: JobStatus) -> JobStatus:
    """The status of a job whose plugins' objects are gone."""
    kept = {
        key: value
        for key, value in status.controlled_resources.items()
        if not key.startswith(PLUGIN_KEY_PREFIX)
    }
    return msgspec.structs.replace(status, controlled_resources=kept)


def merge_patch(old: object, new: object) -> dict[str, object]:
    """The merge patch that makes *old* (as decoded JSON) into *new*; empty if they are equal."""
    patch: dict[str, object] = {}
    before = old if isinstance(old, Mapping) else {}
    after = new if isinstance(new, Mapping) else {}
    for key in before.keys() | after.keys():
        if key not in after:
            patch[key] = None
        elif isinstance(after[key], Mapping) and isinstance(before.get(key), Mapping):
            inner = merge_patch(before[key], after[key])
            if inner:
                patch[key] = inner
        elif key not in before or before[key] != after[key]:
            patch[key] = after[key]
    return patch


def _plugin_keys(job: Job) -> dict[str, str]:
    return {
        f"{PLUGIN_KEY_PREFIX}{plugin}": plugin
        for plugin in job.spec.plugins
        if plugin not in _PLUGINS_WITHOUT_OBJECTS
    }


def _pvc_keys(job: Job) -> dict[str, str]:
    claims = (volume.volume_claim_name for volume in job.spec.volumes)
    return {f"{PVC_KEY_PREFIX}{claim}": claim for claim in claims if claim}


def _enter_phase(status: JobStatus, state: JobState, now: datetime) -> JobStatus:
    moment = times.format(now)
    others = tuple(one for one in status.conditions if one.status != state.phase)
    return msgspec.structs.replace(
        status,
        state=msgspec.structs.replace(state, last_transition_time=moment),
        conditions=(*others, JobCondition(status=state.phase, last_transition_time=moment)),
    )


def _keep_finished(tasks: dict[str, dict[str, int]], status: JobStatus) -> None:
    for task, state in status.task_status_count.items():
        for phase in FINISHED & state.phase.keys():
            phases = tasks.setdefault(task, {})
            phases[phase] = max(phases.get(phase, 0), state.phase[phase])


def _sum(tasks: Mapping[str, Mapping[str, int]], phase: PodPhase) -> int:
    return sum(phases.get(phase, 0) for phases in tasks.values())


def _duration(job: Job) -> str | None:
    """How long the job lived until its last change of phase, in Go's notation."""
    born, changed = job.metadata.creation_timestamp, job.status.state.last_transition_time
    if not born or not changed:
        return None
    return durations.format(times.parse(changed) - times.parse(born))
