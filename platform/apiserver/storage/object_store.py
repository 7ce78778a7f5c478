"""All objects, in memory: what is committed, what is on its way, and what just changed.

Writes are decided on the event loop without a pause, against the *head*: the committed state
with the waiting writes on top. So two writers can never both win. A write gets its resource
version at once, becomes visible to readers and watchers when its group is on disk, and only then
is its caller answered. When a group cannot be written, everything decided on top of it fails too.
"""

import asyncio
import contextlib
import logging
import sqlite3
from bisect import bisect_left
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from ...model.names import Resource
from ..errors.status import (
    StatusError,
    cannot_store,
    disk_full,
    expired,
    outcome_unknown,
    too_large,
    version_too_large,
)
from ..kinds.info import KindInfo
from .sqlite import DiskFullError, LogEntry, OutcomeUnknownError, SqliteStore
from .stored_objects import (
    ADDED,
    DELETED,
    MODIFIED,
    StoredObject,
    WatchEvent,
    with_resource_version,
)
from .watch import Broadcaster

log = logging.getLogger(__name__)

WATCH_HISTORY_SIZE = 10_000
"""Changes of one resource that watchers can go back to."""

MAX_GROUP_COMMIT = 512
"""Most writes in one transaction."""

COMPACT_EVERY = 20_000
"""Changes between two cuts of the stored log."""

ASYNC_COMMIT_RESOURCES = frozenset({("", "events"), ("coordination.k8s.io", "leases")})
"""Resources whose newest writes may be lost in a power cut (not when the process dies)."""

FRESHNESS_TIMEOUT = 3.0
"""Seconds that a read waits for a version that is still to come."""

MAX_SNAPSHOTS = 8
"""Past states of a resource that are kept for further pages."""

SNAPSHOT_EXPIRY_INTERVAL = 300.0
"""Seconds after which pages and exact versions are forgotten that were made before the last time
that this long passed: as a real server does, whose store forgets its past every five minutes."""

DISK_SPACE_CHECK_INTERVAL = 2.0
"""Seconds between two looks whether a full disk has space again."""

MAX_OBJECT_SIZE = 3 * 2**20
"""Bytes that an object may have: many small patches must not make what one body could not."""

Key = tuple[str, str]
T = TypeVar("T")


def _backoff_delays() -> Iterator[float]:
    """Seconds between attempts to find out what is on disk."""
    delay = 0.05
    while True:
        yield delay
        delay = min(2 * delay, 5.0)


def _key_of(entry: StoredObject) -> Key:
    return entry.key


class ResourceStore:
    """The objects of one resource, by namespace and name."""

    def __init__(self, kind: KindInfo, *, oldest_version: int) -> None:
        self.kind = kind
        self.by_namespace: dict[str, dict[str, StoredObject]] = {}
        self.pending: dict[Key, WatchEvent] = {}
        self.history: deque[WatchEvent] = deque()
        self.oldest_version = oldest_version
        """Every change after this version is in the history."""
        self.broadcaster = Broadcaster()
        self.change_count = 0
        """Grows whenever the head or the committed objects change."""

        self._names: dict[str, list[str]] = {}
        """Of the namespaces that were asked for: the names in order, kept up with each change."""

        self._sorted: dict[str, list[StoredObject]] = {}
        self._snapshots: OrderedDict[tuple[int, str], list[StoredObject]] = OrderedDict()
        """States at versions that pages were asked of."""

    @property
    def resource(self) -> Resource:
        """What is stored here."""
        return self.kind.stored_as or self.kind.resource

    def __len__(self) -> int:
        return sum(map(len, self.by_namespace.values()))

    def get(self, namespace: str, name: str) -> StoredObject | None:
        """The committed object."""
        space = self.by_namespace.get(namespace)
        return space.get(name) if space else None

    def latest(self, namespace: str, name: str) -> StoredObject | None:
        """The object as the next write finds it."""
        waiting = self.pending.get((namespace, name))
        if waiting is None:
            return self.get(namespace, name)
        return None if waiting.type == DELETED else waiting.entry

    def ordered(self, namespace: str = "") -> list[StoredObject]:
        """The committed objects of one namespace, or of all, in the order of their keys.

        The list is never changed afterwards.
        """
        found = self._sorted.get(namespace)
        if found is None:
            if namespace or not self.kind.resource.namespaced:
                space = self.by_namespace.get(namespace, {})
                found = list(map(space.__getitem__, self._names_in(namespace)))
            else:
                found = []
                for each in sorted(self.by_namespace):
                    found += self.ordered(each)
            self._sorted[namespace] = found
        return found

    def _names_in(self, namespace: str) -> list[str]:
        found = self._names.get(namespace)
        if found is None:
            found = self._names[namespace] = sorted(self.by_namespace.get(namespace, ()))
        return found

    def entries(self) -> Iterator[StoredObject]:
        """The committed objects, in no order."""
        for space in list(self.by_namespace.values()):
            yield from list(space.values())

    def latest_entries_in(self, namespace: str) -> Iterator[StoredObject]:
        """Those of one namespace as the next write finds them, in no order."""
        for entry in self.by_namespace.get(namespace, {}).values():
            if entry.key not in self.pending:
                yield entry
        for waiting in self.pending.values():
            if waiting.type != DELETED and waiting.entry.namespace == namespace:
                yield waiting.entry

    def latest_entries(self) -> Iterator[StoredObject]:
        """The objects as the next write finds them, in no order."""
        # Copies, so that a reader in a thread meets a change of the state but no broken iterator.
        head = dict(self.pending)
        for entry in self.entries():
            if entry.key not in head:
                yield entry
        for waiting in head.values():
            if waiting.type != DELETED:
                yield waiting.entry

    def events_since(self, rv: int) -> list[WatchEvent]:
        """The changes after version *rv*, oldest first.

        Raises:
            StatusError: 410, some of them are forgotten.
        """
        if rv < self.oldest_version:
            raise expired(f"too old resource version: {rv} ({self.oldest_version})")
        found = []
        for event in reversed(self.history):
            if event.rv <= rv:
                break
            found.append(event)
        found.reverse()
        return found

    def objects_at(self, rv: int, namespace: str = "") -> list[StoredObject]:
        """The objects as they were at version *rv*.

        Raises:
            StatusError: 410, that version is forgotten.
        """
        found = self._snapshots.get((rv, namespace))
        if found is None:
            later = self.events_since(rv)
            if not later:
                return self.ordered(namespace)
            then: dict[Key, StoredObject | None] = {}
            for event in later:
                then.setdefault(event.entry.key, event.previous)
            found = [entry for entry in self.ordered(namespace) if entry.key not in then]
            found += (
                entry
                for entry in then.values()
                if entry is not None and (not namespace or entry.namespace == namespace)
            )
            found.sort(key=_key_of)
            self.keep_snapshot(rv, namespace, found)
        return found

    def keep_snapshot(self, rv: int, namespace: str, state: list[StoredObject]) -> None:
        """Remember the *state* at version *rv*: there are more pages of it."""
        self._snapshots[rv, namespace] = state
        if len(self._snapshots) > MAX_SNAPSHOTS:
            self._snapshots.popitem(last=False)

    def drop_snapshots_before(self, rv: int) -> None:
        """Let states go that are older than *rv*."""
        for past in [each for each in self._snapshots if each[0] < rv]:
            del self._snapshots[past]

    def apply(self, event: WatchEvent) -> None:
        """Take over a committed change and tell the watchers."""
        entry = event.entry
        self.change_count += 1
        if self.pending.get(entry.key) is event:
            del self.pending[entry.key]
        space = self.by_namespace.setdefault(entry.namespace, {})
        if event.type == DELETED:
            del space[entry.name]
            if not space:
                del self.by_namespace[entry.namespace]
        else:
            space[entry.name] = entry
        if event.type != MODIFIED and entry.namespace in self._names:
            self._update_order(entry, deleted=event.type == DELETED)
        if self._sorted:
            self._sorted.pop(entry.namespace, None)
            self._sorted.pop("", None)
        self.append_history(event)
        self.broadcaster.publish(event)

    def _update_order(self, entry: StoredObject, *, deleted: bool) -> None:
        names = self._names[entry.namespace]
        place = bisect_left(names, entry.name)
        if not deleted:
            names.insert(place, entry.name)
            return
        del names[place]
        if not names:
            del self._names[entry.namespace]

    def append_history(self, event: WatchEvent) -> None:
        """Put a change into the history."""
        self.history.append(event)
        if len(self.history) > WATCH_HISTORY_SIZE:
            self.oldest_version = self.history.popleft().rv


class PendingWrite(NamedTuple):
    """A write that is decided; *done* when it is on disk, or with why it could not be."""

    entry: StoredObject
    done: "asyncio.Future[None]"


class _QueuedWrite(NamedTuple):
    resource_store: ResourceStore
    event: WatchEvent
    waiters: "list[asyncio.Future[None]]"
    """One for each who waits: whoever is cancelled takes nobody along."""


class ObjectStore:
    """All shelves and the one writer."""

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
        """The oldest version at which objects can be listed, even if more is remembered."""

        self.write_error = ""
        """Why nothing can be written at the moment."""

        self.failures: Counter[str] = Counter()
        """What failed how often: ``commit``, ``open``, ``compaction``."""

        self._rv = store.last_rv
        self.committed_rv = store.last_rv
        """The version of the state that readers see."""
        self.listeners: list[Callable[[ResourceStore, WatchEvent], None]] = []
        """Called for each committed change, in order; they must be quick and never raise."""
        self._version_waiters: list[tuple[int, asyncio.Future[None]]] = []

    def resource_store(self, kind: KindInfo) -> ResourceStore:
        """Where the objects of *kind* are; made and loaded when first asked for."""
        resource = kind.stored_as or kind.resource
        shelf = self._resource_stores.get((resource.group, resource.plural))
        if shelf is None:
            # What is served only from now on is empty, and nobody can resume a watch of it.
            shelf = ResourceStore(kind, oldest_version=self.committed_rv)
            if not self._replayed:
                shelf.oldest_version = self._store.compacted_rv
                self._load(shelf)
            self._resource_stores[resource.group, resource.plural] = shelf
        return shelf

    def resource_stores(self) -> list[ResourceStore]:
        """All shelves that were asked for so far."""
        return list(self._resource_stores.values())

    def remove_resource(self, kind: KindInfo) -> None:
        """Take an empty shelf away, because its resource is no longer served."""
        resource = kind.stored_as or kind.resource
        shelf = self._resource_stores.pop((resource.group, resource.plural), None)
        if shelf is not None:
            shelf.broadcaster.close()

    def _load(self, resource_store: ResourceStore) -> None:
        resource = resource_store.resource
        for data in self._store.objects(resource.group, resource.plural):
            entry = StoredObject.load(resource_store.kind, data)
            resource_store.by_namespace.setdefault(entry.namespace, {})[entry.name] = entry

    def replay(self) -> None:
        """Fill the histories of all shelves from the log, so that watchers can resume.

        A change whose previous state is forgotten cannot be told to selective watchers, so the
        history of its resource starts after it.
        """
        self._replayed = True
        known: dict[tuple[str, str, str, str], StoredObject | None] = {}
        for change in self._store.log_entries():
            shelf = self._resource_stores.get((change.group, change.plural))
            if shelf is None:
                continue
            entry = StoredObject.load(shelf.kind, change.data)
            previous = known.get(change[1:5])
            known[change[1:5]] = None if change.type == DELETED else entry
            if change.type != ADDED and previous is None:
                shelf.history.clear()
                shelf.oldest_version = change.rv
            else:
                shelf.append_history(WatchEvent(change.type, entry, previous))

    def put(
        self, resource_store: ResourceStore, obj: dict[str, Any], old: StoredObject | None
    ) -> PendingWrite:
        """Decide to store *obj*, which replaces *old* (the head).

        Raises:
            StatusError: 413, it grows beyond what is stored; 507, there is space for deletions
                alone.
        """
        if self._store.full and "deletionTimestamp" not in obj["metadata"]:
            raise disk_full()
        entry = with_resource_version(resource_store.kind, obj, self._rv + 1)
        if len(entry.data) > MAX_OBJECT_SIZE and (old is None or len(entry.data) > len(old.data)):
            raise too_large(MAX_OBJECT_SIZE)
        self._rv += 1
        return self._enqueue(resource_store, WatchEvent(MODIFIED if old else ADDED, entry, old))

    def remove(
        self, resource_store: ResourceStore, obj: dict[str, Any], old: StoredObject
    ) -> PendingWrite:
        """Decide to remove *old*; *obj* is its last state, which watchers will see."""
        self._rv += 1
        return self._enqueue(
            resource_store,
            WatchEvent(DELETED, with_resource_version(resource_store.kind, obj, self._rv), old),
        )

    def pending_commit(
        self, resource_store: ResourceStore, entry: StoredObject
    ) -> "asyncio.Future[None] | None":
        """What to wait for before telling anybody about *entry*, if it is not yet on disk."""
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
        return PendingWrite(event.entry, done)

    async def run(self) -> None:
        """Commit what is decided, group by group, until :meth:`stop`."""
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
        """Wait for a write, or until it is time to look for space or to forget."""
        self._wake.clear()
        if not self._store.full:
            await self._wake.wait()
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DISK_SPACE_CHECK_INTERVAL):
                await self._wake.wait()

    async def _write_group(self) -> None:
        group = self._queued_writes[:MAX_GROUP_COMMIT]
        try:
            await self._in_thread(lambda: self._commit(group))
        except OutcomeUnknownError as error:
            log.exception("cannot tell whether a write is on disk")
            self.failures["commit"] += 1
            if not await self._resolve_outcome(group[-1].event.rv, error):
                return
        except Exception as error:
            log.exception("cannot write to the store")
            self.failures["commit"] += 1
            self._fail(
                disk_full() if isinstance(error, DiskFullError) else cannot_store(str(error))
            )
            return
        del self._queued_writes[: len(group)]
        self._publish(group)

    async def _resolve_outcome(self, rv: int, error: Exception) -> bool:
        """Whether the group that ends with *rv* is on disk; nothing else happens until it is known.

        If it is not, or a stop comes first, whatever waits has failed.
        """
        self.write_error = str(error)
        for delay in _backoff_delays():
            try:
                held = await self._in_thread(lambda: self._store.contains_version(rv))
            except Exception:
                # Whatever it was: to write the group again could only do harm.
                log.exception("cannot open the store again")
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
        """Cut the log when it has grown, and look for space when there was none."""
        moment = asyncio.get_running_loop().time()
        if moment >= self.next_snapshot_expiry:
            self._expire_snapshots(moment)
        if self._store.full and moment >= self._next_space_check:
            self._next_space_check = moment + DISK_SPACE_CHECK_INTERVAL
            await self._in_thread(self._store.check_disk_space)
            if self._store.full:
                self._since_compaction = COMPACT_EVERY
        if self._since_compaction < COMPACT_EVERY:
            return
        try:
            more = await self._in_thread(self._store.compact)
        except (sqlite3.Error, DiskFullError, OutcomeUnknownError):
            # What was committed stays committed, and the log can be cut later.
            log.exception("cannot cut the log")
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
        for shelf in self._resource_stores.values():
            shelf.drop_snapshots_before(self.oldest_rv)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _commit(self, group: list[_QueuedWrite]) -> None:
        """Runs in the writing thread."""
        changes = []
        durable = False
        for shelf, event, _ in group:
            resource, entry = shelf.resource, event.entry
            durable = durable or (resource.group, resource.plural) not in ASYNC_COMMIT_RESOURCES
            changes.append(
                LogEntry(
                    entry.rv,
                    resource.group,
                    resource.plural,
                    entry.namespace,
                    entry.name,
                    event.type,
                    entry.data,
                )
            )
        self._store.commit(changes, durable=durable)
        self._since_compaction += len(changes)

    def _publish(self, group: list[_QueuedWrite]) -> None:
        for shelf, event, _ in group:
            shelf.apply(event)
            self.committed_rv = event.rv
            for listener in self.listeners:
                listener(shelf, event)
        for write in group:
            for waiter in write.waiters:
                if not waiter.done():
                    waiter.set_result(None)
        if self._version_waiters:
            self._wake_version_waiters()

    def _fail(self, error: StatusError) -> None:
        """Whatever waits may build on what could not be written: none of it happens."""
        failed, self._queued_writes = self._queued_writes, []
        for shelf, event, waiters in failed:
            shelf.pending.pop(event.entry.key, None)
            shelf.change_count += 1
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(error)
                    waiter.exception()  # the caller may have gone; the error is logged already

    def _wake_version_waiters(self) -> None:
        still = []
        for rv, waiter in self._version_waiters:
            if rv > self.committed_rv:
                still.append((rv, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        self._version_waiters = still

    async def wait_until_fresh(self, rv: int, *, timeout: float | None = None) -> None:
        """Wait until readers see version *rv*, ``WAIT_FOR_VERSION`` seconds unless *within* others.

        Raises:
            StatusError: 504, it did not come.
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
    def stopping(self) -> bool:
        """Whether :meth:`run_in_thread` may end."""
        return self._closing

    @property
    def writable(self) -> bool:
        """Whether everything can be written, as far as is known."""
        return not (self.write_error or self._store.full)

    def stop(self) -> None:
        """Take no more writes; :meth:`run_in_thread` ends when the waiting ones are on disk."""
        self._closing = True
        self._wake.set()

    def close_watches(self) -> None:
        """End all watches, and let none begin."""
        for shelf in self._resource_stores.values():
            shelf.broadcaster.close()

    async def close(self) -> None:
        """Close the store, after :meth:`run_in_thread` has ended."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._store.close)
        self._thread.shutdown()
