"""Route of the timeline of a job."""

from fastapi import APIRouter

from ..dependencies import Caller, Kind, Name, Namespace
from ..job_pods import read_job
from ..job_timeline import pods_by_phase, timeline
from ..problems import problem_responses
from ..schemas.timeline import PhaseOut, TimelineOut

router = APIRouter(prefix="/v1", tags=["pods"])


@router.get(
    "/namespaces/{namespace}/{kind:job_kind}/{name}/timeline",
    summary="The phases of a job with their times",
    responses=problem_responses(404),
)
async def get_job_timeline(
    namespace: Namespace, kind: Kind, name: Name, caller: Caller
) -> TimelineOut:
    """Return the phases as far as the status of the job knows them."""
    job = await read_job(caller.client, kind, namespace, name)
    summary = kind.summarize(job)
    return TimelineOut(
        phases=[
            PhaseOut.model_validate(entry, from_attributes=True) for entry in timeline(job, summary)
        ],
        pods=pods_by_phase(summary),
    )
