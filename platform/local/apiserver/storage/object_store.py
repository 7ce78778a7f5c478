"""All objects, in memory: committed state, pending writes and recent history.

Writes are decided on the event loop without an await, against the *latest* state: the committed
state with the pending writes on top. So two writers can never both win. A write gets its resource
version immediately, becomes visible to readers and watchers when its group is on disk, and only
then is its caller notified. If a group cannot be written, all writes decided on top of it fail too.
"""

import asyncio
import contextlib
import logging
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, Protocol, TypeVar

from ..errors.status import (
    StatusError,
    cannot_store,
    disk_full,
    outcome_unknown,
    too_large,
    version_too_large,
)
from ..kinds.info import KindInfo
from ..managedfields.entries import Entries
from .resource_store import Listener, ResourceStore
from .sqlite import DiskFullError, LogEntry, OutcomeUnknownError, SqliteStore
from .stored_objects import (
    ADDED,
    DELETED,
    MODIFIED,
    StoredObject,
    WatchEvent,
    with_resource_version,
)

log = logging.getLogger(__name__)

MAX_GROUP_COMMIT = 512
"""Maximum writes in one transaction."""

MAX_GROUP_SIZE = 2**20
"""Maximum bytes of the objects in one transaction, unless it is a single write: the disk reserve
suffices for one."""

COMPACT_EVERY = 20_000
"""Changes between two compactions of the log."""

ASYNC_COMMIT_RESOURCES = frozenset({("", "events"), ("coordination.k8s.io", "leases")})
"""Resources whose newest writes may be lost in a power cut (not when the process dies)."""

FRESHNESS_TIMEOUT = 3.0
"""Seconds that a read waits for a version that is not committed yet."""

SNAPSHOT_EXPIRY_INTERVAL = 300.0
"""Seconds between expirations: snapshots and versions older than the previous one expire, as in
etcd, which a real server compacts every five minutes."""

DISK_SPACE_CHECK_INTERVAL = 2.0
"""Seconds between two checks whether a full disk has space again."""

MAX_OBJECT_SIZE = 3 * 2**20
"""Maximum bytes of an object: small patches cannot grow it beyond what one body may have."""

T = TypeVar("T")


def _backoff_delays() -> Iterator[float]:
    """Yield the seconds between attempts to determine what is on disk."""
    delay = 0.05
    while True:
        yield delay
        delay = min(2 * delay, 5.0)


class PendingWrite(NamedTuple):
    """A queued write; *done* is set when it is on disk, with an exception if it failed."""

    entry: StoredObject
    done: "asyncio.Future[None]"


class WriteObserver(Protocol):
    """Observes the latest state: writes before they are committed. Must be fast and never raise."""

    def write_queued(self, resource_store: ResourceStore, event: WatchEvent) -> None:
        """Observe a write that the next ones build on."""
        ...

    def writes_failed(self) -> None:
        """Observe that queued writes were not stored, and are no longer part of the state."""
        ...


class _QueuedWrite(NamedTuple):
    resource_store: ResourceStore
    event: WatchEvent
    waiters: "list[asyncio.Future[None]]"
    """One per waiting caller: cancelling one does not affect the others."""


def _frees_space(write: _QueuedWrite) -> bool:
    """Whether the write deletes an object, or is a step of its deletion."""
    return write.event.type == DELETED or write.event.entry.deleting


class ObjectStore:
    """The stores of all resources, and their only writer."""

    def __init__(self, store: SqliteStore) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._resource_stores: dict[tuple[str, str], ResourceStore] = {}
        self._queued_writes: list[_QueuedWrite] = []
        self._wake = asyncio.Event()
        self._closing = False
        self._replayed = False
        self._since_compaction = 0
        self._next_space_check = 0.0
        self.next_snapshot_expiry = asyncio.get_running_loop().time() + SNAPSHOT_EXPIRY_INTERVAL
        self._next_oldest_rv = 0
        self.oldest_rv = 0
        """Oldest version that can be listed, even if a store's history is longer."""

        self.write_error = ""
        """Error while nothing can be written."""

        self.failures: Counter[str] = Counter()
        """Failures by operation: ``commit``, ``open``, ``compaction``."""

        self._rv = store.last_rv
        self.committed_rv = store.last_rv
        """Version of the state that readers see."""
        self.listeners: list[Listener] = []
        """Called for each committed change, in order; must be fast and never raise."""
        self.write_observers: list[WriteObserver] = []
        self._version_waiters: list[tuple[int, asyncio.Future[None]]] = []

    def resource_store(self, kind: KindInfo) -> ResourceStore:
        """Return the store of *kind*; created and loaded on first use."""
        resource = kind.stored_as or kind.resource
        resource_store = self._resource_stores.get((resource.group, resource.plural))
        if resource_store is None:
            # A resource served only from now on is empty, and no client can resume a watch of it.
            resource_store = ResourceStore(kind, oldest_version=self.committed_rv)
            if not self._replayed:
                resource_store.oldest_version = self._store.compacted_rv
                self._load(resource_store)
            self._resource_stores[resource.group, resource.plural] = resource_store
        return resource_store

    def resource_stores(self) -> list[ResourceStore]:
        """Return the stores used so far."""
        return list(self._resource_stores.values())

    def remove_resource(self, kind: KindInfo) -> None:
        """Remove the empty store of a resource that is no longer served."""
        resource = kind.stored_as or kind.resource
        resource_store = self._resource_stores.pop((resource.group, resource.plural), None)
        if resource_store is not None:
            resource_store.broadcaster.close()

    def _load(self, resource_store: ResourceStore) -> None:
        resource = resource_store.resource
        for data in self._store.objects(resource.group, resource.plural):
            entry = StoredObject.load(resource_store.kind, data)
            resource_store.by_namespace.setdefault(entry.namespace, {})[entry.name] = entry

    def replay(self) -> None:
        """Load the histories of all stores from the log, so that watches can resume.

        A change without its previous state cannot be filtered by selectors, so the history of its
        resource starts after it.
        """
        self._replayed = True
        known: dict[tuple[str, str, str, str], StoredObject | None] = {}
        for change in self._store.log_entries():
            resource_store = self._resource_stores.get((change.group, change.plural))
            if resource_store is None:
                continue
            # The last change of an object that exists has loaded it already.
            entry = resource_store.get(change.namespace, change.name)
            if entry is None or entry.rv != change.rv:
                entry = StoredObject.load(resource_store.kind, change.data)
            previous = known.get(change[1:5])
            known[change[1:5]] = None if change.type == DELETED else entry
            if change.type != ADDED and previous is None:
                resource_store.history.clear()
                resource_store.oldest_version = change.rv
            else:
                resource_store.append_history(WatchEvent(change.type, entry, previous))

    def put(
        self,
        resource_store: ResourceStore,
        obj: dict[str, Any],
        old: StoredObject | None,
        managed: Entries | None = None,
    ) -> PendingWrite:
        """Queue a write of *obj*, which replaces *old* (the latest state).

        Its field managers are *managed*, by default those of *old*.

        Raises:
            StatusError: 413, it exceeds the size limit and grows; 507, the disk has space for
                deletions only.
        """
        if self._store.full and "deletionTimestamp" not in obj["metadata"]:
            raise disk_full()
        if managed is None:
            managed = old.managed if old else ()
        entry = with_resource_version(resource_store.kind, obj, self._rv + 1, managed)
        if entry.size > MAX_OBJECT_SIZE and (old is None or entry.size > old.size):
            raise too_large(MAX_OBJECT_SIZE)
        self._rv += 1
        return self._enqueue(resource_store, WatchEvent(MODIFIED if old else ADDED, entry, old))

    def remove(
        self, resource_store: ResourceStore, obj: dict[str, Any], old: StoredObject
    ) -> PendingWrite:
        """Queue the removal of *old*; *obj* is its last state, for watchers."""
        self._rv += 1
        entry = with_resource_version(resource_store.kind, obj, self._rv, old.managed)
        return self._enqueue(resource_store, WatchEvent(DELETED, entry, old))

    def pending_commit(
        self, resource_store: ResourceStore, entry: StoredObject
    ) -> "asyncio.Future[None] | None":
        """Return a future to await before reporting *entry*, if it is not on disk yet."""
        if resource_store.get(*entry.key) is entry:
            return None
        write = next((each for each in self._queued_writes if each.event.entry is entry), None)
        if write is None:
            return None
        write.waiters.append(asyncio.get_running_loop().create_future())
        return write.waiters[-1]

    def _enqueue(self, resource_store: ResourceStore, event: WatchEvent) -> PendingWrite:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._closing:
            done.set_exception(StatusError(503, "ServiceUnavailable", "the server is stopping"))
            return PendingWrite(event.entry, done)
        resource_store.pending[event.entry.key] = event
        resource_store.change_count += 1
        self._queued_writes.append(_QueuedWrite(resource_store, event, [done]))
        self._wake.set()
        for observer in self.write_observers:
            observer.write_queued(resource_store, event)
        return PendingWrite(event.entry, done)

    async def run(self) -> None:
        """Commit queued writes, group by group, until :meth:`stop`."""
        loop = asyncio.get_running_loop()
        self._expiry_timer = loop.call_at(self.next_snapshot_expiry, self._wake.set)
        try:
            await self._commit_groups()
        finally:
            self._expiry_timer.cancel()

    async def _commit_groups(self) -> None:
        while True:
            if self._queued_writes:
                await self._write_group()
            elif self._closing:
                return
            elif self._since_compaction < COMPACT_EVERY:
                await self._wait_for_work()
            await self._run_maintenance()

    async def _wait_for_work(self) -> None:
        """Wait for a write, or until the next disk space check or expiration is due."""
        self._wake.clear()
        if self._store.can_grow:
            await self._wake.wait()
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DISK_SPACE_CHECK_INTERVAL):
                await self._wake.wait()

    async def _write_group(self) -> None:
        group = self._next_group()
        try:
            await self._in_thread(lambda: self._commit(group))
        except OutcomeUnknownError as error:
            log.exception("cannot determine whether a write is on disk")
            self.failures["commit"] += 1
            if not await self._resolve_outcome(group[-1].event.rv, error):
                return
        except Exception as error:
            log.exception("cannot write to the store")
            self.failures["commit"] += 1
            if isinstance(error, DiskFullError):
                self._fail(disk_full(), kept=self._independent_deletions())
            else:
                self._fail(cannot_store(str(error)))
            return
        del self._queued_writes[: len(group)]
        self._publish(group)

    def _next_group(self) -> list[_QueuedWrite]:
        size = 0
        for count, write in enumerate(self._queued_writes[:MAX_GROUP_COMMIT]):
            size += write.event.entry.size
            if count and size > MAX_GROUP_SIZE:
                return self._queued_writes[:count]
        return self._queued_writes[:MAX_GROUP_COMMIT]

    def _independent_deletions(self) -> list[_QueuedWrite]:
        """Return the queued writes that free space, and that do not build on one that does not.

        None if there are no others: then they cannot be written, either.
        """
        found = []
        failed = set()
        for write in self._queued_writes:
            key = (id(write.resource_store), write.event.entry.key)
            if _frees_space(write) and key not in failed:
                found.append(write)
            else:
                failed.add(key)
        return found if failed else []

    async def _resolve_outcome(self, rv: int, error: Exception) -> bool:
        """Return whether the group that ends with *rv* is on disk; blocks the writer until known.

        If it is not, or the store is stopped first, all queued writes fail.
        """
        self.write_error = str(error)
        for delay in _backoff_delays():
            try:
                held = await self._in_thread(lambda: self._store.contains_version(rv))
            except Exception:
                # Of any error: writing the group again could only do harm.
                log.exception("cannot reopen the store")
                self.failures["open"] += 1
            else:
                self.write_error = ""
                if not held:
                    self._fail(cannot_store(str(error)))
                return held
            if self._closing:
                break
            await asyncio.sleep(delay)
        self._fail(outcome_unknown(str(error)))
        return False

    async def _run_maintenance(self) -> None:
        """Compact the log when it has grown, and check for disk space when there was none."""
        now = asyncio.get_running_loop().time()
        if now >= self.next_snapshot_expiry:
            self._expire_snapshots(now)
        if not self._store.can_grow and now >= self._next_space_check:
            self._next_space_check = now + DISK_SPACE_CHECK_INTERVAL
            await self._in_thread(self._store.check_disk_space)
            if not self._store.can_grow:
                self._since_compaction = COMPACT_EVERY
        if self._since_compaction < COMPACT_EVERY:
            return
        try:
            more = await self._in_thread(self._store.compact)
        except (sqlite3.Error, DiskFullError, OutcomeUnknownError):
            # Committed changes stay committed; the log can be compacted later.
            log.exception("cannot compact the log")
            self.failures["compaction"] += 1
            more = False
        if not more:
            self._since_compaction = 0

    def _expire_snapshots(self, now: float) -> None:
        self.next_snapshot_expiry = now + SNAPSHOT_EXPIRY_INTERVAL
        self._expiry_timer.cancel()
        self._expiry_timer = asyncio.get_running_loop().call_at(
            self.next_snapshot_expiry, self._wake.set
        )
        self.oldest_rv, self._next_oldest_rv = self._next_oldest_rv, self.committed_rv
        for resource_store in self._resource_stores.values():
            resource_store.drop_snapshots_before(self.oldest_rv)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _commit(self, group: list[_QueuedWrite]) -> None:
        """Commit *group*; runs in the writer thread."""
        changes = []
        durable = False
        for resource_store, event, _ in group:
            resource, entry = resource_store.resource, event.entry
            durable = durable or (resource.group, resource.plural) not in ASYNC_COMMIT_RESOURCES
            changes.append(
                LogEntry(
                    entry.rv,
                    resource.group,
                    resource.plural,
                    entry.namespace,
                    entry.name,
                    event.type,
                    entry.row(),
                )
            )
        self._store.commit(changes, durable=durable, deletions=all(map(_frees_space, group)))
        self._since_compaction += len(changes)

    def _publish(self, group: list[_QueuedWrite]) -> None:
        for resource_store, event, _ in group:
            resource_store.apply(event)
            self.committed_rv = event.rv
            for listener in self.listeners:
                listener(resource_store, event)
            for listener in resource_store.listeners:
                listener(resource_store, event)
        for write in group:
            for waiter in write.waiters:
                if not waiter.done():
                    waiter.set_result(None)
        if self._version_waiters:
            self._wake_version_waiters()

    def _fail(self, error: StatusError, *, kept: Sequence[_QueuedWrite] = ()) -> None:
        """Fail the queued writes except *kept*: each may build on the one that was not written."""
        still_queued = set(map(id, kept))
        failed = [write for write in self._queued_writes if id(write) not in still_queued]
        self._queued_writes = list(kept)
        for resource_store, event, waiters in failed:
            resource_store.pending.pop(event.entry.key, None)
            resource_store.change_count += 1
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(error)
                    waiter.exception()  # the caller may be cancelled; the error is logged already
        for resource_store, event, _ in kept:
            resource_store.pending[event.entry.key] = event
        for observer in self.write_observers:
            observer.writes_failed()

    def _wake_version_waiters(self) -> None:
        still = []
        for rv, waiter in self._version_waiters:
            if rv > self.committed_rv:
                still.append((rv, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        self._version_waiters = still

    async def wait_until_fresh(self, rv: int, *, timeout: float | None = None) -> None:
        """Wait until readers see version *rv*; *timeout* defaults to ``FRESHNESS_TIMEOUT``.

        Raises:
            StatusError: 504, timed out.
        """
        if rv <= self.committed_rv:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._version_waiters.append((rv, waiter))
        try:
            async with asyncio.timeout(timeout or FRESHNESS_TIMEOUT):
                await waiter
        except TimeoutError:
            raise version_too_large(rv, self.committed_rv) from None

    @property
    def has_queued_writes(self) -> bool:
        """Whether writes are not committed yet."""
        return bool(self._queued_writes)

    @property
    def stopping(self) -> bool:
        """Whether :meth:`run` may return."""
        return self._closing

    @property
    def writable(self) -> bool:
        """Whether writes are possible, as far as known."""
        return not (self.write_error or self._store.full)

    def stop(self) -> None:
        """Accept no more writes; :meth:`run` returns when the queued ones are on disk."""
        self._closing = True
        self._wake.set()

    def close_watches(self) -> None:
        """Close all watches, and those that start later."""
        for resource_store in self._resource_stores.values():
            resource_store.broadcaster.close()

    async def close(self) -> None:
        """Close the database, after :meth:`run` has returned."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._store.close)
        self._thread.shutdown()
