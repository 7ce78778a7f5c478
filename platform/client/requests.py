"""Descriptions of requests to the REST API, without address and credentials."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeAlias
from urllib.parse import quote, urlencode

import msgspec

from ..model import validation

QueryValue: TypeAlias = str | int | bool | datetime | Sequence[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    """A request to the REST API."""

    method: str
    path: str
    """Below the URL of the server, with query."""
    body: bytes | None = None
    content_type: str = "application/json"
    headers: tuple[tuple[str, str], ...] = ()
    idempotency_key: str = ""
    """Of a POST: the same in all attempts, so that it is executed once."""
    hold: float = 0.0
    """Seconds for which the server may hold back the response, in addition to the timeout."""


def path(*segments: str, query: Mapping[str, QueryValue] | None = None) -> str:
    """Return ``/v1/…`` of *segments*, each quoted, and of those values of *query* that are set."""
    base = "/v1/" + "/".join(quote(each, safe="") for each in segments)
    pairs = [pair for name, value in (query or {}).items() for pair in _query_pairs(name, value)]
    return f"{base}?{urlencode(pairs)}" if pairs else base


def _query_pairs(name: str, value: QueryValue) -> list[tuple[str, str]]:
    match value:
        case None:
            return []
        case bool():
            return [(name, "true" if value else "false")]
        case str() | int():
            return [(name, str(value))]
        case datetime():
            if value.tzinfo is None:
                raise ValueError(f"{name}: the time has no time zone")
            return [(name, value.astimezone(UTC).isoformat().replace("+00:00", "Z"))]
        case _:
            return [(name, each) for each in value]


def get(target: str, *, headers: tuple[tuple[str, str], ...] = ()) -> ApiRequest:
    """Return a GET request."""
    return ApiRequest(method="GET", path=target, headers=headers)


def post(
    target: str, body: Any = None, *, idempotency_key: str | None = None, hold: float = 0.0
) -> ApiRequest:
    """Return a POST request with *body* as JSON, and a new key unless one is given."""
    return ApiRequest(
        method="POST",
        path=target,
        body=None if body is None else encode(body),
        idempotency_key=idempotency_key or secrets.token_hex(16),
        hold=hold,
    )


def encode(body: Any) -> bytes:
    """Encode *body* as JSON.

    Raises:
        TypeError: it contains something that JSON has no form of.
    """
    return msgspec.json.encode(body)


def check_name(what: str, name: str) -> str:
    """Return *name* if it is a name of Kubernetes objects.

    A name that is not would reach another path, as ``..`` does.

    Raises:
        ValueError: it is not.
    """
    if error := validation.dns1123_subdomain_error(name):
        raise ValueError(f"{what} {name!r}: {error}")
    return name
