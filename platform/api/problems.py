"""Errors as RFC 9457 ``application/problem+json``, made in one place."""

from http import HTTPStatus

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from ..kube.errors import ApiError, ConnectionLostError


class ProblemError(Exception):
    """Answer the request with *status* and say why.

    *errors* names the fields of a body that are wrong, as ``{"field", "message"}``.
    """

    def __init__(
        self, status: int, detail: str, *, errors: tuple[dict[str, str], ...] = ()
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.errors = errors


def _answer(problem: ProblemError) -> JSONResponse:
    body: dict[str, object] = {
        "type": "about:blank",
        "title": HTTPStatus(problem.status).phrase,
        "status": problem.status,
        "detail": problem.detail,
    }
    if problem.errors:
        body["errors"] = list(problem.errors)
    headers = {"WWW-Authenticate": "Bearer"} if problem.status == 401 else None
    return JSONResponse(
        body, problem.status, headers=headers, media_type="application/problem+json"
    )


def _of_validation(error: RequestValidationError) -> ProblemError:
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


def _of_cluster(error: ApiError) -> ProblemError:
    # What the cluster refuses is the caller's business; what it cannot do is not.
    if error.status in {403, 404, 409, 422, 429}:
        return ProblemError(error.status, error.message)
    return ProblemError(502, f"the Kubernetes API answered {error.status}: {error.message}")


def install(app: FastAPI) -> None:
    """Make *app* answer every error as a problem."""

    @app.exception_handler(ProblemError)
    async def _problem(_: Request, error: ProblemError) -> JSONResponse:
        return _answer(error)

    @app.exception_handler(RequestValidationError)
    async def _invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        return _answer(_of_validation(error))

    @app.exception_handler(HTTPException)
    async def _http(_: Request, error: HTTPException) -> JSONResponse:
        return _answer(ProblemError(error.status_code, str(error.detail)))

    @app.exception_handler(ApiError)
    async def _cluster(_: Request, error: ApiError) -> JSONResponse:
        return _answer(_of_cluster(error))

    @app.exception_handler(ConnectionLostError)
    async def _lost(_: Request, error: ConnectionLostError) -> JSONResponse:
        return _answer(ProblemError(503, f"the Kubernetes API cannot be reached: {error}"))
