"""Controllers of all Jobs do not start while kube-controller-manager runs."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.components import component
from support.embedded_apiserver import EmbeddedServer, embedded_server

from batholith.cli.controller_manager_check import (
    NAME,
    NAMESPACE,
    ControllerManagerRunningError,
    ensure_not_running,
)
from batholith.kube.client.client import Client
from batholith.kube.client.lease import LeaderElectionRecord, LeaseLock


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    async with embedded_server(tmp_path / "server") as running:
        yield running


@pytest.fixture
async def client(server: EmbeddedServer) -> AsyncIterator[Client]:
    async with server.client() as one:
        yield one


async def acquire(client: Client, holder: str) -> LeaseLock:
    lock = LeaseLock(client, namespace=NAMESPACE, name=NAME)
    record = LeaderElectionRecord(
        holder_identity=holder, lease_duration=1, acquire_time="", renew_time="", transitions=0
    )
    await lock.create(record.renew(duration=1, now=datetime.now(UTC)))
    return lock


async def test_without_its_lease_the_controllers_start(client: Client) -> None:
    await ensure_not_running(client, required_by="--manage-all-jobs")


@pytest.mark.parametrize("holder", ["", "master-0_1"])
async def test_a_released_or_expired_lease_does_not_prevent_the_start(
    client: Client, holder: str
) -> None:
    await acquire(client, holder)
    await ensure_not_running(client, required_by="--manage-all-jobs")


@asynccontextmanager
async def renewed(client: Client) -> AsyncIterator[None]:
    """kube-controller-manager runs."""
    lock = await acquire(client, "master-0_1")

    async def renew() -> None:
        while True:
            lease = await lock.get()
            await lock.update(lease, lease.record.renew(duration=1, now=datetime.now(UTC)))
            await asyncio.sleep(0.1)

    renewing = asyncio.create_task(renew())
    try:
        yield
    finally:
        renewing.cancel()
        await asyncio.wait([renewing])


async def test_a_renewed_lease_prevents_the_start(client: Client) -> None:
    async with renewed(client):
        with pytest.raises(
            ControllerManagerRunningError, match=r"held by master-0_1.*--manage-all"
        ):
            await ensure_not_running(client, required_by="--manage-all-jobs")


@pytest.mark.process
async def test_flags_for_all_jobs_and_cronjobs_are_refused_in_one_line(
    server: EmbeddedServer, client: Client
) -> None:
    flags = ("--manage-all-jobs", "--controllers=*,batch-job-controller,batch-cronjob-controller")
    async with (
        renewed(client),
        component("controllers", "--kubeconfig", str(server.kubeconfig), *flags) as one,
    ):
        assert await one.wait_exit() == 1
        *_, line = one.text.splitlines()
    assert "kube-controller-manager is running in this cluster" in line
    assert "start without --manage-all-jobs and --controllers=batch-cronjob-controller" in line
    assert "Traceback" not in one.text
