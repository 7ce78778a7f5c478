"""What the routes of all resources depend on."""

import uuid
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Header, Path, Request

from ...kube.client.client import Client
from ...machinery.clock import Clock
from ...model.notification_destinations import NotificationRules
from ...model.validation import DNS1123_LABEL, DNS1123_SUBDOMAIN
from ...store.commands import CommandStore
from ...store.history import HistoryStore
from ...store.usage import UsageStore
from ...wire.jobs import JobKindName
from ..caches import Caches
from ..commands.outcomes import Outcomes
from ..commands.service import CommandService
from ..commands.waits import CommandWaits
from ..http.idempotency import HEADER, MAX_KEY, PATTERN, IdempotencyService, attempt_of
from ..http.metrics import ApiMetrics
from ..identity.audit import note_operation
from ..identity.authentication import CALLER, Callers, SecuritySettings
from ..identity.caller import AuthenticatedCaller
from ..identity.reviewer import AccessReviewer
from ..jobs.kinds import KINDS, JobKind
from ..logs.containers import LogStreams
from ..past_usage import PastUsages
from ..problems import ProblemError
from ..simulation import SchedulerSimulations
from ..streams.feeds import Streams

Namespace = Annotated[str, Path(max_length=63, pattern=f"^{DNS1123_LABEL}$")]
Name = Annotated[str, Path(max_length=253, pattern=f"^{DNS1123_SUBDOMAIN}$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppState:
    """Dependencies of the routes."""

    client: Client
    """Acts with the account of the REST API, which may only read."""

    caches: Caches
    reviewer: AccessReviewer
    callers: Callers
    security: SecuritySettings
    commands: CommandService
    outcomes: Outcomes
    waits: CommandWaits
    idempotency: IdempotencyService
    store: CommandStore
    history: HistoryStore
    usage: UsageStore
    clock: Clock
    streams: Streams
    metrics: ApiMetrics
    simulations: SchedulerSimulations
    past_usages: PastUsages
    notifications: NotificationRules
    log_streams: LogStreams = field(default_factory=LogStreams)


async def _app_state(request: Request) -> AppState:
    state: AppState = request.app.state.dependencies
    return state


async def _caller(request: Request) -> AuthenticatedCaller:
    """Return the caller whom the AuthenticationMiddleware has authenticated."""
    caller: AuthenticatedCaller | None = getattr(request.state, CALLER, None)
    if caller is None:
        raise RuntimeError(f"{request.url.path} is served without authentication")
    return caller


async def operation_id(
    request: Request,
    idempotency_key: Annotated[
        str | None,
        Header(
            alias=HEADER,
            min_length=1,
            max_length=MAX_KEY,
            pattern=PATTERN,
            description="Repeated with the same key within 24 hours, the request is executed once, "
            "and gets the same response.",
        ),
    ] = None,
) -> uuid.UUID:
    """Return the id of the operation; the middleware has checked the header and claimed the key."""
    attempt = attempt_of(request.scope)
    id_ = uuid.uuid4() if attempt is None else attempt.operation
    note_operation(request.scope, id_)
    return id_


async def _job_kind(
    kind: Annotated[JobKindName, Path(description="Kind of the jobs.")],
    state: Annotated[AppState, Depends(_app_state)],
    _: Annotated[AuthenticatedCaller, Depends(_caller)],
) -> JobKind:
    return served_kind(state, kind)


def served_kind(state: AppState, kind: JobKindName) -> JobKind:
    """Return the kind with this name.

    Raises:
        ProblemError: 404 if the cluster does not serve it.
    """
    found = KINDS[kind]
    if not state.caches.of(kind).is_served:
        raise ProblemError(404, f"this cluster does not serve jobs of the kind {found.label}")
    return found


Caller = Annotated[AuthenticatedCaller, Depends(_caller)]
State = Annotated[AppState, Depends(_app_state)]
Kind = Annotated[JobKind, Depends(_job_kind)]
"""The kind in the path, as ``{kind:job_kind}``; 404 if the cluster does not serve it."""
OperationId = Annotated[uuid.UUID, Depends(operation_id)]
"""Identifies what a POST creates: names of objects and ids of rows are derived from it."""
