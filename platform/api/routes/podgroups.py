"""Routes of PodGroups: list and get."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel

from ...kube.errors import NotFoundError
from ...model.names import PODGROUPS
from ...model.podgroup import PodGroup, PodGroupPhase
from ..http.listing import ListRequest
from ..http.paging import MAX_CURSOR, Position
from ..http.query_values import WHOLE_NUMBER
from ..identity.reviewer import AccessAttributes
from ..problems import ProblemError, problem_responses
from ..schemas.podgroups import PodGroupList, PodGroupOut, phase_of, queue_of
from .dependencies import AppState, Caller, Name, Namespace, State

ALL_NAMESPACES = ""

router = APIRouter(prefix="/v1", tags=["podgroups"])


class _ListQuery(BaseModel):
    """What a list asks for."""

    phases: frozenset[PodGroupPhase]
    queue: str | None
    sort: str
    limit: int
    cursor: str


async def _list_query(
    phase: Annotated[list[PodGroupPhase] | None, Query(description="Any of these phases.")] = None,
    queue: Annotated[str | None, Query(max_length=253)] = None,
    sort: Annotated[
        Literal["name", "-name", "created", "-created"],
        Query(description="Ties by namespace and name."),
    ] = "name",
    limit: Annotated[int, Query(ge=1, le=500), WHOLE_NUMBER] = 100,
    cursor: Annotated[
        str, Query(max_length=MAX_CURSOR, description="`next_cursor` of the page before.")
    ] = "",
) -> _ListQuery:
    return _ListQuery(
        phases=frozenset(phase or ()), queue=queue, sort=sort, limit=limit, cursor=cursor
    )


ListQuery = Annotated[_ListQuery, Depends(_list_query)]


@router.get("/podgroups", summary="PodGroups of all namespaces")
async def list_all_podgroups(query: ListQuery, state: State, caller: Caller) -> PodGroupList:
    """List the PodGroups of all namespaces, page by page."""
    return await _list(state, caller, query, ALL_NAMESPACES)


@router.get("/namespaces/{namespace}/podgroups", summary="PodGroups of one namespace")
async def list_podgroups(
    namespace: Namespace, query: ListQuery, state: State, caller: Caller
) -> PodGroupList:
    """List the PodGroups of a namespace, page by page; an unknown namespace has none."""
    return await _list(state, caller, query, namespace)


@router.get(
    "/namespaces/{namespace}/podgroups/{name}",
    summary="One PodGroup",
    responses=problem_responses(404),
)
async def get_podgroup(namespace: Namespace, name: Name, caller: Caller) -> PodGroupOut:
    """Return a PodGroup as it is now."""
    try:
        found = await caller.client.get(PODGROUPS, name, namespace=namespace, view=PodGroup)
    except NotFoundError:
        text = f"PodGroup {name!r} not found in namespace {namespace!r}"
        raise ProblemError(404, text) from None
    return PodGroupOut.of(found)


async def _list(state: AppState, caller: Caller, query: _ListQuery, namespace: str) -> PodGroupList:
    access = AccessAttributes(verb="list", resource=PODGROUPS, namespace=namespace)
    await state.reviewer.authorize(caller.user, access)
    is_by_name = query.sort.removeprefix("-") == "name"

    def position(podgroup: PodGroup) -> Position:
        meta = podgroup.metadata
        first = meta.name if is_by_name else meta.creation_timestamp or ""
        return first, meta.namespace, meta.name

    request = ListRequest[PodGroup](
        query=f"podgroups {namespace} {query.sort} {query.queue!r} {sorted(query.phases)}",
        position=position,
        length=3,
        descending=query.sort.startswith("-"),
        limit=query.limit,
        cursor=query.cursor,
    )
    page = request.select(
        podgroup
        for podgroup in state.caches.podgroups
        if namespace in (ALL_NAMESPACES, podgroup.metadata.namespace)
        and (not query.phases or phase_of(podgroup) in query.phases)
        and query.queue in (None, queue_of(podgroup))
    )
    return PodGroupList(
        items=[PodGroupOut.of(podgroup) for podgroup in page.items],
        next_cursor=page.next_cursor,
        total=page.total,
    )
