"""What the routes of all resources depend on."""

import uuid
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Header, Path, Request

from ..kube.client.client import Client
from ..machinery.clock import Clock
from ..model.validation import DNS1123_LABEL, DNS1123_SUBDOMAIN
from ..store.commands import CommandStore
from ..store.history import HistoryStore
from ..store.usage import UsageStore
from . import problems
from .auth import AccessReviewer
from .caches import Caches
from .caller import AuthenticatedCaller
from .commands import CommandService
from .job_kinds import KINDS, JobKind
from .job_summaries import JobKindName
from .problems import ProblemError
from .schemas.problem import Problem


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the description of error responses: *statuses*, and those of every route."""
    return {
        status: {"model": Problem, "content": {problems.MEDIA_TYPE: {}}}
        for status in sorted({*statuses, 401, 403, 429, 500, 502, 503})
    }


PROBLEMS = problem_responses(404, 409, 413, 422)
Namespace = Annotated[str, Path(max_length=63, pattern=f"^{DNS1123_LABEL}$")]
Name = Annotated[str, Path(max_length=253, pattern=f"^{DNS1123_SUBDOMAIN}$")]


@dataclass(frozen=True, slots=True, kw_only=True)
class AppState:
    """Dependencies of the routes."""

    client: Client
    """Acts with the account of the REST API, which may only read."""

    caches: Caches
    reviewer: AccessReviewer
    commands: CommandService
    store: CommandStore
    history: HistoryStore
    usage: UsageStore
    clock: Clock


def _app_state(request: Request) -> AppState:
    state: AppState = request.app.state.dependencies
    return state


async def _caller(
    state: Annotated[AppState, Depends(_app_state)],
    authorization: Annotated[str | None, Header(include_in_schema=False)] = None,
) -> AuthenticatedCaller:
    user = await state.reviewer.authenticate(authorization)
    return AuthenticatedCaller(user=user, client=state.client)


async def _operation_id() -> uuid.UUID:
    return uuid.uuid4()


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
