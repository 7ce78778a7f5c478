"""What can go wrong between us and a Kubernetes API, named after the situation.

:func:`from_response` is the one place that maps an HTTP answer to an exception.
"""

from collections.abc import Mapping
from typing import Any

import msgspec


class ApiError(Exception):
    """The server refused a request; *message* is the server's own sentence."""

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
        """HTTP status, or the ``code`` of a Status object that came in a watch."""
        self.reason = reason
        """Kubernetes' machine-readable reason, such as ``NotFound``; may be empty."""
        self.details: dict[str, Any] = dict(details or {})
        """``details`` of the Status: name, group, kind, uid, causes."""
        self.retry_after = retry_after
        """Seconds that the server asks us to wait, if it does."""

    def __str__(self) -> str:
        return f"{self.status} {self.reason}: {self.message}"


class BadRequestError(ApiError):
    """400: the server could not make sense of the request."""


class UnauthorizedError(ApiError):
    """401: the server does not know who we are."""


class ForbiddenError(ApiError):
    """403: the server knows us and says no."""


class NotFoundError(ApiError):
    """404: no such object, or no such kind of object."""


class ConflictError(ApiError):
    """409: the object is not in the version or of the uid that the request names."""


class AlreadyExistsError(ApiError):
    """409 ``AlreadyExists``: the name is taken."""


class GoneError(ApiError):
    """410: the version or the continue token is older than the server's history."""


class InvalidError(ApiError):
    """422: the object, or the options of the request, break a rule."""


class TooManyRequestsError(ApiError):
    """429: the server wants us to slow down."""


class ServerError(ApiError):
    """5xx or 408: the server, or something on the way to it, failed or gave up.

    A write that ends so may or may not have taken effect.
    """


class ConnectionLostError(Exception):
    """The server could not be reached, or the connection broke before the answer was complete.

    A write that ends so may or may not have taken effect.
    """


class RequestTimeoutError(ConnectionLostError):
    """No complete answer within the time allowed."""


UNAVAILABLE_ERRORS = (ServerError, TooManyRequestsError, ConnectionLostError)
"""Failures that are the server's own: what was asked for may well be right, and work later."""


class DecodeError(Exception):
    """The server's answer does not have the shape that the caller asked for.

    A write that ends so has most likely taken effect.
    """


class NotLeaderError(Exception):
    """A write was held back: whoever leads now, we may not be it any more."""


def was_rejected(error: BaseException) -> bool:
    """Whether a write that ended with *error* had no effect, and will have none.

    After anything else, a cancellation included, it may have been carried out, or may still be.
    429 is a refusal: the server has turned the request away before it did anything.
    """
    return isinstance(error, ApiError | NotLeaderError) and not isinstance(error, ServerError)


class ConfigError(ValueError):
    """A kubeconfig or the in-cluster environment cannot be used; the text says what and where."""


class UnsafePathError(OSError):
    """A file or folder that another user may have prepared, or may read."""

    def __init__(self, path: object, problem: str, remedy: str) -> None:
        super().__init__(f"cannot use {path}: {problem}; to repair: {remedy}")


class Status(msgspec.Struct, frozen=True, rename="camel"):
    """Kubernetes' ``Status`` object: the body of a refusal."""

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
    """Make the exception for an answer of 300 or above (we follow no redirects).

    Args:
        status: HTTP status.
        body: the answer's body; a Status object, or anything (proxies answer HTML).
        retry_after: the ``Retry-After`` header; only its form in seconds is understood.
    """
    try:
        told = _STATUS_DECODER.decode(body)
    except msgspec.MsgspecError:
        told = Status(message=body[:500].decode("utf-8", "replace"))
    return from_status(told, status=status, retry_after=retry_after)


def from_status(
    status_object: Status, *, status: int = 0, retry_after: str | None = None
) -> ApiError:
    """Make the exception for a Status; *status* 0 means its own ``code``."""
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
    """Read a positive number of seconds; anything else is no advice at all."""
    if not isinstance(value, str | int | float):
        return None
    try:
        seconds = float(value)
    except ValueError:
        return None
    return seconds if 0 < seconds < 86400 else None
