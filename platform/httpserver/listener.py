"""Accepting connections, and closing those that take too much time, memory or room.

A :class:`Listener` accepts by itself and not by the event loop's server, which shows a connection
only after its TLS handshake and closes the socket for good when descriptors run out. Time limits
are checked together, once a second: a request sets its deadline by one assignment.
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
from .metrics import ListenerFigures

log = logging.getLogger(__name__)

SWEEP_SECONDS = 1.0
"""Between two looks at deadlines."""

LINGER_SECONDS = 2.0
"""For which a client that was refused may go on sending, so that it gets to read why."""

CLOSE_SECONDS = 30.0
"""For which a client may take its last response."""

_ACCEPTS = 64
"""Connections accepted before the loop does something else."""

_BACKOFF, _LONGEST_BACKOFF = 0.05, 1.0
_LOG_SECONDS = 60.0
_RETRIED = frozenset((429, 503))
_NO_ROOM = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM))


class Phase(IntEnum):
    """What a connection waits for."""

    HANDSHAKE = 0
    HEADER = 1
    BODY = 2
    IDLE = 3
    ANSWERING = 4
    CLOSING = 5


class Guarded(asyncio.Protocol, ABC):
    """A connection that a listener can judge and close."""

    def __init__(self, listener: "Listener") -> None:
        self.listener = listener
        self.phase = Phase.HANDSHAKE
        self.since = self.deadline = 0.0
        """When the phase began, and when it is over at the latest."""
        self.proven = False
        """Whether the client has shown credentials."""
        self.stalled: float | None = None
        """Since when the client does not read what is written."""
        self.held = 0
        """Bytes that the listener counts for it."""
        self.accepted: socket.socket | None = None
        """Until its TLS handshake begins."""
        self.opening: asyncio.Task[None] | None = None
        """Its TLS handshake."""
        self.transport: asyncio.Transport | None = None
        self.enter(Phase.HANDSHAKE)

    def enter(self, phase: Phase) -> None:
        """Begin *phase*."""
        self.phase = phase
        self.since = now = self.listener.time()
        self.deadline = now + self.listener.allowed[phase]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first request."""
        self.transport = transport  # type: ignore[assignment]
        if self.listener.closed:  # it came before the listener closed, and is known too late
            self.abort()
            return
        self.proven = self.listener.proves
        self.enter(Phase.HEADER)

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        self.listener.forget(self)

    def pause_writing(self) -> None:
        """The client reads more slowly than the server writes."""
        self.stalled = self.listener.time()

    def resume_writing(self) -> None:
        """The client has caught up."""
        self.stalled = None

    def abort(self) -> None:
        """Close at once."""
        if self.opening is not None:
            self.opening.cancel()
        if self.transport is not None:
            self.transport.abort()

    def linger(self) -> None:
        """Close when the client has read the last response, or soon."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        self.enter(Phase.CLOSING)
        self.deadline = self.since + LINGER_SECONDS
        if transport.can_write_eof():
            transport.write_eof()

    def close(self) -> None:
        """Close when all is written."""
        if self.transport is not None and not self.transport.is_closing():
            self.enter(Phase.CLOSING)
            self.transport.close()

    def expire(self) -> str:
        """Close, as the phase has lasted too long; returns the reason."""
        phase = self.phase
        if phase is Phase.BODY:
            self.refuse(408)
        elif phase is Phase.IDLE and self.transport and not self.transport.get_write_buffer_size():
            self.close()
        else:
            self.abort()
        return _TIMEOUTS[phase]

    @abstractmethod
    def refuse(self, status: int) -> None:
        """Drop what has come of a request, answer *status* if that is possible, and close."""


_TIMEOUTS = {
    Phase.HANDSHAKE: "handshake_timeout",
    Phase.HEADER: "header_timeout",
    Phase.BODY: "body_timeout",
    Phase.IDLE: "idle_timeout",
    Phase.ANSWERING: "write_timeout",
    Phase.CLOSING: "",
}
"""Reasons under which an end is counted; one that was decided before is not counted again."""


class Listener(ABC):
    """All connections of a listening socket."""

    proves = False
    """Whether the TLS handshake asks for credentials already."""

    def __init__(
        self,
        *,
        name: str,
        limits: Limits | None = None,
        figures: ListenerFigures | None = None,
        time: Callable[[], float] | None = None,
    ) -> None:
        self.name = name
        self.limits = limits = limits or Limits()
        self.figures = figures or ListenerFigures()
        self.figures.watch(self)
        self.closed = False
        self.held = 0
        """Bytes of requests that are not complete."""
        self.allowed = (
            limits.handshake_timeout,
            limits.header_timeout,
            limits.body_timeout,
            limits.idle_timeout,
            math.inf,
            CLOSE_SECONDS,
        )
        """Seconds, by phase."""
        self._loop = asyncio.get_running_loop()
        self.time = time or self._loop.time
        self._most = limits.most_connections
        self._open: set[Guarded] = set()
        self._sockets: dict[socket.socket, asyncio.TimerHandle | None] = {}
        """Those that are listened on, and when the next look at one is that must pause."""
        self._tls: ssl.SSLContext | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._every = min(SWEEP_SECONDS, *(each / 4 for each in self.allowed))
        self._swept = 0.0
        self._backoff = _BACKOFF
        self._logged: dict[str, float] = {}

    def __len__(self) -> int:
        """Open connections."""
        return len(self._open)

    @abstractmethod
    def make(self) -> Guarded:
        """The protocol of a new connection."""

    def listen(self, listening: socket.socket, *, tls: ssl.SSLContext | None = None) -> None:
        """Accept connections of *listening* until closed."""
        listening.setblocking(False)
        listening.listen(1024)
        # Connections take this over: those whose client's machine has gone end some day.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        if not self._sockets:
            self._sweep_later()
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

    def describe(self, status: int) -> tuple[str, bytes]:
        """Content type and body of a refusal with *status*."""
        return "text/plain; charset=utf-8", f"{explain(status)}\n".encode()

    def refusal(self, status: int) -> bytes:
        """A whole response that refuses a request and ends its connection."""
        kind, body = self.describe(status)
        retry = "retry-after: 1\r\n" if status in _RETRIED else ""
        head = (
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}\r\ncontent-type: {kind}\r\n"
            f"content-length: {len(body)}\r\n{retry}connection: close\r\n\r\n"
        )
        return head.encode() + body

    def refused(self, reason: str) -> None:
        """Count something that was refused."""
        self.figures.refused[self.name, reason] += 1

    def forget(self, connection: Guarded) -> None:
        """Forget a connection that is gone."""
        self._open.discard(connection)
        self.held -= connection.held
        connection.held = 0

    def hold(self, connection: Guarded, size: int) -> None:
        """Count *size* bytes for *connection*; refuse the largest requests while it is too much."""
        self.held += size - connection.held
        connection.held = size
        while self.held > self.limits.unfinished_bytes:
            victim = max(self._open, key=lambda each: (each.held, -each.since), default=connection)
            if not victim.held:
                return
            self.held -= victim.held
            victim.held = 0
            self.refused("unfinished_bytes")
            victim.refuse(429)

    def soon(self, work: Callable[[], object]) -> None:
        """Do *work* in the loop's next turn."""
        self._loop.call_soon(work)

    # -- accepting

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS):
            try:
                accepted, _ = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_ROOM:
                    raise
                self._back_off(listening, error)
                return
            self._backoff = _BACKOFF
            self._admit(accepted)

    def _back_off(self, listening: socket.socket, error: OSError) -> None:
        """Make room, and accept again a little later: the loop would call again at once."""
        self.refused("descriptors")
        made = self._evict()
        self._tell("cannot accept connections", error=str(error), evicted=made)
        self._loop.remove_reader(listening.fileno())
        self._sockets[listening] = self._loop.call_later(self._backoff, self._resume, listening)
        self._backoff = min(2 * self._backoff, _LONGEST_BACKOFF)

    def _resume(self, listening: socket.socket) -> None:
        self._sockets[listening] = None
        self._loop.add_reader(listening.fileno(), self._accept, listening)

    def _admit(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        if len(self._open) >= self._most:
            self._tell("too many connections", limit=self._most)
            if not self._evict():
                self.refused("connections")
                accepted.close()
                return
        connection = self.make()
        connection.accepted = accepted
        self._open.add(connection)
        connection.opening = self._loop.create_task(self._establish(connection))
        connection.opening.add_done_callback(lambda _: self._established(connection))

    async def _establish(self, connection: Guarded) -> None:
        accepted, connection.accepted = connection.accepted, None
        if accepted is None:
            return
        try:
            await self._loop.connect_accepted_socket(
                lambda: connection, accepted, ssl=self._tls, **self._patience()
            )
        except OSError:  # of TLS, too
            self.refused("handshake")

    def _established(self, connection: Guarded) -> None:
        connection.opening = None
        if connection.accepted is not None:  # it was cancelled before it began
            connection.accepted.close()
        if connection.transport is None:
            self.forget(connection)

    def _patience(self) -> dict[str, float]:
        # The sweep ends a handshake; the loop's own limit is only not to come first.
        return {"ssl_handshake_timeout": 2 * self.allowed[0] + 60} if self._tls else {}

    def _evict(self) -> bool:
        """Close the connection that is missed least, if there is one; returns whether."""
        found = min(self._open, key=_worth, default=None)
        if found is None or _worth(found)[0] == _BUSY:
            return False
        self.refused("evicted")
        found.abort()
        # It is not counted any more, though the loop takes another turn to close it.
        self.forget(found)
        return True

    # -- deadlines

    def _sweep_later(self) -> None:
        self._swept = self.time()
        self._timer = self._loop.call_later(self._every, self._sweep_on_time)

    def _sweep_on_time(self) -> None:
        late = self.time() - self._swept - self._every
        if late > SWEEP_SECONDS:
            # The process stood still: what clients sent meanwhile has not been read yet.
            for connection in self._open:
                connection.deadline += late
        self.sweep()
        self._sweep_later()

    def sweep(self) -> None:
        """Close what is over its time."""
        now = self.time()
        for connection in list(self._open):
            if now >= connection.deadline:
                reason = connection.expire()
            elif now - _stalled_since(connection, now) > self.limits.write_timeout:
                reason = "write_timeout"
                connection.abort()
            else:
                continue
            if reason:
                self.refused(reason)

    def _tell(self, message: str, **facts: object) -> None:
        """Log a warning, but not the same again within a minute."""
        now = self.time()
        if now - self._logged.get(message, -math.inf) >= _LOG_SECONDS:
            self._logged[message] = now
            log.warning(message, extra={"listener": self.name, **facts})


_EXPLAINED = {
    400: "the request is malformed, or its body is not complete",
    408: "the request took too long to arrive",
    413: "the request body is too large",
    429: "too much of requests that are not complete is in memory; try again",
}


def explain(status: int) -> str:
    """Why a request was refused."""
    return _EXPLAINED.get(status, HTTPStatus(status).phrase)


_BUSY = 4


def _worth(connection: Guarded) -> tuple[int, float]:
    """How much a connection would be missed: by what is known of its client, then by age."""
    phase, proven = connection.phase, connection.proven
    if phase is Phase.CLOSING:
        return 0, connection.since
    if phase is Phase.ANSWERING:
        return (1 if connection.stalled is not None and not proven else _BUSY), connection.since
    return (3 if proven else 2 if phase is Phase.IDLE else 1), connection.since


def _stalled_since(connection: Guarded, now: float) -> float:
    """Since when a client without credentials does not read."""
    return now if connection.stalled is None or connection.proven else connection.stalled
