"""Replicas of a component as processes: one leads, and another one acquires the Lease."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.api_servers import ServerFactory, merge_patch
from support.components import ComponentProcess, component
from support.embedded_apiserver import Server
from support.polling import wait_until_true

from batholith.model import crds
from batholith.model.names import EVENTS, LEASES, NAMESPACES, QUEUES

pytestmark = [pytest.mark.process, pytest.mark.combinations(1)]

Json = dict[str, Any]
NAMESPACE = "volcano-system"
SLOW_ELECTION = (
    *("--leader-elect-lease-duration", "10m"),
    *("--leader-elect-renew-deadline", "5m"),
    *("--leader-elect-retry-period", "3m"),
)
"""Waiting for the Lease to expire, or for the next retry, would exceed the test's timeout."""
FAST_ELECTION = (
    "--leader-elect-lease-duration=6s",
    "--leader-elect-renew-deadline=5s",
    "--leader-elect-retry-period=500ms",
)
"""The Lease runs out soon enough, and not because the machine is busy."""
NAMES = {"controllers": "vc-controller-manager", "scheduler": "volcano"}


@pytest.fixture
async def server(servers: ServerFactory, tmp_path: Path) -> AsyncIterator[Server]:
    async with servers.start(tmp_path, crds=crds.load()) as started:
        yield started


@contextlib.asynccontextmanager
async def replica(server: Server, name: str, *flags: str) -> AsyncIterator[ComponentProcess]:
    """Start another process of the component *name*."""
    common = ("--force-beside-volcano", "--healthz-address", "127.0.0.1:0")
    async with component(name, "--kubeconfig", str(server.kubeconfig), *common, *flags) as process:
        yield process


async def spec_of_lease(server: Server, name: str, *, namespace: str = NAMESPACE) -> Json:
    response = await server.request("GET", LEASES.path(namespace, name))
    spec: Json = response.body["spec"] if response.status == 200 else {}
    return spec


async def identity(process: ComponentProcess) -> str:
    await process.wait_line('"message": "attempting to acquire lease"')
    result = next(line for line in process.log if line["message"] == "attempting to acquire lease")
    return str(result["identity"])


async def leads(process: ComponentProcess) -> None:
    await process.wait_line('"message": "acquired lease"')


async def wait_reconciled(server: Server, queue: str) -> None:
    """The leader reconciles a queue."""
    body = {"apiVersion": QUEUES.api_version, "kind": "Queue", "metadata": {"name": queue}}
    await server.create(QUEUES.path(), body | {"spec": {"weight": 1}})

    async def open_() -> bool:
        found = await server.get(QUEUES.path("", queue))
        return bool(found.get("status", {}).get("state") == "Open")

    await wait_until_true(open_)


@contextlib.asynccontextmanager
async def leader_and_standby(
    server: Server, name: str, *flags: str
) -> AsyncIterator[tuple[ComponentProcess, ComponentProcess]]:
    async with replica(server, name, *flags) as leader:
        await leads(leader)
        async with replica(server, name, *flags) as standby:
            await standby.wait_ready()
            await standby.wait_line('"message": "new leader observed"')
            yield leader, standby


@pytest.mark.parametrize("name", ["controllers", "scheduler"])
async def test_a_leader_that_ends_in_order_hands_over_at_once(server: Server, name: str) -> None:
    async with leader_and_standby(server, name, *SLOW_ELECTION) as (leader, standby):
        first, second = await identity(leader), await identity(standby)
        assert (await spec_of_lease(server, NAMES[name]))["holderIdentity"] == first
        assert (await standby.get("health", "/readyz"))[0] == 200
        assert await leader.stop() == 0
        await leads(standby)
        spec = await spec_of_lease(server, NAMES[name])
        assert (spec["holderIdentity"], spec["leaseTransitions"]) == (second, 1)
        if name == "controllers":
            await wait_reconciled(server, "after")
        assert await standby.stop() == 0
    assert (await spec_of_lease(server, NAMES[name]))["holderIdentity"] == ""
    events = (await server.get(EVENTS.path(NAMESPACE)))["items"]
    about = [each for each in events if each["reason"] == "LeaderElection"]
    assert {each["involvedObject"]["kind"] for each in about} == {"Lease"}
    reported = {each["message"] for each in about}
    assert reported >= {f"{one} became leader" for one in (first, second)}
    # A stopping process waits only a second for its last events to be written.
    assert reported <= {
        f"{one} {what}" for one in (first, second) for what in ("became leader", "stopped leading")
    }


async def test_a_killed_leader_is_followed(server: Server) -> None:
    async with leader_and_standby(server, "controllers", *FAST_ELECTION) as (leader, standby):
        await wait_reconciled(server, "before")
        leader.process.kill()
        await leads(standby)
        await wait_reconciled(server, "after")


async def test_a_leader_that_was_stopped_for_too_long_ends_when_it_wakes(server: Server) -> None:
    """SIGSTOP and SIGCONT."""
    async with leader_and_standby(server, "controllers", *FAST_ELECTION) as (leader, standby):
        leader.process.send_signal(signal.SIGSTOP)
        await leads(standby)
        leader.process.send_signal(signal.SIGCONT)
        assert await leader.wait_exit() == 1
        assert "lost lease volcano-system/vc-controller-manager" in leader.text
        spec = await spec_of_lease(server, "vc-controller-manager")
        assert spec["holderIdentity"] == await identity(standby)
        await wait_reconciled(server, "after")


async def test_a_leader_whose_lease_somebody_takes_ends_at_once(server: Server) -> None:
    path = LEASES.path(NAMESPACE, "vc-controller-manager")
    async with replica(server, "controllers") as leader:
        await leads(leader)
        await merge_patch(server, path, {"spec": {"holderIdentity": "another"}})
        assert await leader.wait_exit() == 1
        assert "it is held by another" in leader.text
    assert (await server.get(path))["spec"]["holderIdentity"] == "another"


async def test_a_standby_writes_nothing_and_ends_in_order(server: Server) -> None:
    async with leader_and_standby(server, "controllers", *SLOW_ELECTION) as (leader, standby):
        before = await server.get(LEASES.path(NAMESPACE, "vc-controller-manager"))
        assert await standby.stop() == 0
        after = await server.get(LEASES.path(NAMESPACE, "vc-controller-manager"))
        assert after == before
        assert leader.process.returncode is None


async def test_a_namespace_that_is_not_there_is_waited_for(server: Server) -> None:
    elsewhere = ("--lock-object-namespace", "elsewhere", "--leader-elect-retry-period=500ms")
    async with replica(server, "controllers", *elsewhere) as only:
        await only.wait_line("namespace elsewhere not found: create it, or set")
        await only.wait_line(
            "--lock-object-namespace: use --leader-elect-resource-namespace instead"
        )
        body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "elsewhere"}}
        await server.create(NAMESPACES.path(), body)
        await leads(only)
    spec = await spec_of_lease(server, "vc-controller-manager", namespace="elsewhere")
    assert spec["holderIdentity"] == await identity(only)


@pytest.mark.parametrize("off", ["--leader-elect=false", "--no-leader-elect"])
async def test_without_election_nobody_is_asked(server: Server, off: str) -> None:
    async with replica(server, "controllers", off) as only:
        await only.wait_ready()
        await wait_reconciled(server, "alone")
        assert await only.stop() == 0
    assert await spec_of_lease(server, "vc-controller-manager") == {}


async def test_both_ends_at_once_leave_a_free_lease(server: Server) -> None:
    async with leader_and_standby(server, "controllers", *SLOW_ELECTION) as (leader, standby):
        codes = await asyncio.gather(leader.stop(), standby.stop())
        assert tuple(codes) == (0, 0)
    assert (await spec_of_lease(server, "vc-controller-manager"))["holderIdentity"] == ""
