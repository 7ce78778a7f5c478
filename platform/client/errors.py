"""Errors of the SDK.

.. code-block:: text

    ClientError
    ├── ConfigError                 no usable URL or credentials
    ├── ManifestError               a job is invalid before it is sent
    ├── UnreachableError            no response, in all attempts
    ├── DeadlineError               no response in time (also a TimeoutError)
    ├── UnexpectedResponseError     a response that is not the REST API's
    ├── ApiError                    the REST API rejected the request
    │   ├── BadRequestError 400         ├── PreconditionFailedError 412
    │   ├── UnauthorizedError 401       ├── TooLargeError 413
    │   ├── ForbiddenError 403          ├── InvalidError 422
    │   ├── NotFoundError 404           ├── RateLimitedError 429
    │   ├── ConflictError 409           └── ServerError 5xx
    │   └── GoneError 410                   └── UnavailableError 503
    └── WaitError                   a job can no longer meet what is waited for
        ├── WaitTimeoutError            (also a TimeoutError)
        ├── PhaseUnreachableError
        └── JobDeletedError

Only :func:`from_reply` converts responses.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from ..wire.problem import Problem
from .effects import Reply


class ClientError(Exception):
    """Base of all errors of the SDK."""


class ConfigError(ClientError):
    """The URL of the REST API or the credentials are missing or unusable."""


class ManifestError(ClientError, ValueError):
    """A job is invalid; *errors* names each field."""

    def __init__(self, errors: Sequence[str]) -> None:
        super().__init__("; ".join(errors))
        self.errors = tuple(errors)


class UnreachableError(ClientError):
    """No attempt had a response; whether one was executed is unknown."""


class DeadlineError(ClientError, TimeoutError):
    """The timeout of the call passed; whether the request was executed is unknown."""


class UnexpectedResponseError(ClientError):
    """The response is not one of the REST API: a redirect, or a page of a proxy."""


class ApiError(ClientError):
    """The REST API rejected the request; *problem* is its reason."""

    def __init__(self, problem: Problem, *, retry_after: float | None = None) -> None:
        super().__init__(f"{problem.status} {problem.title}: {problem.detail}")
        self.problem = problem
        self.retry_after = retry_after
        """Seconds after which the server expects a retry."""

    @property
    def status(self) -> int:
        """The HTTP status."""
        return self.problem.status

    @property
    def detail(self) -> str:
        """What the server states about the error."""
        return self.problem.detail

    @property
    def fields(self) -> Mapping[str, str]:
        """Messages by invalid field."""
        return {each.field: each.message for each in self.problem.errors}


class BadRequestError(ApiError):
    """400: the server cannot parse the request."""


class UnauthorizedError(ApiError):
    """401: the credentials are missing, rejected or expired."""


class ForbiddenError(ApiError):
    """403: the user lacks the permission."""


class NotFoundError(ApiError):
    """404: the object does not exist."""


class ConflictError(ApiError):
    """409: the object exists already, or its phase does not allow the action."""

    @property
    def allowed_phases(self) -> tuple[str, ...]:
        """Phases in which the action is allowed; empty if the phase is not the reason."""
        return tuple(self.problem.allowed_phases)


class GoneError(ApiError):
    """410: the position in the stream of events has expired."""


class PreconditionFailedError(ApiError):
    """412: the object was changed since the given ETag."""


class TooLargeError(ApiError):
    """413: the body is too large."""


class InvalidError(ApiError):
    """422: fields or parameters are invalid; see :attr:`fields`."""


class RateLimitedError(ApiError):
    """429: the caller sends too many requests."""


class ServerError(ApiError):
    """5xx: the server, or the Kubernetes API behind it, failed."""


class UnavailableError(ServerError):
    """503: the Kubernetes API or the database is unavailable."""


class WaitError(ClientError):
    """A job has not met what was waited for; *job* is its last known state."""

    def __init__(self, message: str, job: Any) -> None:
        super().__init__(message)
        self.job = job


class WaitTimeoutError(WaitError, TimeoutError):
    """The timeout of the wait passed; the job is not affected."""


class PhaseUnreachableError(WaitError):
    """The job has finished in another phase."""


class JobDeletedError(WaitError):
    """The job was deleted while it was waited for."""


_ERRORS: dict[int, type[ApiError]] = {
    400: BadRequestError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    412: PreconditionFailedError,
    413: TooLargeError,
    422: InvalidError,
    429: RateLimitedError,
    503: UnavailableError,
}
_MEDIA_TYPE = "application/problem+json"
_MAX_EXCERPT = 200


def from_reply(reply: Reply) -> ClientError:
    """Return the error for a response of status 300 or more."""
    if reply.status < 400:
        return UnexpectedResponseError(
            f"the server redirects ({reply.status}), which is not followed: credentials belong to "
            "one address"
        )
    problem = _decode_problem(reply)
    retry_after = retry_after_of(reply)
    if problem is None:
        excerpt = reply.body[:_MAX_EXCERPT].decode(errors="replace")
        problem = Problem(status=reply.status, title="not a problem document", detail=excerpt)
    default = ServerError if reply.status >= 500 else ApiError
    return _ERRORS.get(reply.status, default)(problem, retry_after=retry_after)


def retry_after_of(reply: Reply) -> float | None:
    """Return ``Retry-After`` in seconds; ``None`` if it is missing or a date."""
    text = reply.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() else None


def _decode_problem(reply: Reply) -> Problem | None:
    if not reply.headers.get("content-type", "").startswith(_MEDIA_TYPE):
        return None
    try:
        problem = msgspec.json.decode(reply.body, type=Problem)
    except msgspec.MsgspecError:
        return None
    return msgspec.structs.replace(problem, status=reply.status)
