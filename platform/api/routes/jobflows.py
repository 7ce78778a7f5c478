"""Routes of job flows: list and get."""

from fastapi import APIRouter

from ...kube.errors import NotFoundError
from ...model.flow import JobFlow
from ...model.names import JOBFLOWS
from ..auth import AccessAttributes
from ..dependencies import Caller, Name, Namespace, State
from ..problems import ProblemError, problem_responses
from ..schemas.jobflows import JobFlowList, JobFlowOut

router = APIRouter(prefix="/v1", tags=["jobflows"])


@router.get("/jobflows", summary="Job flows of all namespaces")
async def list_all_jobflows(state: State, caller: Caller) -> JobFlowList:
    """List the job flows of all namespaces."""
    await state.reviewer.authorize(
        caller.user, AccessAttributes(verb="list", resource=JOBFLOWS, namespace="")
    )
    found = await state.client.list(JOBFLOWS, view=JobFlow)
    return JobFlowList(items=[JobFlowOut.of(jobflow) for jobflow in found.items])


@router.get("/namespaces/{namespace}/jobflows", summary="Job flows of one namespace")
async def list_jobflows(namespace: Namespace, state: State, caller: Caller) -> JobFlowList:
    """List the job flows of a namespace in key order; an unknown namespace has none."""
    await state.reviewer.authorize(
        caller.user, AccessAttributes(verb="list", resource=JOBFLOWS, namespace=namespace)
    )
    found = await state.client.list(JOBFLOWS, namespace=namespace, view=JobFlow)
    return JobFlowList(items=[JobFlowOut.of(jobflow) for jobflow in found.items])


@router.get(
    "/namespaces/{namespace}/jobflows/{name}",
    summary="One job flow",
    responses=problem_responses(404),
)
async def get_jobflow(namespace: Namespace, name: Name, state: State, caller: Caller) -> JobFlowOut:
    """Return the phase of a job flow and of its jobs."""
    act = AccessAttributes(verb="get", resource=JOBFLOWS, namespace=namespace, name=name)
    await state.reviewer.authorize(caller.user, act)
    try:
        found = await state.client.get(JOBFLOWS, name, namespace=namespace, view=JobFlow)
    except NotFoundError:
        text = f"job flow {name!r} not found in namespace {namespace!r}"
        raise ProblemError(404, text) from None
    return JobFlowOut.of(found)
