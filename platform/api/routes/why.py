"""Route of the reason why a job waits."""

from datetime import UTC, datetime

from fastapi import APIRouter

from ...kube.errors import NotFoundError
from ...model.names import PODGROUPS
from ...model.podgroup import PodGroup
from ..dependencies import Caller, Kind, Name, Namespace, State
from ..job_pods import read_job
from ..job_waits import WaitView, explain_wait
from ..problems import problem_responses
from ..schemas.why import WhyOut

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

    Job and PodGroup are read with the caller's rights.
    """
    job = await read_job(caller.client, kind, namespace, name)
    summary = kind.summarize(job)
    podgroups = []
    for known in tuple(state.caches.podgroups_of(summary.uid)):
        try:
            found = await caller.client.get(
                PODGROUPS, known.metadata.name, namespace=namespace, view=PodGroup
            )
        except NotFoundError:
            continue  # The cache lags behind.
        podgroups.append(found)
    view = WaitView(
        job=summary,
        podgroups=tuple(podgroups),
        queue=state.caches.queues.get(summary.queue) if summary.queue else None,
        now=datetime.now(UTC),
    )
    return WhyOut.of(explain_wait(view))
