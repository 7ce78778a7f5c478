"""Routes of job flows: list and get."""

from fastapi import APIRouter

from ...kube.errors import NotFoundError
from ...model import flow
from ...model.names import JOBFLOWS
from ...wire.flows import JobFlow, JobFlowList
from ..dependencies import Caller, Name, Namespace
from ..problems import ProblemError, problem_responses
from ..schemas.jobflows import jobflow_of
from ..schemas.responses import WireRoute

router = APIRouter(prefix="/v1", tags=["jobflows"], route_class=WireRoute)


@router.get("/jobflows", summary="Job flows of all namespaces")
async def list_all_jobflows(caller: Caller) -> JobFlowList:
    """List the job flows of all namespaces."""
    found = await caller.client.list(JOBFLOWS, view=flow.JobFlow)
    return JobFlowList(items=[jobflow_of(jobflow) for jobflow in found.items])


@router.get("/namespaces/{namespace}/jobflows", summary="Job flows of one namespace")
async def list_jobflows(namespace: Namespace, caller: Caller) -> JobFlowList:
    """List the job flows of a namespace in key order; an unknown namespace has none."""
    found = await caller.client.list(JOBFLOWS, namespace=namespace, view=flow.JobFlow)
    return JobFlowList(items=[jobflow_of(jobflow) for jobflow in found.items])


@router.get(
    "/namespaces/{namespace}/jobflows/{name}",
    summary="One job flow",
    responses=problem_responses(404),
)
async def get_jobflow(namespace: Namespace, name: Name, caller: Caller) -> JobFlow:
    """Return the phase of a job flow and of its jobs."""
    try:
        found = await caller.client.get(JOBFLOWS, name, namespace=namespace, view=flow.JobFlow)
    except NotFoundError:
        text = f"job flow {name!r} not found in namespace {namespace!r}"
        raise ProblemError(404, text) from None
    return jobflow_of(found)
