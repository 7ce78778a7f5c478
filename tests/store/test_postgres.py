"""Command history in PostgreSQL, used by several replicas."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
import psycopg
import pytest
import sqlalchemy as sa
from support.polling import wait_until_true
from support.postgres import Postgres, postgres

from batholith.store.commands import CommandRecord, CommandStore, Outcome, timestamp
from batholith.store.database import Database, StoreUnavailableError
from batholith.store.migrations import MIGRATIONS
from batholith.wire.commands import CommandState

pytestmark = pytest.mark.process

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as started:
        yield started


@pytest.fixture
def url(server: Postgres) -> str:
    return server.url


def record(id_: str) -> CommandRecord:
    return CommandRecord(
        id=id_,
        namespace="default",
        job="train",
        job_uid="u",
        action="AbortJob",
        who="ada",
        command=f"train-{id_}",
        received_at=timestamp(NOON),
    )


async def test_concurrent_replicas_create_one_schema(url: str) -> None:
    replicas = [Database(url, timeout=60) for _ in range(8)]
    await asyncio.gather(*(replica.migrate(MIGRATIONS) for replica in replicas))
    await CommandStore(replicas[0]).add(record("1"))
    for replica in replicas:
        assert await CommandStore(replica).get("1") == record("1")
        await replica.close()


async def test_the_first_outcome_of_any_replica_is_kept(url: str) -> None:
    replicas = [Database(url, timeout=60) for _ in range(4)]
    await asyncio.gather(*(replica.migrate(MIGRATIONS) for replica in replicas))
    stores = [CommandStore(replica) for replica in replicas]
    await stores[0].add(record("2"))
    await asyncio.gather(
        *(
            store.finish(Outcome(id="2", state=CommandState.EXECUTED, detail=str(number), at=NOON))
            for number, store in enumerate(stores)
        )
    )
    outcomes = {str(await store.get("2")) for store in stores}
    assert len(outcomes) == 1
    for replica in replicas:
        await replica.close()


async def test_user_names_of_any_length_are_stored(url: str) -> None:
    database = Database(url)
    await database.migrate(MIGRATIONS)
    long = msgspec.structs.replace(record("long"), who="u" * 1000)
    await CommandStore(database).add(long)
    assert await CommandStore(database).get("long") == long
    await database.close()


async def test_a_commit_with_a_lost_response_writes_one_row(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = Database(url)
    await database.migrate(MIGRATIONS)
    dialect = database._engine.dialect
    commit = dialect.do_commit
    lost: list[bool] = []

    def loses_the_first_response(connection: sa.PoolProxiedConnection) -> None:
        commit(connection)
        if not lost:
            lost.append(True)
            assert isinstance(connection.driver_connection, psycopg.Connection)
            connection.driver_connection.close()
            raise psycopg.OperationalError("the connection is lost")

    monkeypatch.setattr(dialect, "do_commit", loses_the_first_response)
    await CommandStore(database).add(record("lost"))
    assert lost
    assert await CommandStore(database).get("lost") == record("lost")
    await database.close()


async def test_connections_recover_after_a_server_restart(server: Postgres) -> None:
    database = Database(server.url)
    await database.migrate(MIGRATIONS)
    store = CommandStore(database)
    server.stop()
    with pytest.raises(StoreUnavailableError):
        await store.add(record("down"))
    assert not await store.ping()
    server.start()
    await store.add(record("down"))
    assert await store.get("down") == record("down")
    await database.close()


async def test_connections_to_a_demoted_server_are_replaced(server: Postgres) -> None:
    """A pool that kept them would fail to write until the process is restarted."""
    database = Database(server.url)
    await database.migrate(MIGRATIONS)
    store = CommandStore(database)
    read_only = "ALTER DATABASE postgres SET default_transaction_read_only = on"
    with psycopg.connect(server.url.replace("+psycopg", ""), autocommit=True) as admin:
        admin.execute(read_only)
        try:
            await database.close()
            database = Database(server.url)
            store = CommandStore(database)
            database._migrated.set()
            with pytest.raises(StoreUnavailableError, match="read-only"):
                await store.add(record("demoted"))
        finally:
            admin.execute("SET default_transaction_read_only = off")
            admin.execute("ALTER DATABASE postgres RESET default_transaction_read_only")
    await store.add(record("demoted"))
    assert await store.get("demoted") == record("demoted")
    await database.close()


async def test_a_missing_table_is_an_outage_of_the_store(server: Postgres) -> None:
    database = Database(server.url)
    await database.migrate(MIGRATIONS)
    store = CommandStore(database)
    with psycopg.connect(server.url.replace("+psycopg", ""), autocommit=True) as admin:
        admin.execute("ALTER TABLE commands RENAME TO away")
        try:
            with pytest.raises(StoreUnavailableError, match="does not exist"):
                await store.add(record("later"))
            with pytest.raises(StoreUnavailableError, match="does not exist"):
                await store.get("later")
        finally:
            admin.execute("ALTER TABLE away RENAME TO commands")
    await store.add(record("later"))
    await database.close()


async def test_a_hanging_server_times_out(server: Postgres) -> None:
    database = Database(server.url)
    await database.migrate(MIGRATIONS)
    store = CommandStore(database)
    with server.paused():
        found = await asyncio.gather(*(store.ping() for _ in range(20)))
        assert not any(found)
        with pytest.raises(StoreUnavailableError, match="no response"):
            await store.add(record("hangs"))
    await wait_until_true(store.ping)
    await store.add(record("hangs"))
    assert await store.get("hangs") == record("hangs")
    await database.close()
