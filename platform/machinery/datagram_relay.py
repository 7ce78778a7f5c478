"""Relays of UDP: one listening address, several endpoints, and a session for each client.

A session is what the kernel's connection tracking is for a kube-proxy: the datagrams of one address
and port go to one endpoint as long as there are some, and its responses return.
"""

import asyncio
import socket
import struct
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress

from .clock import Clock
from .relay import Address, Targets

UNANSWERED_TIMEOUT, ANSWERED_TIMEOUT = 30.0, 120.0
"""Seconds without a datagram after which a session ends: what the kernel has as
``nf_conntrack_udp_timeout`` and ``nf_conntrack_udp_timeout_stream``."""

MAX_SESSIONS = 512
"""Sessions of all relays of a process: beyond that the one ends that was idle for the longest
time, so that a client that uses ever new ports takes no more descriptors."""

_MAX_DATAGRAM = 65535
_BATCH = 64
"""Datagrams of a socket that are relayed before the loop runs other callbacks."""

_CONTROL_SIZE = 128
_IP_PKTINFO = 8
"""Option of Linux that the module `socket` does not have."""


ListenDatagrams = Callable[[Address], socket.socket]
"""Opens the socket of a relay, or raises OSError."""


class Sessions:
    """The sessions of all relays of a process, in the order of their last datagrams."""

    def __init__(self, clock: Clock, *, limit: int = MAX_SESSIONS) -> None:
        self.clock = clock
        self._limit = limit
        self._used: OrderedDict[_Session, None] = OrderedDict()
        self._sources: set[Address] = set()

    def __len__(self) -> int:
        return len(self._used)

    def add(self, session: "_Session") -> None:
        """Add a session, and end the least recently used one if there are too many."""
        self._used[session] = None
        self._sources.add(session.source)
        if len(self._used) > self._limit:
            next(iter(self._used)).close()

    def touch(self, session: "_Session") -> None:
        """Note that *session* is used."""
        self._used.move_to_end(session)

    def remove(self, session: "_Session") -> None:
        """Forget a session that has ended."""
        self._used.pop(session, None)
        self._sources.discard(session.source)

    def is_source(self, client: Address) -> bool:
        """Return whether *client* is a session itself: its endpoint is a relay.

        A datagram that returns to a relay would be relayed without end.
        """
        return client in self._sources


class _Session:
    """The datagrams between one client and the endpoint that it has."""

    def __init__(self, relay: "DatagramRelay", key: "_Client", target: Address) -> None:
        """Open the socket to the endpoint.

        Raises:
            OSError: there is no route to it, or the process has too many files open.
        """
        self.target = target
        self._relay = relay
        self._key = key
        self._answered = False
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            self._socket.setblocking(False)
            self._socket.connect(target)  # so that only the endpoint can respond
            self.source: Address = self._socket.getsockname()
        except BaseException:
            self._socket.close()
            raise
        clock = relay.sessions.clock
        self._used_at = clock.monotonic()
        self._timer = clock.call_later(UNANSWERED_TIMEOUT, self._check)
        asyncio.get_running_loop().add_reader(self._socket, self._receive)

    def send(self, data: bytes) -> None:
        """Send what the client has sent; end if the endpoint has refused an earlier datagram."""
        self._touch()
        try:
            self._socket.send(data)
        except BlockingIOError:
            return  # lost, as datagrams may be
        except OSError:
            self.close()

    def _receive(self) -> None:
        for _ in range(_BATCH):
            try:
                data = self._socket.recv(_MAX_DATAGRAM)
            except BlockingIOError:
                return
            except OSError:  # the port of the endpoint is closed
                self.close()
                return
            self._answered = True
            self._touch()
            self._relay.respond(data, self._key)

    def _touch(self) -> None:
        self._used_at = self._relay.sessions.clock.monotonic()
        self._relay.sessions.touch(self)

    def _check(self) -> None:
        """End if the session was idle for long enough."""
        clock = self._relay.sessions.clock
        timeout = ANSWERED_TIMEOUT if self._answered else UNANSWERED_TIMEOUT
        left = self._used_at + timeout - clock.monotonic()
        if left <= 0:
            self.close()
        else:
            self._timer = clock.call_later(left, self._check)

    def close(self) -> None:
        """End the session: the next datagram of its client starts another one."""
        self._timer.cancel()
        if self._socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
        self._relay.forget(self._key)
        self._relay.sessions.remove(self)


_Client = tuple[Address, bytes]
"""A client, and the local address to which it has sent, in the kernel's form."""


class DatagramRelay:
    """Listens on one address and relays the datagrams of each client to one of the endpoints."""

    def __init__(
        self,
        address: Address,
        *,
        sessions: Sessions,
        listen: ListenDatagrams,
    ) -> None:
        self.address = address
        self.sessions = sessions
        self._listen = listen
        self._targets = Targets(sessions.clock)
        self._socket: socket.socket | None = None
        self._clients: dict[_Client, _Session] = {}

    def retarget(self, targets: Sequence[Address], *, affinity_seconds: int = 0) -> None:
        """Use other endpoints; sessions with an endpoint that is none any more end."""
        self._targets.addresses, self._targets.affinity_seconds = targets, affinity_seconds
        for session in list(self._clients.values()):
            if session.target not in targets:
                session.close()

    async def start(self) -> None:
        """Listen.

        Raises:
            OSError: the address is in use, or the port is privileged.
        """
        listening = self._listen(self.address)
        listening.setblocking(False)
        # A response must have the address to which the client has sent.
        listening.setsockopt(socket.SOL_IP, _IP_PKTINFO, 1)
        self.address = listening.getsockname()
        asyncio.get_running_loop().add_reader(listening, self._receive)
        self._socket = listening

    def stop(self) -> None:
        """Listen no more; all sessions end, since their responses need the socket."""
        for session in list(self._clients.values()):
            session.close()
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket)
            self._socket.close()
            self._socket = None

    async def abort(self) -> None:
        """Listen no more."""
        self.stop()

    def _receive(self) -> None:
        for _ in range(_BATCH):
            if self._socket is None:
                return
            try:
                data, control, _, client = self._socket.recvmsg(_MAX_DATAGRAM, _CONTROL_SIZE)
            except OSError:  # there is none, or the socket has an error of an earlier response
                return
            if self.sessions.is_source(client):
                continue
            session = self._session((client, _local_address(control)))
            if session is not None:
                session.send(data)

    def _session(self, key: _Client) -> _Session | None:
        """Return the session of a client, a new one if it has none; None: no endpoint is left."""
        found = self._clients.get(key)
        if found is not None:
            return found
        source = key[0][0]
        for target in self._targets.order(source):
            try:
                session = _Session(self, key, target)
            except OSError:
                continue
            self._targets.keep(source, target)
            self._clients[key] = session
            self.sessions.add(session)
            return session
        return None

    def respond(self, data: bytes, key: _Client) -> None:
        """Send a client what its endpoint has sent, from the address that it knows."""
        client, local = key
        # The interface is left open: the route to the client decides.
        control = [(socket.SOL_IP, _IP_PKTINFO, struct.pack("=I4s4s", 0, local, b"\0" * 4))]
        if self._socket is not None:
            with suppress(OSError):  # lost, as datagrams may be
                self._socket.sendmsg([data], control, 0, client)

    def forget(self, key: _Client) -> None:
        """Forget the session of a client."""
        self._clients.pop(key, None)


def _local_address(control: list[tuple[int, int, bytes]]) -> bytes:
    """Return the address of this machine to which a datagram was sent."""
    for level, kind, content in control:
        if (level, kind) == (socket.SOL_IP, _IP_PKTINFO):
            return content[4:8]
    return b"\0" * 4
