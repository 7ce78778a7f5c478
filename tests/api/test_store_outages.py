"""A database that is out of reach costs callers a 503 and nobody else anything."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.embedded_apiserver import EmbeddedServer
from support.polling import wait_until_true
from support.postgres import Postgres, postgres
from support.rest import PATH, RestClient, cluster, rest_at, sqlite, starting_api

from batholith.kube.client.client import Client
from batholith.model.names import COMMANDS, Resource


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    with postgres() as started:
        yield started


@dataclass(slots=True)
class RestWithDatabase:
    """A REST API whose database the test takes away."""

    rest: RestClient
    ready: asyncio.Event
    serving: asyncio.Task[None]

    async def get(self, path: str) -> tuple[int, str]:
        async with self.rest.session.get(self.rest.url + path) as answer:
            return answer.status, await answer.text()

    async def assert_unavailable(self, method: str, path: str, **body: Any) -> None:
        """Assert that a request is answered with a 503 that says when to come again."""
        headers = {"Authorization": f"Bearer {self.rest.token}"}
        session, url = self.rest.session, self.rest.url + path
        async with session.request(method, url, headers=headers, **body) as answer:
            told = await answer.json(content_type="application/problem+json")
            assert (answer.status, told["status"], told["title"]) == (
                503, 503, "Service Unavailable",
            )  # fmt: skip
            assert int(answer.headers["Retry-After"]) > 0
            assert "database" in told["detail"]

    async def assert_degraded(self, *, times: int = 2) -> None:
        """Assert what holds while the database is away: requests fail, the process does not."""
        order = {"action": "restart"}
        before = len(await self.rest.commands())
        for _ in range(times):
            await self.assert_unavailable("GET", f"{PATH}/commands")
            await self.assert_unavailable("POST", f"{PATH}/commands", json=order)
        assert len(await self.rest.commands()) == before, "no Command without its row"
        assert (await self.get("/livez"))[0] == 200
        assert not self.serving.done()


@contextlib.asynccontextmanager
async def api(
    server: EmbeddedServer, client: Client, store_url: str
) -> AsyncIterator[RestWithDatabase]:
    async with (
        starting_api(client, store_url) as (url, ready, serving),
        rest_at(url, server, client) as rest,
    ):
        yield RestWithDatabase(rest, ready, serving)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Another process writes all the while."""
    other = sqlite3.connect(path, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")
    finally:
        other.close()


async def test_commands_are_settled_after_postgres_was_stopped(
    database: Postgres, tmp_path: Path
) -> None:
    async with (
        cluster(tmp_path) as (server, client),
        api(server, client, database.url) as there,
    ):
        await there.ready.wait()
        body = await there.rest.command("suspend")
        [command] = await there.rest.commands()
        database.stop()
        try:
            await there.assert_degraded()
            assert (await there.get("/readyz")) == (503, "[-]store: does not answer\n")
            await there.rest.complete_command(command, phase="Aborting")
            await there.assert_degraded()
        finally:
            database.start()
        outcome = await there.rest.wait_outcome(body["id"])
        assert (outcome["state"], outcome["detail"]) == ("Executed", "the job entered Aborting")
        assert (await there.rest.command("resume"))["state"] == "Issued"
        assert await there.get("/readyz") == (200, "ok")


async def test_postgres_that_takes_connections_and_says_nothing_is_not_waited_for(
    database: Postgres, tmp_path: Path
) -> None:
    async with (
        cluster(tmp_path) as (server, client),
        api(server, client, database.url) as there,
    ):
        await there.ready.wait()
        with database.paused():
            await there.assert_degraded(times=1)

        async def answers() -> bool:
            return (await there.rest.call("GET", f"{PATH}/commands"))[0] == 200

        await wait_until_true(answers)


async def test_a_start_without_the_database_waits_for_it(
    database: Postgres, tmp_path: Path
) -> None:
    database.stop()
    try:
        async with (
            cluster(tmp_path) as (server, client),
            api(server, client, database.url) as there,
        ):

            async def follows() -> bool:
                return (await there.get("/readyz"))[1] == "[-]store: does not answer\n"

            await wait_until_true(follows)
            await there.assert_degraded()
            assert not there.ready.is_set()
            database.start()
            await there.ready.wait()
            assert (await there.rest.command("suspend"))["state"] == "Issued"
    finally:
        database.stop()
        database.start()


async def test_commands_are_settled_after_sqlite_was_locked(tmp_path: Path) -> None:
    async with (
        cluster(tmp_path) as (server, client),
        api(server, client, sqlite(tmp_path)) as there,
    ):
        await there.ready.wait()
        body = await there.rest.command("suspend")
        [command] = await there.rest.commands()
        with locked(tmp_path / "api.db"):
            order = {"action": "restart"}
            await there.assert_unavailable("POST", f"{PATH}/commands", json=order)
            assert [each.metadata.name for each in await there.rest.commands()] == [
                command.metadata.name
            ]
            await there.rest.complete_command(command, phase="Aborting")
            assert (await there.get("/livez"))[0] == 200
        assert (await there.rest.wait_outcome(body["id"]))["state"] == "Executed"


async def test_a_start_with_a_locked_sqlite_waits_for_it(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "api.db").close()
    async with cluster(tmp_path) as (server, client):
        with locked(tmp_path / "api.db"):
            async with api(server, client, sqlite(tmp_path)) as there:

                async def follows() -> bool:
                    return (await there.get("/readyz"))[1] == "[-]store: does not answer\n"

                await wait_until_true(follows)
                assert not there.serving.done()
        async with api(server, client, sqlite(tmp_path)) as there:
            await there.ready.wait()


class LockDatabaseOnCreate(Client):
    """Takes the database away in the moment in which a Command is made."""

    path: Path
    database_lock: contextlib.ExitStack

    async def create(self, resource: Resource, *given: Any, **more: Any) -> Any:
        made = await super().create(resource, *given, **more)
        if resource == COMMANDS:
            self.database_lock.enter_context(locked(self.path))
        return made


async def test_a_command_that_is_made_is_not_called_failed_for_want_of_its_mark(
    tmp_path: Path,
) -> None:
    """An error would have the caller restart the job twice."""
    async with cluster(tmp_path) as (server, _):
        credentials = server.credentials_of("api")
        async with LockDatabaseOnCreate(credentials, user_agent="tests") as client:
            client.path, client.database_lock = tmp_path / "api.db", contextlib.ExitStack()
            async with api(server, client, sqlite(tmp_path)) as there:
                await there.ready.wait()
                with client.database_lock:
                    body = await there.rest.command("restart")
                    assert body["state"] == "Issued"
                    [command] = await there.rest.commands()
                    await there.rest.complete_command(command, phase="Restarting")
                outcome = await there.rest.wait_outcome(body["id"])
                assert outcome["state"] == "Executed"


class RejectCommandsClient(Client):
    """A cluster that takes no Commands, and a database that is away when it says so."""

    path: Path
    database_lock: contextlib.ExitStack

    async def create(self, resource: Resource, *given: Any, **more: Any) -> Any:
        if resource == COMMANDS:
            self.database_lock.enter_context(locked(self.path))
            body = given[0] | {"action": 7}
            return await super().create(resource, body, *given[1:], **more)
        return await super().create(resource, *given, **more)


async def test_a_refusal_is_told_at_once_and_written_down_later(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (server, _):
        credentials = server.credentials_of("api")
        async with RejectCommandsClient(credentials, user_agent="tests") as client:
            client.path, client.database_lock = tmp_path / "api.db", contextlib.ExitStack()
            async with api(server, client, sqlite(tmp_path)) as there:
                await there.ready.wait()
                with client.database_lock:
                    order = {"action": "restart"}
                    status, _ = await there.rest.call("POST", f"{PATH}/commands", json=order)
                    assert status == 422
                _, listed = await there.rest.call("GET", f"{PATH}/commands")
                [item] = listed["items"]
                outcome = await there.rest.wait_outcome(item["id"])
                assert outcome["state"] == "Failed"
                assert outcome["detail"].startswith("not issued: ")
