"""Errors of the Kubernetes API client.

Only :func:`from_response` maps an HTTP response to an exception.
"""

from collections.abc import Mapping
from typing import Any

import msgspec


class ApiError(Exception):
    """The server rejected a request; *message* is its own text."""

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        details: Mapping[str, Any] | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.status = status
        """HTTP status, or the ``code`` of a Status object received in a watch."""
        self.reason = reason
        """Kubernetes' machine-readable reason, such as ``NotFound``; may be empty."""
        self.details: dict[str, Any] = dict(details or {})
        """``details`` of the Status: name, group, kind, uid, causes."""
        self.retry_after = retry_after
        """Seconds to wait before a retry, if the server asks for it."""

    def __str__(self) -> str:
        return f"{self.status} {self.reason}: {self.message}"


class BadRequestError(ApiError):
    """400: the server cannot parse the request."""


class UnauthorizedError(ApiError):
    """401: the credentials are missing, invalid or expired."""


class CallerUnauthorizedError(UnauthorizedError):
    """401: the credentials of an :class:`~.client.identity.Identity`, not the client's own."""


class ForbiddenError(ApiError):
    """403: the user lacks the permission."""


class NotFoundError(ApiError):
    """404: the object or its resource does not exist."""


class ConflictError(ApiError):
    """409: a precondition on resourceVersion or uid does not hold."""


class AlreadyExistsError(ApiError):
    """409 ``AlreadyExists``: an object of this name exists."""


class GoneError(ApiError):
    """410: the resourceVersion or continue token is older than the server's history."""


class InvalidError(ApiError):
    """422: the object or a request option fails validation."""


class TooManyRequestsError(ApiError):
    """429: the server throttles the client."""


class ServerError(ApiError):
    """5xx or 408: the server or a proxy failed or timed out.

    A write that ends so may or may not have taken effect.
    """


class ConnectionLostError(Exception):
    """The server is unreachable, or the connection broke before the response was complete.

    A write that ends so may or may not have taken effect.
    """


class RequestTimeoutError(ConnectionLostError):
    """No complete response before the timeout."""


UNAVAILABLE_ERRORS = (ServerError, TooManyRequestsError, ConnectionLostError)
"""Failures of the server, not of the request: a retry may succeed."""


class DecodeError(Exception):
    """The response does not have the expected structure.

    A write that ends so has most likely taken effect.
    """


class NotLeaderError(Exception):
    """A write was blocked because this process may have lost the lease."""


class NotSentError(Exception):
    """The guard of a write did not permit to send it."""


def was_rejected(error: BaseException) -> bool:
    """Whether a write that ended with *error* had no effect, and will have none.

    After any other error, a cancellation included, it may have taken effect or may still do so. 429
    counts as rejected: the server throttles a request before it processes it.
    """
    return isinstance(error, ApiError | NotLeaderError | NotSentError) and not isinstance(
        error, ServerError
    )


class ConfigError(ValueError):
    """A kubeconfig or the in-cluster environment is unusable; the text names the problem."""


class UnsafePathError(OSError):
    """A file or directory that another user may have prepared or may read."""

    def __init__(self, path: object, problem: str, remedy: str) -> None:
        super().__init__(f"cannot use {path}: {problem}; to repair: {remedy}")


class Status(msgspec.Struct, frozen=True, rename="camel"):
    """Kubernetes' ``Status`` object: the body of an error response."""

    message: str = ""
    reason: str = ""
    code: int = 0
    details: dict[str, Any] | None = None


_BY_STATUS: dict[int, type[ApiError]] = {
    400: BadRequestError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    408: ServerError,
    409: ConflictError,
    410: GoneError,
    422: InvalidError,
    429: TooManyRequestsError,
}

_STATUS_DECODER = msgspec.json.Decoder(Status)


def from_response(status: int, body: bytes, *, retry_after: str | None = None) -> ApiError:
    """Return the exception for a response of 300 or above (redirects are not followed).

    Args:
        status: HTTP status.
        body: the response body; a Status object, or anything (proxies send HTML).
        retry_after: the ``Retry-After`` header; only its form in seconds is supported.
    """
    try:
        status_object = _STATUS_DECODER.decode(body)
    except msgspec.MsgspecError:
        status_object = Status(message=body[:500].decode("utf-8", "replace"))
    return from_status(status_object, status=status, retry_after=retry_after)


def from_status(
    status_object: Status, *, status: int = 0, retry_after: str | None = None
) -> ApiError:
    """Return the exception for a Status; *status* 0 means its own ``code``."""
    code = status or status_object.code
    kind = _BY_STATUS.get(code, ServerError if code >= 500 else ApiError)
    if status_object.reason == "AlreadyExists":
        kind = AlreadyExistsError
    details = status_object.details or {}
    return kind(
        status_object.message,
        status=code,
        reason=status_object.reason,
        details=details,
        retry_after=_parse_seconds(retry_after) or _parse_seconds(details.get("retryAfterSeconds")),
    )


def _parse_seconds(value: object) -> float | None:
    """Parse a positive number of seconds; return None for anything else."""
    if not isinstance(value, str | int | float):
        return None
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if 0 < seconds < 86400 else None
