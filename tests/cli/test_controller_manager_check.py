"""Controllers of all Jobs do not start while kube-controller-manager runs."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.embedded_apiserver import embedded_server

from batholith.cli.controller_manager_check import (
    NAME,
    NAMESPACE,
    ControllerManagerRunningError,
    ensure_not_running,
)
from batholith.kube.client.client import Client
from batholith.kube.client.lease import LeaderElectionRecord, LeaseLock


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with embedded_server(tmp_path / "server") as server, server.client() as one:
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


async def test_a_renewed_lease_prevents_the_start(client: Client) -> None:
    lock = await acquire(client, "master-0_1")

    async def renew() -> None:
        while True:
            lease = await lock.get()
            await lock.update(lease, lease.record.renew(duration=1, now=datetime.now(UTC)))
            await asyncio.sleep(0.1)

    renewing = asyncio.create_task(renew())
    try:
        with pytest.raises(
            ControllerManagerRunningError, match=r"held by master-0_1.*--manage-all"
        ):
            await ensure_not_running(client, required_by="--manage-all-jobs")
    finally:
        renewing.cancel()
