"""Routes of job flows: list and get."""

from fastapi import APIRouter

from ...kube.errors import NotFoundError
from ...model.flow import JobFlow
from ...model.names import JOBFLOWS
from ..problems import ProblemError, problem_responses
from ..schemas.jobflows import JobFlowList, JobFlowOut
from .dependencies import Caller, Name, Namespace

router = APIRouter(prefix="/v1", tags=["jobflows"])


@router.get("/jobflows", summary="Job flows of all namespaces")
async def list_all_jobflows(caller: Caller) -> JobFlowList:
    """List the job flows of all namespaces."""
    found = await caller.client.list(JOBFLOWS, view=JobFlow)
    return JobFlowList(items=[JobFlowOut.of(jobflow) for jobflow in found.items])


@router.get("/namespaces/{namespace}/jobflows", summary="Job flows of one namespace")
async def list_jobflows(namespace: Namespace, caller: Caller) -> JobFlowList:
    """List the job flows of a namespace in key order; an unknown namespace has none."""
    found = await caller.client.list(JOBFLOWS, namespace=namespace, view=JobFlow)
    return JobFlowList(items=[JobFlowOut.of(jobflow) for jobflow in found.items])


@router.get(
    "/namespaces/{namespace}/jobflows/{name}",
    summary="One job flow",
    responses=problem_responses(404),
)
async def get_jobflow(namespace: Namespace, name: Name, caller: Caller) -> JobFlowOut:
    """Return the phase of a job flow and of its jobs."""
    try:
        found = await caller.client.get(JOBFLOWS, name, namespace=namespace, view=JobFlow)
    except NotFoundError:
        text = f"job flow {name!r} not found in namespace {namespace!r}"
        raise ProblemError(404, text) from None
    return JobFlowOut.of(found)
