"""The object store in memory and on disk: what readers and watchers see."""

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
from support.examples import examples
from support.polling import DEFAULT_TIMEOUT

from batholith.local.apiserver.builtin.kinds import BUILT_IN
from batholith.local.apiserver.errors.status import StatusError
from batholith.local.apiserver.storage import object_store, watch
from batholith.local.apiserver.storage.object_store import ObjectStore
from batholith.local.apiserver.storage.resource_store import ResourceStore
from batholith.local.apiserver.storage.sqlite import SqliteStore
from batholith.local.apiserver.storage.stored_objects import (
    DELETED,
    StoredObject,
    WatchEvent,
    new_uid,
    with_resource_version,
)
from batholith.local.apiserver.storage.watch import SelectionPredicate, Watcher
from batholith.model.names import CONFIGMAPS
from batholith.model.selectors import parse_label_selector

KIND = next(kind for kind in BUILT_IN if kind.resource == CONFIGMAPS)
Json = dict[str, Any]
STEPS = st.lists(
    st.tuples(st.sampled_from("abcd"), st.sampled_from(("x", "y", "")), st.booleans()),
    min_size=1,
    max_size=30,
)
"""Object to write, its label, and whether the group is committed after it."""


@asynccontextmanager
async def open_store(data_dir: Path) -> AsyncIterator[ObjectStore]:
    store = ObjectStore(SqliteStore(data_dir / "cluster.db"))
    store.resource_store(KIND)
    store.replay()
    running = asyncio.create_task(store.run())
    try:
        yield store
    finally:
        store.stop()
        await running
        await store.close()


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


@settings(max_examples=examples(25), deadline=None)
@given(STEPS)
def test_history_replays_and_every_watcher_ends_at_the_listed_state(
    steps: list[tuple[str, str, bool]],
) -> None:
    with TemporaryDirectory() as data_dir:
        asyncio.run(_check_history(Path(data_dir), steps))


async def _check_history(data_dir: Path, steps: list[tuple[str, str, bool]]) -> None:
    moments: dict[int, dict[str, tuple[str, int]]] = {}
    async with open_store(data_dir) as store:
        resource_store = store.resource_store(KIND)
        for name, label, flush in steps:
            done = write(store, resource_store, name, label)
            if flush:
                await done
                _check_order(resource_store)
                moments[store.committed_rv] = state(resource_store.ordered("default"))
        await done
        last = store.committed_rv
        moments[last] = state(resource_store.ordered("default"))
        _compare(resource_store, moments, last)
    # The same holds after a restart, from the log.
    async with open_store(data_dir) as store:
        assert store.committed_rv >= last
        resource_store = store.resource_store(KIND)
        assert state(resource_store.ordered("default")) == moments[last]
        _compare(resource_store, moments, last)


def _check_order(resources: ResourceStore) -> None:
    """The order is maintained from change to change, in one namespace and over all."""
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


async def test_failed_writes_have_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: SqliteStore, changes: object, **_: bool) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    async with open_store(tmp_path) as store:
        resource_store = store.resource_store(KIND)
        await write(store, resource_store, "a", "x")
        before = state(resource_store.ordered())
        with monkeypatch.context() as broken:
            broken.setattr(SqliteStore, "commit", full)
            first = write(store, resource_store, "a", "y")
            on_top = write(store, resource_store, "a", "x")
            for done in (first, on_top):
                with pytest.raises(StatusError, match="disk is full"):
                    await done
        assert state(resource_store.ordered()) == before
        latest = resource_store.latest("default", "a")
        assert latest is not None and latest.labels == {"tier": "x"}
        await write(store, resource_store, "b", "x")
        assert set(state(resource_store.ordered())) == {"a", "b"}


async def test_readers_see_only_what_is_on_disk(tmp_path: Path) -> None:
    async with open_store(tmp_path) as store:
        resource_store = store.resource_store(KIND)
        watcher = Watcher(SelectionPredicate())
        resource_store.broadcaster.add(watcher)
        done = write(store, resource_store, "a", "x")
        assert resource_store.get("default", "a") is None
        assert resource_store.latest("default", "a") is not None
        assert watcher.drain() == []
        await done
        assert resource_store.get("default", "a") is not None
        assert [seen_as for seen_as, _ in watcher.drain()] == ["ADDED"]


async def test_a_reader_can_wait_for_a_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(object_store, "FRESHNESS_TIMEOUT", DEFAULT_TIMEOUT)
    async with open_store(tmp_path) as store:
        resource_store = store.resource_store(KIND)
        waiting = asyncio.create_task(store.wait_until_fresh(store.committed_rv + 2))
        await write(store, resource_store, "a", "x")
        assert not waiting.done()
        await write(store, resource_store, "b", "x")
        await waiting


async def test_history_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("batholith.local.apiserver.storage.resource_store.WATCH_HISTORY_SIZE", 3)
    async with open_store(tmp_path) as store:
        resource_store = store.resource_store(KIND)
        for name in "abcde":
            await write(store, resource_store, name, "x")
        newest = store.committed_rv
        assert [event.entry.name for event in resource_store.events_since(newest - 3)] == [
            "c",
            "d",
            "e",
        ]
        with pytest.raises(StatusError, match="too old resource version"):
            resource_store.events_since(newest - 4)


async def test_a_slow_watcher_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "WATCHER_QUEUE_SIZE", 2)
    async with open_store(tmp_path) as store:
        resource_store = store.resource_store(KIND)
        watcher = Watcher(SelectionPredicate())
        resource_store.broadcaster.add(watcher)
        for name in "abcd":
            await write(store, resource_store, name, "x")
        assert watcher.closed
        # What it received has no gap, so that it can resume.
        assert [event.entry.name for _, event in watcher.drain()] == ["a", "b"]


async def test_versions_are_not_reused_even_if_the_last_writes_are_lost(
    tmp_path: Path,
) -> None:
    """A power cut may lose asynchronous commits: here the log loses its end."""
    async with open_store(tmp_path) as store:
        resource_store = store.resource_store(KIND)
        await write(store, resource_store, "a", "x")
        await write(store, resource_store, "b", "x")
        given = store.committed_rv
        # A copy of the file without a clean shutdown, and without the last write.
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
    async with open_store(lost) as store:
        resource_store = store.resource_store(KIND)
        assert set(state(resource_store.ordered())) == {"a"}
        await write(store, resource_store, "c", "x")
        assert store.committed_rv > given


async def test_old_watches_expire_after_log_compaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batholith.local.apiserver.storage.sqlite.MAX_LOG_ENTRIES", 2)
    monkeypatch.setattr(object_store, "COMPACT_EVERY", 1)
    async with open_store(tmp_path) as store:
        resource_store = store.resource_store(KIND)
        for name in "abcde":
            await write(store, resource_store, name, "x")
        newest = store.committed_rv
    async with open_store(tmp_path) as store:
        resource_store = store.resource_store(KIND)
        assert [event.entry.name for event in resource_store.events_since(newest - 2)] == ["d", "e"]
        with pytest.raises(StatusError, match="too old"):
            resource_store.events_since(newest - 3)


def test_an_event_is_encoded_once_for_all_watchers() -> None:
    event = WatchEvent("ADDED", with_resource_version(KIND, body("a"), 1), None)
    assert event.line("ADDED", full=False) is event.line("ADDED", full=False)
