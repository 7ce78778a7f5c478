"""A task of the REST API that fails is logged, counted and started again."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from support.fake_apiserver import FakeApi
from support.rest import cluster, rest_at, sqlite, starting_api

from batholith.kube.client.client import Client
from batholith.kube.supervision import TASK_RESTARTS
from batholith.model.names import JOBS, Resource
from batholith.store.commands import CommandRecord, CommandStore


class FailingClient(Client):
    """Fails in a way that nothing expects, as often as it is told to."""

    failures_left = 0

    async def get(self, resource: Resource, *given: Any, **more: Any) -> Any:
        if resource == JOBS and self.failures_left:
            self.failures_left -= 1
            raise RuntimeError("unexpected")
        return await super().get(resource, *given, **more)


async def test_a_command_whose_settling_fails_is_settled_by_the_sweep(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        cluster(tmp_path) as (server, _),
        FailingClient(server.credentials_of("api"), user_agent="tests") as client,
        starting_api(client, sqlite(tmp_path)) as (url, ready, serving),
        rest_at(url, server, client) as rest,
    ):
        await ready.wait()
        body = await rest.command("suspend")
        [command] = await rest.commands()
        client.failures_left = 1
        await rest.complete_command(command, phase="Aborting")
        assert (await rest.wait_outcome(body["id"]))["state"] == "Executed"
        assert not serving.done()
    assert "cannot resolve command" in caplog.messages


async def test_a_sweep_that_fails_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was under way before the start is settled all the same."""
    read = CommandStore.list_open
    failed: list[bool] = []

    async def fails_once(self: CommandStore) -> Sequence[CommandRecord]:
        if not failed:
            failed.append(True)
            raise RuntimeError("unexpected")
        return await read(self)

    async with cluster(tmp_path) as (server, client):
        async with (
            starting_api(client, sqlite(tmp_path)) as (url, ready, _),
            rest_at(url, server, client) as rest,
        ):
            await ready.wait()
            body = await rest.command("suspend")
        await client.delete(JOBS, "train", namespace="default")
        before = TASK_RESTARTS["command sweep"]
        monkeypatch.setattr(CommandStore, "on_session_open", fails_once)
        async with (
            starting_api(client, sqlite(tmp_path)) as (url, ready, serving),
            rest_at(url, server, client) as rest,
        ):
            await ready.wait()
            assert (await rest.wait_outcome(body["id"]))["state"] == "Failed"
            assert TASK_RESTARTS["command sweep"] == before + 1
            assert not serving.done()


async def test_an_http_server_that_ends_by_itself_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It could not be reached any more, with everything else at work."""

    async def ends(_: uvicorn.Server, **_more: object) -> None:
        """As uvicorn does when its start fails."""

    monkeypatch.setattr(uvicorn.Server, "run_in_thread", ends)
    async with (
        FakeApi() as api,
        Client(api.credentials, user_agent="tests") as client,
        starting_api(client, sqlite(tmp_path)) as (_, _, serving),
    ):
        await asyncio.wait((serving,))
        failure = serving.exception()
    assert isinstance(failure, ExceptionGroup)
    assert [str(each) for each in failure.exceptions] == ["the HTTP server ended by itself"]
