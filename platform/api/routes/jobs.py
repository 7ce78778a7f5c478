"""Routes of jobs of all kinds: list and get."""

from fastapi import APIRouter

from ...kube.errors import NotFoundError
from ..auth import AccessAttributes
from ..dependencies import PROBLEMS, AppState, Caller, Kind, Name, Namespace, State
from ..job_kinds import JobKind
from ..problems import ProblemError
from ..schemas.jobs import JobList, JobOut

router = APIRouter(prefix="/v1", responses=PROBLEMS)


def _list(state: AppState, kind: JobKind, namespace: str = "") -> JobList:
    found = [
        JobOut.of(kind.summarize(job))
        for job in state.caches.of(kind).informer
        if namespace in ("", job.metadata.namespace)
    ]
    found.sort(key=lambda job: (job.namespace, job.name))
    return JobList(items=found, next_cursor=None, total=len(found))


@router.get("/{kind:job_kind}", summary="Jobs of all namespaces")
async def list_all_jobs(kind: Kind, state: State, caller: Caller) -> JobList:
    """List the jobs of all namespaces."""
    await state.reviewer.authorize(
        caller.user, AccessAttributes(verb="list", resource=kind.resource, namespace="")
    )
    return _list(state, kind)


@router.get("/namespaces/{namespace}/{kind:job_kind}", summary="Jobs of one namespace")
async def list_jobs(namespace: Namespace, kind: Kind, state: State, caller: Caller) -> JobList:
    """List the jobs of a namespace; an unknown namespace has none."""
    await state.reviewer.authorize(
        caller.user, AccessAttributes(verb="list", resource=kind.resource, namespace=namespace)
    )
    return _list(state, kind, namespace)


@router.get("/namespaces/{namespace}/{kind:job_kind}/{name}", summary="One job")
async def get_job(
    namespace: Namespace, kind: Kind, name: Name, state: State, caller: Caller
) -> JobOut:
    """Return phase and counts of a job."""
    act = AccessAttributes(verb="get", resource=kind.resource, namespace=namespace, name=name)
    await state.reviewer.authorize(caller.user, act)
    try:
        found = await caller.client.get(kind.resource, name, namespace=namespace, view=kind.view)
    except NotFoundError:
        text = f"{kind.label} {name!r} not found in namespace {namespace!r}"
        raise ProblemError(404, text) from None
    return JobOut.of(kind.summarize(found))
