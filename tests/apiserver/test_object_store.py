"""The store in memory and on disk: what readers and watchers see, whatever happens when."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.polling import DEFAULT_TIMEOUT

from batholith.apiserver.builtin.kinds import BUILT_IN
from batholith.apiserver.errors.status import StatusError
from batholith.apiserver.storage import object_store, resource_store, watch
from batholith.apiserver.storage.object_store import ObjectStore
from batholith.apiserver.storage.resource_store import ResourceStore
from batholith.apiserver.storage.sqlite import SqliteStore
from batholith.apiserver.storage.stored_objects import (
    DELETED,
    StoredObject,
    WatchEvent,
    new_uid,
    with_resource_version,
)
from batholith.apiserver.storage.watch import SelectionPredicate, Watcher
from batholith.model.names import CONFIGMAPS
from batholith.model.selectors import parse_label_selector

KIND = next(kind for kind in BUILT_IN if kind.resource == CONFIGMAPS)
Json = dict[str, Any]
STEPS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from(("x", "y", "")), st.booleans()),
    min_size=1,
    max_size=30,
)
"""Which object is written with which label, and whether the group is committed after it."""


@asynccontextmanager
async def open_store(folder: Path) -> AsyncIterator[ObjectStore]:
    registry = ObjectStore(SqliteStore(folder / "cluster.db"))
    registry.resource_store(KIND)
    registry.replay()
    running = asyncio.create_task(registry.run())
    try:
        yield registry
    finally:
        registry.stop()
        await running
        await registry.close()


def body(name: str, label: str = "") -> Json:
    labels = {"tier": label} if label else {}
    metadata = {"name": name, "namespace": "default", "uid": new_uid(), "labels": labels}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}


def write(
    store: ObjectStore, resources: ResourceStore, name: str, label: str
) -> "asyncio.Future[None]":
    """Create, change (to another label) or, without a label, delete an object."""
    old = resources.latest("default", name)
    if old is not None and not label:
        return store.remove(resources, old.parse(), old).done
    return store.put(resources, body(name, label), old).done


def state(entries: list[StoredObject]) -> dict[str, tuple[str, int]]:
    return {each.name: (each.labels.get("tier", ""), each.rv) for each in entries}


@settings(max_examples=25, deadline=None)
@given(STEPS)
def test_every_past_is_remembered_and_every_watcher_ends_where_a_list_does(
    steps: list[tuple[str, str, bool]],
) -> None:
    with TemporaryDirectory() as folder:
        asyncio.run(_check_history(Path(folder), steps))


async def _check_history(folder: Path, steps: list[tuple[str, str, bool]]) -> None:
    moments: dict[int, dict[str, tuple[str, int]]] = {}
    async with open_store(folder) as registry:
        shelf = registry.resource_store(KIND)
        for name, label, flush in steps:
            done = write(registry, shelf, name, label)
            if flush:
                await done
                _check_order(shelf)
                moments[registry.committed_rv] = state(shelf.ordered("default"))
        await done
        last = registry.committed_rv
        moments[last] = state(shelf.ordered("default"))
        _compare(shelf, moments, last)
    # The same holds after a restart, from the log.
    async with open_store(folder) as registry:
        assert registry.committed_rv >= last
        shelf = registry.resource_store(KIND)
        assert state(shelf.ordered("default")) == moments[last]
        _compare(shelf, moments, last)


def _check_order(resources: ResourceStore) -> None:
    """The order is kept up from change to change, in one namespace and over all."""
    wanted = sorted(resources.entries(), key=lambda entry: entry.key)
    assert resources.ordered("default") == resources.ordered() == wanted


def _compare(
    resources: ResourceStore, moments: dict[int, dict[str, tuple[str, int]]], last: int
) -> None:
    for rv, known in moments.items():
        assert state(resources.objects_at(rv, "default")) == known
        for wanted in ("x", "y"):
            watcher = Watcher(SelectionPredicate(labels=parse_label_selector(f"tier={wanted}")))
            for event in resources.events_since(rv):
                watcher.enqueue(event)
            mine = {name for name, (tier, _) in known.items() if tier == wanted}
            versions = [rv]
            for seen_as, event in watcher.drain():
                assert (event.entry.name in mine) == (seen_as != "ADDED")
                (mine.discard if seen_as == DELETED else mine.add)(event.entry.name)
                versions.append(event.rv)
            assert versions == sorted(set(versions))
            assert mine == {name for name, (tier, _) in moments[last].items() if tier == wanted}


async def test_what_cannot_be_written_never_happened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: SqliteStore, changes: object, *, durable: bool) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    async with open_store(tmp_path) as registry:
        shelf = registry.resource_store(KIND)
        await write(registry, shelf, "a", "x")
        before = state(shelf.ordered())
        with monkeypatch.context() as broken:
            broken.setattr(SqliteStore, "commit", full)
            first = write(registry, shelf, "a", "y")
            on_top = write(registry, shelf, "a", "x")
            for done in (first, on_top):
                with pytest.raises(StatusError, match="disk is full"):
                    await done
        assert state(shelf.ordered()) == before
        latest = shelf.latest("default", "a")
        assert latest is not None and latest.labels == {"tier": "x"}
        await write(registry, shelf, "b", "x")
        assert set(state(shelf.ordered())) == {"a", "b"}


async def test_a_reader_sees_nothing_before_it_is_on_disk(tmp_path: Path) -> None:
    async with open_store(tmp_path) as registry:
        shelf = registry.resource_store(KIND)
        watcher = Watcher(SelectionPredicate())
        shelf.broadcaster.add(watcher)
        done = write(registry, shelf, "a", "x")
        assert shelf.get("default", "a") is None
        assert shelf.latest("default", "a") is not None
        assert watcher.drain() == []
        await done
        assert shelf.get("default", "a") is not None
        assert [seen_as for seen_as, _ in watcher.drain()] == ["ADDED"]


async def test_a_reader_may_wait_for_a_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "FRESHNESS_TIMEOUT", DEFAULT_TIMEOUT)
    async with open_store(tmp_path) as registry:
        shelf = registry.resource_store(KIND)
        waiting = asyncio.create_task(registry.wait_until_fresh(registry.committed_rv + 2))
        await write(registry, shelf, "a", "x")
        assert not waiting.done()
        await write(registry, shelf, "b", "x")
        await waiting


async def test_history_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource_store, "WATCH_HISTORY_SIZE", 3)
    async with open_store(tmp_path) as registry:
        shelf = registry.resource_store(KIND)
        for name in "abcde":
            await write(registry, shelf, name, "x")
        newest = registry.committed_rv
        assert [event.entry.name for event in shelf.events_since(newest - 3)] == ["c", "d", "e"]
        with pytest.raises(StatusError, match="too old resource version"):
            shelf.events_since(newest - 4)


async def test_a_watcher_that_is_too_slow_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "WATCHER_QUEUE_SIZE", 2)
    async with open_store(tmp_path) as registry:
        shelf = registry.resource_store(KIND)
        watcher = Watcher(SelectionPredicate())
        shelf.broadcaster.add(watcher)
        for name in "abcd":
            await write(registry, shelf, name, "x")
        assert watcher.closed
        # What it gets is a beginning without a gap, from which it can resume.
        assert [event.entry.name for _, event in watcher.drain()] == ["a", "b"]


async def test_versions_are_not_given_twice_even_if_the_newest_writes_are_lost(
    tmp_path: Path,
) -> None:
    """A power cut may take relaxed writes with it: here the log loses its end."""
    async with open_store(tmp_path) as registry:
        shelf = registry.resource_store(KIND)
        await write(registry, shelf, "a", "x")
        await write(registry, shelf, "b", "x")
        given = registry.committed_rv
        # A copy of the file without an orderly end, and without the last write.
        lost = tmp_path / "lost"
        lost.mkdir()
        with sqlite3.connect(tmp_path / "cluster.db") as source:
            target = sqlite3.connect(lost / "cluster.db")
            source.backup(target)
            target.execute("DELETE FROM log WHERE rv=?", (given,))
            target.execute("DELETE FROM objects WHERE name='b'")
            target.commit()
            target.close()
        source.close()
    async with open_store(lost) as registry:
        shelf = registry.resource_store(KIND)
        assert set(state(shelf.ordered())) == {"a"}
        await write(registry, shelf, "c", "x")
        assert registry.committed_rv > given


async def test_the_log_is_cut_and_old_watchers_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batholith.apiserver.storage.sqlite.MAX_LOG_ENTRIES", 2)
    monkeypatch.setattr(object_store, "COMPACT_EVERY", 1)
    async with open_store(tmp_path) as registry:
        shelf = registry.resource_store(KIND)
        for name in "abcde":
            await write(registry, shelf, name, "x")
        newest = registry.committed_rv
    async with open_store(tmp_path) as registry:
        shelf = registry.resource_store(KIND)
        assert [event.entry.name for event in shelf.events_since(newest - 2)] == ["d", "e"]
        with pytest.raises(StatusError, match="too old"):
            shelf.events_since(newest - 3)


def test_an_event_is_encoded_once_for_all_watchers() -> None:
    event = WatchEvent("ADDED", with_resource_version(KIND, body("a"), 1), None)
    assert event.line("ADDED") is event.line("ADDED")
