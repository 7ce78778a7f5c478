"""The command history is durable."""

import asyncio
import shutil
import stat
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest
import sqlalchemy as sa

from batholith.store.commands import CommandRecord, CommandStore, Outcome, timestamp
from batholith.store.database import Database, StoreError
from batholith.store.migrations import MIGRATIONS
from batholith.wire.commands import CommandState

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def record(id_: str, *, job: str = "train", second: int = 0) -> CommandRecord:
    return CommandRecord(
        id=id_,
        namespace="default",
        job=job,
        job_uid="u",
        action="AbortJob",
        who="ada",
        command=f"{job}-{id_}",
        received_at=timestamp(NOON.replace(second=second)),
    )


def outcome(id_: str, state: CommandState, detail: str) -> Outcome:
    return Outcome(id=id_, state=state, detail=detail, at=NOON)


async def opened(path: Path) -> Database:
    database = Database(f"sqlite:///{path}")
    await database.migrate(MIGRATIONS)
    return database


async def test_commands_survive_reopening_the_database(tmp_path: Path) -> None:
    database = await opened(tmp_path / "api.db")
    await CommandStore(database).add(record("1"))
    await database.close()

    database = await opened(tmp_path / "api.db")
    store = CommandStore(database)
    assert await store.get("1") == record("1")
    assert await store.get("2") is None
    await database.close()


async def test_the_first_outcome_is_kept(tmp_path: Path) -> None:
    database = await opened(tmp_path / "api.db")
    store = CommandStore(database)
    await store.add(record("1"))
    await store.mark_issued("1", command_uid="c")
    await store.finish(outcome("1", CommandState.EXECUTED, "done"))
    await store.finish(outcome("1", CommandState.FAILED, "second"))
    await store.mark_issued("1", command_uid="d")

    found = await store.get("1")
    assert found is not None
    assert (found.state, found.detail, found.command_uid) == ("Executed", "done", "c")
    assert await store.list_open(limit=500) == []
    await database.close()


async def test_history_is_newest_first_and_of_one_job(tmp_path: Path) -> None:
    database = await opened(tmp_path / "api.db")
    store = CommandStore(database)
    for second in range(5):
        await store.add(record(str(second), second=second))
    await store.add(record("x", job="other"))
    history = await store.history("jobs", "default", "train", limit=3)
    assert [row.id for row in history] == ["4", "3", "2"]
    await database.close()


async def test_only_the_owner_can_read_the_file(tmp_path: Path) -> None:
    database = await opened(tmp_path / "api.db")
    assert stat.S_IMODE((tmp_path / "api.db").stat().st_mode) == 0o600
    await database.close()


async def test_ping_fails_for_a_deleted_database(tmp_path: Path) -> None:
    directory = tmp_path / "deleted"
    directory.mkdir()
    database = Database(f"sqlite:///{directory / 'api.db'}")
    store = CommandStore(database)
    shutil.rmtree(directory)
    with pytest.raises(StoreError, match="cannot use the store"):
        await database.migrate(MIGRATIONS)
    assert not await store.ping()
    directory.mkdir()
    await database.migrate(MIGRATIONS)
    assert await store.ping()
    await database.close()


async def test_reads_do_not_wait_for_writes(tmp_path: Path) -> None:
    database = await opened(tmp_path / "api.db")
    store = CommandStore(database)
    await store.add(record("1"))
    written, done = threading.Event(), threading.Event()

    def slow_write(db: sa.Connection) -> None:
        db.execute(sa.text("UPDATE commands SET detail = 'x'"))
        written.set()
        done.wait()

    writing = asyncio.create_task(database.run(slow_write))
    await asyncio.to_thread(written.wait)
    assert await store.get("1") == record("1")
    done.set()
    await writing
    found = await store.get("1")
    assert found is not None and found.detail == "x"
    await database.close()


async def test_writes_that_arrive_together_share_a_commit(tmp_path: Path) -> None:
    database = await opened(tmp_path / "api.db")
    store = CommandStore(database)
    commits = 0

    def count(connection: object) -> None:
        nonlocal commits
        commits += 1

    sa.event.listen(sa.Engine, "commit", count)
    try:
        await asyncio.gather(*(store.add(record(str(n))) for n in range(200)))
    finally:
        sa.event.remove(sa.Engine, "commit", count)
    assert commits <= 2
    assert len(await store.list_open(limit=500)) == 200
    await database.close()


async def test_write_that_fails_does_not_affect_those_of_its_transaction(tmp_path: Path) -> None:
    database = await opened(tmp_path / "api.db")
    store = CommandStore(database)

    def fails(db: sa.Connection) -> None:
        db.execute(sa.text("INSERT INTO commands (id) VALUES ('incomplete')"))

    results = await asyncio.gather(
        store.add(record("1")), database.run(fails), store.add(record("2")), return_exceptions=True
    )
    assert isinstance(results[1], sa.exc.IntegrityError)
    assert {each.id for each in await store.list_open(limit=500)} == {"1", "2"}
    await database.close()


async def test_command_is_looked_up_by_an_index(tmp_path: Path) -> None:
    """Settling a command must not cost more with a long history."""
    database = await opened(tmp_path / "api.db")
    query = (
        "EXPLAIN QUERY PLAN SELECT * FROM commands WHERE namespace = 'n' AND command = 'c' "
        "AND finished_at IS NULL"
    )
    plan = await database.read(lambda db: db.execute(sa.text(query)).all())
    assert "USING INDEX commands_by_command" in str(plan)
    await database.close()
