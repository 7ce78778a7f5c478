"""Errors as RFC 9457 ``application/problem+json``, made in one place."""

import logging
import math
from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ..kube.errors import ApiError, ConnectionLostError
from ..store.database import StoreUnavailableError

log = logging.getLogger(__name__)

RETRY_AFTER = 2.0
"""Seconds after which a caller may try again what the cluster or the database could not do."""


class ProblemError(Exception):
    """Answer the request with *status* and say why.

    *errors* names the fields of a body that are wrong, as ``{"field", "message"}``; *retry_after*
    is the number of seconds after which the caller may try again.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        errors: tuple[dict[str, str], ...] = (),
        retry_after: float | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.errors = errors
        self.retry_after = retry_after


def _problem_response(problem: ProblemError) -> JSONResponse:
    body: dict[str, object] = {
        "type": "about:blank",
        "title": HTTPStatus(problem.status).phrase,
        "status": problem.status,
        "detail": problem.detail,
    }
    if problem.errors:
        body["errors"] = list(problem.errors)
    headers = {}
    if problem.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if problem.retry_after is not None:
        headers["Retry-After"] = str(math.ceil(problem.retry_after))
    return JSONResponse(
        body, problem.status, headers=headers, media_type="application/problem+json"
    )


def _from_validation_error(error: RequestValidationError) -> ProblemError:
    found = error.errors()
    if any(item["type"] == "json_invalid" for item in found):
        return ProblemError(400, "the body is not JSON")
    fields = tuple(
        {
            "field": ".".join(str(part) for part in item["loc"][1:]) or str(item["loc"][0]),
            "message": item["msg"],
        }
        for item in found
    )
    detail = "; ".join(f"{field['field']}: {field['message']}" for field in fields)
    return ProblemError(422, detail, errors=fields)


def _from_api_error(error: ApiError) -> ProblemError:
    # What the cluster refuses is the caller's business; what it cannot do is not.
    if error.status in {403, 404, 409, 422, 429}:
        return ProblemError(error.status, error.message, retry_after=error.retry_after)
    return ProblemError(502, f"the Kubernetes API answered {error.status}: {error.message}")


def add_exception_handlers(app: FastAPI) -> None:
    """Make *app* answer every error as a problem."""

    @app.exception_handler(ProblemError)
    async def _problem(_: Request, error: ProblemError) -> JSONResponse:
        return _problem_response(error)

    @app.exception_handler(RequestValidationError)
    async def _invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return _problem_response(_from_validation_error(error))

    @app.exception_handler(HTTPException)
    async def _http(_: Request, error: HTTPException) -> JSONResponse:
        return _problem_response(ProblemError(error.status_code, str(error.detail)))

    @app.exception_handler(ApiError)
    async def _api_error(_: Request, error: ApiError) -> JSONResponse:
        return _problem_response(_from_api_error(error))

    @app.exception_handler(ConnectionLostError)
    async def _connection_lost(_: Request, error: ConnectionLostError) -> JSONResponse:
        detail = f"the Kubernetes API cannot be reached: {error}"
        return _problem_response(ProblemError(503, detail, retry_after=RETRY_AFTER))

    @app.exception_handler(StoreUnavailableError)
    async def _store_unavailable(request: Request, error: StoreUnavailableError) -> JSONResponse:
        # The reason names hosts and folders, which are no caller's business.
        log.warning("store not available", extra={"path": request.url.path, "error": str(error)})
        detail = "the database of commands does not answer; nothing was asked of the job"
        return _problem_response(ProblemError(503, detail, retry_after=RETRY_AFTER))

    @app.exception_handler(Exception)
    async def _internal_error(_: Request, error: Exception) -> JSONResponse:
        return _problem_response(ProblemError(500, "the server failed; its log says how"))
