"""Route of the reason why a job waits."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from fastapi import APIRouter

from ...kube.errors import (
    ApiError,
    ConnectionLostError,
    ForbiddenError,
    NotFoundError,
    NotSentError,
)
from ...model.controlled_resources import executed_command
from ...model.job import Action
from ...model.names import PODGROUPS
from ...model.pod import PodPhase
from ...model.podgroup import PodGroup
from ...model.scheduler_questions import WaitRequest
from ...store.database import StoreUnavailableError
from ...wire.jobs import JobSummary, Phase, WaitReason, Why
from ...wire.waits import Competition
from ..competition import competition_of, jobs_of, visible_jobs
from ..jobs.advice import first_failed
from ..jobs.pod_views import JobPod
from ..jobs.pods import JobPods, read_job
from ..jobs.summaries import is_final
from ..jobs.views import CachedJob, CachedObject
from ..jobs.waits import WaitView, described_podgroup, explain_wait
from ..logs.containers import LogOptions, open_log
from ..problems import ProblemError, problem_responses
from ..schemas.responses import WireRoute
from ..schemas.why import why_of
from .dependencies import AppState, Caller, Kind, Name, Namespace, State

_MAX_PODS = 5
"""Pods that are read: a job whose pod describes its PodGroup has no others, except old ones."""

_MAX_PODS_READ = 500
"""Pods that are read of a job that starts, runs or has failed."""
_LAST_LINES, _LAST_BYTES = 5, 4096
"""Of the log of a pod that failed."""
_MAX_COMMANDS = 20
"""Latest commands of a job among which the one is searched for that has stopped it."""
_STOPS: Mapping[str, Action] = {
    Phase.TERMINATED: Action.TERMINATE_JOB,
    Phase.ABORTED: Action.ABORT_JOB,
}
"""By which commands a job gets into a phase."""

router = APIRouter(prefix="/v1", tags=["pods"], route_class=WireRoute)


@router.get(
    "/namespaces/{namespace}/{kind:job_kind}/{name}/why",
    summary="Why a job waits",
    responses=problem_responses(404),
)
async def get_job_why(
    namespace: Namespace, kind: Kind, name: Name, state: State, caller: Caller
) -> Why:
    """Return whether the job waits, and for what, with the scheduler's explanation.

    Job and PodGroup, or the pod of a job without one, are read with the caller's rights, and so are
    the pods, and the log of the one that failed first.

    What a job competes with that waits for the scheduler is what that knows now. Only other jobs
    are named whose kind the caller may list in their namespace.
    """
    job = await read_job(caller.client, kind, namespace, name)
    summary = kind.summarize(job)
    podgroups = []
    for known in tuple(state.caches.podgroups_of(job.metadata)):
        try:
            found = await caller.client.get(
                PODGROUPS, known.metadata.name, namespace=namespace, view=PodGroup
            )
        except NotFoundError:
            continue  # The cache lags behind.
        podgroups.append(found)
    if not podgroups and kind.is_volcano and not is_final(summary.phase):
        podgroups = await _described_podgroups(JobPods(caller.client, kind, job))
    view = WaitView(
        job=summary,
        podgroups=tuple(podgroups),
        queue=state.caches.queues.get(summary.queue) if summary.queue else None,
        queues_are_known=state.caches.queues.synced,
        now=datetime.now(UTC),
        stopped_by=await _stopped_by(state, job, summary),
    )
    wait = explain_wait(view)
    if not _depends_on_pods(summary, wait.reason):
        if wait.explanation is None or wait.podgroup is None:
            return why_of(wait)
        request = WaitRequest(namespace, wait.podgroup.metadata.name)
        try:
            competition = await _competition(state, caller, request)
        except (ProblemError, ApiError, ConnectionLostError, NotSentError) as error:
            return why_of(wait, competition_error=str(error))
        return why_of(wait, competition=competition)
    pods = await _pods(JobPods(caller.client, kind, job))
    failed = first_failed(pods) if summary.phase is Phase.FAILED else None
    failure = "" if failed is None or kind.is_volcano else _last_failure(pods)
    wait = explain_wait(replace(view, pods=pods, failure=failure))
    if failed is None:
        return why_of(wait)
    lines = await _last_lines(caller, state, failed)
    return why_of(wait, failed_pod=failed.metadata.name, last_lines=lines)


async def _stopped_by(state: AppState, job: CachedObject, summary: JobSummary) -> str:
    """Return who has sent the command that has terminated or suspended a job.

    The status names the Command; that of another client of Kubernetes has no record.
    """
    action = _STOPS.get(summary.phase)
    command = executed_command(job.status) if isinstance(job, CachedJob) else None
    if action is None or command is None:
        return ""
    try:
        of = (summary.kind, summary.namespace, summary.name)
        records = await state.store.history(*of, limit=_MAX_COMMANDS)
    except StoreUnavailableError:
        return ""
    named = (
        each.who for each in records if (each.action, each.command_uid) == (action, command.uid)
    )
    return next(named, "")


async def _competition(state: AppState, caller: Caller, request: WaitRequest) -> Competition | None:
    """Return what the job competes with; nothing if the scheduler does not know it as waiting.

    Raises:
        ProblemError, ApiError, ConnectionLostError, NotSentError: no scheduler responds.
    """
    details = await state.simulations.explain_wait(request)
    if details is None:
        return None
    visible = await visible_jobs(state.reviewer, caller.user, jobs_of(details))
    return competition_of(details, visible)


def _depends_on_pods(job: JobSummary, reason: WaitReason) -> bool:
    """Return whether only the pods of a job show why it has failed, or is slow to start."""
    if job.phase is Phase.FAILED or reason in (WaitReason.STARTING, WaitReason.NO_GANG):
        return True
    return reason is WaitReason.NOT_WAITING and job.running < job.replicas


async def _pods(pods: JobPods) -> list[JobPod]:
    """Return pods of the job; none if the caller may not read them."""
    try:
        return (await pods.read(limit=_MAX_PODS_READ)).pods
    except ForbiddenError:
        return []


async def _last_lines(caller: Caller, state: State, pod: JobPod) -> list[str]:
    """Return the end of the log of *pod*; nothing if the caller may not read it."""
    container = next(
        (
            each.name
            for each in pod.all_statuses()
            if each.state.terminated is not None and each.state.terminated.exit_code
        ),
        "",
    )
    if not container or not state.log_streams.is_available(caller.user.username):
        return []
    options = LogOptions(container=container, tail_lines=_LAST_LINES, limit_bytes=_LAST_BYTES)
    content = b""
    try:
        async with (
            state.log_streams.one(caller.user.username),
            open_log(caller.client, pod.metadata.namespace, pod.metadata.name, options) as chunks,
        ):
            async for chunk in chunks:
                content += chunk
    except (ApiError, ConnectionLostError, NotSentError):
        return []
    return content.decode(errors="replace").splitlines()


def _last_failure(pods: list[JobPod]) -> str:
    """Return which pod of a failed job failed last, and why; empty if no pod that failed is
    left."""
    failed = [pod for pod in pods if pod.status.phase == PodPhase.FAILED]
    newest_first = sorted(
        failed, key=lambda pod: pod.metadata.creation_timestamp or "", reverse=True
    )
    return next((f"{pod.metadata.name}: {pod.failure}" for pod in newest_first if pod.failure), "")


async def _described_podgroups(pods: JobPods) -> list[PodGroup]:
    """Return the PodGroup that a pod of the job describes; none if the caller may not read pods."""
    try:
        found = await pods.read(limit=_MAX_PODS)
    except ForbiddenError:
        return []  # the status of the job has the reason, too
    described = described_podgroup(found.pods)
    return [] if described is None else [described]
