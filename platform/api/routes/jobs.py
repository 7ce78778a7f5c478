"""Routes of jobs of all kinds: list, get, create, delete and scale."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response

from ...kube.client.client import Client
from ...kube.errors import NotFoundError
from ...model.names import NOTIFY, NOTIFY_EVENTS
from ...model.notification_destinations import NotificationRules
from ...model.notifications import NONE as NO_NOTIFICATIONS
from ...model.notifications import errors_of
from ...wire.jobs import JobSummary, Phase
from ..http.paging import MAX_CURSOR, decode_cursor, encode_cursor, page_body
from ..http.preconditions import IfMatch, KnownVersions, etag, is_known
from ..http.query_values import WHOLE_NUMBER, QueryFlag, QueryTime
from ..identity.reviewer import AccessAttributes
from ..jobs.index import PageRequest, SortField
from ..jobs.kinds import JobKind
from ..jobs.selection import JobFilter, TimeRange, parse_labels
from ..problems import ProblemError, invalid_fields, problem_responses
from ..schemas.jobs import IDENTITY, JOB_BODY, JobList, ScaleIn
from ..schemas.responses import JSON, respond, schema_of
from ..writes import jobs as job_writes
from ..writes.manifests import build_job, decode_body
from .dependencies import AppState, Caller, Kind, Name, Namespace, OperationId, State

JOB = schema_of(JobSummary)
COLLECTION = "/namespaces/{namespace}/{kind:job_kind}"
OBJECT = f"{COLLECTION}/{{name}}"

router = APIRouter(prefix="/v1", tags=["jobs"])


_ETAG = {"ETag": {"schema": {"type": "string"}, "description": "The job's version."}}
_LOCATION = {"schema": {"type": "string"}, "description": "Path of the job."}
_WARNING = {"schema": {"type": "string"}, "description": "A warning of the cluster; repeatable."}
Responses = dict[int | str, dict[str, Any]]
TAGGED: Responses = {200: {"headers": _ETAG}}
NOT_MODIFIED: Responses = {304: {"description": "The caller has this version.", "headers": _ETAG}}


Sort = Literal["name", "-name", "created", "-created", "phase", "-phase", "queue", "-queue"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _ListQuery:
    """What a list asks for, apart from the namespace."""

    filter: JobFilter
    sort: str
    limit: int
    cursor: str | None
    fields: tuple[str, ...]
    """Empty for all."""


async def _list_query(
    phase: Annotated[list[Phase], Query(description="Any of these phases.")] = [],  # noqa: B006
    search: Annotated[str, Query(max_length=253, description="Part of the name.")] = "",
    queue: Annotated[str | None, Query(max_length=253)] = None,
    user: Annotated[
        str | None,
        Query(max_length=1024, description="Who created the job through this API."),
    ] = None,
    label_selector: Annotated[
        str, Query(max_length=16384, description="As of `kubectl -l`, e.g. `tier in (a,b),!test`.")
    ] = "",
    created_after: Annotated[QueryTime | None, Query(description="Inclusive; RFC 3339.")] = None,
    created_before: Annotated[QueryTime | None, Query(description="Exclusive; RFC 3339.")] = None,
    sort: Annotated[Sort, Query(description="Ties by namespace and name.")] = "name",
    limit: Annotated[int, Query(ge=1, le=500), WHOLE_NUMBER] = 100,
    cursor: Annotated[
        str | None,
        Query(max_length=MAX_CURSOR, description="`next_cursor` of the page before."),
    ] = None,
    fields: Annotated[
        str | None,
        Query(
            max_length=2048,
            description="Fields of each job, separated by commas; all by default.",
            examples=["phase,queue"],
        ),
    ] = None,
) -> _ListQuery:
    return _ListQuery(
        filter=JobFilter(
            search=search.lower(),
            phases=frozenset(phase),
            queue=queue,
            user=user,
            labels=parse_labels(label_selector),
            created=TimeRange.between(created_after, created_before),
        ),
        sort=sort,
        limit=limit,
        cursor=cursor,
        fields=_fields(fields),
    )


def _fields(text: str | None) -> tuple[str, ...]:
    """Return the fields to show; empty for all."""
    if text is None:
        return ()
    names = [each.strip() for each in text.split(",")]
    known = JobSummary.__struct_fields__
    if unknown := sorted(set(names) - set(known)):
        raise invalid_fields(("fields", f"unknown: {', '.join(map(repr, unknown))}"))
    return tuple(field for field in known if field in IDENTITY or field in names)


ListQuery = Annotated[_ListQuery, Depends(_list_query)]


@router.get(
    "/{kind:job_kind}",
    summary="Jobs of all namespaces",
    response_model=JobList,
    responses=problem_responses(404),
)
async def list_all_jobs(kind: Kind, query: ListQuery, state: State, caller: Caller) -> Response:
    """List the jobs of one kind in all namespaces, page by page.

    A job that exists from the first page to the last is on exactly one of them, unless the list is
    sorted by phase or queue and that of the job changes.
    """
    await state.reviewer.authorize(
        caller.user, AccessAttributes(verb="list", resource=kind.resource, namespace="")
    )
    return await _page(state, kind, query, query.filter)


@router.get(
    COLLECTION,
    summary="Jobs of one namespace",
    response_model=JobList,
    responses=problem_responses(404),
)
async def list_jobs(
    namespace: Namespace, kind: Kind, query: ListQuery, state: State, caller: Caller
) -> Response:
    """List the jobs of one kind in a namespace, page by page; an unknown namespace has none."""
    await state.reviewer.authorize(
        caller.user, AccessAttributes(verb="list", resource=kind.resource, namespace=namespace)
    )
    own = replace(query.filter, namespace=namespace)
    return await _page(state, kind, query, own)


async def _page(state: AppState, kind: JobKind, query: _ListQuery, wanted: JobFilter) -> Response:
    cache = state.caches.of(kind)
    if not cache.informer.synced:
        raise ProblemError(503, f"jobs of the kind {kind.label} are not listed yet", retry_after=1)
    identity = f"{kind.name} {query.sort} {wanted.digest}"
    index = cache.index
    page = await index.select(
        PageRequest(
            filter=wanted,
            field=SortField(query.sort.removeprefix("-")),
            descending=query.sort.startswith("-"),
            limit=query.limit,
            after=decode_cursor(query.cursor, identity, length=3) if query.cursor else None,
        )
    )
    if query.fields:
        shown = [
            msgspec.json.encode({name: getattr(summary, name) for name in query.fields})
            for summary in map(index.summary, page.keys)
        ]
    else:
        shown = [index.encoded(key) for key in page.keys]
    following = None if page.last is None else encode_cursor(identity, page.last)
    return Response(page_body(shown, next_cursor=following, total=page.total), media_type=JSON)


@router.get(
    OBJECT,
    summary="One job",
    response_model=JOB,
    responses=TAGGED | NOT_MODIFIED | problem_responses(404),
)
async def get_job(
    namespace: Namespace, kind: Kind, name: Name, known: KnownVersions, caller: Caller
) -> Response:
    """Return the summary of a job as it is now."""
    found = await _live(caller.client, kind, name, namespace=namespace, view=kind.view)
    version = found.metadata.resource_version
    if is_known(known, version):
        return Response(status_code=304, headers={"ETag": etag(version)})
    return _one(kind.summarize(found))


class _Versioned(msgspec.Struct, frozen=True):
    metadata: dict[str, Any] = {}


@router.get(
    f"{OBJECT}/manifest",
    summary="A job as it is in the cluster",
    response_model=dict[str, Any],
    responses=TAGGED | NOT_MODIFIED | problem_responses(404),
)
async def get_job_manifest(
    namespace: Namespace, kind: Kind, name: Name, known: KnownVersions, caller: Caller
) -> Response:
    """Return the whole object, as `kubectl get -o json` does."""
    found = await _live(caller.client, kind, name, namespace=namespace, view=msgspec.Raw)
    version = msgspec.json.decode(found, type=_Versioned).metadata.get("resourceVersion", "")
    headers = {"ETag": etag(version)}
    if is_known(known, version):
        return Response(status_code=304, headers=headers)
    return Response(bytes(found), media_type=JSON, headers=headers)


@router.post(
    COLLECTION,
    status_code=201,
    summary="Create a job",
    response_model=JOB,
    responses={
        200: {"model": JOB, "description": "The job would be created (`dry_run`)."},
        201: {"headers": {"Location": _LOCATION, "Warning": _WARNING, **_ETAG}},
        **problem_responses(404, 409),
    },
    openapi_extra=JOB_BODY,
)
async def create_job(
    namespace: Namespace,
    kind: Kind,
    request: Request,
    state: State,
    caller: Caller,
    operation: OperationId,
    dry_run: Annotated[QueryFlag, Query(description="Validate only.")] = False,
) -> Response:
    """Create a job from a manifest, or a Volcano job from the short form.

    Warnings of the API server are in `Warning` headers.
    """
    user = caller.user.username
    body = decode_body(await request.body())
    job = build_job(body, kind, namespace=namespace, operation=operation, user=user)
    _check_notifications(job["metadata"].get("annotations", {}), state.notifications)
    summary, warnings = await job_writes.create(
        caller.client, kind, job, namespace=namespace, operation=operation, dry_run=dry_run
    )
    if dry_run:
        response = _one(summary, tagged=False)
    else:
        response = _one(summary, status=201)
        path = f"/v1/namespaces/{namespace}/{kind.name}/{summary.name}"
        response.headers["Location"] = path
    for each in warnings:
        response.headers.append("Warning", each)
    return response


@router.delete(
    OBJECT,
    status_code=202,
    summary="Delete a job",
    response_model=JOB,
    responses=problem_responses(404, 409, 412),
)
async def delete_job(
    namespace: Namespace,
    kind: Kind,
    name: Name,
    caller: Caller,
    preconditions: IfMatch,
    propagation: Annotated[
        Literal["background", "foreground", "orphan"],
        Query(description="What happens to the pods: deleted after, before, or left alone."),
    ] = "background",
    uid: Annotated[str, Query(max_length=128, description="Delete this job alone.")] = "",
) -> Response:
    """Delete a job; `deleting` is true while finalizers hold it."""
    summary = await job_writes.delete(
        caller.client,
        kind,
        name,
        namespace=namespace,
        propagation=propagation.capitalize(),
        uid=uid,
        preconditions=preconditions,
    )
    return _one(summary, status=202, tagged=False)


@router.put(
    f"{OBJECT}/scale",
    summary="Scale a job",
    response_model=JOB,
    responses=TAGGED | problem_responses(404, 409, 412),
)
async def scale_job(
    namespace: Namespace,
    kind: Kind,
    name: Name,
    body: ScaleIn,
    caller: Caller,
    preconditions: IfMatch,
) -> Response:
    """Change the numbers of pods of tasks or replica types, or the size of the gang."""
    return _one(
        await job_writes.scale(
            caller.client, kind, name, body, namespace=namespace, preconditions=preconditions
        )
    )


def _check_notifications(annotations: Mapping[str, object], rules: NotificationRules) -> None:
    """Raise a problem if a job asks for notifications that would not be sent."""
    given = {name: annotations[name] for name in (NOTIFY, NOTIFY_EVENTS) if name in annotations}
    texts = {name: text for name, text in given.items() if isinstance(text, str)}
    errors = [(name, "must be a string") for name in given.keys() - texts.keys()]
    errors += [(name, text) for name, _, text in errors_of(texts)]
    url = texts.get(NOTIFY, NO_NOTIFICATIONS)
    if not errors and url != NO_NOTIFICATIONS and (text := rules.error_of(url)):
        errors.append((NOTIFY, text))
    if errors:
        raise invalid_fields(*((f"metadata.annotations[{name}]", text) for name, text in errors))


async def _live(
    client: Client, kind: JobKind, name: str, *, namespace: str, view: type[Any]
) -> Any:
    try:
        return await client.get(kind.resource, name, namespace=namespace, view=view)
    except NotFoundError:
        raise job_writes.not_found(kind, namespace, name) from None


def _one(summary: JobSummary, *, status: int = 200, tagged: bool = True) -> Response:
    headers = {"ETag": etag(summary.resource_version)} if tagged else {}
    return respond(summary, status, **headers)
