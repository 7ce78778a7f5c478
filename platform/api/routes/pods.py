"""Routes of the pods of a job."""

from typing import Annotated

from fastapi import APIRouter, Query

from ...kube.errors import BadRequestError, GoneError
from ...wire.jobs import PodPage, PodPhaseName
from ..http.query_values import WHOLE_NUMBER
from ..jobs.pods import JobPods, read_job
from ..problems import ProblemError, problem_responses
from ..schemas.pods import pod_of
from ..schemas.responses import WireRoute
from .dependencies import Caller, Kind, Name, Namespace

router = APIRouter(prefix="/v1", tags=["pods"], route_class=WireRoute)


@router.get(
    "/namespaces/{namespace}/{kind:job_kind}/{name}/pods",
    summary="The pods of a job",
    responses=problem_responses(404, 410),
)
async def list_pods(  # Parameters of a route are the request's inputs.
    namespace: Namespace,
    kind: Kind,
    name: Name,
    caller: Caller,
    task: Annotated[str, Query(max_length=253, description="Only pods of this task.")] = "",
    phase: Annotated[
        list[PodPhaseName] | None, Query(description="Only pods in one of these phases.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=500), WHOLE_NUMBER] = 100,
    cursor: Annotated[
        str, Query(max_length=4096, description="`next_cursor` of the previous page.")
    ] = "",
) -> PodPage:
    """List the pods by name, read with the caller's rights.

    With a filter a page may have fewer pods than `limit` though there are more pages.
    """
    pods = JobPods(caller.client, kind, await read_job(caller.client, kind, namespace, name))
    try:
        page = await pods.read(limit=limit, continue_token=cursor)
    except GoneError:
        raise ProblemError(410, "the cursor has expired; begin with the first page") from None
    except BadRequestError as error:
        if not cursor:
            raise
        text = f"not a cursor of this list: {error.message}"
        errors = ({"field": "cursor", "message": text},)
        raise ProblemError(422, f"cursor: {text}", errors=errors) from None
    items = (pod_of(pod, kind.pod_position(pod.metadata)) for pod in page.pods)
    found = [
        pod for pod in items if (not task or pod.task == task) and (not phase or pod.phase in phase)
    ]
    return PodPage(items=found, next_cursor=page.continue_token or None)
