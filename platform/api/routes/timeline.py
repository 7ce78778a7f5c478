"""Route of the timeline of a job."""

from fastapi import APIRouter

from ...store.database import StoreError
from ...store.history import Timeline
from ..jobs.kinds import JobKind
from ..jobs.pods import read_job
from ..jobs.summaries import JobSummary, Phase
from ..jobs.timeline import pods_by_phase, timeline
from ..problems import ProblemError, problem_responses
from ..schemas.timeline import PhaseOut, TimelineOut
from .dependencies import AppState, Caller, Kind, Name, Namespace, State

router = APIRouter(prefix="/v1", tags=["pods"])


@router.get(
    "/namespaces/{namespace}/{kind:job_kind}/{name}/timeline",
    summary="The phases of a job with their times",
    responses=problem_responses(404),
)
async def get_job_timeline(
    namespace: Namespace, kind: Kind, name: Name, state: State, caller: Caller
) -> TimelineOut:
    """Return the phases from the history, also of a deleted job, or else from the status."""
    try:
        job = await read_job(caller.client, kind, namespace, name)
    except ProblemError as error:
        # 404: the API server has authorized the caller to get the job.
        if error.status != 404:
            raise
        deleted = await state.history.timeline(namespace, kind.name, name)
        if deleted is None:
            raise
        return _from_history(deleted, deleted.pods)
    summary = kind.summarize(job)
    pods = pods_by_phase(summary)
    recorded = await _recorded(state, kind, summary)
    if recorded is not None:
        return _from_history(recorded, pods)
    return TimelineOut(
        phases=[
            PhaseOut.model_validate(entry, from_attributes=True) for entry in timeline(job, summary)
        ],
        pods=pods,
        recorded=False,
        incomplete_reason="",
    )


async def _recorded(state: AppState, kind: JobKind, summary: JobSummary) -> Timeline | None:
    """Return the recorded phases of a job that exists, if they are complete and current."""
    try:
        found = await state.history.timeline(summary.namespace, kind.name, summary.name)
    except StoreError:
        return None  # The status is known without the database.
    if found is None or not found.phases or not found.job.complete:
        return None
    is_current = found.job.uid == summary.uid and found.phases[-1].phase == summary.phase
    return found if is_current else None


def _from_history(recorded: Timeline, pods: dict[str, int]) -> TimelineOut:
    return TimelineOut(
        phases=[
            PhaseOut(
                phase=Phase(each.phase) if each.phase in set(Phase) else Phase.UNKNOWN,
                entered_at=each.entered_at,
                left_at=each.left_at,
                reason=each.reason,
                message=each.message,
            )
            for each in recorded.phases
        ],
        pods=pods,
        recorded=True,
        incomplete_reason=recorded.job.incomplete_reason,
    )
