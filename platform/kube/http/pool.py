"""Connection pool for one API server.

The most recently used connection is reused first, so that surplus ones reach their idle timeout. A
connection that the server closes while idle is removed immediately.
"""

import asyncio
from collections import deque

from . import tunnel
from .http1 import Connection
from .route import Route


class ConnectionPool:
    """Connections of one route. Bound to one event loop; close it before the loop ends."""

    def __init__(self, route: Route, *, limit: int, keepalive: float) -> None:
        """Open at most *limit* connections (0: unlimited); close them when idle for *keepalive*."""
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
        """Number of connections, including those being opened."""
        return len(self._open)

    def idle_connection(self) -> Connection | None:
        """Return an idle connection, if there is one."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def acquire(self) -> Connection:
        """Return a connection for one exchange, after which it returns to the pool.

        Raises:
            OSError: no connection can be opened.
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
        """Return an idle connection to the pool."""
        connection.idle_since = self._loop.time()
        self._idle.append(connection)
        self._wake_waiter()
        if self._expiry_timer is None and not self._closed:
            self._expiry_timer = self._loop.call_later(self._keepalive, self._close_expired)

    async def close(self) -> None:
        """Close all connections; exchanges in flight fail."""
        self._closed = True
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
            self._expiry_timer = None
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        closing = [connection.closed for connection in self._open if connection.connected]
        for connection in list(self._open):
            connection.abort("the client was closed")
        if closing:
            await asyncio.wait(closing)

    async def _connect(self) -> Connection:
        connection = Connection(on_idle=self.release, on_lost=self._remove)
        self._open.add(connection)  # before connecting: counts against the limit
        try:
            await self._open_transport(connection)
        except BaseException:
            connection.abort("the connection was not opened")
            raise
        return connection

    async def _open_transport(self, connection: Connection) -> None:
        route = self._route
        if route.before_connect is not None:
            route.before_connect()
        if route.unix_socket:
            await self._loop.create_unix_connection(lambda: connection, route.unix_socket)
            return
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
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self._wake_waiter()  # pass the assigned slot on
            raise

    def _wake_waiter(self) -> None:
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return

    def _remove(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._wake_waiter()

    def _close_expired(self) -> None:
        """Close connections past the idle timeout; the oldest are first."""
        self._expiry_timer = None
        now = self._loop.time()
        self._idle = [connection for connection in self._idle if connection.usable]
        expired = [one for one in self._idle if one.idle_since + self._keepalive <= now]
        self._idle = [one for one in self._idle if one.idle_since + self._keepalive > now]
        for connection in expired:
            connection.abort("idle timeout")
        if self._idle:
            wait = self._idle[0].idle_since + self._keepalive - now
            self._expiry_timer = self._loop.call_later(wait, self._close_expired)
