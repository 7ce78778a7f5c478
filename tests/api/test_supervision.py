"""A failed task of the REST API is logged, counted and restarted."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from support.rest import cluster, rest_at, sqlite, starting_api

from batholith.kube.client.client import Client
from batholith.kube.supervision import TASK_RESTARTS
from batholith.model.names import JOBS, Resource
from batholith.store.commands import CommandRecord, CommandStore


class FailingClient(Client):
    """Raises an unexpected error a given number of times."""

    failures_left = 0

    async def get(self, resource: Resource, *given: Any, **more: Any) -> Any:
        if resource == JOBS and self.failures_left:
            self.failures_left -= 1
            raise RuntimeError("unexpected")
        return await super().get(resource, *given, **more)


async def test_a_command_that_failed_to_resolve_is_resolved_by_the_sweep(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        cluster(tmp_path) as (server, _),
        FailingClient(server.credentials, user_agent="tests") as client,
        starting_api(client, sqlite(tmp_path)) as (url, ready, serving),
        rest_at(url, server, client) as rest,
    ):
        await ready.wait()
        body = await rest.command("resume")
        [command] = await rest.commands()
        client.failures_left = 1
        await rest.drop_command(command)
        assert (await rest.wait_outcome(body["id"]))["state"] == "Ignored"
        assert not serving.done()
    assert "cannot resolve command" in caplog.messages


async def test_a_failed_sweep_is_restarted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands from before the start are still resolved."""
    read = CommandStore.list_open
    failed: list[bool] = []

    async def fails_once(self: CommandStore, **page: Any) -> Sequence[CommandRecord]:
        if not failed:
            failed.append(True)
            raise RuntimeError("unexpected")
        return await read(self, **page)

    async with cluster(tmp_path) as (server, client):
        async with (
            starting_api(client, sqlite(tmp_path)) as (url, ready, _),
            rest_at(url, server, client) as rest,
        ):
            await ready.wait()
            body = await rest.command("suspend")
        await client.delete(JOBS, "train", namespace="default")
        before = TASK_RESTARTS["command sweep"]
        monkeypatch.setattr(CommandStore, "list_open", fails_once)
        async with (
            starting_api(client, sqlite(tmp_path)) as (url, ready, serving),
            rest_at(url, server, client) as rest,
        ):
            await ready.wait()
            assert (await rest.wait_outcome(body["id"]))["state"] == "Unknown"
            assert TASK_RESTARTS["command sweep"] == before + 1
            assert not serving.done()
