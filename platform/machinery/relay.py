"""Relays of TCP connections: one listening address, several endpoints."""

import asyncio
import random
import socket
from collections.abc import Callable, Collection, Sequence
from typing import Protocol, cast

from ..kube.supervision import cancel_and_wait
from .clock import Clock

Address = tuple[str, int]
"""IPv4 address and port."""


CONNECT_TIMEOUT = 5.0
"""Seconds in which an endpoint must accept a connection, before the next one is tried."""

_BACKLOG = 512


class Listen(Protocol):
    """Opens the listening socket of a relay."""

    def __call__(self, address: Address, /, *, backlog: int) -> socket.socket:
        """Listen on *address*, or raise OSError."""
        ...


class Side(asyncio.Protocol):
    """One of the two connections of a relay."""

    def __init__(
        self, opened: set["Side"], on_connected: Callable[["Side"], None] | None = None
    ) -> None:
        """The connection is in *opened* as long as it is open."""
        self.transport: asyncio.Transport | None = None
        self.peer: Side | None = None
        self._opened = opened
        self._on_connected = on_connected
        self._early = bytearray()
        """Received before the other side was connected."""
        self._ended = False
        self._closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._opened.add(self)
        self.transport.pause_reading()  # until the other side is connected
        if self._on_connected is not None:
            self._on_connected(self)

    def join(self, peer: "Side") -> None:
        """Relay between this connection and *peer* from now on."""
        self.peer, peer.peer = peer, self
        for side in (self, peer):
            if side._closed:
                self.close()
                return
        for side in (self, peer):
            side._forward_early()
            side._resume()

    def _forward_early(self) -> None:
        """Send the other side what was received before it was connected."""
        early = bytes(self._early)
        self._early.clear()
        if early:
            self.data_received(early)
        if self._ended:
            self._forward_end()

    def close(self) -> None:
        """Close both connections, after what they have received is sent."""
        for side in (self, self.peer):
            if side is not None and side.transport is not None:
                side.transport.close()

    def data_received(self, data: bytes) -> None:
        """Send it to the other side; a loop may deliver some although reading is paused."""
        if self.peer is None:
            self._early += data
            if self.transport is not None:
                self.transport.pause_reading()
        elif self.peer.transport is not None:
            self.peer.transport.write(data)

    def eof_received(self) -> bool:
        self._ended = True
        if self.peer is not None:
            self._forward_end()
        return True

    def _forward_end(self) -> None:
        """Half-close the other side, since this one sends no more; close both after both ended."""
        peer = self.peer
        if peer is None or peer.transport is None or peer._ended:
            self.close()
        elif not peer.transport.is_closing():
            peer.transport.write_eof()

    def pause_writing(self) -> None:
        """The client of this side is slow: read no more from the other one."""
        peer = self.peer
        if peer is not None and peer.transport is not None and not peer.transport.is_closing():
            peer.transport.pause_reading()

    def resume_writing(self) -> None:
        if self.peer is not None:
            self.peer._resume()

    def _resume(self) -> None:
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:
        self._closed = True
        self._opened.discard(self)
        self.close()


class Affinity:
    """Which endpoint a client had last, for Services that want it."""

    _PRUNE_AT = 1024

    def __init__(self) -> None:
        self._chosen: dict[str, tuple[Address, float]] = {}

    def get(self, client: str, candidates: Collection[Address], *, now: float) -> Address | None:
        """Return the endpoint of *client*, if it is still one of *candidates*."""
        address, until = self._chosen.get(client, (None, 0.0))
        return address if until > now and address in candidates else None

    def set(self, client: str, address: Address, *, until: float, now: float) -> None:
        """Keep *client* at an endpoint *until* that time."""
        if len(self._chosen) >= self._PRUNE_AT:
            self._chosen = {key: each for key, each in self._chosen.items() if each[1] > now}
        self._chosen[client] = address, until


class Targets:
    """The endpoints of a relay, and which of them a client gets."""

    def __init__(self, clock: Clock) -> None:
        self.addresses: Sequence[Address] = ()
        self.affinity_seconds = 0
        self._clock = clock
        self._affinity = Affinity()

    def order(self, client: str) -> list[Address]:
        """Return the endpoints in the order in which *client* tries them: at random, but for the
        one that it had last."""
        order = list(self.addresses)
        random.shuffle(order)
        if self.affinity_seconds:
            kept = self._affinity.get(client, order, now=self._clock.monotonic())
            if kept is not None:
                order.remove(kept)
                order.insert(0, kept)
        return order

    def keep(self, client: str, target: Address) -> None:
        """Note which endpoint *client* has."""
        if self.affinity_seconds:
            now = self._clock.monotonic()
            self._affinity.set(client, target, until=now + self.affinity_seconds, now=now)


class Connections:
    """The open connections of all relays of a process, and the addresses at which these listen."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.opened: set[Side] = set()
        """Those of relays that listen no more among them."""
        self.listening: set[Address] = set()

    def abort(self) -> None:
        """Reset the connections of relays that have ended."""
        for side in list(self.opened):
            if side.transport is not None:
                side.transport.abort()


class Relay:
    """Listens on one address and connects each client to one of the endpoints.

    An endpoint at which a relay of the same process listens gets no connection: it could be
    relayed without end.
    """

    def __init__(
        self,
        address: Address,
        *,
        connections: Connections,
        listen: Listen = socket.create_server,
    ) -> None:
        self.address = address
        self._connections = connections
        self._listen = listen
        self._targets = Targets(connections.clock)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def retarget(self, targets: Sequence[Address], *, affinity_seconds: int = 0) -> None:
        """Use other endpoints for new connections; those that exist stay."""
        self._targets.addresses, self._targets.affinity_seconds = targets, affinity_seconds

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the address is in use, or the port is privileged.
        """
        listener = self._listen(self.address, backlog=_BACKLOG)
        self.address = listener.getsockname()
        self._connections.listening.add(self.address)
        try:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(
                lambda: Side(self._connections.opened, self._accept), sock=listener
            )
        except BaseException:
            self._connections.listening.discard(self.address)
            listener.close()
            raise

    def stop(self) -> None:
        """Listen no more; connections stay until one of their ends closes them."""
        if self._server is not None:
            self._server.close()
            self._server = None
            self._connections.listening.discard(self.address)

    async def abort(self) -> None:
        """Listen no more, and connect no more clients."""
        self.stop()
        await cancel_and_wait(*self._tasks)

    def _accept(self, client: Side) -> None:
        task = asyncio.get_running_loop().create_task(self._connect(client))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, client: Side) -> None:
        """Connect *client* to the first endpoint that accepts, in random order."""
        assert client.transport is not None  # noqa: S101 - it is connected
        source = str(client.transport.get_extra_info("peername")[0])
        try:
            for target in self._targets.order(source):
                if target in self._connections.listening:
                    continue
                side = await self._connected(target)
                if side is not None:
                    self._targets.keep(source, target)
                    client.join(side)
                    return
        except BaseException:
            client.close()
            raise
        client.transport.abort()  # a reset, as from a port that is closed

    async def _connected(self, target: Address) -> Side | None:
        """Return a connection to *target*, or None if it accepts none."""
        loop, opened = asyncio.get_running_loop(), self._connections.opened
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT):
                _, side = await loop.create_connection(lambda: Side(opened), *target)
        except (OSError, TimeoutError):
            return None
        return side
