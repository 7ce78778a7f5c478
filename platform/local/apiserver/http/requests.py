"""Requests and responses of the handlers, apart from HTTP framing.

Structs, which are fast to create: each request needs one of each.
"""

from collections.abc import AsyncGenerator, Mapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from ..errors.status import bad_request
from ..media_types import JSON
from .auth import User
from .connections import Tunnel

Json = dict[str, Any]


class Request(msgspec.Struct, kw_only=True):
    """One authenticated request with its body."""

    method: str
    path: str
    query: Mapping[str, str]
    raw_query: bytes = b""
    """The query as received, which may repeat a parameter."""

    headers: Mapping[str, str]
    """Names are lowercase."""
    body: bytes = b""
    decoded: Json | None = None
    """The object in the body, if it was decoded ahead."""

    user: User
    warnings: list[str] = msgspec.field(default_factory=list)
    """Texts of the response's ``Warning`` headers."""

    def bool_param(self, name: str) -> bool:
        """Return a boolean parameter; if present, only *false* and *0* mean no."""
        value = self.query.get(name)
        return value is not None and value.lower() not in ("false", "0")

    def int_param(self, name: str) -> int | None:
        """Return an integer parameter.

        Raises:
            StatusError: 400, it is not an integer.
        """
        text = self.query.get(name, "")
        if not text:
            return None
        try:
            return int(text)
        except ValueError:
            problem = f'strconv.ParseInt: parsing "{text}": invalid syntax'
            raise bad_request(problem) from None


def parse_query(raw: bytes) -> dict[str, str]:
    """Decode the parameters of a URL; the first of several with one name counts."""
    if not raw:
        return {}
    found: dict[str, str] = {}
    for name, value in parse_qsl(raw.decode("latin-1"), keep_blank_values=True):
        found.setdefault(name, value)
    return found


class Response(msgspec.Struct, kw_only=True):
    """A response: *body* at once, or the chunks of *stream*."""

    status: int = 200
    body: bytes = b""
    content_type: str = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()
    stream: AsyncGenerator[bytes] | None = None
    is_watch: bool = False
    """Whether the stream ends only when the client disconnects."""

    tunnel: Tunnel | None = None
    """With status 101: uses the connection afterwards."""


class ObjectPath(msgspec.Struct, frozen=True, kw_only=True):
    """Object or collection in the path of a request."""

    namespace: str = ""
    name: str = ""
    subresource: str = ""
