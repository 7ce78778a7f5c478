"""A disk that is full or broken: what was acknowledged is there, all else never happened."""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from support.polling import wait_until_true

from batholith.apiserver.builtin.kinds import BUILT_IN
from batholith.apiserver.errors.status import StatusError
from batholith.apiserver.storage import disk_reserve, object_store
from batholith.apiserver.storage.disk_reserve import DiskReserve
from batholith.apiserver.storage.object_store import ObjectStore
from batholith.apiserver.storage.resource_store import ResourceStore
from batholith.apiserver.storage.sqlite import SqliteStore
from batholith.apiserver.storage.stored_objects import new_uid
from batholith.apiserver.storage.watch import SelectionPredicate, Watcher
from batholith.model.names import CONFIGMAPS

KIND = next(kind for kind in BUILT_IN if kind.resource == CONFIGMAPS)
LARGE = "x" * 200_000


class _Free(NamedTuple):
    f_bavail: int
    f_frsize: int


class FailingConnection:
    """Lets the store's connection fail, after or before it does what it is told."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.fails_at = ""
        self.fails_after = False

    def execute(self, text: str, *rest: Any) -> Any:
        if self.fails_at and text.startswith(self.fails_at):
            self.fails_at = ""
            if self.fails_after:
                self._connection.execute(text, *rest)
            error = sqlite3.OperationalError("disk I/O error")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error
        return self._connection.execute(text, *rest)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


@asynccontextmanager
async def opened(folder: Path) -> AsyncIterator[tuple[ObjectStore, SqliteStore, ResourceStore]]:
    store = SqliteStore(folder / "cluster.db")
    registry = ObjectStore(store)
    shelf = registry.resource_store(KIND)
    registry.replay()
    running = asyncio.create_task(registry.run())
    try:
        yield registry, store, shelf
    finally:
        registry.stop()
        await running
        await registry.close()


def put(
    store: ObjectStore, resources: ResourceStore, name: str, text: str = ""
) -> "asyncio.Future[None]":
    metadata = {"name": name, "namespace": "default", "uid": new_uid()}
    obj = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"k": text}}
    return store.put(resources, obj, resources.latest("default", name)).done


def remove(store: ObjectStore, resources: ResourceStore, name: str) -> "asyncio.Future[None]":
    old = resources.latest("default", name)
    assert old is not None
    return store.remove(resources, old.parse(), old).done


def stored_in_file(folder: Path) -> dict[str, int]:
    """Names and versions, as somebody else reads them."""
    with sqlite3.connect(folder / "cluster.db") as other:
        rows = other.execute("SELECT name, rv FROM objects").fetchall()
    other.close()
    return dict(rows)


def stored_in_memory(resources: ResourceStore) -> dict[str, int]:
    return {entry.name: entry.rv for entry in resources.latest_entries()}


async def fill(store: ObjectStore, resources: ResourceStore) -> int:
    """Write until the store refuses; how many writes it took."""
    for number in range(1000):  # more than there is space for
        try:
            await put(store, resources, f"f{number}", LARGE)
        except StatusError as error:
            assert (error.code, error.message) == (507, "cannot store: disk full")
            return number
    raise AssertionError("there is no end")


class LimitedDatabase:
    """A limit to the pages of a database; what is kept back are further pages."""

    LIMIT = 1000

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.extra_pages = False

    def begin(self, store: SqliteStore) -> None:
        kept = disk_reserve.RESERVE_SIZE // 8192

        def set_limit(pages: int) -> None:
            store._connection.execute(f"PRAGMA max_page_count={pages}").close()

        self._patch.setattr(DiskReserve, "ensure", lambda _: self.extra_pages)
        self._patch.setattr(DiskReserve, "release", lambda _: set_limit(self.LIMIT + kept))
        set_limit(self.LIMIT)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> LimitedDatabase:
    return LimitedDatabase(monkeypatch)


async def test_a_full_disk_takes_deletions_alone_until_there_is_space(
    tmp_path: Path, small: LimitedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "DISK_SPACE_CHECK_INTERVAL", 0.01)
    monkeypatch.setattr(SqliteStore, "_has_free_pages", lambda self: False)
    async with opened(tmp_path) as (registry, store, shelf):
        small.begin(store)
        watcher = Watcher(SelectionPredicate())
        shelf.broadcaster.add(watcher)
        before = await fill(registry, shelf)
        assert before > 5
        assert not registry.writable
        assert stored_in_memory(shelf) == stored_in_file(tmp_path)
        assert [event.entry.name for _, event in watcher.drain()] == [
            f"f{number}" for number in range(before)
        ]
        with pytest.raises(StatusError, match="disk full"):
            put(registry, shelf, "small")
        for number in range(before):
            await remove(registry, shelf, f"f{number}")
        assert stored_in_memory(shelf) == stored_in_file(tmp_path) == {}
        small.extra_pages = True
        await wait_until_true(wait_writable(registry))
        await put(registry, shelf, "g", LARGE)
        assert stored_in_memory(shelf) == stored_in_file(tmp_path)


async def test_the_log_goes_first_when_the_disk_is_full(
    tmp_path: Path, small: LimitedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "DISK_SPACE_CHECK_INTERVAL", 0.01)
    monkeypatch.setattr(disk_reserve, "RESERVE_SIZE", 2_000_000)
    async with opened(tmp_path) as (registry, store, shelf):
        small.begin(store)
        await fill(registry, shelf)
        # Half of the space holds what the log remembers; nobody had to delete anything.
        await wait_until_true(wait_writable(registry))
        await put(registry, shelf, "g", LARGE)
        assert stored_in_memory(shelf) == stored_in_file(tmp_path)


def wait_writable(store: ObjectStore) -> Callable[[], Awaitable[bool]]:
    async def on_change() -> bool:
        return store.writable

    return on_change


async def test_an_object_that_is_being_deleted_may_change_on_a_full_disk(tmp_path: Path) -> None:
    async with opened(tmp_path) as (registry, store, shelf):
        await put(registry, shelf, "a")
        store.full = True
        old = shelf.latest("default", "a")
        assert old is not None
        obj = old.parse()
        with pytest.raises(StatusError, match="disk full"):
            registry.put(shelf, obj, old)
        obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        await registry.put(shelf, obj, old).done


def test_the_reserve_is_space_on_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    held = DiskReserve(tmp_path / "r")
    assert held.ensure() and held.ensure()
    assert (tmp_path / "r").stat().st_blocks * 512 >= disk_reserve.RESERVE_SIZE
    held.release()
    free = os.statvfs(tmp_path)
    pages = disk_reserve.RESERVE_SIZE // free.f_frsize
    # What was just given up is not enough to go on as before.
    monkeypatch.setattr(os, "statvfs", lambda _: _Free(pages, free.f_frsize))
    assert not held.ensure()
    monkeypatch.setattr(os, "statvfs", lambda _: _Free(2 * pages, free.f_frsize))
    assert held.ensure()
    held.release()
    assert list(tmp_path.iterdir()) == []
    assert not DiskReserve(tmp_path / "none" / "r").ensure()


async def test_a_failed_compaction_takes_no_write_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batholith.apiserver.storage.sqlite.MAX_LOG_ENTRIES", 1)
    monkeypatch.setattr(object_store, "COMPACT_EVERY", 1)
    async with opened(tmp_path) as (registry, store, shelf):
        disk = FailingConnection(store._connection)
        store._connection = disk  # type: ignore[assignment]
        for name in "abcd":
            disk.fails_at = "DELETE FROM log"
            await put(registry, shelf, name)
        await remove(registry, shelf, "a")

        async def cut() -> bool:
            return registry.failures["compaction"] > 0 and not disk.fails_at

        await wait_until_true(cut)
        await put(registry, shelf, "e")
        assert stored_in_memory(shelf) == stored_in_file(tmp_path)
        assert stored_in_memory(shelf).keys() == set("bcde")


async def test_the_log_is_cut_in_slices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batholith.apiserver.storage.sqlite.MAX_LOG_ENTRIES", 2)
    monkeypatch.setattr("batholith.apiserver.storage.sqlite.COMPACTION_BATCH_SIZE", 3)
    async with opened(tmp_path) as (registry, store, shelf):
        for number in range(12):
            await put(registry, shelf, f"n{number}")
        more: list[bool] = []
        while not more or more[-1]:
            more.append(store.compact())
        assert more == [True, True, False]
        assert len(list(store.log_entries())) == 2


@pytest.mark.parametrize("stored", [True, False])
async def test_a_commit_of_unknown_outcome_is_answered_when_it_is_known(
    tmp_path: Path, stored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []
    true_holds = SqliteStore.contains_version

    def holds(self: SqliteStore, rv: int) -> bool:
        tries.append(rv)
        if len(tries) < 3:
            raise sqlite3.OperationalError("unable to open database file")
        return true_holds(self, rv)

    monkeypatch.setattr(SqliteStore, "contains_version", holds)
    async with opened(tmp_path) as (registry, store, shelf):
        await put(registry, shelf, "a")
        watcher = Watcher(SelectionPredicate())
        shelf.broadcaster.add(watcher)
        disk = FailingConnection(store._connection)
        store._connection = disk  # type: ignore[assignment]
        disk.fails_at, disk.fails_after = "COMMIT", stored
        written = put(registry, shelf, "b")

        async def tried() -> bool:
            return bool(tries)

        await wait_until_true(tried)
        assert not written.done()
        assert not registry.writable
        if stored:
            await written
        else:
            with pytest.raises(StatusError, match="cannot store: disk I/O error"):
                await written
        assert registry.writable
        assert ("b" in stored_in_memory(shelf)) is stored
        assert [event.entry.name for _, event in watcher.drain()] == ["b"] * stored
        assert stored_in_memory(shelf) == stored_in_file(tmp_path)
        await put(registry, shelf, "c")
        assert stored_in_memory(shelf) == stored_in_file(tmp_path)


async def test_a_stop_answers_what_is_still_unknown_as_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def holds(self: SqliteStore, rv: int) -> bool:
        raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr(SqliteStore, "contains_version", holds)
    async with opened(tmp_path) as (registry, store, shelf):
        await put(registry, shelf, "a")
        disk = FailingConnection(store._connection)
        store._connection = disk  # type: ignore[assignment]
        disk.fails_at, disk.fails_after = "COMMIT", True
        written = put(registry, shelf, "b")
        registry.stop()
        with pytest.raises(StatusError, match="cannot determine whether") as unknown:
            await written
        assert unknown.value.code == 504
