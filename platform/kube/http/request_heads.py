"""Encoding of requests, safe against header injection."""

import re
from collections.abc import Iterable

from ..errors import ConfigError

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")
_TARGET = re.compile(r"[\x21-\x7e]+")


def header_line(name: str, value: str) -> bytes:
    """Encode one header line.

    Raises:
        ConfigError: invalid characters; the value, which may be a secret, is not shown.
    """
    if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
        raise ConfigError(f"header {name!r} contains invalid characters")
    return f"{name}: {value}\r\n".encode("ascii")


class RequestHeadBuilder:
    """Encodes requests to one server, with their common headers cached."""

    def __init__(self, *, prefix: str, headers: Iterable[tuple[str, str]]) -> None:
        """Prepend *prefix* to each target; send *headers* with each request."""
        self._prefix = prefix
        self._common_lines = b" HTTP/1.1\r\n" + b"".join(
            header_line(name, value) for name, value in headers
        )
        self._cache: dict[tuple[str, str], bytes] = {}

    def encode(
        self,
        method: str,
        path: str,
        *,
        authorization: str,
        body: bytes | None,
        content_type: str,
        more_lines: bytes = b"",
    ) -> bytes:
        """Encode a request; without a *body* it has neither length nor type.

        *more_lines* are encoded header lines of this request alone, which are not cached.

        Raises:
            ValueError: *path* is not percent-encoded, or *method* is not a token.
        """
        target = self._prefix + path
        if not _TARGET.fullmatch(target) or not _TOKEN.fullmatch(method):
            raise ValueError(f"invalid request line: {method} {target!r}")
        type_header = content_type if body is not None else ""
        common = self._cache.get((authorization, type_header))
        if common is None:
            common = self._build(authorization, type_header)
        if body is None:
            return b"%b %b%b%b\r\n" % (method.encode(), target.encode(), common, more_lines)
        start = (method.encode(), target.encode(), common, more_lines, len(body), body)
        return b"%b %b%b%bContent-Length: %d\r\n\r\n%b" % start

    def _build(self, authorization: str, content_type: str) -> bytes:
        head = self._common_lines
        if authorization:
            head += header_line("Authorization", authorization)
        if content_type:
            head += header_line("Content-Type", content_type)
        if len(self._cache) > 16:
            self._cache.clear()  # drop rotated tokens
        self._cache[authorization, content_type] = head
        return head
