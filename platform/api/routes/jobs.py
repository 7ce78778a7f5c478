"""Routes of jobs: list and get."""

from fastapi import APIRouter

from ...kube.errors import NotFoundError
from ...model.job import Job
from ...model.names import JOBS
from ..auth import AccessAttributes
from ..dependencies import AppState, Caller, Name, Namespace, State
from ..problems import ProblemError, problem_responses
from ..schemas.jobs import JobList, JobOut

router = APIRouter(prefix="/v1", tags=["jobs"])


async def _job(state: AppState, namespace: str, name: str) -> Job:
    try:
        return await state.client.get(JOBS, name, namespace=namespace, view=Job)
    except NotFoundError:
        raise ProblemError(404, f"job {name!r} not found in namespace {namespace!r}") from None


@router.get("/jobs", summary="Jobs of all namespaces")
async def list_all_jobs(state: State, caller: Caller) -> JobList:
    """List the jobs of all namespaces."""
    await state.reviewer.authorize(
        caller.user, AccessAttributes(verb="list", resource=JOBS, namespace="")
    )
    found = await state.client.list(JOBS, view=Job)
    return JobList(items=[JobOut.of(job) for job in found.items])


@router.get("/namespaces/{namespace}/jobs", summary="Jobs of one namespace")
async def list_jobs(namespace: Namespace, state: State, caller: Caller) -> JobList:
    """List the jobs of a namespace in key order; an unknown namespace has none."""
    await state.reviewer.authorize(
        caller.user, AccessAttributes(verb="list", resource=JOBS, namespace=namespace)
    )
    found = await state.client.list(JOBS, namespace=namespace, view=Job)
    return JobList(items=[JobOut.of(job) for job in found.items])


@router.get(
    "/namespaces/{namespace}/jobs/{name}", summary="One job", responses=problem_responses(404)
)
async def get_job(namespace: Namespace, name: Name, state: State, caller: Caller) -> JobOut:
    """Return phase and counts of a job."""
    act = AccessAttributes(verb="get", resource=JOBS, namespace=namespace, name=name)
    await state.reviewer.authorize(caller.user, act)
    return JobOut.of(await _job(state, namespace, name))
