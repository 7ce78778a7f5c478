"""Routes of bulk commands: the same command for all jobs that match."""

import uuid

from fastapi import APIRouter, Request, Response

from ..http.idempotency import attempt_of
from ..identity.audit import note_dry_run
from ..identity.caller import AuthenticatedCaller
from ..problems import problem_responses
from ..schemas.commands import BulkCommandIn, BulkResults
from .bulk_commands import BulkOrder, is_complete, run_bulk
from .command_responses import encode_results
from .dependencies import AppState, Caller, Namespace, OperationId, State, served_kind

router = APIRouter(prefix="/v1", tags=["commands"])


@router.post(
    "/namespaces/{namespace}/commands",
    response_model=BulkResults,
    summary="Command all jobs of a namespace that match",
    responses=problem_responses(404),
)
async def command_jobs(
    namespace: Namespace,
    body: BulkCommandIn,
    state: State,
    caller: Caller,
    operation: OperationId,
    request: Request,
) -> Response:
    """Issue the command for each job that matches all filters; each has its own result."""
    return await _command(state, caller, request, (body, namespace), operation)


@router.post(
    "/commands",
    response_model=BulkResults,
    summary="Command all jobs of all namespaces that match",
    responses=problem_responses(404),
)
async def command_all_jobs(
    body: BulkCommandIn, state: State, caller: Caller, operation: OperationId, request: Request
) -> Response:
    """Issue the command for each job that matches all filters; each has its own result."""
    return await _command(state, caller, request, (body, ""), operation)


async def _command(
    state: AppState,
    caller: AuthenticatedCaller,
    request: Request,
    wanted: tuple[BulkCommandIn, str],
    operation: uuid.UUID,
) -> Response:
    body, namespace = wanted
    if body.dry_run:
        note_dry_run(request.scope)
    order = BulkOrder(
        kind=served_kind(state, body.kind),
        action=body.action,
        namespace=namespace,
        label_selector=body.label_selector,
        phases=frozenset(body.phase or ()),
        queue=body.queue,
        names=None if body.names is None else frozenset(body.names),
        dry_run=body.dry_run,
    )
    attempt = attempt_of(request.scope)
    results = await run_bulk(state, caller, order, operation=operation, attempt=attempt)
    if attempt is not None and not is_complete(results):
        attempt.is_final = False  # repeated with its key, the request continues
    return Response(encode_results(results), media_type="application/json")
