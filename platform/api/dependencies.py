"""What the routes of all resources depend on."""

import uuid
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends, Path, Request

from ..kube.client.client import Client
from ..model.validation import DNS1123_LABEL, DNS1123_SUBDOMAIN
from ..store.commands import CommandStore
from . import problems
from .audit import note_operation
from .auth import AccessReviewer
from .caches import Caches
from .caller import AuthenticatedCaller
from .commands import CommandService
from .container_logs import LogStreams
from .identity import CALLER, Callers, SecuritySettings
from .job_kinds import KINDS, JobKind
from .job_summaries import JobKindName
from .problems import ProblemError
from .schemas.problem import Problem

PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "content": {problems.MEDIA_TYPE: {}}}
    for status in (401, 403, 404, 409, 413, 422, 500, 502, 503)
}
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
    store: CommandStore
    log_streams: LogStreams = field(default_factory=LogStreams)


def _app_state(request: Request) -> AppState:
    state: AppState = request.app.state.dependencies
    return state


async def _caller(request: Request) -> AuthenticatedCaller:
    """Return the caller whom :class:`.identity.AuthenticationMiddleware` has authenticated."""
    caller: AuthenticatedCaller | None = getattr(request.state, CALLER, None)
    if caller is None:
        raise RuntimeError(f"{request.url.path} is served without authentication")
    return caller


async def _operation_id(request: Request) -> uuid.UUID:
    id_ = uuid.uuid4()
    note_operation(request.scope, id_)
    return id_


def _job_kind(
    kind: Annotated[JobKindName, Path(description="Kind of the jobs.")],
    state: Annotated[AppState, Depends(_app_state)],
    _: Annotated[AuthenticatedCaller, Depends(_caller)],
) -> JobKind:
    found = KINDS[kind]
    if not state.caches.of(kind).is_served:
        raise ProblemError(404, f"this cluster does not serve jobs of the kind {found.label}")
    return found


Caller = Annotated[AuthenticatedCaller, Depends(_caller)]
State = Annotated[AppState, Depends(_app_state)]
Kind = Annotated[JobKind, Depends(_job_kind)]
"""The kind in the path, as ``{kind:job_kind}``; 404 if the cluster does not serve it."""
OperationId = Annotated[uuid.UUID, Depends(_operation_id)]
"""Identifies what a POST creates: names of objects and ids of rows are derived from it."""
