"""Routes of commands on jobs and queues: issue one, and read the outcomes."""

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response

from ...kube.errors import NotFoundError
from ...model.names import COMMANDS, QUEUE_COMMAND_NAMESPACE, QUEUES
from ...model.queue import Queue
from ...store.commands import QUEUES_KIND, CommandRecord, Position
from ..commands.orders import Order, order_for_queue
from ..http.idempotency import is_repeated
from ..http.paging import decode_cursor, encode_cursor
from ..http.query_values import WHOLE_NUMBER
from ..identity.caller import AuthenticatedCaller
from ..identity.reviewer import AccessAttributes
from ..problems import ProblemError, problem_responses
from ..schemas.commands import CommandIn, CommandList, CommandOut, CommandResult, QueueCommandIn
from .command_issuing import command_location, issue_for_job
from .command_responses import encode_command, encode_page, encode_result
from .dependencies import AppState, Caller, Kind, Name, Namespace, OperationId, State

CommandId = Annotated[str, Path(max_length=36, pattern="^[-0-9a-zA-Z]+$")]
Limit = Annotated[int, Query(ge=1, le=500, description="Maximum number of commands."), WHOLE_NUMBER]
Cursor = Annotated[
    str | None, Query(max_length=4096, description="`next_cursor` of the page before.")
]
Wait = Annotated[
    str | None,
    Query(
        pattern="^([0-9]|[1-5][0-9]|60)s$",
        description="Wait until the command has led to the phase that it asks for, at most this "
        "number of seconds, and respond with what it has led to (200).",
        examples=["30s"],
    ),
]
_LOCATION: dict[str, Any] = {
    "headers": {"Location": {"schema": {"type": "string"}, "description": "Path of the command."}}
}
_ISSUED: dict[int | str, dict[str, Any]] = {
    202: _LOCATION,
    200: {"model": CommandResult, "description": "With `wait`: what the command has led to."}
    | _LOCATION,
}

router = APIRouter(prefix="/v1", tags=["commands"])


@router.post(
    "/namespaces/{namespace}/{kind:job_kind}/{name}/commands",
    status_code=202,
    response_model=CommandOut,
    summary="Suspend, resume, restart, abort, terminate or complete a job",
    responses=_ISSUED | problem_responses(404, 409),
)
async def command_job(
    namespace: Namespace,
    kind: Kind,
    name: Name,
    body: CommandIn,
    state: State,
    caller: Caller,
    operation: OperationId,
    request: Request,
    wait: Wait = None,
) -> Response:
    """Issue a command with the caller's identity; the Location header refers to its outcome."""
    record = await issue_for_job(
        state,
        caller,
        kind,
        (namespace, name),
        (body.action, body.scope),
        operation=operation,
        is_repeated=is_repeated(request),
    )
    return await _respond(state, record, request, wait)


@router.get(
    "/namespaces/{namespace}/{kind:job_kind}/{name}/commands",
    response_model=CommandList,
    summary="A job's commands",
)
async def list_commands(
    namespace: Namespace,
    kind: Kind,
    name: Name,
    state: State,
    caller: Caller,
    limit: Limit = 100,
    cursor: Cursor = None,
) -> Response:
    """List a job's commands, newest first; the history outlives the job."""
    await _may_get(state, caller, kind, namespace, name)
    return await _page(state, (kind.name, namespace, name), limit=limit, cursor=cursor)


@router.get(
    "/namespaces/{namespace}/{kind:job_kind}/{name}/commands/{id_}",
    response_model=CommandOut,
    summary="A command's outcome",
    responses=problem_responses(404),
)
async def get_command(
    namespace: Namespace, kind: Kind, name: Name, id_: CommandId, state: State, caller: Caller
) -> Response:
    """Return state and outcome of a command."""
    await _may_get(state, caller, kind, namespace, name)
    return await _one(state, (kind.name, namespace, name), id_)


@router.post(
    "/queues/{name}/commands",
    status_code=202,
    response_model=CommandOut,
    summary="Open or close a queue",
    responses=_ISSUED | problem_responses(404),
)
async def command_queue(
    name: Name,
    body: QueueCommandIn,
    state: State,
    caller: Caller,
    operation: OperationId,
    request: Request,
    wait: Wait = None,
) -> Response:
    """Issue a command with the caller's identity, who must also be allowed to update the queue."""
    for access in (
        AccessAttributes(verb="create", resource=COMMANDS, namespace=QUEUE_COMMAND_NAMESPACE),
        # Queues are cluster-scoped, and editors of a namespace may create Commands there.
        AccessAttributes(verb="update", resource=QUEUES, namespace="", name=name),
    ):
        await state.reviewer.authorize(caller.user, access)
    record = None
    if is_repeated(request):
        record = await state.commands.repeat(operation, caller=caller)
    if record is None:
        order = await _queue_order(state, caller, name, body)
        record = await state.commands.issue(order, caller=caller, operation=operation)
    return await _respond(state, record, request, wait)


@router.get("/queues/{name}/commands", response_model=CommandList, summary="A queue's commands")
async def list_queue_commands(
    name: Name, state: State, caller: Caller, limit: Limit = 100, cursor: Cursor = None
) -> Response:
    """List a queue's commands, newest first; the history outlives the queue."""
    await _may_get_queue(state, caller, name)
    return await _page(state, (QUEUES_KIND, "", name), limit=limit, cursor=cursor)


@router.get(
    "/queues/{name}/commands/{id_}",
    response_model=CommandOut,
    summary="The outcome of a queue's command",
    responses=problem_responses(404),
)
async def get_queue_command(name: Name, id_: CommandId, state: State, caller: Caller) -> Response:
    """Return state and outcome of a command."""
    await _may_get_queue(state, caller, name)
    return await _one(state, (QUEUES_KIND, "", name), id_)


async def _queue_order(
    state: AppState, caller: AuthenticatedCaller, name: str, body: QueueCommandIn
) -> Order:
    queue = state.caches.queues.get(name)
    if queue is None:
        try:
            queue = await caller.client.get(QUEUES, name, view=Queue)
        except NotFoundError:
            raise ProblemError(404, f"queue {name!r} not found") from None
    return order_for_queue(queue, body.action)


async def _respond(
    state: AppState, record: CommandRecord, request: Request, wait: str | None
) -> Response:
    headers = {"Location": command_location(record)}
    if wait is None:
        return Response(encode_command(record), 202, headers, "application/json")
    progress = await state.waits.wait(record, request, seconds=float(wait.removesuffix("s")))
    return Response(encode_result(progress), 200, headers, "application/json")


async def _may_get(
    state: AppState, caller: AuthenticatedCaller, kind: Kind, namespace: str, name: str
) -> None:
    access = AccessAttributes(verb="get", resource=kind.resource, namespace=namespace, name=name)
    await state.reviewer.authorize(caller.user, access)


async def _may_get_queue(state: AppState, caller: AuthenticatedCaller, name: str) -> None:
    access = AccessAttributes(verb="get", resource=QUEUES, namespace="", name=name)
    await state.reviewer.authorize(caller.user, access)


async def _page(
    state: AppState, of: tuple[str, str, str], *, limit: int, cursor: str | None
) -> Response:
    query = "/".join(of)
    after = None
    if cursor is not None:
        after = Position(*decode_cursor(cursor, query, length=2))
    found = await state.store.history(*of, limit=limit + 1, after=after)
    records: Sequence[CommandRecord] = found[:limit]
    next_cursor = None
    if len(found) > limit:
        next_cursor = encode_cursor(query, (records[-1].received_at, records[-1].id))
    latest = [state.commands.outcomes.latest(record) for record in records]
    body = encode_page(latest, next_cursor=next_cursor)
    return Response(body, media_type="application/json")


async def _one(state: AppState, of: tuple[str, str, str], id_: str) -> Response:
    record = await state.store.get(id_)
    if record is None or (record.kind, record.namespace, record.job) != of:
        what = "queue" if of[0] == QUEUES_KIND else "job"
        raise ProblemError(404, f"{what} {of[2]!r} has no command {id_!r}")
    body = encode_command(await state.commands.refresh(record))
    return Response(body, media_type="application/json")
