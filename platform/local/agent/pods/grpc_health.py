"""Call of the gRPC health service (``grpc.health.v1.Health/Check``), over HTTP/2 without TLS.

One unary call needs little of HTTP/2: the headers of a response are not decoded, because the
message of a response decides.
"""

import asyncio
from collections.abc import Iterator
from contextlib import suppress

from ....machinery.varints import encode_varint

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GO_AWAY = 0, 1, 3, 4, 6, 7
_END_STREAM = _ACK = 1
_END_HEADERS, _PADDED = 4, 8
_STREAM = 1
_MAX_FRAME = 1 << 14
"""Bytes of a frame, which a server may not exceed without permission."""

_MAX_FRAMES = 100
_STATUSES = ("UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN")
_SERVING = 1


class GrpcHealthError(Exception):
    """The service is not healthy, or the server has not responded as the protocol requires."""


async def check_health(host: str, port: int, service: str) -> None:
    """Check that *service*, or with an empty name the server as a whole, is serving.

    Raises:
        GrpcHealthError: it is not.
        OSError: the server cannot be reached.
    """
    reader, writer = await asyncio.open_connection(host, port)
    try:
        name = service.encode()
        message = b"\x0a" + encode_varint(len(name)) + name if name else b""
        data = b"\0" + len(message).to_bytes(4, "big") + message
        writer.write(
            _PREFACE
            + _frame(_SETTINGS)
            + _frame(_HEADERS, _headers(f"{host}:{port}"), flags=_END_HEADERS, stream=_STREAM)
            + _frame(_DATA, data, flags=_END_STREAM, stream=_STREAM)
        )
        try:
            response = await _read_response(reader, writer)
        except asyncio.IncompleteReadError:
            raise GrpcHealthError("the server has closed the connection") from None
    finally:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()
    _check_response(response)


def _headers(authority: str) -> bytes:
    """Return the headers of the call: indices are those of HPACK's static table."""
    literal = [
        (b"\x04", "/grpc.health.v1.Health/Check"),  # :path
        (b"\x01", authority),  # :authority
        (b"\x0f\x10", "application/grpc"),  # content-type
        (b"\x0f\x2b", "kube-probe/batholith"),  # user-agent
        (b"\x00\x02te", "trailers"),
    ]
    method_post, scheme_http = b"\x83", b"\x86"
    # One byte holds these lengths: the authority is an address.
    pairs = [index + bytes([len(text)]) + text.encode() for index, text in literal]
    return method_post + scheme_http + b"".join(pairs)


def _frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags])
    return head + stream.to_bytes(4, "big") + payload


async def _read_response(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Return the data of the response."""
    found = b""
    for _ in range(_MAX_FRAMES):
        head = await reader.readexactly(9)
        length, kind, flags = int.from_bytes(head[:3], "big"), head[3], head[4]
        if length > _MAX_FRAME:
            break
        payload = await reader.readexactly(length)
        if kind in (_SETTINGS, _PING) and not flags & _ACK:
            writer.write(_frame(kind, payload if kind == _PING else b"", flags=_ACK))
        elif kind == _DATA:
            end = len(payload) - payload[0] if flags & _PADDED and payload else len(payload)
            found += payload[1 if flags & _PADDED else 0 : end]
        elif kind in (_RESET, _GO_AWAY):
            raise GrpcHealthError("the server has rejected the call")
        if kind in (_DATA, _HEADERS) and flags & _END_STREAM:
            return found
    raise GrpcHealthError("the server does not speak HTTP/2 as the protocol requires")


def _check_response(data: bytes) -> None:
    if len(data) < 5:
        raise GrpcHealthError("the server has no health service of gRPC for it")
    length = int.from_bytes(data[1:5], "big")
    message = data[5 : 5 + length]
    if data[0] or len(message) < length:
        raise GrpcHealthError("the response is compressed or incomplete")
    status = next((value for field, value in _numbers(message) if field == 1), 0)
    if status != _SERVING:
        name = _STATUSES[status] if status < len(_STATUSES) else str(status)
        raise GrpcHealthError(f'service unhealthy (responded with "{name}")')


def _numbers(message: bytes) -> Iterator[tuple[int, int]]:
    """Yield the leading integer fields of a message with their numbers."""
    values = []
    value = shift = 0
    for byte in message:
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            values.append(value)
            value = shift = 0
    for tag, each in zip(values[::2], values[1::2], strict=False):
        if tag & 7:
            return
        yield tag >> 3, each
