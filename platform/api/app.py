"""Routes of the REST API, over :mod:`.commands` and the Kubernetes API, except CronJobs."""

import html
from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, FastAPI, Path, Query, Response
from fastapi.responses import HTMLResponse

from ..kube.errors import NotFoundError
from ..model.flow import JobFlow
from ..model.job import Job
from ..model.names import COMMANDS, JOBFLOWS, JOBS
from ..store.commands import CommandRecord
from . import cronjobs, problems
from .auth import AccessAttributes
from .dependencies import PROBLEMS, AppState, Caller, Name, Namespace, State
from .limits import BodyLimitMiddleware
from .problems import ProblemError
from .schemas import (
    ACTIONS,
    CommandIn,
    CommandList,
    CommandOut,
    JobFlowList,
    JobFlowOut,
    JobList,
    JobOut,
    Problem,
)

CommandId = Annotated[str, Path(max_length=36, pattern="^[-0-9a-zA-Z]+$")]

router = APIRouter(prefix="/v1", responses=PROBLEMS)


async def _job(state: AppState, namespace: str, name: str) -> Job:
    try:
        return await state.client.get(JOBS, name, namespace=namespace, view=Job)
    except NotFoundError:
        raise ProblemError(404, f"job {name!r} not found in namespace {namespace!r}") from None


@router.get("/jobs", summary="Jobs of all namespaces")
async def list_all_jobs(state: State, caller: Caller) -> JobList:
    """List the jobs of all namespaces."""
    await state.reviewer.authorize(
        caller, AccessAttributes(verb="list", resource=JOBS, namespace="")
    )
    found = await state.client.list(JOBS, view=Job)
    return JobList(items=[JobOut.of(job) for job in found.items])


@router.get("/namespaces/{namespace}/jobs", summary="Jobs of one namespace")
async def list_jobs(namespace: Namespace, state: State, caller: Caller) -> JobList:
    """List the jobs of a namespace in key order; an unknown namespace has none."""
    await state.reviewer.authorize(
        caller, AccessAttributes(verb="list", resource=JOBS, namespace=namespace)
    )
    found = await state.client.list(JOBS, namespace=namespace, view=Job)
    return JobList(items=[JobOut.of(job) for job in found.items])


@router.get("/namespaces/{namespace}/jobs/{name}", summary="One job")
async def get_job(namespace: Namespace, name: Name, state: State, caller: Caller) -> JobOut:
    """Return phase and counts of a job."""
    act = AccessAttributes(verb="get", resource=JOBS, namespace=namespace, name=name)
    await state.reviewer.authorize(caller, act)
    return JobOut.of(await _job(state, namespace, name))


@router.get("/jobflows", summary="Job flows of all namespaces")
async def list_all_jobflows(state: State, caller: Caller) -> JobFlowList:
    """List the job flows of all namespaces."""
    await state.reviewer.authorize(
        caller, AccessAttributes(verb="list", resource=JOBFLOWS, namespace="")
    )
    found = await state.client.list(JOBFLOWS, view=JobFlow)
    return JobFlowList(items=[JobFlowOut.of(jobflow) for jobflow in found.items])


@router.get("/namespaces/{namespace}/jobflows", summary="Job flows of one namespace")
async def list_jobflows(namespace: Namespace, state: State, caller: Caller) -> JobFlowList:
    """List the job flows of a namespace in key order; an unknown namespace has none."""
    await state.reviewer.authorize(
        caller, AccessAttributes(verb="list", resource=JOBFLOWS, namespace=namespace)
    )
    found = await state.client.list(JOBFLOWS, namespace=namespace, view=JobFlow)
    return JobFlowList(items=[JobFlowOut.of(jobflow) for jobflow in found.items])


@router.get("/namespaces/{namespace}/jobflows/{name}", summary="One job flow")
async def get_jobflow(namespace: Namespace, name: Name, state: State, caller: Caller) -> JobFlowOut:
    """Return the phase of a job flow and of its jobs."""
    act = AccessAttributes(verb="get", resource=JOBFLOWS, namespace=namespace, name=name)
    await state.reviewer.authorize(caller, act)
    try:
        found = await state.client.get(JOBFLOWS, name, namespace=namespace, view=JobFlow)
    except NotFoundError:
        text = f"job flow {name!r} not found in namespace {namespace!r}"
        raise ProblemError(404, text) from None
    return JobFlowOut.of(found)


@router.post(
    "/namespaces/{namespace}/jobs/{name}/commands",
    status_code=202,
    summary="Suspend, resume, restart, abort, terminate or complete a job",
    responses={400: {"model": Problem}},
)
async def command_job(  # Parameters of a route are the request's inputs.
    namespace: Namespace,
    name: Name,
    body: CommandIn,
    state: State,
    caller: Caller,
    response: Response,
) -> CommandOut:
    """Create a Command for the job controller; the Location header refers to its outcome."""
    await state.reviewer.authorize(
        caller, AccessAttributes(verb="create", resource=COMMANDS, namespace=namespace)
    )
    job = await _job(state, namespace, name)
    record = await state.commands.issue(job, ACTIONS[body.action], who=caller.username)
    response.headers["Location"] = _location(record)
    return CommandOut.of(record)


@router.get("/namespaces/{namespace}/jobs/{name}/commands", summary="A job's commands")
async def list_commands(
    namespace: Namespace,
    name: Name,
    state: State,
    caller: Caller,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> CommandList:
    """List a job's commands, newest first; the history outlives the job."""
    await state.reviewer.authorize(
        caller, AccessAttributes(verb="get", resource=JOBS, namespace=namespace, name=name)
    )
    records = await state.store.history(namespace, name, limit=limit)
    return CommandList(items=[CommandOut.of(record) for record in records])


@router.get("/namespaces/{namespace}/jobs/{name}/commands/{id_}", summary="A command's outcome")
async def get_command(
    namespace: Namespace, name: Name, id_: CommandId, state: State, caller: Caller
) -> CommandOut:
    """Return state and outcome of a command."""
    await state.reviewer.authorize(
        caller, AccessAttributes(verb="get", resource=JOBS, namespace=namespace, name=name)
    )
    record = await state.store.get(namespace, name, id_)
    if record is None:
        raise ProblemError(404, f"job {name!r} has no command {id_!r}")
    return CommandOut.of(await state.commands.refresh(record))


def _location(record: CommandRecord) -> str:
    """Return the path of a command."""
    namespace, job, id_ = (quote(it, safe="") for it in (record.namespace, record.job, record.id))
    return f"/v1/namespaces/{namespace}/jobs/{job}/commands/{id_}"


def _docs_page(app: FastAPI) -> str:
    """Return the API description as one HTML page without external resources."""
    rows = []
    for path, operations in app.openapi()["paths"].items():
        for verb, operation in operations.items():
            cells = (verb.upper(), path, operation.get("summary", ""))
            rows.append("".join(f"<td><code>{html.escape(cell)}</code></td>" for cell in cells))
    table = "".join(f"<tr>{row}</tr>" for row in rows)
    return (
        "<!doctype html><meta charset=utf-8><title>Batholith REST API</title>"
        "<style>body{font:16px sans-serif;margin:3em}td{padding:.3em 1em .3em 0}</style>"
        "<h1>Batholith REST API</h1><p>Send a bearer token with each call. "
        "The full description: <a href=/openapi.json>/openapi.json</a>.</p>"
        f"<table>{table}</table>"
    )


async def _readiness_errors(state: AppState) -> list[str]:
    """Return why the API is not ready; empty if it is."""
    errors = [] if state.commands.synced else ["commands: informers not synced"]
    if not await state.store.ping():
        errors.append("store: not reachable")
    return errors


def create_app(state: AppState) -> FastAPI:
    """Create the ASGI application."""
    # FastAPI's own pages load external scripts, which fail on isolated networks.
    app = FastAPI(title="Batholith", docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.dependencies = state
    app.include_router(router)
    app.include_router(cronjobs.router)
    app.add_middleware(BodyLimitMiddleware)
    problems.add_exception_handlers(app)

    @app.get("/healthz", include_in_schema=False)
    @app.get("/livez", include_in_schema=False)
    async def healthz() -> Response:
        return Response("ok", media_type="text/plain")

    @app.get("/readyz", include_in_schema=False)
    async def readyz() -> Response:
        errors = await _readiness_errors(state)
        text = "".join(f"[-]{line}\n" for line in errors) or "ok"
        return Response(text, status_code=503 if errors else 200, media_type="text/plain")

    @app.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(_docs_page(app))

    return app
