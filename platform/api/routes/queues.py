"""Routes of queues: list, get, create, change, delete, usage."""

from collections import Counter
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from msgspec.structs import replace

from ...kube.errors import NotFoundError
from ...model.names import QUEUES
from ...model.queue import Queue, QueueState
from ...wire import queues
from ..caches import Caches
from ..http.listing import ListRequest
from ..http.paging import MAX_CURSOR, Position
from ..http.preconditions import IfMatch, KnownVersions, etag, is_known
from ..http.query_values import WHOLE_NUMBER, QueryFlag
from ..identity.reviewer import AccessAttributes
from ..past_usage import budget_use_of, past_usage_of
from ..problems import problem_responses
from ..schemas.podgroups import phase_of
from ..schemas.queues import (
    QueueManifest,
    QueuePatch,
    ShortQueue,
    parent_of,
    queue_of,
    state_of,
)
from ..schemas.responses import JSON, WireRoute, respond, schema_of
from ..writes import queues as queue_writes
from ..writes.manifests import decode_body
from .dependencies import Caller, Name, OperationId, State

QUEUE = schema_of(queues.Queue)
NO_NAMESPACE = ""

router = APIRouter(prefix="/v1", tags=["queues"], route_class=WireRoute)

Sort = Literal["name", "-name", "created", "-created", "weight", "-weight", "priority", "-priority"]


def _position(queue: Queue, field: str) -> Position:
    values = {
        "name": "",
        "created": queue.metadata.creation_timestamp or "",
        "weight": f"{queue.spec.weight or 1:010d}",
        "priority": f"{queue.spec.priority:010d}",
    }
    return values[field], queue.metadata.name


@router.get("/queues", summary="Queues")
async def list_queues(
    state: State,
    caller: Caller,
    queue_state: Annotated[
        list[QueueState] | None, Query(alias="state", description="Any of these states.")
    ] = None,
    parent: Annotated[
        str | None, Query(max_length=253, description="Only the children of this queue.")
    ] = None,
    sort: Annotated[Sort, Query(description="Ties by name.")] = "name",
    limit: Annotated[int, Query(ge=1, le=500), WHOLE_NUMBER] = 100,
    cursor: Annotated[
        str, Query(max_length=MAX_CURSOR, description="`next_cursor` of the page before.")
    ] = "",
) -> queues.QueuePage:
    """List the queues, page by page."""
    await state.reviewer.authorize(
        caller.user, AccessAttributes(verb="list", resource=QUEUES, namespace=NO_NAMESPACE)
    )
    field = sort.removeprefix("-")
    request = ListRequest[Queue](
        query=f"queues {sort} {parent!r} {sorted(set(queue_state or ()))}",
        position=lambda queue: _position(queue, field),
        length=2,
        descending=sort.startswith("-"),
        limit=limit,
        cursor=cursor,
    )
    page = request.select(
        queue
        for queue in state.caches.queues
        if (not queue_state or state_of(queue) in queue_state)
        and parent in (None, parent_of(queue))
    )
    return queues.QueuePage(
        items=[queue_of(queue) for queue in page.items],
        next_cursor=page.next_cursor,
        total=page.total,
    )


def _one(queue: Queue, *, status: int = 200) -> Response:
    return respond(queue_of(queue), status, ETag=etag(queue.metadata.resource_version))


@router.get(
    "/queues/{name}",
    summary="One queue",
    response_model=QUEUE,
    responses={304: {"description": "The caller has this version."}, **problem_responses(404)},
)
async def get_queue(name: Name, known: KnownVersions, caller: Caller) -> Response:
    """Return a queue as it is now."""
    queue = await _live(caller, name)
    version = queue.metadata.resource_version
    if is_known(known, version):
        return Response(status_code=304, headers={"ETag": etag(version)})
    return _one(queue)


async def _live(caller: Caller, name: str) -> Queue:
    try:
        return await caller.client.get(QUEUES, name, view=Queue)
    except NotFoundError:
        raise queue_writes.not_found(name) from None


_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            JSON: {
                "schema": {
                    "anyOf": [QueueManifest.model_json_schema(), ShortQueue.model_json_schema()]
                }
            }
        },
    }
}


@router.post(
    "/queues",
    status_code=201,
    summary="Create a queue",
    response_model=QUEUE,
    responses={
        200: {"model": QUEUE, "description": "The queue would be created (`dry_run`)."},
        201: {
            "headers": {
                "Location": {"schema": {"type": "string"}, "description": "Path of the queue."}
            }
        },
        **problem_responses(409),
    },
    openapi_extra=_BODY,
)
async def create_queue(
    request: Request,
    caller: Caller,
    operation: OperationId,
    dry_run: Annotated[QueryFlag, Query(description="Validate only.")] = False,
) -> Response:
    """Create a queue from a manifest or from the short form.

    Warnings of the API server are in `Warning` headers.
    """
    body = queue_writes.build_queue(decode_body(await request.body()), operation=operation)
    queue, warnings = await queue_writes.create(
        caller.client, body, operation=operation, dry_run=dry_run
    )
    response = _one(queue, status=200 if dry_run else 201)
    if not dry_run:
        response.headers["Location"] = f"/v1/queues/{queue.metadata.name}"
    for each in warnings:
        response.headers.append("Warning", each)
    return response


@router.patch(
    "/queues/{name}",
    summary="Change a queue",
    response_model=QUEUE,
    responses=problem_responses(404, 409, 412),
)
async def patch_queue(
    name: Name, body: QueuePatch, caller: Caller, preconditions: IfMatch
) -> Response:
    """Change the fields that the body names, and no others."""
    return _one(await queue_writes.change(caller.client, name, body, preconditions=preconditions))


@router.delete(
    "/queues/{name}",
    status_code=202,
    summary="Delete a queue",
    responses=problem_responses(404, 409, 412),
)
async def delete_queue(name: Name, caller: Caller, preconditions: IfMatch) -> queues.Queue:
    """Delete a queue. `default`, `root` and queues with children cannot be deleted (422)."""
    queue, deleting = await queue_writes.delete(caller.client, name, preconditions=preconditions)
    return replace(queue_of(queue), deleting=deleting)


@router.get(
    "/queues/{name}/usage",
    summary="What a queue has and may have",
    responses=problem_responses(404),
)
async def get_queue_usage(name: Name, state: State, caller: Caller) -> queues.QueueUsage:
    """Return the quantities of a queue by resource, and what it contains.

    The right to read the queue suffices for the counts.
    """
    queue = await _live(caller, name)
    kept = await state.past_usages.read()
    return replace(
        _usage(queue, state.caches),
        past=past_usage_of(kept, name),
        budget=budget_use_of(kept, queue, state.clock.now()),
    )


def _usage(queue: Queue, caches: Caches) -> queues.QueueUsage:
    name, out = queue.metadata.name, queue_of(queue)
    jobs: Counter[str] = Counter()
    for cache in caches.kinds.values():
        jobs.update(cache.index.phases_in_queue(name))
    podgroups = Counter(phase_of(each).value for each in caches.podgroups_in_queue(name))
    names = sorted(
        {*out.allocated, *out.deserved, *out.capability, *out.guarantee},
        key=lambda resource: (resource not in ("cpu", "memory"), resource),
    )
    return queues.QueueUsage(
        name=name,
        state=out.state,
        resources={
            resource: queues.ResourceUsage(
                allocated=out.allocated.get(resource, "0"),
                deserved=out.deserved.get(resource),
                capability=out.capability.get(resource),
                guarantee=out.guarantee.get(resource),
            )
            for resource in names
        },
        jobs=dict(sorted(jobs.items())),
        podgroups=dict(sorted(podgroups.items())),
        children=sorted(each.metadata.name for each in caches.queues if parent_of(each) == name),
    )
