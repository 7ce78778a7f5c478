"""The connections to one API server: opened when needed, kept while they may be needed again.

The one used last is used first, so that those beyond the need grow old and are closed. A server
that closes an idle connection is noticed at once, and the connection is not used again.
"""

import asyncio
from collections import deque

from . import tunnel
from .http1 import Connection
from .route import Route


class ConnectionPool:
    """Connections of one route. Of a loop; close it before the loop ends."""

    def __init__(self, route: Route, *, limit: int, keepalive: float) -> None:
        """Keep at most *limit* connections (0: any number), idle ones for *keepalive* seconds."""
        self._route = route
        self._limit = limit
        self._keepalive = keepalive
        self._loop = asyncio.get_running_loop()
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()
        self._waiters: deque[asyncio.Future[None]] = deque()
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        """How many connections there are, those being opened included."""
        return len(self._open)

    def idle_connection(self) -> Connection | None:
        """A connection that nobody uses, if there is one."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def acquire(self) -> Connection:
        """A connection for one exchange, after which it comes back by itself.

        Raises:
            OSError: none can be opened.
        """
        while True:
            if self._closed:
                raise RuntimeError("the client is closed")
            connection = self.idle_connection()
            if connection is not None:
                return connection
            if not self._limit or len(self._open) < self._limit:
                return await self._connect()
            await self._wait_for_slot()

    def release(self, connection: Connection) -> None:
        """Take back a connection on which nothing was asked, or all is answered."""
        connection.idle_since = self._loop.time()
        self._idle.append(connection)
        self._wake_waiter()
        if self._expiry_timer is None and not self._closed:
            self._expiry_timer = self._loop.call_later(self._keepalive, self._close_expired)

    async def close(self) -> None:
        """Hang up on every connection; what is under way fails."""
        self._closed = True
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
            self._expiry_timer = None
        for turn in self._waiters:
            if not turn.done():
                turn.set_result(None)
        gone = [connection.closed for connection in self._open if connection.connected]
        for connection in list(self._open):
            connection.abort("the client was closed")
        if gone:
            await asyncio.wait(gone)

    async def _connect(self) -> Connection:
        connection = Connection(on_idle=self.release, on_lost=self._remove)
        self._open.add(connection)  # counted from now on, so that the limit holds
        try:
            await self._open_transport(connection)
        except BaseException:
            connection.abort("the connection was not opened")
            raise
        return connection

    async def _open_transport(self, connection: Connection) -> None:
        route = self._route
        if route.proxy is not None:
            await tunnel.connect(route.proxy, route, connection)
            return
        await self._loop.create_connection(
            lambda: connection,
            route.origin.host,
            route.origin.port,
            ssl=route.tls,
            server_hostname=(route.server_name or route.origin.host) if route.tls else None,
        )

    async def _wait_for_slot(self) -> None:
        turn: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._wake_waiter()  # it was our turn: the next one's, then
            raise

    def _wake_waiter(self) -> None:
        while self._waiters:
            turn = self._waiters.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def _remove(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._wake_waiter()

    def _close_expired(self) -> None:
        """Close what has been idle for too long; the oldest stand first."""
        self._expiry_timer = None
        now = self._loop.time()
        self._idle = [connection for connection in self._idle if connection.usable]
        old = [one for one in self._idle if one.idle_since + self._keepalive <= now]
        self._idle = [one for one in self._idle if one.idle_since + self._keepalive > now]
        for connection in old:
            connection.abort("it was idle for too long")
        if self._idle:
            wait = self._idle[0].idle_since + self._keepalive - now
            self._expiry_timer = self._loop.call_later(wait, self._close_expired)
