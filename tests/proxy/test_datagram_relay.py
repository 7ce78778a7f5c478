"""Relays of UDP: sessions of clients, their ends, and Services that are reached by them."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import uvloop
from support.datagrams import Address, ask, client_of, echo, response_of
from support.embedded_apiserver import embedded_server
from support.polling import wait_for, wait_until_true
from support.running_controller import running

from batholith.local.network.node_namespace import bind_datagrams
from batholith.local.proxy.service_proxy import ServiceProxy
from batholith.machinery.clock import Clock, SystemClock
from batholith.machinery.datagram_relay import (
    ANSWERED_TIMEOUT,
    UNANSWERED_TIMEOUT,
    DatagramRelay,
    Sessions,
)
from batholith.machinery.testing import FakeClock
from batholith.model.names import ENDPOINTSLICES, SERVICES

POD_A, POD_B = "127.64.8.1", "127.64.8.2"
RELAY = "127.128.255.2"


@asynccontextmanager
async def relaying(
    *targets: Address,
    host: str = RELAY,
    affinity: int = 0,
    clock: Clock | None = None,
    limit: int = 10,
) -> AsyncIterator[DatagramRelay]:
    sessions = Sessions(clock or SystemClock(), limit=limit)
    relay = DatagramRelay((host, 0), sessions=sessions, listen=bind_datagrams)
    relay.retarget(targets, affinity_seconds=affinity)
    await relay.start()
    try:
        yield relay
    finally:
        await relay.abort()
        assert not len(sessions)


async def test_the_datagrams_of_a_client_go_to_one_endpoint_and_its_responses_come_back() -> None:
    async with (
        echo(POD_A) as (port, _),
        echo(POD_B, port),
        relaying((POD_A, port), (POD_B, port)) as found,
    ):
        with client_of(found.address) as client:
            responses = [await ask(client, str(number).encode()) for number in range(20)]
        (pod,) = {each.partition(b":")[0] for each in responses}
        assert responses == [pod + f":{number}".encode() for number in range(20)]
        assert len(found.sessions) == 1


def test_datagrams_are_relayed_on_the_loop_that_the_process_uses() -> None:
    async def main() -> bytes:
        async with echo(POD_A) as (port, _), relaying((POD_A, port)) as found:
            with client_of(found.address) as client:
                return await ask(client, b"x" * 9000)

    assert uvloop.run(main()) == f"{POD_A}:".encode() + b"x" * 9000


async def test_clients_are_distributed_unless_there_is_an_affinity() -> None:
    async def pods(found: DatagramRelay) -> set[bytes]:
        seen = set()
        for _ in range(40):
            with client_of(found.address) as client:
                seen.add((await ask(client)).partition(b":")[0])
        return seen

    async with echo(POD_A) as (port, _), echo(POD_B, port):
        targets = (POD_A, port), (POD_B, port)
        async with relaying(*targets) as found:
            assert await pods(found) == {POD_A.encode(), POD_B.encode()}
        async with relaying(*targets, affinity=60) as found:
            assert len(await pods(found)) == 1


async def test_a_response_has_the_address_that_the_client_has_sent_to() -> None:
    async with echo(POD_A) as (port, _), relaying((POD_A, port), host="0.0.0.0") as found:
        for host in ("127.0.0.1", "127.5.6.7"):
            with client_of((host, found.address[1])) as client:  # takes no others
                assert await ask(client) == f"{POD_A}:x".encode()


async def test_a_session_ends_when_it_was_idle() -> None:
    clock = FakeClock()
    async with echo(POD_A) as (port, seen), relaying((POD_A, port), clock=clock) as found:
        with client_of(found.address) as client:
            await ask(client)
            await clock.advance(ANSWERED_TIMEOUT - 1)
            await ask(client)
            await clock.advance(ANSWERED_TIMEOUT - 1)
            assert len(found.sessions) == 1
            await clock.advance(1)
            assert not len(found.sessions)
        with client_of(found.address) as client:
            client.send(b"silent")
            await wait_for(lambda: len(seen) == 3)
            await clock.advance(UNANSWERED_TIMEOUT - 1)
            assert len(found.sessions) == 1
            await clock.advance(1)
            assert not len(found.sessions)


async def test_a_session_ends_with_its_endpoint() -> None:
    async with echo(POD_A) as (port, _), echo(POD_B, port), relaying((POD_A, port)) as found:
        with client_of(found.address) as client:
            assert await ask(client) == f"{POD_A}:x".encode()
            found.retarget([(POD_A, port), (POD_B, port)])
            assert await ask(client) == f"{POD_A}:x".encode()
            found.retarget([(POD_B, port)])
            assert await ask(client) == f"{POD_B}:x".encode()


async def test_a_session_ends_when_the_port_of_its_endpoint_is_closed() -> None:
    async with echo(POD_B) as (port, _), relaying((POD_A, port)) as found:
        with client_of(found.address) as client:
            client.send(b"x")
            await wait_for(lambda: not len(found.sessions))
            found.retarget([(POD_B, port)])
            assert await ask(client) == f"{POD_B}:x".encode()


async def test_a_client_that_uses_ever_new_ports_takes_a_limited_number_of_sockets() -> None:
    async with echo(POD_A) as (port, seen), relaying((POD_A, port), limit=3) as found:
        with client_of(found.address) as kept:
            for _ in range(20):
                await ask(kept)
                with client_of(found.address) as client:
                    await ask(client)
            assert len(found.sessions) == 3
            await ask(kept)
            assert seen[-1] == seen[0], "the session of the client that sends has stayed"


async def test_a_datagram_does_not_circulate_between_relays() -> None:
    """Users may write an endpoint that is a node port of the same Service."""
    async with echo(POD_A) as (port, _), relaying() as found:
        found.retarget([found.address])
        with client_of(found.address) as client:
            client.send(b"x")
            await wait_for(lambda: len(found.sessions) == 1)
            async with relaying((POD_A, port)) as other:
                with client_of(other.address) as further:
                    for _ in range(5):  # before the response the loop has run all callbacks
                        await ask(further)
            assert len(found.sessions) == 1


async def test_only_the_endpoint_responds_to_a_client() -> None:
    async with echo(POD_A) as (port, seen), relaying((POD_A, port)) as found:
        with client_of(found.address) as client:
            await ask(client)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as other:
                other.sendto(b"forged", seen[0])
            assert await ask(client, b"y") == f"{POD_A}:y".encode()


# With an API server.


@pytest.mark.cluster
async def test_a_service_has_one_port_with_two_protocols(tmp_path: Path) -> None:
    """Each of them leads to its own endpoints, by address and node port."""
    async with (
        embedded_server(tmp_path) as server,
        server.client("proxy") as client,
        running(ServiceProxy(client)),
        echo(POD_A) as (port, _),
        echo(POD_B, port),
    ):
        ports = [
            {"name": protocol.lower(), "port": 8053, "protocol": protocol}
            for protocol in ("TCP", "UDP")
        ]
        body = {"metadata": {"name": "names"}, "spec": {"type": "NodePort", "ports": ports}}
        service = (await server.create(SERVICES.path("default"), body))["spec"]
        slice_ = {
            "metadata": {"name": "names", "labels": {"kubernetes.io/service-name": "names"}},
            "addressType": "IPv4",
            "endpoints": [{"addresses": [POD_A]}],
            "ports": [{"name": "udp", "port": port, "protocol": "UDP"}],
        }
        await server.create(ENDPOINTSLICES.path("default"), slice_)
        address = service["clusterIP"], 8053

        async def serves(where: Address, pod: str) -> bool:
            return await response_of(where) == f"{pod}:x".encode()

        await wait_until_true(lambda: serves(address, POD_A))
        await wait_until_true(lambda: serves(("127.0.0.1", service["ports"][1]["nodePort"]), POD_A))
        with pytest.raises(ConnectionRefusedError):  # TCP has no endpoint
            socket.create_connection(address)
        await server.request("DELETE", ENDPOINTSLICES.path("default", "names"))

        async def is_refused() -> bool:
            return not await response_of(address)

        await wait_until_true(is_refused)
