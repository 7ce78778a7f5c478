"""An unavailable database causes 503 responses and no other failures."""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.embedded_apiserver import EmbeddedServer
from support.polling import wait_until_true
from support.postgres import Postgres, postgres
from support.recorded_jobs import create
from support.rest import PATH, RestClient, cluster, rest_at, sqlite, starting_api

from batholith.api.history.tasks import HistorySettings
from batholith.kube.client.client import Client
from batholith.model.names import COMMANDS, JOBS, Resource
from batholith.store.database import TRANSACTION_TIMEOUT

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def database() -> Iterator[Postgres]:
    with postgres() as started:
        yield started


@dataclass(slots=True)
class RestWithDatabase:
    """A REST API whose database the test stops."""

    rest: RestClient
    ready: asyncio.Event
    serving: asyncio.Task[None]

    async def get(self, path: str) -> tuple[int, str]:
        async with self.rest.session.get(self.rest.url + path) as response:
            return response.status, await response.text()

    async def assert_unavailable(self, method: str, path: str, **body: Any) -> None:
        """Assert that a request gets a 503 with ``Retry-After``."""
        headers = {"Authorization": f"Bearer {self.rest.token}"}
        session, url = self.rest.session, self.rest.url + path
        async with session.request(method, url, headers=headers, **body) as response:
            problem = await response.json(content_type="application/problem+json")
            assert (response.status, problem["status"], problem["title"]) == (
                503, 503, "Service Unavailable",
            )  # fmt: skip
            assert int(response.headers["Retry-After"]) > 0
            assert "database" in problem["detail"]

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
        starting_api(client, store_url, store_timeout=TRANSACTION_TIMEOUT) as (url, ready, serving),
        rest_at(url, server, client) as rest,
    ):
        yield RestWithDatabase(rest, ready, serving)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a write lock as another process."""
    other = sqlite3.connect(path, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")
    finally:
        other.close()


async def test_commands_are_resolved_after_postgres_was_stopped(
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
            assert (await there.get("/readyz")) == (503, "[-]store: not reachable\n")
            await there.rest.complete_command(command, phase="Aborting")
            await there.assert_degraded()
        finally:
            database.start()
        outcome = await there.rest.wait_outcome(body["id"])
        assert (outcome["state"], outcome["detail"]) == ("Executed", "the job entered Aborting")
        assert (await there.rest.command("resume"))["state"] == "Issued"
        assert await there.get("/readyz") == (200, "ok")


async def test_a_postgres_that_accepts_connections_and_hangs_times_out(
    database: Postgres, tmp_path: Path
) -> None:
    async with (
        cluster(tmp_path) as (server, client),
        api(server, client, database.url) as there,
    ):
        await there.ready.wait()
        with database.paused():
            await there.assert_degraded(times=1)

        async def responds() -> bool:
            return (await there.rest.call("GET", f"{PATH}/commands"))[0] == 200

        await wait_until_true(responds)


async def test_the_history_has_what_happened_while_a_table_was_missing(
    database: Postgres, tmp_path: Path
) -> None:
    """A right that was revoked, or a backup that is being restored: nothing is skipped."""
    history = HistorySettings(record=True)
    async with (
        cluster(tmp_path) as (server, client),
        starting_api(client, database.url, history=history, store_timeout=TRANSACTION_TIMEOUT) as (
            url,
            ready,
            _,
        ),
        rest_at(url, server, client) as rest,
    ):
        await ready.wait()
        known = await client.get(JOBS, "train", namespace="default", view=dict)

        async def is_recorded(uid: str) -> bool:
            return (await rest.call("GET", f"/v1/history/jobs/{uid}"))[0] == 200

        await wait_until_true(lambda: is_recorded(known["metadata"]["uid"]))
        with psycopg.connect(database.url.replace("+psycopg", ""), autocommit=True) as admin:
            admin.execute("ALTER TABLE history_jobs RENAME TO away")
            try:
                created = await create(rest, "later")
                await client.delete(JOBS, "later", namespace="default")
                uid = created["metadata"]["uid"]
                for _ in range(20):  # the recorder tries, too, and has to wait
                    status, problem = await rest.call("GET", f"/v1/history/jobs/{uid}")
                    assert (status, problem["title"]) == (503, "Service Unavailable")
                    await asyncio.sleep(0.05)
            finally:
                admin.execute("ALTER TABLE away RENAME TO history_jobs")
        await wait_until_true(lambda: is_recorded(uid))


async def test_start_up_waits_for_an_unavailable_database(
    database: Postgres, tmp_path: Path
) -> None:
    database.stop()
    try:
        async with (
            cluster(tmp_path) as (server, client),
            api(server, client, database.url) as there,
        ):

            async def follows() -> bool:
                return (await there.get("/readyz"))[1] == "[-]store: not reachable\n"

            await wait_until_true(follows)
            await there.assert_degraded()
            assert not there.ready.is_set()
            database.start()
            await there.ready.wait()
            assert (await there.rest.command("suspend"))["state"] == "Issued"
    finally:
        database.stop()
        database.start()


async def test_commands_are_resolved_after_sqlite_was_locked(tmp_path: Path) -> None:
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


async def test_start_up_waits_for_a_locked_sqlite(tmp_path: Path) -> None:
    sqlite3.connect(tmp_path / "api.db").close()
    async with cluster(tmp_path) as (server, client):
        with locked(tmp_path / "api.db"):
            async with api(server, client, sqlite(tmp_path)) as there:

                async def follows() -> bool:
                    return (await there.get("/readyz"))[1] == "[-]store: not reachable\n"

                await wait_until_true(follows)
                assert not there.serving.done()
        async with api(server, client, sqlite(tmp_path)) as there:
            await there.ready.wait()


class LockDatabaseOnCreate(Client):
    """Stops the database once a Command has been created."""

    path: Path
    database_lock: contextlib.ExitStack

    async def create(self, resource: Resource, *given: Any, **more: Any) -> Any:
        created = await super().create(resource, *given, **more)
        if resource == COMMANDS:
            self.database_lock.enter_context(locked(self.path))
        return created


async def test_a_created_command_that_cannot_be_marked_is_not_a_failure(
    tmp_path: Path,
) -> None:
    """On an error the caller would restart the job again."""
    async with cluster(tmp_path) as (server, _):
        credentials = server.credentials
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
    """A cluster that rejects Commands, and a database that is unavailable at that time."""

    path: Path
    database_lock: contextlib.ExitStack

    async def create(self, resource: Resource, *given: Any, **more: Any) -> Any:
        if resource == COMMANDS:
            self.database_lock.enter_context(locked(self.path))
            body = given[0] | {"action": 7}
            return await super().create(resource, body, *given[1:], **more)
        return await super().create(resource, *given, **more)


async def test_a_rejection_is_returned_immediately_and_recorded_later(tmp_path: Path) -> None:
    async with cluster(tmp_path) as (server, _):
        credentials = server.credentials
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
