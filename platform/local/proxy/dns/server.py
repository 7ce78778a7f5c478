"""The name server of a cluster, for the pods and programs of one machine.

It knows the names of the cluster's domain, and asks the machine's name servers for all others.
Other machines get no response, so that none can be flooded with them.
"""

import asyncio
import ipaddress
import logging
import random
import socket
import struct
from collections.abc import Callable
from typing import cast

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.opcode
import dns.rcode
import dns.rdataclass
import dns.rdatatype
import dns.reversename
import dns.rrset

from ....machinery.clock import SystemClock
from ....model.service_network import CLUSTER_DOMAIN, AddressRanges
from ...network.node_namespace import is_entered
from ...network.resolvers import dns_sockets, resolver_file
from ..service_proxy import ServiceProxy
from .records import CNAME, Record, Zone
from .upstream import PAYLOAD, Upstream, UpstreamError

log = logging.getLogger(__name__)

RETRY_INTERVAL = 10.0
"""Seconds until an address that could not be listened on is tried again."""

TTL = 5
"""Seconds for which a client may keep a response."""

_DOMAIN = dns.name.from_text(CLUSTER_DOMAIN)
_REVERSE = dns.name.from_text("in-addr.arpa")
_SOA = f"ns.dns.{CLUSTER_DOMAIN}. hostmaster.{CLUSTER_DOMAIN}. 1 7200 1800 86400 {TTL}"
_HEADER = 12
_MIN_PAYLOAD = 512
_MAX_QUERY = 4096
_MAX_RESPONSE = 65535
_MIN_RECORD = 16
_MAX_ALIASES = 8
_MAX_PENDING = 1024
_MAX_CONNECTIONS, _MAX_CONNECTIONS_OF_CLIENT = 256, 64
_IDLE_TIMEOUT = 10.0

Sockets = tuple[socket.socket, socket.socket]


class NameServer:
    """Serves names until cancelled."""

    def __init__(
        self,
        zone: Zone,
        upstream: Upstream,
        *,
        ranges: AddressRanges,
        listen: Callable[[], Sockets],
        synced: Callable[[], bool],
    ) -> None:
        """*synced* returns whether all names of the cluster are known."""
        self._zone = zone
        self._upstream = upstream
        self._ranges = ranges
        self._listen = listen
        self._synced = synced
        self._clock = SystemClock()
        self._pending = set[asyncio.Task[None]]()
        self._connections: dict[asyncio.Task[None], str] = {}

    async def run(self, *, ready: asyncio.Event | None = None) -> None:
        """Serve until cancelled."""
        while True:
            try:
                udp, tcp = self._listen()
                break
            except OSError as error:
                log.warning("cannot serve names", extra={"reason": error.strerror or str(error)})
            if ready is not None:
                ready.set()  # the proxy works nevertheless
            await self._clock.sleep(RETRY_INTERVAL)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: _Datagrams(self), sock=udp)
        server = await asyncio.start_server(self._serve_connection, sock=tcp, limit=_MAX_QUERY)
        try:
            if ready is not None:
                ready.set()
            await asyncio.Event().wait()
        finally:
            transport.close()
            server.close()
            for task in (*self._pending, *self._connections):
                task.cancel()

    def receive(self, data: bytes, client: tuple[str, int], send: Callable[[bytes], None]) -> None:
        """Respond to a datagram with *send*."""
        if len(self._pending) >= _MAX_PENDING or not self._may_ask(client[0]):
            return

        async def respond() -> None:
            response = await self.respond(data, client=client[0], is_datagram=True)
            if response:
                send(response)

        task = asyncio.get_running_loop().create_task(respond())
        self._pending.add(task)
        task.add_done_callback(self._pending.discard)

    async def _serve_connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        client = writer.get_extra_info("peername")[0]
        task = cast("asyncio.Task[None]", asyncio.current_task())
        others = list(self._connections.values())
        self._connections[task] = client
        try:
            if (
                len(others) < _MAX_CONNECTIONS
                and others.count(client) < _MAX_CONNECTIONS_OF_CLIENT
                and self._may_ask(client)
            ):
                await self._serve_queries(reader, writer, client)
        except (OSError, EOFError, TimeoutError):
            pass  # the client has disconnected, or sends nothing
        finally:
            del self._connections[task]
            writer.close()

    async def _serve_queries(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, client: str
    ) -> None:
        while True:
            async with asyncio.timeout(_IDLE_TIMEOUT):
                (size,) = struct.unpack("!H", await reader.readexactly(2))
                if size > _MAX_QUERY:
                    return
                data = await reader.readexactly(size)
            response = await self.respond(data, client=client, is_datagram=False)
            if not response:
                return
            writer.write(struct.pack("!H", len(response)) + response)
            async with asyncio.timeout(_IDLE_TIMEOUT):
                await writer.drain()

    def _may_ask(self, client: str) -> bool:
        address, ranges = ipaddress.IPv4Address(client), self._ranges
        return (
            address.is_loopback
            or address in ranges.pod_ips
            or address in ranges.dns_ips
            or client == ranges.node_ip
        )

    async def respond(self, data: bytes, *, client: str, is_datagram: bool) -> bytes:
        """Return the response to a message; empty if there must be none."""
        if len(data) < _HEADER or data[2] & 0x80:  # a response, perhaps of another server
            return b""
        if (data[2] >> 3) & 0xF != dns.opcode.QUERY:
            return _error(data, dns.rcode.NOTIMP)
        if data[4:6] != b"\0\1":
            return _error(data, dns.rcode.FORMERR)
        try:
            query = dns.message.from_wire(data)
            response = dns.message.make_response(
                query, recursion_available=True, our_payload=PAYLOAD
            )
        except (dns.exception.DNSException, ValueError):
            return _error(data, dns.rcode.FORMERR)
        try:
            await self._fill(response, query, client)
        except dns.exception.DNSException as error:  # objects may have values that are no names
            log.debug("malformed record", extra={"error": str(error)})
            response.set_rcode(dns.rcode.SERVFAIL)
        if not is_datagram:
            return response.to_wire(max_size=_MAX_RESPONSE, prefer_truncation=True)
        size = max(_MIN_PAYLOAD, min(query.payload, PAYLOAD))
        if sum(map(len, response.answer)) * _MIN_RECORD > size:
            response.answer, response.authority = [], []  # nor is any of them rendered
            response.flags |= dns.flags.TC
        return response.to_wire(max_size=size, prefer_truncation=True)

    async def _fill(
        self, response: dns.message.Message, query: dns.message.Message, client: str
    ) -> None:
        question = query.question[0]
        if query.edns > 0:
            response.set_rcode(dns.rcode.BADVERS)
            return
        is_normal = question.rdclass == dns.rdataclass.IN
        if not is_normal or dns.rdatatype.is_metatype(question.rdtype):
            response.set_rcode(dns.rcode.REFUSED)
            return
        name = question.name
        for _ in range(_MAX_ALIASES):
            if not _is_own(name, self._ranges):
                await self._forward(response, query, name, client)
                return
            if not self._synced():
                response.set_rcode(dns.rcode.SERVFAIL)
                return
            records = self._records(name)
            if records is None:
                response.set_rcode(dns.rcode.NXDOMAIN)
            found = _matching(name, records or (), question.rdtype)
            response.flags |= dns.flags.AA
            if found is None:
                response.authority.append(dns.rrset.from_text(_DOMAIN, TTL, "IN", "SOA", _SOA))
                return
            response.answer.append(found)
            if found.rdtype == question.rdtype:
                return
            name = found[0].target
        response.set_rcode(dns.rcode.SERVFAIL)

    def _records(self, name: dns.name.Name) -> tuple[Record, ...] | None:
        """Return the records of a name of the cluster; None if there is no such name."""
        if name.is_subdomain(_REVERSE):
            return self._zone.find_reverse(dns.reversename.to_address(name)).records or None
        try:
            labels = tuple(each.decode("ascii").lower() for each in name.relativize(_DOMAIN).labels)
        except UnicodeDecodeError:
            return None
        found = self._zone.find(labels)
        return None if found is None else found.records

    async def _forward(
        self,
        response: dns.message.Message,
        query: dns.message.Message,
        name: dns.name.Name,
        client: str,
    ) -> None:
        asked = dns.message.make_query(
            name, query.question[0].rdtype, use_edns=0, payload=PAYLOAD,
            want_dnssec=bool(query.ednsflags & dns.flags.DO),
        )  # fmt: skip
        try:
            reply = await self._upstream.ask(asked, client=client)
        except UpstreamError:
            response.set_rcode(dns.rcode.SERVFAIL)
            return
        response.set_rcode(dns.rcode.Rcode(reply.rcode()))
        response.answer += reply.answer
        response.authority += reply.authority


def name_server(proxy: ServiceProxy, address: str, ranges: AddressRanges) -> NameServer:
    """Return the server of the names that *proxy* knows, at *address*."""
    file = resolver_file(own_network=is_entered())
    return NameServer(
        Zone(proxy.services, proxy.slices),
        Upstream(file, own_address=address),
        ranges=ranges,
        listen=lambda: dns_sockets(address),
        synced=lambda: proxy.services.synced and proxy.slices.synced,
    )


def _is_own(name: dns.name.Name, ranges: AddressRanges) -> bool:
    """Whether no other server knows the name: it is in the cluster's domain, or the name for the
    address of a pod or Service."""
    if name.is_subdomain(_DOMAIN):
        return True
    if not name.is_subdomain(_REVERSE):
        return False
    try:
        address = ipaddress.ip_address(dns.reversename.to_address(name))
    except (dns.exception.DNSException, ValueError):
        return False
    return address in ranges.pod_ips or address in ranges.cluster_ips


def _matching(
    name: dns.name.Name, records: tuple[Record, ...], wanted: dns.rdatatype.RdataType
) -> dns.rrset.RRset | None:
    """Return the records of the *wanted* type, or the alias of the name."""
    kinds = (dns.rdatatype.to_text(wanted), CNAME)
    found = [each for each in records if each.kind in kinds]
    if not found:
        return None
    values = [each.value for each in found]
    random.shuffle(values)  # clients use the first one
    return dns.rrset.from_text_list(name, TTL, "IN", found[0].kind, values)


def _error(data: bytes, code: dns.rcode.Rcode) -> bytes:
    """Return a response that consists of a header, to what cannot be decoded."""
    flags = 0x8000 | (data[2] & 0x79) << 8 | code
    return data[:2] + struct.pack("!HHHHH", flags, 0, 0, 0, 0)


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, server: NameServer) -> None:
        self._server = server
        self._transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._server.receive(data, addr, self._send_to(addr))

    def _send_to(self, client: tuple[str, int]) -> Callable[[bytes], None]:
        def send(response: bytes) -> None:
            if self._transport is not None and not self._transport.is_closing():
                self._transport.sendto(response, client)

        return send
