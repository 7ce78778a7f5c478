"""A full or failing disk: acknowledged writes persist, all others never happened."""

import asyncio
import os
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self

import pytest
from support.polling import wait_until_true

from batholith.local.apiserver.builtin.kinds import BUILT_IN
from batholith.local.apiserver.errors.status import StatusError
from batholith.local.apiserver.storage import disk_reserve, object_store
from batholith.local.apiserver.storage import sqlite as sqlite_store
from batholith.local.apiserver.storage.disk_reserve import DiskReserve
from batholith.local.apiserver.storage.object_store import ObjectStore
from batholith.local.apiserver.storage.resource_store import ResourceStore
from batholith.local.apiserver.storage.sqlite import SqliteStore
from batholith.local.apiserver.storage.stored_objects import new_uid
from batholith.local.apiserver.storage.watch import SelectionPredicate, Watcher
from batholith.model.names import CONFIGMAPS

KIND = next(kind for kind in BUILT_IN if kind.resource == CONFIGMAPS)
LARGE = "x" * 200_000


class _Free(NamedTuple):
    f_bavail: int
    f_frsize: int


class FailingConnection:
    """A database connection that fails before or after it executes a statement."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self.fails_at = ""
        self.fails_after = False

    @classmethod
    def of(cls, store: SqliteStore) -> Self:
        """Replace the connection of *store*."""
        disk = cls(store.connection)
        store.connection = disk  # type: ignore[assignment]
        return disk

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
async def opened(data_dir: Path) -> AsyncIterator[tuple[ObjectStore, SqliteStore, ResourceStore]]:
    store = SqliteStore(data_dir / "cluster.db")
    objects = ObjectStore(store)
    resource_store = objects.resource_store(KIND)
    objects.replay()
    running = asyncio.create_task(objects.run())
    try:
        yield objects, store, resource_store
    finally:
        objects.stop()
        await running
        await objects.close()


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


def stored_in_file(data_dir: Path) -> dict[str, int]:
    """Names and versions in the file, read by another connection."""
    with sqlite3.connect(data_dir / "cluster.db") as other:
        rows = other.execute("SELECT name, rv FROM objects").fetchall()
    other.close()
    return dict(rows)


def stored_in_memory(resources: ResourceStore) -> dict[str, int]:
    return {entry.name: entry.rv for entry in resources.latest_entries()}


async def fill(store: ObjectStore, resources: ResourceStore) -> int:
    """Write until the store refuses; return the number of writes."""
    for number in range(1000):  # more than fit
        try:
            await put(store, resources, f"f{number}", LARGE)
        except StatusError as error:
            assert (error.code, error.message) == (507, "cannot store: disk full")
            return number
    raise AssertionError("there is no end")


class LimitedDatabase:
    """A disk on which a database can have a limited number of pages."""

    LIMIT = 1000

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self.extra_pages = False

    def begin(self, store: SqliteStore) -> None:
        allocate = SqliteStore._allocate

        def allocate_if_there_is_space(store: SqliteStore, size: int) -> bool:
            (pages,) = store.connection.execute("PRAGMA page_count").fetchone()
            fits = self.extra_pages or pages * 8192 + size <= self.LIMIT * 8192
            return fits and allocate(store, size)

        self._patch.setattr(SqliteStore, "_allocate", allocate_if_there_is_space)
        self._patch.setattr(DiskReserve, "ensure", lambda _: self.extra_pages)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> LimitedDatabase:
    return LimitedDatabase(monkeypatch)


async def test_a_full_disk_allows_only_deletions_until_there_is_space(
    tmp_path: Path, small: LimitedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "DISK_SPACE_CHECK_INTERVAL", 0.01)
    monkeypatch.setattr(sqlite_store, "FREE_PAGES_SIZE", 2**40)
    async with opened(tmp_path) as (objects, store, resource_store):
        small.begin(store)
        watcher = Watcher(SelectionPredicate())
        resource_store.broadcaster.add(watcher)
        before = await fill(objects, resource_store)
        assert before > 5
        assert not objects.writable
        assert stored_in_memory(resource_store) == stored_in_file(tmp_path)
        assert [event.entry.name for _, event in watcher.drain()] == [
            f"f{number}" for number in range(before)
        ]
        with pytest.raises(StatusError, match="disk full"):
            put(objects, resource_store, "small")
        for number in range(before):
            await remove(objects, resource_store, f"f{number}")
        assert stored_in_memory(resource_store) == stored_in_file(tmp_path) == {}
        small.extra_pages = True
        await wait_until_true(wait_writable(objects))
        await put(objects, resource_store, "g", LARGE)
        assert stored_in_memory(resource_store) == stored_in_file(tmp_path)


async def test_deletions_queued_with_a_write_that_does_not_fit_are_written(
    tmp_path: Path, small: LimitedDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite_store, "FREE_PAGES_SIZE", 2**40)
    async with opened(tmp_path) as (objects, store, resource_store):
        small.begin(store)
        for name in ("a", "b", "c"):
            await put(objects, resource_store, name)
        large = "x" * 20 * 2**20
        monkeypatch.setattr(object_store, "MAX_OBJECT_SIZE", 2 * len(large))
        refused = put(objects, resource_store, "a", large)
        deleted = remove(objects, resource_store, "b")
        on_refused = remove(objects, resource_store, "a")
        again = put(objects, resource_store, "b")
        await deleted
        for failed in (refused, on_refused, again):
            with pytest.raises(StatusError, match="disk full"):
                await failed
        assert stored_in_memory(resource_store) == stored_in_file(tmp_path)
        assert stored_in_memory(resource_store).keys() == {"a", "c"}


async def test_a_group_of_writes_is_limited_in_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups: list[list[int]] = []
    commit = SqliteStore.commit

    def count(self: SqliteStore, changes: Any, **options: bool) -> None:
        groups.append([len(change.data) for change in changes])
        commit(self, changes, **options)

    monkeypatch.setattr(SqliteStore, "commit", count)
    async with opened(tmp_path) as (objects, _, resource_store):
        names = [f"n{number}" for number in range(20)]
        text = dict.fromkeys(names, LARGE) | {"n3": "x" * 2 * object_store.MAX_GROUP_SIZE}
        await asyncio.gather(*(put(objects, resource_store, name, text[name]) for name in names))
    assert sum(map(len, groups)) == len(names)
    assert max(map(len, groups)) > 1
    for group in groups:
        assert len(group) == 1 or sum(group) <= object_store.MAX_GROUP_SIZE


@pytest.mark.parametrize("size", [300, 4_200, 8_300, 50_000])
async def test_each_page_has_disk_space_before_it_is_written(
    tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = tmp_path / "cluster.db"
    write = SqliteStore._write
    lacking: list[int] = []

    def count(store: SqliteStore, changes: Any, **options: bool) -> None:
        write(store, changes, **options)
        (pages,) = store.connection.execute("PRAGMA page_count").fetchone()
        allocated = max(database.stat().st_size, database.stat().st_blocks * 512)
        lacking.append(pages * 8192 - allocated)

    monkeypatch.setattr(SqliteStore, "_write", count)
    async with opened(tmp_path) as (objects, _, resource_store):
        for batch in range(8):
            names = [f"n{number * 7919 % 1000}-{batch}" for number in range(100)]
            await asyncio.gather(
                *(put(objects, resource_store, name, "x" * size) for name in names)
            )
        await put(objects, resource_store, "large", "x" * 2_900_000)
    assert max(lacking) <= 0


async def test_the_log_and_its_index_are_never_extended_by_a_group_of_writes(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as (objects, _, resource_store):
        index = (tmp_path / "cluster.db-shm").stat().st_size
        for number in range(80):
            await put(objects, resource_store, f"n{number}", "x" * 900_000)
        assert (tmp_path / "cluster.db-shm").stat().st_size == index
        assert (tmp_path / "cluster.db-wal").stat().st_blocks * 512 >= sqlite_store.LOG_SIZE


async def test_an_error_after_the_commit_does_not_fail_the_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allocate = SqliteStore._allocate
    errors: list[Exception] = [OSError("disk"), sqlite3.OperationalError("disk I/O error")]

    def fail_after_commits(store: SqliteStore, size: int) -> bool:
        if not size and errors:
            raise errors.pop()
        return allocate(store, size)

    monkeypatch.setattr(SqliteStore, "_allocate", fail_after_commits)
    async with opened(tmp_path) as (objects, _, resource_store):
        for name in ("a", "b"):
            await put(objects, resource_store, name)
        assert not errors
        assert stored_in_memory(resource_store) == stored_in_file(tmp_path)
        assert stored_in_memory(resource_store).keys() == {"a", "b"}


async def test_the_log_is_compacted_before_the_disk_is_full(
    tmp_path: Path, small: LimitedDatabase
) -> None:
    async with opened(tmp_path) as (objects, store, resource_store):
        small.begin(store)
        written = await fill(objects, resource_store)
        # Without compaction the log would have half of the space.
        assert written * len(LARGE) > small.LIMIT * 8192 / 2
        assert stored_in_memory(resource_store) == stored_in_file(tmp_path)


def wait_writable(store: ObjectStore) -> Callable[[], Awaitable[bool]]:
    async def on_change() -> bool:
        return store.writable

    return on_change


async def test_a_terminating_object_can_be_updated_on_a_full_disk(tmp_path: Path) -> None:
    async with opened(tmp_path) as (objects, store, resource_store):
        await put(objects, resource_store, "a")
        store.full = True
        old = resource_store.latest("default", "a")
        assert old is not None
        obj = old.parse()
        with pytest.raises(StatusError, match="disk full"):
            objects.put(resource_store, obj, old)
        obj["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
        await objects.put(resource_store, obj, old).done


def test_the_reserve_allocates_disk_space_if_a_margin_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = os.statvfs(tmp_path)
    pages = disk_reserve.MARGIN // free.f_frsize
    reserve = DiskReserve(tmp_path / "r")
    monkeypatch.setattr(os, "statvfs", lambda _: _Free(pages - 1, free.f_frsize))
    assert not reserve.ensure()
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(os, "statvfs", lambda _: _Free(pages, free.f_frsize))
    assert reserve.ensure() and reserve.ensure()
    assert (tmp_path / "r").stat().st_blocks * 512 >= disk_reserve.RESERVE_SIZE
    assert not DiskReserve(tmp_path / "none" / "r").ensure()


async def test_a_failed_compaction_keeps_all_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batholith.local.apiserver.storage.sqlite.MAX_LOG_ENTRIES", 1)
    monkeypatch.setattr(object_store, "COMPACT_EVERY", 1)
    async with opened(tmp_path) as (objects, store, resource_store):
        disk = FailingConnection.of(store)
        for name in "abcd":
            disk.fails_at = "DELETE FROM log"
            await put(objects, resource_store, name)
        await remove(objects, resource_store, "a")

        async def cut() -> bool:
            return objects.failures["compaction"] > 0 and not disk.fails_at

        await wait_until_true(cut)
        await put(objects, resource_store, "e")
        assert stored_in_memory(resource_store) == stored_in_file(tmp_path)
        assert stored_in_memory(resource_store).keys() == set("bcde")


async def test_the_log_is_compacted_in_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batholith.local.apiserver.storage.sqlite.MAX_LOG_ENTRIES", 2)
    monkeypatch.setattr("batholith.local.apiserver.storage.sqlite.COMPACTION_BATCH_SIZE", 3)
    async with opened(tmp_path) as (objects, store, resource_store):
        for number in range(12):
            await put(objects, resource_store, f"n{number}")
        more: list[bool] = []
        while not more or more[-1]:
            more.append(store.compact())
        assert more == [True, True, False]
        assert len(list(store.log_entries())) == 2


@pytest.mark.parametrize("stored", [True, False])
async def test_a_commit_of_unknown_outcome_returns_once_it_is_known(
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
    async with opened(tmp_path) as (objects, store, resource_store):
        await put(objects, resource_store, "a")
        watcher = Watcher(SelectionPredicate())
        resource_store.broadcaster.add(watcher)
        disk = FailingConnection.of(store)
        disk.fails_at, disk.fails_after = "COMMIT", stored
        written = put(objects, resource_store, "b")

        async def tried() -> bool:
            return bool(tries)

        await wait_until_true(tried)
        assert not written.done()
        assert not objects.writable
        if stored:
            await written
        else:
            with pytest.raises(StatusError, match="cannot store: disk I/O error"):
                await written
        assert objects.writable
        assert ("b" in stored_in_memory(resource_store)) is stored
        assert [event.entry.name for _, event in watcher.drain()] == ["b"] * stored
        assert stored_in_memory(resource_store) == stored_in_file(tmp_path)
        await put(objects, resource_store, "c")
        assert stored_in_memory(resource_store) == stored_in_file(tmp_path)


async def test_a_stop_fails_commits_of_unknown_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def holds(self: SqliteStore, rv: int) -> bool:
        raise sqlite3.OperationalError("unable to open database file")

    monkeypatch.setattr(SqliteStore, "contains_version", holds)
    async with opened(tmp_path) as (objects, store, resource_store):
        await put(objects, resource_store, "a")
        disk = FailingConnection.of(store)
        disk.fails_at, disk.fails_after = "COMMIT", True
        written = put(objects, resource_store, "b")
        objects.stop()
        with pytest.raises(StatusError, match="cannot determine whether") as unknown:
            await written
        assert unknown.value.code == 504
