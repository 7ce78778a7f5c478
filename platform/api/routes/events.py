"""Route of the events of a job."""

from typing import Annotated

from fastapi import APIRouter, Query

from ..http.query_values import WHOLE_NUMBER
from ..jobs.events import Event, read_events
from ..jobs.pods import JobPods, read_job
from ..problems import problem_responses
from ..schemas.events import EventList, EventObject, EventOut
from .dependencies import Caller, Kind, Name, Namespace, State

router = APIRouter(prefix="/v1", tags=["pods"])


@router.get(
    "/namespaces/{namespace}/{kind:job_kind}/{name}/events",
    summary="The events of a job, its PodGroup and its pods",
    responses=problem_responses(404),
)
async def list_job_events(
    namespace: Namespace,
    kind: Kind,
    name: Name,
    state: State,
    caller: Caller,
    limit: Annotated[
        int,
        Query(ge=1, le=1000, description="Maximum number of events: the newest ones."),
        WHOLE_NUMBER,
    ] = 200,
) -> EventList:
    """List the events with the caller's rights, the newest last.

    Events of pods that were created again under the same name are included. Kubernetes deletes
    events after an hour.
    """
    job = await read_job(caller.client, kind, namespace, name)
    podgroups = [each.metadata for each in state.caches.podgroups_of(job.metadata)]
    found = await read_events(JobPods(caller.client, kind, job), podgroups, limit=limit)
    return EventList(items=[_convert(event) for event in found.newest], total=found.total)


def _convert(event: Event) -> EventOut:
    return EventOut(
        type=event.type,
        reason=event.reason,
        message=event.message,
        count=event.total,
        first_at=event.first_at,
        last_at=event.last_at,
        object=EventObject.of(event.involved_object),
        source=event.reporter,
    )
