"""Listener that accepts connections and closes those that exceed time, memory or descriptor limits.

A :class:`Listener` accepts on its own instead of using the event loop's server, which reports a
connection only after its TLS handshake and closes the socket for good when descriptors run out.
Deadlines are checked together, once a second: a request sets its deadline by one assignment.
"""

import asyncio
import errno
import logging
import math
import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable
from enum import IntEnum
from http import HTTPStatus

from .limits import Limits
from .metrics import ListenerMetrics

log = logging.getLogger(__name__)

SWEEP_INTERVAL = 1.0
"""Seconds between checks of the deadlines."""

HALF_CLOSE_TIMEOUT = 2.0
"""Seconds for which a rejected client may still send, so that it reads the response."""

CLOSE_TIMEOUT = 30.0
"""Seconds for which a client may read its last response."""

_MAX_ACCEPTS = 64
"""Connections accepted per iteration of the event loop."""

_INITIAL_BACKOFF, _MAX_BACKOFF = 0.05, 1.0
_LOG_INTERVAL = 60.0
_RETRYABLE = frozenset((429, 503))
_RESOURCE_ERRNOS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class Phase(IntEnum):
    """What a connection waits for."""

    HANDSHAKE = 0
    HEADER = 1
    BODY = 2
    IDLE = 3
    RESPONDING = 4
    CLOSING = 5


class LimitedConnection(asyncio.Protocol, ABC):
    """A connection that a listener can inspect and close."""

    def __init__(self, listener: "Listener") -> None:
        self.listener = listener
        self.phase = Phase.HANDSHAKE
        self.phase_started = self.deadline = 0.0
        """Start of the phase, and its deadline."""
        self.authenticated = False
        """Whether the client has presented credentials."""
        self.stalled_since: float | None = None
        """Since when the client does not read the response."""
        self.buffered_bytes = 0
        """Bytes accounted to the connection."""
        self.accepted_socket: socket.socket | None = None
        """The accepted socket, until its TLS handshake begins."""
        self.handshake: asyncio.Task[None] | None = None
        """The task of its TLS handshake."""
        self.transport: asyncio.Transport | None = None
        self.enter_phase(Phase.HANDSHAKE)

    def enter_phase(self, phase: Phase) -> None:
        """Enter *phase* and set its deadline."""
        self.phase = phase
        self.phase_started = now = self.listener.time()
        self.deadline = now + self.listener.phase_timeouts[phase]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request."""
        self.transport = transport  # type: ignore[assignment]
        if self.listener.closed:  # accepted before the listener was closed
            self.abort()
            return
        if not self.listener.accepts(transport):
            self.listener.count_rejection("client_certificate")
            self.abort()
            return
        self.authenticated = self.listener.client_cert_required
        self.enter_phase(Phase.HEADER)

    def connection_lost(self, exc: Exception | None) -> None:
        """Unregister the connection."""
        self.listener.remove(self)

    def pause_writing(self) -> None:
        """The client reads more slowly than the server writes."""
        self.stalled_since = self.listener.time()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.stalled_since = None

    def abort(self) -> None:
        """Close at once."""
        if self.handshake is not None:
            self.handshake.cancel()
        if self.transport is not None:
            self.transport.abort()

    def half_close(self) -> None:
        """Close once the client has read the last response, or after a timeout."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        self.enter_phase(Phase.CLOSING)
        self.deadline = self.phase_started + HALF_CLOSE_TIMEOUT
        if transport.can_write_eof():
            transport.write_eof()

    def close(self) -> None:
        """Close once all data is written."""
        if self.transport is not None and not self.transport.is_closing():
            self.enter_phase(Phase.CLOSING)
            self.transport.close()

    def expire(self) -> str:
        """Close a connection past its deadline; return the reason."""
        phase = self.phase
        if phase is Phase.BODY:
            self.reject(408)
        elif phase is Phase.IDLE and self.transport and not self.transport.get_write_buffer_size():
            self.close()
        else:
            self.abort()
        return _TIMEOUT_REASONS[phase]

    @abstractmethod
    def reject(self, status: int) -> None:
        """Discard a partial request, respond with *status* if possible, and close."""


_TIMEOUT_REASONS = {
    Phase.HANDSHAKE: "handshake_timeout",
    Phase.HEADER: "header_timeout",
    Phase.BODY: "body_timeout",
    Phase.IDLE: "idle_timeout",
    Phase.RESPONDING: "write_timeout",
    Phase.CLOSING: "",
}
"""Reasons for the metric; empty if the close is counted already."""


class Listener(ABC):
    """A listener and its connections."""

    client_cert_required = False
    """Whether the TLS handshake requires a client certificate."""

    def __init__(
        self,
        *,
        name: str,
        limits: Limits | None = None,
        metrics: ListenerMetrics | None = None,
        time: Callable[[], float] | None = None,
    ) -> None:
        self.name = name
        self.limits = limits = limits or Limits()
        self.metrics = metrics or ListenerMetrics()
        self.metrics.register(self)
        self.closed = False
        self.buffered_bytes = 0
        """Bytes of incomplete requests."""
        self.phase_timeouts = (
            limits.handshake_timeout,
            limits.header_timeout,
            limits.body_timeout,
            limits.idle_timeout,
            math.inf,
            CLOSE_TIMEOUT,
        )
        """Timeout in seconds by phase."""
        self._loop = asyncio.get_running_loop()
        self.time = time or self._loop.time
        self._max_connections = limits.max_connections
        self.open: set[LimitedConnection] = set()
        """Open connections."""
        self._sockets: dict[socket.socket, asyncio.TimerHandle | None] = {}
        """Listening sockets, with the timer of those whose accepting is suspended."""
        self._tls: dict[socket.socket, ssl.SSLContext | None] = {}
        """TLS by listening socket."""
        self._timer: asyncio.TimerHandle | None = None
        self._sweep_interval = min(SWEEP_INTERVAL, *(each / 4 for each in self.phase_timeouts))
        self._swept_at = 0.0
        self._backoff = _INITIAL_BACKOFF
        self._logged_at: dict[str, float] = {}

    def __len__(self) -> int:
        """Number of open connections."""
        return len(self.open)

    def accepts(self, transport: asyncio.BaseTransport) -> bool:
        """Return whether a client may connect, whose certificate TLS has verified, if any."""
        return True

    @abstractmethod
    def create_connection(self) -> LimitedConnection:
        """Return the protocol of a new connection."""

    def listen(self, listening_socket: socket.socket, *, tls: ssl.SSLContext | None = None) -> None:
        """Accept connections on *listening_socket*, encrypted with *tls*, until closed."""
        listening_socket.setblocking(False)
        listening_socket.listen(1024)
        # Inherited by connections: those of crashed machines are closed eventually.
        listening_socket.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if listening_socket.family in (socket.AF_INET, socket.AF_INET6):
            # asyncio sets it only on sockets that name their protocol; accepted ones do not.
            listening_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self._sockets:
            self._schedule_sweep()
        self._sockets[listening_socket], self._tls[listening_socket] = None, tls
        self._loop.add_reader(listening_socket.fileno(), self._accept, listening_socket)

    def stop(self) -> None:
        """Stop accepting; close the sockets and connections without a request."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        for listening_socket, timer in self._sockets.items():
            if timer is None:
                self._loop.remove_reader(listening_socket.fileno())
            else:
                timer.cancel()
            listening_socket.close()
        self._sockets.clear()
        for connection in list(self.open):
            if connection.phase <= Phase.HEADER:
                connection.abort()

    def abort_all(self) -> None:
        """Close all connections immediately."""
        for connection in list(self.open):
            connection.abort()

    def abort_stalled(self) -> None:
        """Close all connections whose client does not read its response."""
        for connection in list(self.open):
            if connection.stalled_since is not None:
                connection.abort()

    def error_content(self, status: int) -> tuple[str, bytes]:
        """Return content type and body of an error response."""
        return "text/plain; charset=utf-8", f"{explain(status)}\n".encode()

    def rejection_response(self, status: int) -> bytes:
        """Return an error response that closes the connection."""
        kind, body = self.error_content(status)
        retry = "retry-after: 1\r\n" if status in _RETRYABLE else ""
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: {kind}\r\n"
            f"content-length: {len(body)}\r\n{retry}connection: close\r\n\r\n"
        )
        return head.encode() + body

    def count_rejection(self, reason: str) -> None:
        """Count a rejection."""
        self.metrics.rejections[self.name, reason] += 1

    def remove(self, connection: LimitedConnection) -> None:
        """Unregister a closed connection."""
        self.open.discard(connection)
        self.buffered_bytes -= connection.buffered_bytes
        connection.buffered_bytes = 0

    def set_buffered_bytes(self, connection: LimitedConnection, size: int) -> None:
        """Account *size* bytes to *connection*; reject the largest requests above the limit."""
        self.buffered_bytes += size - connection.buffered_bytes
        connection.buffered_bytes = size
        while self.buffered_bytes > self.limits.unfinished_bytes:
            victim = max(
                self.open,
                key=lambda each: (each.buffered_bytes, -each.phase_started),
                default=connection,
            )
            if not victim.buffered_bytes:
                return
            self.buffered_bytes -= victim.buffered_bytes
            victim.buffered_bytes = 0
            self.count_rejection("unfinished_bytes")
            victim.reject(429)

    def call_soon(self, callback: Callable[[], object]) -> None:
        """Run *callback* in the next iteration of the event loop."""
        self._loop.call_soon(callback)

    # -- accepting

    def _accept(self, listening_socket: socket.socket) -> None:
        for _ in range(_MAX_ACCEPTS):
            try:
                accepted, _ = listening_socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _RESOURCE_ERRNOS:
                    raise
                self._back_off(listening_socket, error)
                return
            self._backoff = _INITIAL_BACKOFF
            self._open_connection(accepted, self._tls[listening_socket])

    def _back_off(self, listening_socket: socket.socket, error: OSError) -> None:
        """Evict a connection and suspend accepting: the loop would retry immediately."""
        self.count_rejection("descriptors")
        evicted = self._evict()
        self._log_rate_limited("cannot accept connections", error=str(error), evicted=evicted)
        self._loop.remove_reader(listening_socket.fileno())
        self._sockets[listening_socket] = self._loop.call_later(
            self._backoff, self._resume, listening_socket
        )
        self._backoff = min(2 * self._backoff, _MAX_BACKOFF)

    def _resume(self, listening_socket: socket.socket) -> None:
        self._sockets[listening_socket] = None
        self._loop.add_reader(listening_socket.fileno(), self._accept, listening_socket)

    def _open_connection(self, accepted: socket.socket, tls: ssl.SSLContext | None) -> None:
        accepted.setblocking(False)
        if len(self.open) >= self._max_connections:
            self._log_rate_limited("too many connections", limit=self._max_connections)
            if not self._evict():
                self.count_rejection("connections")
                accepted.close()
                return
        connection = self.create_connection()
        connection.accepted_socket = accepted
        self.open.add(connection)
        connection.handshake = self._loop.create_task(self._handshake(connection, tls))
        connection.handshake.add_done_callback(lambda _: self._on_handshake_done(connection))

    async def _handshake(self, connection: LimitedConnection, tls: ssl.SSLContext | None) -> None:
        accepted, connection.accepted_socket = connection.accepted_socket, None
        if accepted is None:
            return
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=tls, **(self._handshake_options() if tls else {})
            )
        except OSError:  # of TLS, too
            self.count_rejection("handshake")

    def _on_handshake_done(self, connection: LimitedConnection) -> None:
        connection.handshake = None
        if connection.accepted_socket is not None:  # cancelled before it began
            connection.accepted_socket.close()
        if connection.transport is None:
            self.remove(connection)

    def _handshake_options(self) -> dict[str, float]:
        # The sweep enforces the timeout; the loop's own must not expire first.
        return {"ssl_handshake_timeout": 2 * self.phase_timeouts[0] + 60}

    def _evict(self) -> bool:
        """Close the connection of the lowest value, if any may be closed; return whether."""
        found = min(self.open, key=_eviction_order, default=None)
        if found is None or _eviction_order(found)[0] == _NOT_EVICTABLE:
            return False
        self.count_rejection("evicted")
        found.abort()
        # Not counted any more, though the loop closes it in its next iteration.
        self.remove(found)
        return True

    # -- deadlines

    def _schedule_sweep(self) -> None:
        self._swept_at = self.time()
        self._timer = self._loop.call_later(self._sweep_interval, self._on_sweep_timer)

    def _on_sweep_timer(self) -> None:
        delay = self.time() - self._swept_at - self._sweep_interval
        if delay > SWEEP_INTERVAL:
            # The process was suspended: data that clients sent has not been read yet.
            for connection in self.open:
                connection.deadline += delay
        self.sweep()
        self._schedule_sweep()

    def sweep(self) -> None:
        """Close connections past their deadline."""
        now = self.time()
        for connection in list(self.open):
            if now >= connection.deadline:
                reason = connection.expire()
            elif now - _stall_start(connection, now) > self.limits.write_timeout:
                reason = "write_timeout"
                connection.abort()
            else:
                continue
            if reason:
                self.count_rejection(reason)

    def _log_rate_limited(self, message: str, **fields: object) -> None:
        """Log a warning, each message at most once a minute."""
        now = self.time()
        if now - self._logged_at.get(message, -math.inf) >= _LOG_INTERVAL:
            self._logged_at[message] = now
            log.warning(message, extra={"listener": self.name, **fields})


_EXPLANATIONS = {
    400: "the request is malformed, or its body is incomplete",
    408: "the request took too long to arrive",
    413: "the request body is too large",
    429: "too many bytes of incomplete requests are in memory; retry later",
}


def explain(status: int) -> str:
    """Return the explanation of an error response."""
    return _EXPLANATIONS.get(status, HTTPStatus(status).phrase)


_NOT_EVICTABLE = 4


def _eviction_order(connection: LimitedConnection) -> tuple[int, float]:
    """Return the sort key of the order in which connections are closed if there are too many.

    First those that are being closed anyway. Then those of clients that have not authenticated: the
    ones whose request is incomplete or that do not read the response, then the idle ones. Then
    those of authenticated clients. Any other connection that is being answered is not closed.
    """
    phase, authenticated = connection.phase, connection.authenticated
    if phase is Phase.CLOSING:
        return 0, connection.phase_started
    if phase is Phase.RESPONDING:
        return (
            1 if connection.stalled_since is not None and not authenticated else _NOT_EVICTABLE
        ), connection.phase_started
    return (3 if authenticated else 2 if phase is Phase.IDLE else 1), connection.phase_started


def _stall_start(connection: LimitedConnection, now: float) -> float:
    """Return since when an unauthenticated client has not read; *now* if it reads."""
    return (
        now
        if connection.stalled_since is None or connection.authenticated
        else connection.stalled_since
    )
