"""Accepting connections, and closing those that take too much time, memory or room.

A :class:`RecordingHandler` accepts by itself and not by the event loop's server, which shows a
connection only after its TLS handshake and closes the socket for good when descriptors run out.
Time limits are checked together, once a second: a request sets its deadline by one assignment.
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
"""Between two looks at deadlines."""

HALF_CLOSE_TIMEOUT = 2.0
"""For which a client that was refused may go on sending, so that it gets to read why."""

CLOSE_TIMEOUT = 30.0
"""For which a client may take its last response."""

_MAX_ACCEPTS = 64
"""Connections accepted before the loop does something else."""

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
    """A connection that a listener can judge and close."""

    def __init__(self, listener: "Listener") -> None:
        self.listener = listener
        self.phase = Phase.HANDSHAKE
        self.phase_started = self.deadline = 0.0
        """When the phase began, and when it is over at the latest."""
        self.authenticated = False
        """Whether the client has shown credentials."""
        self.stalled_since: float | None = None
        """Since when the client does not read what is written."""
        self.buffered_bytes = 0
        """Bytes that the listener counts for it."""
        self.accepted_socket: socket.socket | None = None
        """Until its TLS handshake begins."""
        self.handshake: asyncio.Task[None] | None = None
        """Its TLS handshake."""
        self.transport: asyncio.Transport | None = None
        self.enter_phase(Phase.HANDSHAKE)

    def enter_phase(self, phase: Phase) -> None:
        """Begin *phase*."""
        self.phase = phase
        self.phase_started = now = self.listener.time()
        self.deadline = now + self.listener.phase_timeouts[phase]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request."""
        self.transport = transport  # type: ignore[assignment]
        if self.listener.closed:  # it came before the listener closed, and is known too late
            self.abort()
            return
        self.authenticated = self.listener.client_cert_required
        self.enter_phase(Phase.HEADER)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
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
        """Close when the client has read the last response, or soon."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        self.enter_phase(Phase.CLOSING)
        self.deadline = self.phase_started + HALF_CLOSE_TIMEOUT
        if transport.can_write_eof():
            transport.write_eof()

    def close(self) -> None:
        """Close when all is written."""
        if self.transport is not None and not self.transport.is_closing():
            self.enter_phase(Phase.CLOSING)
            self.transport.close()

    def expire(self) -> str:
        """Close, as the phase has lasted too long; returns the reason."""
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
        """Drop what has come of a request, answer *status* if that is possible, and close."""


_TIMEOUT_REASONS = {
    Phase.HANDSHAKE: "handshake_timeout",
    Phase.HEADER: "header_timeout",
    Phase.BODY: "body_timeout",
    Phase.IDLE: "idle_timeout",
    Phase.RESPONDING: "write_timeout",
    Phase.CLOSING: "",
}
"""Reasons under which an end is counted; one that was decided before is not counted again."""


class Listener(ABC):
    """All connections of a listening socket."""

    client_cert_required = False
    """Whether the TLS handshake asks for credentials already."""

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
        """Bytes of requests that are not complete."""
        self.phase_timeouts = (
            limits.handshake_timeout,
            limits.header_timeout,
            limits.body_timeout,
            limits.idle_timeout,
            math.inf,
            CLOSE_TIMEOUT,
        )
        """Seconds, by phase."""
        self._loop = asyncio.get_running_loop()
        self.time = time or self._loop.time
        self._max_connections = limits.max_connections
        self._open: set[LimitedConnection] = set()
        self._sockets: dict[socket.socket, asyncio.TimerHandle | None] = {}
        """Those that are listened on, and when the next look at one is that must pause."""
        self._tls: ssl.SSLContext | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._sweep_interval = min(SWEEP_INTERVAL, *(each / 4 for each in self.phase_timeouts))
        self._swept_at = 0.0
        self._backoff = _INITIAL_BACKOFF
        self._logged_at: dict[str, float] = {}

    def __len__(self) -> int:
        """Open connections."""
        return len(self._open)

    @abstractmethod
    def create_connection(self) -> LimitedConnection:
        """The protocol of a new connection."""

    def listen(self, listening: socket.socket, *, tls: ssl.SSLContext | None = None) -> None:
        """Accept connections of *listening* until closed."""
        listening.setblocking(False)
        listening.listen(1024)
        # Connections take this over: those whose client's machine has gone end some day.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if listening.family in (socket.AF_INET, socket.AF_INET6):
            # asyncio sets it only on sockets that name their protocol; this one's do not.
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if not self._sockets:
            self._schedule_sweep()
        self._sockets[listening], self._tls = None, tls
        self._loop.add_reader(listening.fileno(), self._accept, listening)

    def stop(self) -> None:
        """Accept no more, and close the socket and what is not a connection yet."""
        self.closed = True
        if self._timer is not None:
            self._timer.cancel()
        for listening, paused in self._sockets.items():
            if paused is None:
                self._loop.remove_reader(listening.fileno())
            else:
                paused.cancel()
            listening.close()
        self._sockets.clear()
        for connection in list(self._open):
            if connection.phase <= Phase.HEADER:
                connection.abort()

    def abort_all(self) -> None:
        """Close every connection at once."""
        for connection in list(self._open):
            connection.abort()

    def error_content(self, status: int) -> tuple[str, bytes]:
        """Content type and body of a refusal with *status*."""
        return "text/plain; charset=utf-8", f"{explain(status)}\n".encode()

    def rejection_response(self, status: int) -> bytes:
        """A whole response that refuses a request and ends its connection."""
        kind, body = self.error_content(status)
        retry = "retry-after: 1\r\n" if status in _RETRYABLE else ""
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: {kind}\r\n"
            f"content-length: {len(body)}\r\n{retry}connection: close\r\n\r\n"
        )
        return head.encode() + body

    def count_rejection(self, reason: str) -> None:
        """Count something that was refused."""
        self.metrics.rejections[self.name, reason] += 1

    def remove(self, connection: LimitedConnection) -> None:
        """Forget a connection that is gone."""
        self._open.discard(connection)
        self.buffered_bytes -= connection.buffered_bytes
        connection.buffered_bytes = 0

    def set_buffered_bytes(self, connection: LimitedConnection, size: int) -> None:
        """Count *size* bytes for *connection*; refuse the largest requests while it is too much."""
        self.buffered_bytes += size - connection.buffered_bytes
        connection.buffered_bytes = size
        while self.buffered_bytes > self.limits.unfinished_bytes:
            victim = max(
                self._open,
                key=lambda each: (each.buffered_bytes, -each.phase_started),
                default=connection,
            )
            if not victim.buffered_bytes:
                return
            self.buffered_bytes -= victim.buffered_bytes
            victim.buffered_bytes = 0
            self.count_rejection("unfinished_bytes")
            victim.reject(429)

    def call_soon(self, work: Callable[[], object]) -> None:
        """Do *work* in the loop's next turn."""
        self._loop.call_soon(work)

    # -- accepting

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_MAX_ACCEPTS):
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _RESOURCE_ERRNOS:
                    raise
                self._back_off(listening, error)
                return
            self._backoff = _INITIAL_BACKOFF
            self._open_connection(accepted)

    def _back_off(self, listening: socket.socket, error: OSError) -> None:
        """Make room, and accept again a little later: the loop would call again at once."""
        self.count_rejection("descriptors")
        made = self._evict()
        self._log_rate_limited("cannot accept connections", error=str(error), evicted=made)
        self._loop.remove_reader(listening.fileno())
        self._sockets[listening] = self._loop.call_later(self._backoff, self._resume, listening)
        self._backoff = min(2 * self._backoff, _MAX_BACKOFF)

    def _resume(self, listening: socket.socket) -> None:
        self._sockets[listening] = None
        self._loop.add_reader(listening.fileno(), self._accept, listening)

    def _open_connection(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        if len(self._open) >= self._max_connections:
            self._log_rate_limited("too many connections", limit=self._max_connections)
            if not self._evict():
                self.count_rejection("connections")
                accepted.close()
                return
        connection = self.create_connection()
        connection.accepted_socket = accepted
        self._open.add(connection)
        connection.handshake = self._loop.create_task(self._handshake(connection))
        connection.handshake.add_done_callback(lambda _: self._on_handshake_done(connection))

    async def _handshake(self, connection: LimitedConnection) -> None:
        accepted, connection.accepted_socket = connection.accepted_socket, None
        if accepted is None:
            return
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=self._tls, **self._handshake_options()
            )
        except OSError:  # of TLS, too
            self.count_rejection("handshake")

    def _on_handshake_done(self, connection: LimitedConnection) -> None:
        connection.handshake = None
        if connection.accepted_socket is not None:  # it was cancelled before it began
            connection.accepted_socket.close()
        if connection.transport is None:
            self.remove(connection)

    def _handshake_options(self) -> dict[str, float]:
        # The sweep ends a handshake; the loop's own limit is only not to come first.
        return {"ssl_handshake_timeout": 2 * self.phase_timeouts[0] + 60} if self._tls else {}

    def _evict(self) -> bool:
        """Close the connection that is missed least, if there is one; returns whether."""
        found = min(self._open, key=_eviction_order, default=None)
        if found is None or _eviction_order(found)[0] == _NOT_EVICTABLE:
            return False
        self.count_rejection("evicted")
        found.abort()
        # It is not counted any more, though the loop takes another turn to close it.
        self.remove(found)
        return True

    # -- deadlines

    def _schedule_sweep(self) -> None:
        self._swept_at = self.time()
        self._timer = self._loop.call_later(self._sweep_interval, self._on_sweep_timer)

    def _on_sweep_timer(self) -> None:
        late = self.time() - self._swept_at - self._sweep_interval
        if late > SWEEP_INTERVAL:
            # The process stood still: what clients sent meanwhile has not been read yet.
            for connection in self._open:
                connection.deadline += late
        self.sweep()
        self._schedule_sweep()

    def sweep(self) -> None:
        """Close what is over its time."""
        now = self.time()
        for connection in list(self._open):
            if now >= connection.deadline:
                reason = connection.expire()
            elif now - _stall_start(connection, now) > self.limits.write_timeout:
                reason = "write_timeout"
                connection.abort()
            else:
                continue
            if reason:
                self.count_rejection(reason)

    def _log_rate_limited(self, message: str, **facts: object) -> None:
        """Log a warning, but not the same again within a minute."""
        now = self.time()
        if now - self._logged_at.get(message, -math.inf) >= _LOG_INTERVAL:
            self._logged_at[message] = now
            log.warning(message, extra={"listener": self.name, **facts})


_EXPLANATIONS = {
    400: "the request is malformed, or its body is not complete",
    408: "the request took too long to arrive",
    413: "the request body is too large",
    429: "too much of requests that are not complete is in memory; try again",
}


def explain(status: int) -> str:
    """Why a request was refused."""
    return _EXPLANATIONS.get(status, HTTPStatus(status).phrase)


_NOT_EVICTABLE = 4


def _eviction_order(connection: LimitedConnection) -> tuple[int, float]:
    """How much a connection would be missed: by what is known of its client, then by age."""
    phase, proven = connection.phase, connection.authenticated
    if phase is Phase.CLOSING:
        return 0, connection.phase_started
    if phase is Phase.RESPONDING:
        return (
            1 if connection.stalled_since is not None and not proven else _NOT_EVICTABLE
        ), connection.phase_started
    return (3 if proven else 2 if phase is Phase.IDLE else 1), connection.phase_started


def _stall_start(connection: LimitedConnection, now: float) -> float:
    """Since when a client without credentials does not read."""
    return (
        now
        if connection.stalled_since is None or connection.authenticated
        else connection.stalled_since
    )
