"""Routes of streams: server-sent events about jobs and queues."""

import hashlib
import random
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Request
from fastapi.responses import Response

from ...model.names import QUEUES
from ...model.queue import QueueState
from ...model.selectors import Selector, SelectorError, parse_label_selector
from ..identity.caller import AuthenticatedCaller
from ..identity.reviewer import AccessAttributes
from ..jobs.kinds import JobKind
from ..jobs.summaries import JobSummary, Phase
from ..problems import ProblemError, problem_responses
from ..schemas.queues import QueueOut
from ..streams.change_log import Selection
from ..streams.feeds import EventStreamResponse, StreamRequest
from .dependencies import AppState, Caller, Kind, Name, Namespace, State

RETRY = (1000, 3000)
"""Range of the time in milliseconds after which clients reconnect, so that not all do at once."""

QUEUES_KIND = "queues"

router = APIRouter(prefix="/v1/watch", tags=["watch"])


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSelection:
    """Jobs of a stream."""

    kind: str
    namespace: str = ""
    name: str = ""
    phases: frozenset[str] = frozenset()
    queue: str | None = None
    labels: Selector = field(default_factory=Selector)

    @property
    def digest(self) -> str:
        """See :class:`.change_log.Selection`."""
        values = (self.namespace, self.name, sorted(self.phases), self.queue, str(self.labels))
        return _digest(self.kind, values)

    def matches(self, row: JobSummary) -> bool:
        """See :class:`.change_log.Selection`."""
        return (
            self.namespace in ("", row.namespace)
            and self.name in ("", row.name)
            and (not self.phases or row.phase in self.phases)
            and self.queue in (None, row.queue)
            and self.labels.matches(row.labels)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSelection:
    """Queues of a stream."""

    states: frozenset[str] = frozenset()
    parent: str | None = None

    @property
    def digest(self) -> str:
        """See :class:`.change_log.Selection`."""
        return _digest(QUEUES_KIND, (sorted(self.states), self.parent))

    def matches(self, row: QueueOut) -> bool:
        """See :class:`.change_log.Selection`."""
        return (not self.states or row.state in self.states) and self.parent in (None, row.parent)


def _digest(kind: str, values: object) -> str:
    text = repr(values).encode("utf-8", "surrogatepass")
    return f"{kind}-{hashlib.blake2b(text, digest_size=6).hexdigest()}"


_EVENTS = (
    "Events `list` (one per object) and `synced` first, or `synced` alone after a resume; then "
    "`added`, `modified` and `deleted` with the object as data, `end` before the server closes, "
    "and a comment every 15 s."
)
_EXAMPLE = (
    'event: list\ndata: {"namespace": "default", "name": "train", "phase": "Running"}\n\n'
    "event: synced\ndata: {}\nid: jobs-0f3a.4711.9be1.0\n\n"
    'event: modified\ndata: {"namespace": "default", "name": "train", "phase": "Completed"}\n'
    "id: jobs-0f3a.4712.9be1.1\n\n"
)
_RESPONSES: dict[int | str, dict[str, Any]] = problem_responses(410) | {
    200: {
        "description": _EVENTS,
        "content": {
            "text/event-stream": {"schema": {"type": "string"}, "example": _EXAMPLE},
        },
    }
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _JobQuery:
    phases: frozenset[str]
    queue: str | None
    labels: Selector


async def _job_query(
    phase: Annotated[list[Phase], Query(description="Any of these phases.")] = [],  # noqa: B006
    queue: Annotated[str | None, Query(max_length=253)] = None,
    label_selector: Annotated[
        str, Query(max_length=16384, description="As of `kubectl -l`, e.g. `tier in (a,b),!test`.")
    ] = "",
) -> _JobQuery:
    try:
        labels = parse_label_selector(label_selector)
    except SelectorError as error:
        field = {"field": "label_selector", "message": str(error)}
        raise ProblemError(422, f"label_selector: {error}", errors=(field,)) from None
    return _JobQuery(phases=frozenset(phase), queue=queue, labels=labels)


JobQuery = Annotated[_JobQuery, Depends(_job_query)]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Opening:
    """What all streams depend on."""

    state: AppState
    caller: AuthenticatedCaller
    token: str
    last_event_id: str | None

    async def stream(
        self, kind: str, selection: Selection[Any], access: AccessAttributes
    ) -> Response:
        """Authorize the caller and begin to stream."""
        state, caller = self.state, self.caller
        await state.reviewer.authorize(caller.user, access)

        async def authorize() -> None:
            user = caller.user
            if self.token:  # it may be revoked, with the pod or the account that it belongs to
                user = (await state.reviewer.authenticate(self.token)).user
            await state.reviewer.authorize(user, access)

        wanted = StreamRequest(
            user=caller.user.username,
            selection=selection,
            last_event_id=self.last_event_id,
            authorize=authorize,
            expires_at=caller.expires_at,
        )
        stream = state.streams.open(kind, wanted)
        return EventStreamResponse(state.streams, stream, retry=random.randint(*RETRY))

    async def stream_jobs(
        self, kind: JobKind, query: _JobQuery, *, namespace: str = "", name: str = ""
    ) -> Response:
        """Stream jobs of one kind."""
        selection = JobSelection(
            kind=kind.name,
            namespace=namespace,
            name=name,
            phases=query.phases,
            queue=query.queue,
            labels=query.labels,
        )
        access = AccessAttributes(
            verb="watch", resource=kind.resource, namespace=namespace, name=name
        )
        return await self.stream(kind.name, selection, access)


async def _opening(
    request: Request,
    state: State,
    caller: Caller,
    last_event_id: Annotated[
        str | None,
        Header(
            alias="Last-Event-ID",
            description="The last `id` received: the stream continues after it; 410 if it is too "
            "old.",
        ),
    ] = None,
) -> _Opening:
    token = request.headers.get("authorization", "").partition(" ")[2].strip()
    return _Opening(state=state, caller=caller, token=token, last_event_id=last_event_id)


Opening = Annotated[_Opening, Depends(_opening)]


@router.get("/queues", summary="Changes of queues", response_class=Response, responses=_RESPONSES)
async def watch_queues(
    opening: Opening,
    wanted: Annotated[
        list[QueueState], Query(alias="state", description="Any of these states.")
    ] = [],  # noqa: B006
    parent: Annotated[str | None, Query(max_length=253)] = None,
) -> Response:
    """Stream the queues and their changes."""
    selection = QueueSelection(states=frozenset(wanted), parent=parent)
    access = AccessAttributes(verb="watch", resource=QUEUES, namespace="")
    return await opening.stream(QUEUES_KIND, selection, access)


@router.get(
    "/{kind:job_kind}",
    summary="Changes of jobs of all namespaces",
    response_class=Response,
    responses=_RESPONSES,
)
async def watch_all_jobs(kind: Kind, query: JobQuery, opening: Opening) -> Response:
    """Stream the jobs of one kind and their changes."""
    return await opening.stream_jobs(kind, query)


@router.get(
    "/namespaces/{namespace}/{kind:job_kind}",
    summary="Changes of jobs of one namespace",
    response_class=Response,
    responses=_RESPONSES,
)
async def watch_jobs(
    namespace: Namespace, kind: Kind, query: JobQuery, opening: Opening
) -> Response:
    """Stream the jobs of one kind in a namespace and their changes."""
    return await opening.stream_jobs(kind, query, namespace=namespace)


@router.get(
    "/namespaces/{namespace}/{kind:job_kind}/{name}",
    summary="Changes of one job",
    response_class=Response,
    responses=_RESPONSES,
)
async def watch_job(
    namespace: Namespace, kind: Kind, name: Name, query: JobQuery, opening: Opening
) -> Response:
    """Stream one job and its changes; it may be created later, and again after its deletion."""
    return await opening.stream_jobs(kind, query, namespace=namespace, name=name)
