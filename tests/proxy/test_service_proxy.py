"""The service proxy: clients of a cluster IP or node port reach the pods behind it."""

import asyncio
import errno
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
import uvloop
from support.embedded_apiserver import MERGE, EmbeddedServer, embedded_server
from support.polling import wait_for, wait_until_true
from support.running_controller import FakeRecorder, running

from batholith.local.proxy.backends import ListenAddress, backends, listening_addresses
from batholith.local.proxy.service_proxy import ServiceProxy
from batholith.local.proxy.types import EndpointSlice, Service, ServicePort
from batholith.machinery.clock import SystemClock
from batholith.machinery.relay import Affinity, Connections, Relay, Side
from batholith.machinery.testing import FakeClock
from batholith.model.names import ENDPOINTSLICES, SERVICES
from batholith.model.service_network import (
    HOST_RANGES,
    NAMESPACE_RANGES,
    AddressRanges,
    is_permitted_endpoint,
)

Json = dict[str, Any]
POD_A, POD_B = "127.64.7.1", "127.64.7.2"
Address = tuple[str, int]


def slice_of(*addresses: str, port: int, name: str = "", **conditions: bool) -> EndpointSlice:
    endpoints = [{"addresses": [each], "conditions": conditions} for each in addresses]
    ports = [{"name": name, "port": port, "protocol": "TCP"}]
    body = {"addressType": "IPv4", "endpoints": endpoints, "ports": ports}
    return msgspec.convert(body, EndpointSlice)


def test_connections_go_to_ready_endpoints_with_the_port_of_their_name() -> None:
    port = ServicePort(name="http", port=80)
    found = [
        slice_of(POD_A, port=8080, name="http"),
        slice_of(POD_B, port=9090, name="http", ready=False),
        slice_of(POD_B, port=81, name="other"),
    ]
    assert backends(port, found) == ((POD_A, 8080),)


def test_endpoints_that_end_are_used_if_there_is_no_other() -> None:
    port = ServicePort(port=80)
    ending = slice_of(POD_A, port=1, ready=False, serving=True, terminating=True)
    dead = slice_of(POD_B, port=1, ready=False, serving=False, terminating=True)
    assert backends(port, [ending, dead]) == ((POD_A, 1),)
    assert backends(port, [ending, slice_of(POD_B, port=1)]) == ((POD_B, 1),)


@pytest.mark.parametrize(
    ("address", "permitted"),
    [
        (POD_A, True), ("10.0.0.1", True), ("192.0.2.1", True),
        ("127.0.0.1", False), ("127.128.0.1", False), ("169.254.1.1", False),
        ("198.18.7.1", True), ("198.19.0.9", False),
        ("224.0.0.1", False), ("0.0.0.0", False), ("example.com", False), ("::1", False),
    ],
)  # fmt: skip
def test_endpoints_on_loopback_are_pods(address: str, permitted: bool) -> None:
    assert is_permitted_endpoint(address) is permitted


def test_a_service_listens_on_nothing_but_its_own_network() -> None:
    def listening(ranges: AddressRanges = HOST_RANGES, **spec: Any) -> list[ListenAddress]:
        ports = [
            {"port": 80, "protocol": "TCP", "nodePort": 30001},
            {"port": 80, "protocol": "UDP"},
            {"port": 1, "protocol": "SCTP"},
        ]
        service = msgspec.convert({"spec": {"ports": ports, **spec}}, Service)
        return [*listening_addresses(service, ranges)]

    assert listening(clusterIP="127.128.0.9") == [
        ("127.128.0.9", 80, "TCP"), ("127.0.0.1", 30001, "TCP"), ("127.128.0.9", 80, "UDP"),
    ]  # fmt: skip
    assert listening(clusterIP="127.0.0.1", ports=[{"port": 7443}]) == []
    assert listening(clusterIP="0.0.0.0", ports=[{"port": 80, "nodePort": 22}]) == []
    assert listening(clusterIP="None", ports=[{"port": 80}]) == []
    assert listening(clusterIP="127.128.0.9", type="ExternalName") == []
    of_namespaces = listening(
        NAMESPACE_RANGES, clusterIP="198.19.0.9", ports=[{"port": 80, "nodePort": 30001}]
    )
    assert of_namespaces == [
        ("198.19.0.9", 80, "TCP"), ("127.0.0.1", 30001, "TCP"), ("198.18.0.1", 30001, "TCP"),
    ]  # fmt: skip
    assert listening(NAMESPACE_RANGES, clusterIP="127.128.0.9", ports=[{"port": 80}]) == []


def test_a_client_stays_with_its_endpoint_for_the_time_of_the_affinity() -> None:
    affinity, targets = Affinity(), ((POD_A, 1), (POD_B, 1))
    affinity.set("127.0.0.1", (POD_B, 1), until=10, now=0)
    assert affinity.get("127.0.0.1", targets, now=9) == (POD_B, 1)
    assert affinity.get("127.0.0.1", targets[:1], now=9) is None
    assert affinity.get("127.0.0.1", targets, now=10) is None
    assert affinity.get("127.0.0.2", targets, now=0) is None


# Relays.


@asynccontextmanager
async def pod(address: str, port: int = 0) -> AsyncIterator[int]:
    """A pod that sends its address, then what it receives; yields its port."""

    serving: set[asyncio.Task[Any]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving.add(task)
        with suppress(ConnectionError):
            writer.write(f"{address}\n".encode())
            while chunk := await reader.read(2**16):
                writer.write(chunk)
                await writer.drain()
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        serving.discard(task)

    server = await asyncio.start_server(serve, address, port)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await wait_for(lambda: not serving, "clients close their connections")


@asynccontextmanager
async def relaying(*targets: Address, affinity: int = 0) -> AsyncIterator[Relay]:
    connections = Connections(SystemClock())
    relay = Relay(("127.128.255.1", 0), connections=connections)
    relay.retarget(targets, affinity_seconds=affinity)
    await relay.start()
    try:
        yield relay
    finally:
        await relay.abort()
        connections.abort()


@asynccontextmanager
async def relay(*targets: Address, affinity: int = 0) -> AsyncIterator[Address]:
    async with relaying(*targets, affinity=affinity) as started:
        yield started.address


async def greeting(address: Address) -> str:
    """What the pod sends first, or nothing if the connection is refused."""
    try:
        reader, writer = await asyncio.open_connection(*address)
    except (ConnectionRefusedError, ConnectionResetError):
        return ""
    try:
        return (await reader.readline()).decode().strip()
    except ConnectionResetError:
        return ""
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def test_large_data_pass_in_both_directions_and_half_closes_too() -> None:
    data = bytes(range(256)) * 40_000
    async with pod(POD_A) as port, relay((POD_A, port)) as address:
        reader, writer = await asyncio.open_connection(*address)
        assert await reader.readline() == f"{POD_A}\n".encode()
        writer.write(data)
        writer.write_eof()
        assert await reader.read() == data
        writer.close()


async def test_what_a_client_sends_before_the_endpoint_is_connected_is_kept() -> None:
    client, endpoint = Side(set()), Side(set())
    for side in (client, endpoint):
        side.connection_made(Mock(spec=asyncio.Transport, is_closing=lambda: False))
    client.data_received(b"early")  # a loop may read once although reading is paused
    client.eof_received()
    client.join(endpoint)
    assert endpoint.transport is not None
    endpoint.transport.write.assert_called_once_with(b"early")  # type: ignore[attr-defined]
    endpoint.transport.write_eof.assert_called_once_with()  # type: ignore[attr-defined]


def test_connections_are_relayed_on_the_loop_that_the_process_uses() -> None:
    async def main() -> list[str]:
        async with pod(POD_A) as port, relay((POD_A, port)) as address:
            return [await greeting(address) for _ in range(20)]

    assert uvloop.run(main()) == [POD_A] * 20


async def test_an_endpoint_that_refuses_is_skipped() -> None:
    async with pod(POD_A) as port, relay((POD_A, port), (POD_B, port)) as address:
        assert {await greeting(address) for _ in range(20)} == {POD_A}


async def test_without_any_endpoint_that_accepts_the_connection_is_reset() -> None:
    async with relay((POD_A, 9)) as address:
        assert await greeting(address) == ""


async def test_a_connection_does_not_circulate_between_relays() -> None:
    """Users may write an endpoint that is a node port of the same Service."""
    async with pod(POD_A) as port, relaying() as found:
        found.retarget([found.address])
        assert await greeting(found.address) == ""
        found.retarget([found.address, (POD_A, port)])
        assert [await greeting(found.address) for _ in range(5)] == [POD_A] * 5


async def test_connections_are_distributed_unless_there_is_an_affinity() -> None:
    async with pod(POD_A) as port, pod(POD_B, port):
        targets = (POD_A, port), (POD_B, port)
        async with relay(*targets) as address:
            assert {await greeting(address) for _ in range(40)} == {POD_A, POD_B}
        async with relay(*targets, affinity=60) as address:
            assert len({await greeting(address) for _ in range(40)}) == 1


# With an API server.


async def add(server: EmbeddedServer, name: str, ports: Sequence[Json], **spec: Any) -> Json:
    body = {"metadata": {"name": name}, "spec": {"ports": ports, **spec}}
    created = await server.create(SERVICES.path("default"), body)
    found: Json = created["spec"]
    return found


async def publish(server: EmbeddedServer, service: str, port: int, *addresses: str) -> None:
    labels = {"kubernetes.io/service-name": service}
    endpoints = [{"addresses": [each], "conditions": {"ready": True}} for each in addresses]
    body = {
        "metadata": {"name": service, "labels": labels},
        "addressType": "IPv4",
        "endpoints": endpoints,
        "ports": [{"name": "", "port": port, "protocol": "TCP"}],
    }
    path = ENDPOINTSLICES.path("default")
    response = await server.request("POST", path, body)
    if response.status == 409:
        change = {"endpoints": endpoints}
        response = await server.request("PATCH", f"{path}/{service}", change, content_type=MERGE)
    assert response.status in (200, 201), response.body


async def wait_greeting(address: Address, wanted: str) -> None:
    async def holds() -> bool:
        return await greeting(address) == wanted

    await wait_until_true(holds)


@asynccontextmanager
async def proxy(server: EmbeddedServer) -> AsyncIterator[FakeRecorder]:
    """The proxy with its own rights."""
    recorder = FakeRecorder()
    async with (
        server.client("proxy") as client,
        running(ServiceProxy(client, recorder=recorder)),
    ):
        yield recorder


async def test_a_service_leads_to_its_pods_by_address_and_node_port(tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server, proxy(server), pod(POD_A) as port:
        spec = await add(server, "web", [{"port": 8080}], type="NodePort")
        address = spec["clusterIP"], 8080
        assert await greeting(address) == "", "refused without endpoints"
        await publish(server, "web", port, POD_A)
        await wait_greeting(address, POD_A)
        await wait_greeting(("127.0.0.1", spec["ports"][0]["nodePort"]), POD_A)
        async with pod(POD_B, port):
            await publish(server, "web", port, POD_B)
            await wait_greeting(address, POD_B)
        await publish(server, "web", port)
        await wait_greeting(address, "")
        await publish(server, "web", port, POD_A)
        await wait_greeting(address, POD_A)
        await server.request("DELETE", SERVICES.path("default", "web"))
        await wait_greeting(address, "")


async def test_a_port_that_is_in_use_is_reported_and_others_are_served(tmp_path: Path) -> None:
    async with embedded_server(tmp_path) as server, pod(POD_A) as port:
        ports = [{"name": "taken", "port": 8080}, {"name": "", "port": 8081}]
        body = [{**each, "name": each["name"] or "free"} for each in ports]
        spec = await add(server, "web", body)
        with socket.create_server((spec["clusterIP"], 8080)):
            async with proxy(server) as recorder:
                labels = {"kubernetes.io/service-name": "web"}
                numbers = [
                    {"name": name, "port": port, "protocol": "TCP"} for name in ("taken", "free")
                ]
                slice_ = {
                    "metadata": {"name": "web", "labels": labels},
                    "addressType": "IPv4",
                    "endpoints": [{"addresses": [POD_A]}],
                    "ports": numbers,
                }
                await server.create(ENDPOINTSLICES.path("default"), slice_)
                await wait_greeting((spec["clusterIP"], 8081), POD_A)
                await wait_for(lambda: recorder.events)
                (event,) = recorder.events
                kind, name, level, reason, message = event
                assert (kind, name, level, reason) == (
                    "Service", "web", "Warning", "ProxyCannotListen",
                )  # fmt: skip
                assert f"cannot listen on {spec['clusterIP']}:8080/TCP" in message
                assert "--pod-network=namespaces" in message


async def test_a_privileged_port_is_reported_with_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refused(self: Relay) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Relay, "start", refused)
    async with embedded_server(tmp_path) as server, proxy(server) as recorder:
        await add(server, "web", [{"port": 80}])
        await publish(server, "web", 8080, POD_A)
        await wait_for(lambda: recorder.events)
        assert "net.ipv4.ip_unprivileged_port_start" in recorder.events[0][4]


async def test_an_address_is_tried_again_until_it_is_free(tmp_path: Path) -> None:
    clock = FakeClock()
    async with embedded_server(tmp_path) as server, pod(POD_A) as port:
        spec = await add(server, "web", [{"port": 8080}])
        taken = socket.create_server((spec["clusterIP"], 8080))
        recorder = FakeRecorder()
        async with (
            server.client("proxy") as client,
            running(ServiceProxy(client, recorder=recorder, clock=clock)),
        ):
            await publish(server, "web", port, POD_A)
            await wait_for(lambda: recorder.events)
            taken.close()

            async def served() -> bool:
                await clock.advance(11)
                return await greeting((spec["clusterIP"], 8080)) == POD_A

            await wait_until_true(served)
