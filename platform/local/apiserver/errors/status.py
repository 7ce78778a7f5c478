"""Errors of requests, as ``Status`` objects.

Handlers raise :class:`StatusError`; :mod:`..app` converts it to a response.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from ....model.names import Resource
from .fields import FieldError, quote


class StatusError(Exception):
    """An error response; has everything that the ``Status`` body needs."""

    def __init__(
        self, code: int, reason: str, message: str, *, details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details
        self.metadata: dict[str, Any] = {}
        """List metadata of the response, e.g. a new ``continue`` token."""

    @property
    def retry_after(self) -> int | None:
        """Seconds after which the client may retry, if that is useful."""
        return (self.details or {}).get("retryAfterSeconds")

    def status(self) -> dict[str, Any]:
        """Return the ``Status`` object."""
        body: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": self.metadata,
            "status": "Failure",
            "message": self.message,
        }
        if self.reason:
            body["reason"] = self.reason
        if self.details:
            body["details"] = self.details
        body["code"] = self.code
        return body

    def body(self) -> bytes:
        """Return the ``Status`` object as JSON."""
        return msgspec.json.encode(self.status())


def qualified(resource: Resource) -> str:
    """Return ``plural.group``, or the plural in the core group, as messages name a resource."""
    return f"{resource.plural}.{resource.group}" if resource.group else resource.plural


def details_of(resource: Resource, name: str, *, kind: str = "") -> dict[str, Any]:
    """Return the ``details`` of one object; *kind* defaults to the plural."""
    details = {"name": name, "group": resource.group, "kind": kind or resource.plural}
    return {key: value for key, value in details.items() if value}


def bad_request(message: str) -> StatusError:
    """400: the request is malformed."""
    return StatusError(400, "BadRequest", message)


def unauthorized() -> StatusError:
    """401: no valid credentials."""
    return StatusError(401, "Unauthorized", "Unauthorized")


def forbidden(
    resource: Resource, name: str, reason: str, *, causes: Sequence[dict[str, str]] = ()
) -> StatusError:
    """403: the operation is not allowed on this object."""
    details = details_of(resource, name)
    if causes:
        details["causes"] = list(causes)
    text = f'{qualified(resource)} "{name}" is forbidden: {reason}'
    return StatusError(403, "Forbidden", text, details=details)


def timed_out() -> StatusError:
    """504: the time that the client allows is over; the request may still be executed."""
    text = "Timeout: request did not complete within the allotted timeout"
    return StatusError(504, "Timeout", text)


def denied(
    user: str,
    *,
    verb: str,
    path: str = "",
    group: str = "",
    plural: str = "",
    subresource: str = "",
    name: str = "",
    namespace: str = "",
    reason: str = "",
) -> StatusError:
    """403: an authorizer denies *verb* on a path or a resource."""
    if path:
        problem = f"User {quote(user)} cannot {verb} path {quote(path)}"
        text = f"forbidden: {_without_markup(problem)}"
        details = {}
    else:
        resource = Resource(group, "", plural, "")
        where = f"in the namespace {quote(namespace)}" if namespace else "at the cluster scope"
        full = f"{plural}/{subresource}" if subresource else plural
        problem = (
            f"User {quote(user)} cannot {verb} resource {quote(full)} "
            f"in API group {quote(group)} {where}"
        )
        named = f'{qualified(resource)} "{name}"' if name else qualified(resource)
        text = f"{named} is forbidden: {_without_markup(problem)}"
        details = details_of(resource, name)
    if reason:
        text += f": {reason}"
    return StatusError(403, "Forbidden", text, details=details)


def _without_markup(text: str) -> str:
    """Escape what a browser could parse as HTML."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def not_found(resource: Resource, name: str) -> StatusError:
    """404: object not found."""
    text = f'{qualified(resource)} "{name}" not found'
    return StatusError(404, "NotFound", text, details=details_of(resource, name))


def path_not_found(resource: Resource | None = None, name: str = "") -> StatusError:
    """404: resource or subresource not found."""
    details = details_of(resource, name) if resource else None
    text = "the server could not find the requested resource"
    return StatusError(404, "NotFound", text, details=details)


def method_not_allowed(resource: Resource | None = None) -> StatusError:
    """405: the resource does not support the verb."""
    details = {"group": resource.group, "kind": resource.plural} if resource else None
    text = "the server does not allow this method on the requested resource"
    return StatusError(405, "MethodNotAllowed", text, details=details)


def not_acceptable(accepted: Sequence[str]) -> StatusError:
    """406: no acceptable media type is supported."""
    text = f"only the following media types are accepted: {', '.join(accepted)}"
    return StatusError(406, "NotAcceptable", text)


def already_exists(resource: Resource, name: str) -> StatusError:
    """409: the name is in use."""
    text = f'{qualified(resource)} "{name}" already exists'
    return StatusError(409, "AlreadyExists", text, details=details_of(resource, name))


def conflict(resource: Resource, name: str, reason: str, *, kind: str = "") -> StatusError:
    """409: the object is not in the expected state."""
    text = f'Operation cannot be fulfilled on {qualified(resource)} "{name}": {reason}'
    return StatusError(409, "Conflict", text, details=details_of(resource, name, kind=kind))


def apply_conflict(message: str, causes: Sequence[dict[str, str]]) -> StatusError:
    """409: other managers own fields that an apply would change."""
    return StatusError(409, "Conflict", message, details={"causes": list(causes)})


def stale_write(resource: Resource, name: str) -> StatusError:
    """409: the object was modified since the client read it."""
    why = (
        "the object has been modified; please apply your changes to the latest version and "
        "try again"
    )
    return conflict(resource, name, why)


def expired(message: str) -> StatusError:
    """410: the resource version has expired."""
    return StatusError(410, "Expired", message)


def too_large(limit: int) -> StatusError:
    """413: the body is longer than *limit* bytes."""
    text = f"Request entity too large: limit is {limit}"
    return StatusError(413, "RequestEntityTooLarge", text)


def too_busy() -> StatusError:
    """429: what the write depends on changes faster than the write can be planned."""
    text = "The object, or what it depends on, changes all the time, please try again later"
    return StatusError(429, "TooManyRequests", text, details={"retryAfterSeconds": 1})


def unsupported_media(accepted: Sequence[str]) -> StatusError:
    """415: unsupported media type."""
    detail = "the body of the request was in an unknown format"
    text = f"{detail} - accepted media types include: {', '.join(accepted)}"
    return StatusError(415, "UnsupportedMediaType", text)


def invalid(
    resource: Resource, name: str, errors: Sequence[FieldError], *, kind_name: str = ""
) -> StatusError:
    """422: fields are invalid; *kind_name* replaces the kind in the message.

    The message has an error once that is several times among the causes.
    """
    messages = list(dict.fromkeys(error.message for error in errors))
    text = messages[0] if len(messages) == 1 else f"[{', '.join(messages)}]"
    kind_name = kind_name or resource.kind
    kind = f"{kind_name}.{resource.group}" if resource.group else kind_name
    details = details_of(resource, name, kind=kind_name)
    details["causes"] = [
        {"reason": error.reason, "message": error.detail, "field": error.field} for error in errors
    ]
    return StatusError(422, "Invalid", f'{kind} "{name}" is invalid: {text}', details=details)


def invalid_options(kind: str, errors: Sequence[FieldError]) -> StatusError:
    """422: invalid options of a request (``ListOptions``, ``PatchOptions``, …)."""
    return invalid(Resource("meta.k8s.io", "v1", "", kind), "", errors)


def version_too_large(requested: int, current: int) -> StatusError:
    """504: the requested resource version is not reached yet."""
    text = "Too large resource version"
    details = {
        "causes": [{"reason": "ResourceVersionTooLarge", "message": text}],
        "retryAfterSeconds": 1,
    }
    message = f"Timeout: {text}: {requested}, current: {current}"
    return StatusError(504, "Timeout", message, details=details)


def cannot_store(reason: str) -> StatusError:
    """500: the disk write failed, and nothing is stored."""
    return StatusError(500, "InternalError", f"cannot store: {reason}")


def disk_full() -> StatusError:
    """507: the disk is full, and nothing is stored."""
    return StatusError(507, "InternalError", "cannot store: disk full")


def outcome_unknown(reason: str) -> StatusError:
    """504: unknown whether the write is stored."""
    return StatusError(504, "Timeout", f"cannot determine whether the write was stored: {reason}")


def internal(message: str) -> StatusError:
    """500: an internal error."""
    return StatusError(500, "InternalError", f"Internal error occurred: {message}")
