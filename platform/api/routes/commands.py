"""Routes of commands: create one, and read the outcomes."""

from typing import Annotated
from urllib.parse import quote

from fastapi import APIRouter, Path, Query, Response

from ...kube.errors import NotFoundError
from ...model.job import Job
from ...model.names import COMMANDS, JOBS
from ...store.commands import CommandRecord
from ..auth import AccessAttributes
from ..dependencies import PROBLEMS, AppState, Caller, Name, Namespace, State
from ..problems import ProblemError
from ..schemas.commands import ACTIONS, CommandIn, CommandList, CommandOut
from ..schemas.problem import Problem

CommandId = Annotated[str, Path(max_length=36, pattern="^[-0-9a-zA-Z]+$")]

router = APIRouter(prefix="/v1", responses=PROBLEMS)


async def _job(state: AppState, namespace: str, name: str) -> Job:
    try:
        return await state.client.get(JOBS, name, namespace=namespace, view=Job)
    except NotFoundError:
        raise ProblemError(404, f"job {name!r} not found in namespace {namespace!r}") from None


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
        caller.user, AccessAttributes(verb="create", resource=COMMANDS, namespace=namespace)
    )
    job = await _job(state, namespace, name)
    record = await state.commands.issue(
        job, ACTIONS[body.action], who=caller.user.username, client=caller.client
    )
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
        caller.user, AccessAttributes(verb="get", resource=JOBS, namespace=namespace, name=name)
    )
    records = await state.store.history(namespace, name, limit=limit)
    return CommandList(items=[CommandOut.of(record) for record in records])


@router.get("/namespaces/{namespace}/jobs/{name}/commands/{id_}", summary="A command's outcome")
async def get_command(
    namespace: Namespace, name: Name, id_: CommandId, state: State, caller: Caller
) -> CommandOut:
    """Return state and outcome of a command."""
    await state.reviewer.authorize(
        caller.user, AccessAttributes(verb="get", resource=JOBS, namespace=namespace, name=name)
    )
    record = await state.store.get(namespace, name, id_)
    if record is None:
        raise ProblemError(404, f"job {name!r} has no command {id_!r}")
    return CommandOut.of(await state.commands.refresh(record))


def _location(record: CommandRecord) -> str:
    """Return the path of a command."""
    namespace, job, id_ = (quote(it, safe="") for it in (record.namespace, record.job, record.id))
    return f"/v1/namespaces/{namespace}/jobs/{job}/commands/{id_}"
