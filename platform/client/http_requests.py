"""Conversion between the requests and errors of operations and those of httpx."""

import httpx

from .effects import OpenStream, TransportError, WireRequest

_NOT_SENT = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)


def build_request(request: WireRequest, timeout: httpx.Timeout) -> httpx.Request:
    """Return the request of httpx, which masks the credentials in its ``repr``."""
    headers = httpx.Headers(dict(request.headers))
    if request.authorization:
        headers["authorization"] = request.authorization.reveal()
    return httpx.Request(
        request.method,
        request.url,
        headers=headers,
        content=request.body,
        extensions={"timeout": timeout.as_dict()},
    )


def stream_timeouts(effect: OpenStream) -> httpx.Timeout:
    """Return the timeouts of a streamed response."""
    return httpx.Timeout(effect.timeout, read=effect.idle_timeout)


def transport_error(error: Exception) -> TransportError:
    """Convert an error of httpx; the result does not refer to the request and its credentials."""
    text = str(error) or type(error).__name__
    return TransportError(text, sent=not isinstance(error, _NOT_SENT))
