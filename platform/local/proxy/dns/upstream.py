"""Asks the name servers of the machine."""

import asyncio
import logging
import os
import struct
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import dns.exception
import dns.flags
import dns.message

from ...network.resolvers import DNS_PORT, read_resolver_config

log = logging.getLogger(__name__)

TIMEOUT = 2.0
"""Seconds in which a server must respond, before the next one is asked."""

PAYLOAD = 1232
"""Size of UDP messages that no network fragments."""

_MAX_SERVERS = 3
_MAX_PENDING, _MAX_PENDING_OF_CLIENT = 512, 128


class UpstreamError(Exception):
    """No server has responded."""


class Upstream:
    """The servers of a ``resolv.conf``, which is read again when it has changed."""

    def __init__(self, file: str, *, own_address: str, port: int = DNS_PORT) -> None:
        """*own_address* is that of this server, which would else ask itself."""
        self._file = file
        self._own_address = own_address
        self._port = port
        self._servers: list[str] = []
        self._read_at: tuple[int, int] | None = None
        self._pending = Counter[str]()

    def _current_servers(self) -> list[str]:
        try:
            found = os.stat(self._file)
            version = found.st_mtime_ns, found.st_ino
        except OSError:
            version = None
        if version is None or version != self._read_at:
            servers = read_resolver_config(self._file).nameservers
            others = [each for each in servers if each != self._own_address]
            self._servers, self._read_at = others[:_MAX_SERVERS], version
        return self._servers

    async def ask(self, query: dns.message.Message, *, client: str) -> dns.message.Message:
        """Return the complete response of the first server that sends one.

        *client* is the address of who asks: none can use up what all may ask at a time.

        Raises:
            UpstreamError: there is none.
        """
        with self._counted(client):
            for server in self._current_servers():
                try:
                    async with asyncio.timeout(TIMEOUT):
                        reply = await self._ask_by_udp(query, server)
                        if reply.flags & dns.flags.TC:
                            reply = await self._ask_by_tcp(query, server)
                    if query.is_response(reply):
                        return reply
                except (OSError, EOFError, ValueError, dns.exception.DNSException) as error:
                    log.debug("no response", extra={"server": server, "error": str(error)})
        raise UpstreamError

    @contextmanager
    def _counted(self, client: str) -> Iterator[None]:
        pending = self._pending
        if pending.total() >= _MAX_PENDING or pending[client] >= _MAX_PENDING_OF_CLIENT:
            raise UpstreamError
        pending[client] += 1
        try:
            yield
        finally:
            pending[client] -= 1
            if not pending[client]:
                del pending[client]

    async def _ask_by_udp(self, query: dns.message.Message, server: str) -> dns.message.Message:
        loop = asyncio.get_running_loop()
        received: asyncio.Future[dns.message.Message] = loop.create_future()
        # A new socket for each query has a random port, which an attacker would have to guess.
        transport, _ = await loop.create_datagram_endpoint(
            lambda: _Reply(query, received), remote_addr=(server, self._port)
        )
        try:
            transport.sendto(query.to_wire())
            return await received
        finally:
            transport.close()

    async def _ask_by_tcp(self, query: dns.message.Message, server: str) -> dns.message.Message:
        reader, writer = await asyncio.open_connection(server, self._port)
        try:
            wire = query.to_wire()
            writer.write(struct.pack("!H", len(wire)) + wire)
            (size,) = struct.unpack("!H", await reader.readexactly(2))
            return dns.message.from_wire(await reader.readexactly(size))
        finally:
            writer.close()


class _Reply(asyncio.DatagramProtocol):
    def __init__(
        self, query: dns.message.Message, received: "asyncio.Future[dns.message.Message]"
    ) -> None:
        self._query = query
        self._received = received

    def datagram_received(self, data: bytes, addr: object) -> None:
        if self._received.done():
            return
        try:
            reply = dns.message.from_wire(data, ignore_trailing=True)
        except (dns.exception.DNSException, ValueError):
            return  # it may be of another sender: the right one may follow
        if self._query.is_response(reply):
            self._received.set_result(reply)

    def error_received(self, exc: Exception) -> None:
        if not self._received.done():
            self._received.set_exception(exc)
