"""Routes of the history of jobs.

A caller sees the kinds of jobs that it may list in the namespace, or in all namespaces.
"""

import asyncio
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Path, Query

from ...store.history import FIRST, Cursor, JobFilter
from ...wire.history import JobHistory, RecordedJobPage
from ...wire.jobs import JobKindName, Phase
from ..http.paging import MAX_CURSOR, decode_cursor, encode_cursor
from ..http.query_values import NAME_PATTERN, UID_PATTERN, WHOLE_NUMBER, QueryTime, StorableText
from ..identity.reviewer import AccessAttributes
from ..jobs.kinds import KINDS
from ..problems import ProblemError, problem_responses
from ..schemas.history import history_of, unrecorded_job
from ..schemas.responses import WireRoute
from .dependencies import AppState, Caller, Name, Namespace, State

router = APIRouter(prefix="/v1", tags=["history"], route_class=WireRoute)

Limit = Annotated[
    int, Query(ge=1, le=500, description="Maximum number of jobs of a page."), WHOLE_NUMBER
]
CursorText = Annotated[
    str | None, Query(max_length=MAX_CURSOR, description="`next_cursor` of the previous page.")
]


async def _filter(
    kind: Annotated[list[JobKindName], Query(description="Any of these kinds.")] = [],  # noqa: B006
    phase: Annotated[list[Phase], Query(description="Any of these last phases.")] = [],  # noqa: B006
    queue: Annotated[str | None, Query(max_length=253, pattern=NAME_PATTERN)] = None,
    user: Annotated[StorableText | None, Query(max_length=1024)] = None,
    account: Annotated[
        StorableText | None, Query(max_length=63, description="Label `batholith.io/account`.")
    ] = None,
    name: Annotated[str | None, Query(max_length=253, pattern=NAME_PATTERN)] = None,
    from_: Annotated[
        QueryTime | None,
        Query(alias="from", description="Jobs that ended at this time or later, or have not."),
    ] = None,
    to: Annotated[QueryTime | None, Query(description="Jobs that ended before this time.")] = None,
) -> JobFilter:
    return JobFilter(
        kinds=tuple(kind),
        phases=tuple(phase),
        queue=queue or "",
        user=user,
        account=account,
        name=name or "",
        ended_from=from_,
        ended_to=to,
    )


Filter = Annotated[JobFilter, Depends(_filter)]


@router.get("/history/jobs", summary="Jobs of all namespaces, deleted ones included")
async def list_all_history(
    state: State,
    caller: Caller,
    which: Filter,
    limit: Limit = 100,
    cursor: CursorText = None,
) -> RecordedJobPage:
    """List jobs: those that have not ended first, then those that ended last."""
    return await _page(state, caller, which, "", limit=limit, cursor=cursor)


@router.get(
    "/namespaces/{namespace}/history/jobs",
    summary="Jobs of one namespace, deleted ones included",
)
async def list_history(
    namespace: Namespace,
    state: State,
    caller: Caller,
    which: Filter,
    limit: Limit = 100,
    cursor: CursorText = None,
) -> RecordedJobPage:
    """List jobs: those that have not ended first, then those that ended last."""
    return await _page(state, caller, which, namespace, limit=limit, cursor=cursor)


@router.get(
    "/namespaces/{namespace}/{kind:job_kind}/{name}/history",
    summary="All jobs of one name, deleted ones included",
)
async def list_history_of_name(
    namespace: Namespace,
    kind: JobKindName,
    name: Name,
    state: State,
    caller: Caller,
    limit: Limit = 100,
    cursor: CursorText = None,
) -> RecordedJobPage:
    """List the jobs of this kind and name: the existing one first, then those that ended last."""
    which = JobFilter(kinds=(kind,), name=name)
    # Before the history is read: the deletion of the job may be recorded later than it is cached.
    existing = state.caches.of(kind).informer.get(f"{namespace}/{name}")
    page = await _page(state, caller, which, namespace, limit=limit, cursor=cursor)
    if cursor is not None or existing is None:
        return page
    summary = KINDS[kind].summarize(existing)
    if any(job.uid == summary.uid for job in page.items):
        return page
    # Caches are ahead of the recorder.
    unrecorded = unrecorded_job(summary)
    if len(page.items) < limit:
        return RecordedJobPage(items=[unrecorded, *page.items], next_cursor=page.next_cursor)
    if limit > 1:
        page = await _page(state, caller, which, namespace, limit=limit - 1, cursor=None)
        recorded = [job for job in page.items if job.uid != summary.uid]  # by now
        return RecordedJobPage(items=[unrecorded, *recorded], next_cursor=page.next_cursor)
    return RecordedJobPage(items=[unrecorded], next_cursor=_encode(which, namespace, FIRST))


@router.get(
    "/history/jobs/{uid}",
    summary="One job, deleted or not",
    responses=problem_responses(404),
)
async def get_history(
    uid: Annotated[str, Path(max_length=64, pattern=UID_PATTERN)], state: State, caller: Caller
) -> JobHistory:
    """Return spec, phases, usage and commands of a job."""
    job = await state.history.find(uid)
    if job is None:
        raise ProblemError(404, f"no job with the uid {uid!r} is recorded")
    resource = KINDS[JobKindName(job.kind)].resource
    attributes = AccessAttributes(
        verb="get", resource=resource, namespace=job.namespace, name=job.name
    )
    await state.reviewer.authorize(caller.user, attributes)
    details = await state.history.details(uid, now=state.clock.now())
    if details is None:
        raise ProblemError(404, f"no job with the uid {uid!r} is recorded")
    return history_of(details)


async def _page(
    state: AppState,
    caller: Caller,
    which: JobFilter,
    namespace: str,
    *,
    limit: int,
    cursor: str | None,
) -> RecordedJobPage:
    kinds = await allowed_kinds(state, caller, which.kinds, namespace)
    after = None if cursor is None else _decode(cursor, _query(which, namespace))
    kinds = () if len(kinds) == len(KINDS) else kinds
    filter_ = msgspec.structs.replace(which, namespace=namespace, kinds=kinds)
    now = state.clock.now()
    jobs, next_ = await state.history.jobs(filter_, limit=limit, now=now, after=after)
    next_cursor = None if next_ is None else _encode(which, namespace, next_)
    return RecordedJobPage(items=list(jobs), next_cursor=next_cursor)


def _query(which: JobFilter, namespace: str) -> str:
    return f"history {namespace} {which!r}"


def _encode(which: JobFilter, namespace: str, position: Cursor) -> str:
    return encode_cursor(_query(which, namespace), (str(position.ended_at), position.uid))


def _decode(text: str, query: str) -> Cursor:
    """Return the position of a cursor.

    Raises:
        ProblemError: 422 if it is none of this query.
    """
    ended_at, uid = decode_cursor(text, query, length=2)
    is_number = ended_at.isascii() and ended_at.isdecimal() and len(ended_at) < 20
    if not is_number or int(ended_at) >= 2**63 or "\0" in uid or not uid.isascii():
        raise ProblemError(422, "cursor: not a cursor of this API")
    return Cursor(int(ended_at), uid)


async def allowed_kinds(
    state: AppState, caller: Caller, kinds: tuple[str, ...], namespace: str
) -> tuple[str, ...]:
    """Return which of *kinds*, or of all, the caller may list.

    Raises:
        ProblemError: 403 if it may list none of them.
    """
    requested = [KINDS[JobKindName(kind)] for kind in kinds] or list(KINDS.values())
    reviews = [
        state.reviewer.authorize(
            caller.user,
            AccessAttributes(verb="list", resource=kind.resource, namespace=namespace),
        )
        for kind in requested
    ]
    results = await asyncio.gather(*reviews, return_exceptions=True)
    denied = [result for result in results if result is not None]
    for error in denied:
        if not (isinstance(error, ProblemError) and error.status == 403):
            raise error
    if len(denied) == len(requested):
        raise denied[0]
    return tuple(
        kind.name for kind, result in zip(requested, results, strict=True) if result is None
    )
