"""Header blocks of SPDY/3.1: compressed with a dictionary, which the specification defines."""

import zlib

MAX_HEADERS = 16 * 1024
"""Maximum bytes of the headers of one stream, before compression."""

_NAMES = (
    "options head post put delete trace accept accept-charset accept-encoding accept-language "
    "accept-ranges age allow authorization cache-control connection content-base content-encoding "
    "content-language content-length content-location content-md5 content-range content-type date "
    "etag expect expires from host if-match if-modified-since if-none-match if-range "
    "if-unmodified-since last-modified location max-forwards pragma proxy-authenticate "
    "proxy-authorization range referer retry-after server te trailer transfer-encoding upgrade "
    "user-agent vary via warning www-authenticate method get status 200_OK version HTTP/1.1 url "
    "public set-cookie keep-alive origin"
)
"""Entries of the dictionary with a length; a line below is a space."""

_CODES = (
    "100 101 201 202 205 206 300 302 303 304 305 306 307 402 405 406 407 408 409 410 411 412 413 "
    "414 415 416 417 502 504 505"
)
_TEXT = (
    "203 Non-Authoritative Information204 No Content301 Moved Permanently400 Bad Request401 "
    "Unauthorized403 Forbidden404 Not Found500 Internal Server Error501 Not Implemented503 "
    "Service UnavailableJan Feb Mar Apr May Jun Jul Aug Sept Oct Nov Dec 00:00:00 Mon, Tue, Wed, "
    "Thu, Fri, Sat, Sun, GMTchunked,text/html,image/png,image/jpg,image/gif,application/xml,"
    "application/xhtml+xml,text/plain,text/javascript,publicprivatemax-age=gzip,deflate,sdch"
    "charset=utf-8charset=iso-8859-1,utf-,*,enq=0."
)


def _dictionary() -> bytes:
    names = (name.replace("_", " ").encode() for name in _NAMES.split(" "))
    entries = b"".join(len(name).to_bytes(4, "big") + name for name in names)
    return entries + _CODES.replace(" ", "").encode() + _TEXT.encode()


DICTIONARY = _dictionary()


class SpdyError(Exception):
    """The peer violates the protocol, or a limit."""


class HeaderDecoder:
    """Decodes the header blocks of one connection, in the order of their arrival."""

    def __init__(self) -> None:
        self._decompressor = zlib.decompressobj(zdict=DICTIONARY)

    def decode(self, block: bytes) -> dict[str, str]:
        """Return the headers; names are lowercase.

        Raises:
            SpdyError: the block is malformed or too large.
        """
        try:
            text = self._decompressor.decompress(block, MAX_HEADERS)
        except zlib.error as error:
            raise SpdyError(f"compressed headers: {error}") from error
        if self._decompressor.unconsumed_tail or len(text) >= MAX_HEADERS:
            raise SpdyError("headers are too large")
        position = 0

        def number() -> int:
            nonlocal position
            position += 4
            if position > len(text):
                raise SpdyError("headers are truncated")
            return int.from_bytes(text[position - 4 : position], "big")

        def string() -> str:
            nonlocal position
            length = number()
            position += length
            if position > len(text):
                raise SpdyError("headers are truncated")
            return text[position - length : position].decode("latin-1")

        pairs = ((string(), string()) for _ in range(number()))
        return {name.lower(): value for name, value in pairs}


class HeaderEncoder:
    """Encodes the header blocks of one connection, in the order in which they are sent."""

    def __init__(self) -> None:
        self._compressor = zlib.compressobj(zdict=DICTIONARY)

    def encode(self, headers: dict[str, str]) -> bytes:
        """Return the block of *headers*, whose names are lowercase."""
        text = len(headers).to_bytes(4, "big")
        for string in (string.encode("latin-1") for pair in headers.items() for string in pair):
            text += len(string).to_bytes(4, "big") + string
        return self._compressor.compress(text) + self._compressor.flush(zlib.Z_SYNC_FLUSH)
