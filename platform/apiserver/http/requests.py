"""What comes in and what goes out, apart from HTTP itself.

Structs, because each request makes one of each, and they are made in no time.
"""

from collections.abc import AsyncGenerator, Mapping
from typing import Any
from urllib.parse import parse_qsl

import msgspec

from ..errors.status import bad_request
from .auth import User

JSON = "application/json"
YAML = "application/yaml"
PROTOBUF = "application/vnd.kubernetes.protobuf"
TEXT = "text/plain; charset=utf-8"

Json = dict[str, Any]


class Request(msgspec.Struct, kw_only=True):
    """One request after authentication, its body already read."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    """By lower-case name."""
    body: bytes = b""
    decoded: Json | None = None
    """The object in the body, if it was read ahead."""

    user: User
    warnings: list[str] = msgspec.field(default_factory=list)
    """Said in ``Warning`` headers of the answer."""

    def bool_param(self, name: str) -> bool:
        """A boolean parameter; once it is there, only *false* and *0* mean no."""
        value = self.query.get(name)
        return value is not None and value.lower() not in ("false", "0")

    def int_param(self, name: str) -> int | None:
        """A whole number among the parameters.

        Raises:
            StatusError: 400, it is something else.
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
    """The parameters of a URL; of several with one name the first counts."""
    if not raw:
        return {}
    found: dict[str, str] = {}
    for name, value in parse_qsl(raw.decode("latin-1"), keep_blank_values=True):
        found.setdefault(name, value)
    return found


class Response(msgspec.Struct, kw_only=True):
    """An answer: *body* at once, or *stream* piece by piece until it ends."""

    status: int = 200
    body: bytes = b""
    content_type: str = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()
    stream: AsyncGenerator[bytes] | None = None
    is_watch: bool = False
    """The stream goes on for as long as the client listens."""


class ObjectPath(msgspec.Struct, frozen=True, kw_only=True):
    """What the path of a request names."""

    namespace: str = ""
    name: str = ""
    subresource: str = ""
