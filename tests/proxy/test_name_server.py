"""The name server of the cluster: names of Services and pods, and all others."""

import asyncio
import os
import struct
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

import dns.asyncquery
import dns.edns
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from batholith.local.network.resolvers import (
    ResolverConfig,
    choose_dns_address,
    dns_sockets,
    parse_resolver_config,
)
from batholith.local.proxy.dns.records import Zone, endpoint_addresses, service_addresses
from batholith.local.proxy.dns.server import NameServer
from batholith.local.proxy.dns.upstream import Upstream
from batholith.local.proxy.types import EndpointSlice, Service
from batholith.model.meta import HasMeta
from batholith.model.service_network import HOST_RANGES

Json = dict[str, Any]
T = TypeVar("T", bound=HasMeta)
ADDRESS = str(HOST_RANGES.dns_ips[1])
OTHER = "127.0.0.1"
TIMEOUT = 60.0


class Objects(Generic[T]):
    """The objects of one kind, with indexes that are functions."""

    def __init__(self, objects: list[T], **indexes: Callable[[T], Iterator[str]]) -> None:
        self._objects = objects
        self._indexes = indexes

    def get(self, key: str) -> T | None:
        return next((each for each in self._objects if each.metadata.key == key), None)

    def by_index(self, index: str, value: str) -> Collection[T]:
        return [each for each in self._objects if value in self._indexes[index](each)]


def service(name: str, namespace: str = "a", **spec: Any) -> Service:
    body = {"metadata": {"name": name, "namespace": namespace}, "spec": spec}
    return msgspec.convert(body, Service)


def endpoint(address: str, hostname: str | None = None, **conditions: bool) -> Json:
    return {"addresses": [address], "hostname": hostname, "conditions": conditions}


def slice_of(owner: str, *endpoints: Json, namespace: str = "a") -> EndpointSlice:
    labels = {"kubernetes.io/service-name": owner}
    body = {
        "metadata": {"name": f"{owner}-1", "namespace": namespace, "labels": labels},
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "web", "port": 8080, "protocol": "TCP"}],
    }
    return msgspec.convert(body, EndpointSlice)


WEB = {"name": "web", "port": 80, "protocol": "TCP"}
SERVICES = [
    service("db", clusterIP="127.128.0.9", ports=[WEB]),
    service("workers", clusterIP="None", ports=[WEB]),
    service("elsewhere", type="ExternalName", externalName="db.a.svc.cluster.local"),
    service("outside", type="ExternalName", externalName="www.example.com"),
    service("dotted", type="ExternalName", externalName="db.a.svc.cluster.local."),
    service("malformed", type="ExternalName", externalName="a..b"),
    service("loop", type="ExternalName", externalName="loop.a.svc.cluster.local"),
    service("many", clusterIP="None"),
]
SLICES = [
    slice_of("db", endpoint("127.64.0.1")),
    slice_of(
        "workers",
        endpoint("127.64.0.2", "job-0", ready=True),
        endpoint("127.64.0.3", "job-1"),
        endpoint("127.64.0.4", "job-2", ready=False),
        endpoint("127.64.0.5"),
        endpoint("no-address"),
    ),
    slice_of("many", *(endpoint(str(HOST_RANGES.pod_ips[1000 + each])) for each in range(2000))),
]
ZONE = Zone(
    Objects(SERVICES, namespace=lambda each: iter([each.metadata.namespace]),
            address=service_addresses),
    Objects(SLICES, service=lambda each: iter([f"{each.metadata.namespace}/{each.service}"]),
            address=endpoint_addresses),
)  # fmt: skip


def server_of(upstream: Upstream, *, synced: bool = True) -> NameServer:
    def never() -> Any:
        raise AssertionError("only its responses are asked for")

    return NameServer(ZONE, upstream, ranges=HOST_RANGES, listen=never, synced=lambda: synced)


@pytest.fixture
def lonely(tmp_path: Path) -> NameServer:
    """A server on a machine that has no name servers."""
    return server_of(Upstream(str(tmp_path / "missing"), own_address=ADDRESS))


async def ask(server: NameServer, name: str, kind: str = "A", **query: Any) -> dns.message.Message:
    wire = dns.message.make_query(name, kind, **query).to_wire()
    return dns.message.from_wire(await server.respond(wire, client=OTHER, is_datagram=True))


def values(reply: dns.message.Message) -> list[str]:
    return sorted(each.to_text() for found in reply.answer for each in found)


@pytest.mark.parametrize(
    ("name", "kind", "wanted"),
    [
        ("db.a.svc.cluster.local", "A", ["127.128.0.9"]),
        ("DB.A.Svc.Cluster.LOCAL", "A", ["127.128.0.9"]),
        ("workers.a.svc.cluster.local", "A", ["127.64.0.2", "127.64.0.3", "127.64.0.5"]),
        ("job-1.workers.a.svc.cluster.local", "A", ["127.64.0.3"]),
        ("127-64-0-5.workers.a.svc.cluster.local", "A", ["127.64.0.5"]),
        ("_web._tcp.db.a.svc.cluster.local", "SRV", ["0 100 80 db.a.svc.cluster.local."]),
        (
            "_web._tcp.workers.a.svc.cluster.local",
            "SRV",
            [
                "0 100 8080 127-64-0-5.workers.a.svc.cluster.local.",
                "0 100 8080 job-0.workers.a.svc.cluster.local.",
                "0 100 8080 job-1.workers.a.svc.cluster.local.",
            ],
        ),
        ("9.0.128.127.in-addr.arpa", "PTR", ["db.a.svc.cluster.local."]),
        ("2.0.64.127.in-addr.arpa", "PTR", ["job-0.workers.a.svc.cluster.local."]),
        ("dns-version.cluster.local", "TXT", ['"1.1.0"']),
        (
            "elsewhere.a.svc.cluster.local",
            "A",
            ["127.128.0.9", "db.a.svc.cluster.local."],
        ),
    ],
)
async def test_services_and_their_pods_have_names(
    lonely: NameServer, name: str, kind: str, wanted: list[str]
) -> None:
    reply = await ask(lonely, name, kind)
    assert (reply.rcode(), values(reply)) == (dns.rcode.NOERROR, wanted)
    assert reply.flags & dns.flags.AA
    assert reply.answer[0].name == dns.message.make_query(name, kind).question[0].name


@pytest.mark.parametrize(
    "name",
    [
        "job-2.workers.a.svc.cluster.local",  # is not ready
        "job-0.db.a.svc.cluster.local",
        "db.other.svc.cluster.local",
        "other.svc.cluster.local",
        "_other._tcp.db.a.svc.cluster.local",
        "_web._udp.db.a.svc.cluster.local",
        "x._web._tcp.db.a.svc.cluster.local",
        "b\\195\\156ro.a.svc.cluster.local",
        "4.0.64.127.in-addr.arpa",
    ],
)
async def test_an_unknown_name_does_not_exist(lonely: NameServer, name: str) -> None:
    for kind in ("A", "SRV", "PTR"):
        reply = await ask(lonely, name, kind)
        assert (reply.rcode(), values(reply)) == (dns.rcode.NXDOMAIN, [])
        assert reply.authority[0].rdtype == dns.rdatatype.SOA


@pytest.mark.parametrize(
    "name", ["db.a.svc.cluster.local", "a.svc.cluster.local", "_tcp.workers.a.svc.cluster.local"]
)
async def test_a_name_without_records_of_a_type_exists(lonely: NameServer, name: str) -> None:
    reply = await ask(lonely, name, "AAAA")
    assert (reply.rcode(), values(reply)) == (dns.rcode.NOERROR, [])


async def test_names_are_not_denied_before_they_are_known(lonely: NameServer) -> None:
    early = server_of(Upstream("/missing", own_address=ADDRESS), synced=False)
    reply = await ask(early, "db.a.svc.cluster.local")
    assert reply.rcode() == dns.rcode.SERVFAIL


async def test_an_alias_of_itself_or_of_no_name_has_no_address(lonely: NameServer) -> None:
    for name in ("loop", "malformed"):
        reply = await ask(lonely, f"{name}.a.svc.cluster.local")
        assert reply.rcode() == dns.rcode.SERVFAIL
    assert "127.128.0.9" in values(await ask(lonely, "dotted.a.svc.cluster.local"))


async def test_a_response_in_a_datagram_is_not_larger_than_the_client_permits(
    lonely: NameServer,
) -> None:
    wire = dns.message.make_query("many.a.svc.cluster.local", "A", payload=65000).to_wire()
    response = await lonely.respond(wire, client=OTHER, is_datagram=True)
    assert len(response) <= 512
    assert dns.message.from_wire(response).flags & dns.flags.TC
    whole = await lonely.respond(wire, client=OTHER, is_datagram=False)
    assert len(values(dns.message.from_wire(whole))) == 2000


async def test_other_requests_than_queries_are_refused(lonely: NameServer) -> None:
    for kind in ("AXFR", "ANY"):
        assert (await ask(lonely, "db.a.svc.cluster.local", kind)).rcode() == dns.rcode.REFUSED
    query = dns.message.make_query("db.a.svc.cluster.local", "A", use_edns=1)
    response = await lonely.respond(query.to_wire(), client=OTHER, is_datagram=True)
    assert dns.message.from_wire(response).rcode() == dns.rcode.BADVERS
    query.set_opcode(dns.opcode.UPDATE)
    response = await lonely.respond(query.to_wire(), client=OTHER, is_datagram=True)
    assert (response[:2], response[3] & 15) == (query.to_wire()[:2], dns.rcode.NOTIMP)
    reply = dns.message.make_response(dns.message.make_query("db.a.svc.cluster.local", "A"))
    assert await lonely.respond(reply.to_wire(), client=OTHER, is_datagram=True) == b""


_QUERY = dns.message.make_query(
    "workers.a.svc.cluster.local",
    "A",
    use_edns=0,
    options=[dns.edns.GenericOption(dns.edns.OptionType.COOKIE, b"abcdefgh")],
).to_wire()


@settings(max_examples=examples(300))
@given(
    st.one_of(
        st.binary(max_size=64),
        st.binary(max_size=64).map(lambda rest: b"\0\7\1\0\0\1" + rest),
        st.tuples(st.integers(0, len(_QUERY) - 1), st.binary(min_size=1, max_size=6)).map(
            lambda change: _QUERY[: change[0]] + change[1] + _QUERY[change[0] + 1 :]
        ),
    ),
    st.booleans(),
)
def test_any_bytes_get_a_response_or_none(data: bytes, is_datagram: bool) -> None:
    server = server_of(Upstream("/missing", own_address=ADDRESS))
    response = asyncio.run(server.respond(data, client=OTHER, is_datagram=is_datagram))
    assert len(response) <= 1232
    if response:
        assert response[:2] == data[:2]
        assert response[2] & 0x80


# -- on sockets


def own_address() -> str:
    """Return a loopback address that no other test process uses."""
    return f"127.130.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"


@asynccontextmanager
async def serving(upstream: Upstream) -> AsyncIterator[tuple[str, int]]:
    udp, tcp = dns_sockets(own_address(), 0)
    address = udp.getsockname()
    server = NameServer(
        ZONE, upstream, ranges=HOST_RANGES, listen=lambda: (udp, tcp), synced=lambda: True
    )
    ready = asyncio.Event()
    task = asyncio.create_task(server.run(ready=ready))
    try:
        await ready.wait()
        yield address
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_other_names_are_asked_of_the_servers_of_the_machine(tmp_path: Path) -> None:
    file = tmp_path / "resolv.conf"
    without = Upstream("/missing", own_address="")
    async with serving(without) as (host, port):
        file.write_text(f"nameserver {ADDRESS}\nnameserver {host}\n")
        server = server_of(Upstream(str(file), own_address=ADDRESS, port=port))
        reply = await ask(server, "www.example.com")
        assert reply.rcode() == dns.rcode.SERVFAIL  # of the upstream, which has none
        assert not reply.flags & dns.flags.AA
        query = dns.message.make_query("many.a.svc.cluster.local", "A")
        found = await Upstream(str(file), own_address="", port=port).ask(query, client=OTHER)
        assert len(values(found)) == 2000  # asked again by TCP


async def test_clients_are_served_by_udp_and_tcp(tmp_path: Path) -> None:
    async with serving(Upstream(str(tmp_path / "missing"), own_address="")) as (host, port):
        query = dns.message.make_query("db.a.svc.cluster.local", "A")
        by_udp = await dns.asyncquery.udp(query, host, port=port, timeout=TIMEOUT)
        by_tcp = await dns.asyncquery.tcp(query, host, port=port, timeout=TIMEOUT)
        assert values(by_udp) == values(by_tcp) == ["127.128.0.9"]
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(struct.pack("!H", 60000) + b"x" * 10)
        assert await reader.read() == b""  # ended by the server
        writer.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="port 53 is privileged")
def test_each_cluster_of_a_machine_has_another_address(tmp_path: Path) -> None:
    first = choose_dns_address(HOST_RANGES, tmp_path)
    held = dns_sockets(first)
    try:
        assert choose_dns_address(HOST_RANGES, tmp_path) != first
    finally:
        for each in held:
            each.close()


def test_the_configuration_of_a_resolver_is_read_like_by_the_c_library() -> None:
    text = "# nameserver 1\nnameserver 10.0.0.1 x\ndomain a\nsearch b c\noptions edns0 ndots:2\n"
    assert parse_resolver_config(text + "nameserver\noptions edns0\n;x") == ResolverConfig(
        ("10.0.0.1",), ("b", "c"), ("edns0", "ndots:2")
    )
