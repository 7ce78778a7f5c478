"""The head of a request, as bytes; whatever could end a header early never gets into one."""

import re
from collections.abc import Iterable

from ..errors import ConfigError

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"[\t\x20-\x7e]*")
_TARGET = re.compile(r"[\x21-\x7e]+")


def header_line(name: str, value: str) -> bytes:
    """One header line.

    Raises:
        ConfigError: it would not be one; the value, which may be a secret, is not told.
    """
    if not _TOKEN.fullmatch(name) or not _VALUE.fullmatch(value):
        raise ConfigError(f"header {name!r} holds characters that no header may have")
    return f"{name}: {value}\r\n".encode("ascii")


class RequestHeadBuilder:
    """Makes the heads of all requests to one server."""

    def __init__(self, *, prefix: str, headers: Iterable[tuple[str, str]]) -> None:
        """Begin each target with *prefix*; send *headers* with each request."""
        self._prefix = prefix
        self._common_lines = b" HTTP/1.1\r\n" + b"".join(
            header_line(name, value) for name, value in headers
        )
        self._cache: dict[tuple[str, str], bytes] = {}

    def encode(
        self, method: str, path: str, *, authorization: str, body: bytes | None, content_type: str
    ) -> bytes:
        """A whole request; without a *body* it has neither length nor type.

        Raises:
            ValueError: *path* is not encoded, or *method* is none.
        """
        target = self._prefix + path
        if not _TARGET.fullmatch(target) or not _TOKEN.fullmatch(method):
            raise ValueError(f"no request line: {method} {target!r}")
        kind = content_type if body is not None else ""
        common = self._cache.get((authorization, kind))
        if common is None:
            common = self._build(authorization, kind)
        if body is None:
            return b"%b %b%b\r\n" % (method.encode(), target.encode(), common)
        start = (method.encode(), target.encode(), common, len(body), body)
        return b"%b %b%bContent-Length: %d\r\n\r\n%b" % start

    def _build(self, authorization: str, content_type: str) -> bytes:
        made = self._common_lines
        if authorization:
            made += header_line("Authorization", authorization)
        if content_type:
            made += header_line("Content-Type", content_type)
        if len(self._cache) > 16:
            self._cache.clear()  # tokens were replaced: the old ones need not be kept
        self._cache[authorization, content_type] = made
        return made
