"""Error responses as RFC 9457 ``application/problem+json``."""

import json
import logging
import math
import re
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ..kube.errors import ApiError, CallerUnauthorizedError, ConnectionLostError, ForbiddenError
from ..store.database import StoreUnavailableError

log = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"

_CANNOT_IMPERSONATE = re.compile(r'User "[^"]*" cannot impersonate(-on:\S+)? (resource|path) "')
"""In the message of an API server that forbids impersonation."""

RETRY_AFTER = 2.0
"""``Retry-After`` in seconds while the Kubernetes API or the database is unavailable."""


PROBLEM_SCHEMA = {"$ref": "#/components/schemas/Problem"}
"""Reference to the schema of a problem, which is in the description of the API once."""


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the argument *responses* of a route that responds with problems of *statuses*.

    Name only the statuses that are special to the route (404, 409, 410, 412): those that every
    route of its kind has are added to the description of the API by :mod:`.serving.openapi`.
    """
    return {
        status: {
            "description": HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": PROBLEM_SCHEMA}},
        }
        for status in statuses
    }


class ProblemError(Exception):
    """An error response with *status* and *detail*.

    *errors* lists invalid fields of the body as ``{"field", "message"}``; *retry_after* is the
    ``Retry-After`` header in seconds; *allowed_phases* are those in which the request is allowed.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        errors: tuple[dict[str, str], ...] = (),
        retry_after: float | None = None,
        allowed_phases: tuple[str, ...] = (),
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.errors = errors
        self.retry_after = retry_after
        self.allowed_phases = allowed_phases


def invalid_fields(*errors: tuple[str, str]) -> ProblemError:
    """Return the error 422 of fields or parameters, given as names and messages."""
    detail = "; ".join(f"{field}: {message}" for field, message in errors)
    fields = tuple({"field": field, "message": message} for field, message in errors)
    return ProblemError(422, detail, errors=fields)


def encode_problem(status: int, detail: str) -> bytes:
    """Encode a problem for responses outside of FastAPI."""
    return json.dumps(_problem_body(status, detail)).encode()


def _problem_body(status: int, detail: str) -> dict[str, object]:
    title = HTTPStatus(status).phrase
    return {"type": "about:blank", "title": title, "status": status, "detail": detail}


def describe(problem: ProblemError) -> dict[str, object]:
    """Return the body of the response that *problem* describes."""
    body = _problem_body(problem.status, problem.detail)
    if problem.errors:
        body["errors"] = list(problem.errors)
    if problem.allowed_phases:
        body["allowed_phases"] = list(problem.allowed_phases)
    return body


def to_response(problem: ProblemError) -> JSONResponse:
    """Return the response that *problem* describes."""
    body = describe(problem)
    headers = {}
    if problem.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if problem.retry_after is not None:
        headers["Retry-After"] = str(math.ceil(problem.retry_after))
    return JSONResponse(body, problem.status, headers=headers, media_type=MEDIA_TYPE)


def _from_validation_error(error: RequestValidationError) -> ProblemError:
    found = error.errors()
    if any(item["type"] == "json_invalid" for item in found):
        return ProblemError(400, "the body is not JSON")
    return invalid_fields(
        *(
            (".".join(str(each) for each in item["loc"][1:]) or str(item["loc"][0]), item["msg"])
            for item in found
        )
    )


def from_api_error(error: ApiError) -> ProblemError:
    """Return the problem that a rejection by the API server is for the caller."""
    if isinstance(error, CallerUnauthorizedError):
        return ProblemError(401, "the cluster rejects this token")
    if isinstance(error, ForbiddenError) and _CANNOT_IMPERSONATE.search(error.message):
        # The permission of our own account, not the caller's.
        return ProblemError(502, f"the REST API may not impersonate callers: {error.message}")
    # Rejections concern the caller and keep their status; other errors are a bad gateway.
    if error.status in {400, 422}:
        # 400: an unknown field, or what a webhook denies; the request itself is well-formed.
        return ProblemError(422, error.message, errors=_invalid_fields(error))
    if error.status in {403, 404, 409, 429}:
        return ProblemError(error.status, error.message, retry_after=error.retry_after)
    return ProblemError(502, f"the Kubernetes API returned {error.status}: {error.message}")


def _invalid_fields(error: ApiError) -> tuple[dict[str, str], ...]:
    """Return the fields that the API server rejects, if it names them."""
    causes = error.details.get("causes")
    return tuple(
        {"field": str(each.get("field", "")), "message": str(each.get("message", ""))}
        for each in (causes if isinstance(causes, list) else ())
        if isinstance(each, dict) and each.get("field")
    )


def add_exception_handlers(app: FastAPI) -> None:
    """Register handlers that convert every error to a problem response."""

    @app.exception_handler(ProblemError)
    async def _problem(_: Request, error: ProblemError) -> JSONResponse:
        return to_response(error)

    @app.exception_handler(RequestValidationError)
    async def _invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return to_response(_from_validation_error(error))

    @app.exception_handler(HTTPException)
    async def _http(_: Request, error: HTTPException) -> JSONResponse:
        response = to_response(ProblemError(error.status_code, str(error.detail)))
        response.headers.update(error.headers or {})
        return response

    @app.exception_handler(ApiError)
    async def _api_error(_: Request, error: ApiError) -> JSONResponse:
        return to_response(from_api_error(error))

    @app.exception_handler(ConnectionLostError)
    async def _connection_lost(_: Request, error: ConnectionLostError) -> JSONResponse:
        detail = f"cannot reach the Kubernetes API: {error}"
        return to_response(ProblemError(503, detail, retry_after=RETRY_AFTER))

    @app.exception_handler(StoreUnavailableError)
    async def _store_unavailable(request: Request, error: StoreUnavailableError) -> JSONResponse:
        # The error names hosts and paths, which callers must not see.
        log.warning("store unavailable", extra={"path": request.url.path, "error": str(error)})
        detail = "the command database is unavailable; no command was issued"
        return to_response(ProblemError(503, detail, retry_after=RETRY_AFTER))

    @app.exception_handler(Exception)
    async def _internal_error(_: Request, error: Exception) -> JSONResponse:
        return to_response(ProblemError(500, "internal error; see the server's log"))
