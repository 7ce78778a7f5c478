"""Route of the timeline of a job."""

from fastapi import APIRouter

from ...store import history
from ...store.database import StoreError
from ...wire.jobs import JobSummary, Phase, Timeline, TimelinePhase
from ..dependencies import AppState, Caller, Kind, Name, Namespace, State
from ..job_kinds import JobKind
from ..job_pods import read_job
from ..job_timeline import pods_by_phase, timeline
from ..problems import ProblemError, problem_responses
from ..schemas.responses import WireRoute

router = APIRouter(prefix="/v1", tags=["pods"], route_class=WireRoute)


@router.get(
    "/namespaces/{namespace}/{kind:job_kind}/{name}/timeline",
    summary="The phases of a job with their times",
    responses=problem_responses(404),
)
async def get_job_timeline(
    namespace: Namespace, kind: Kind, name: Name, state: State, caller: Caller
) -> Timeline:
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
    return Timeline(phases=timeline(job, summary), pods=pods)


async def _recorded(state: AppState, kind: JobKind, summary: JobSummary) -> history.Timeline | None:
    """Return the recorded phases of a job that exists, if they are complete and current."""
    try:
        found = await state.history.timeline(summary.namespace, kind.name, summary.name)
    except StoreError:
        return None  # The status is known without the database.
    if found is None or not found.phases or not found.job.complete:
        return None
    is_current = found.job.uid == summary.uid and found.phases[-1].phase == summary.phase
    return found if is_current else None


def _from_history(recorded: history.Timeline, pods: dict[str, int]) -> Timeline:
    return Timeline(
        phases=[
            TimelinePhase(
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
