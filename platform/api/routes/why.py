"""Route of the reason why a job waits."""

from datetime import UTC, datetime

from fastapi import APIRouter

from ...kube.errors import ForbiddenError, NotFoundError
from ...model.names import PODGROUPS
from ...model.pod import PodPhase
from ...model.podgroup import PodGroup
from ..jobs.pods import JobPods, read_job
from ..jobs.summaries import Phase, is_final
from ..jobs.waits import WaitView, described_podgroup, explain_wait
from ..problems import problem_responses
from ..schemas.why import WhyOut
from .dependencies import Caller, Kind, Name, Namespace, State

_MAX_PODS = 5
"""Pods that are read: a job whose pod describes its PodGroup has no others, except old ones."""

_MAX_FAILED_PODS = 500
"""Pods of a failed job that are read."""

router = APIRouter(prefix="/v1", tags=["pods"])


@router.get(
    "/namespaces/{namespace}/{kind:job_kind}/{name}/why",
    summary="Why a job waits",
    responses=problem_responses(404),
)
async def get_job_why(
    namespace: Namespace, kind: Kind, name: Name, state: State, caller: Caller
) -> WhyOut:
    """Return whether the job waits, and for what, with the scheduler's explanation.

    Job and PodGroup, or the pod of a job without one, are read with the caller's rights, and so are
    pods of a failed job whose status does not name the pod that failed.
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
    failure = ""
    if summary.phase is Phase.FAILED and not kind.is_volcano:
        failure = await _first_failure(JobPods(caller.client, kind, job))
    view = WaitView(
        job=summary,
        failure=failure,
        podgroups=tuple(podgroups),
        queue=state.caches.queues.get(summary.queue) if summary.queue else None,
        now=datetime.now(UTC),
    )
    return WhyOut.of(explain_wait(view))


async def _first_failure(pods: JobPods) -> str:
    """Return which pod of a failed job failed last, and why; empty if no pod that failed is
    left, or if the caller may not read pods."""
    try:
        found = await pods.read(limit=_MAX_FAILED_PODS)
    except ForbiddenError:
        return ""
    failed = [pod for pod in found.pods if pod.status.phase == PodPhase.FAILED]
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
