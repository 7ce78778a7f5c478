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
from .sqlite import Change, DiskFullError, OutcomeUnknownError, Store
from .stored_objects import ADDED, DELETED, MODIFIED, Entry, Event, seal
from .watch import Hub

log = logging.getLogger(__name__)

HISTORY = 10_000
"""Changes of one resource that watchers can go back to."""

GROUP = 512
"""Most writes in one transaction."""

COMPACT_EVERY = 20_000
"""Changes between two cuts of the stored log."""

RELAXED = frozenset({("", "events"), ("coordination.k8s.io", "leases")})
"""Resources whose newest writes may be lost in a power cut (not when the process dies)."""

WAIT_FOR_VERSION = 3.0
"""Seconds that a read waits for a version that is still to come."""

STATES = 8
"""Past states of a resource that are kept for further pages."""

FORGET_EVERY = 300.0
"""Seconds after which pages and exact versions are forgotten that were made before the last time
that this long passed: as a real server does, whose store forgets its past every five minutes."""

LOOK_FOR_SPACE_EVERY = 2.0
"""Seconds between two looks whether a full disk has space again."""

OBJECT_LIMIT = 3 * 2**20
"""Bytes that an object may have: many small patches must not make what one body could not."""

Key = tuple[str, str]
T = TypeVar("T")


def _delays() -> Iterator[float]:
    """Seconds between attempts to find out what is on disk."""
    delay = 0.05
    while True:
        yield delay
        delay = min(2 * delay, 5.0)


def _key_of(entry: Entry) -> Key:
    return entry.key


class Shelf:
    """The objects of one resource, by namespace and name."""

    def __init__(self, kind: KindInfo, *, floor: int) -> None:
        self.kind = kind
        self.spaces: dict[str, dict[str, Entry]] = {}
        self.head: dict[Key, Event] = {}
        self.history: deque[Event] = deque()
        self.floor = floor
        """Every change after this version is in the history."""
        self.hub = Hub()
        self.moves = 0
        """Grows whenever the head or the committed objects change."""

        self._names: dict[str, list[str]] = {}
        """Of the namespaces that were asked for: the names in order, kept up with each change."""

        self._sorted: dict[str, list[Entry]] = {}
        self._past: OrderedDict[tuple[int, str], list[Entry]] = OrderedDict()
        """States at versions that pages were asked of."""

    @property
    def resource(self) -> Resource:
        """What is stored here."""
        return self.kind.stored_as or self.kind.resource

    def __len__(self) -> int:
        return sum(map(len, self.spaces.values()))

    def get(self, namespace: str, name: str) -> Entry | None:
        """The committed object."""
        space = self.spaces.get(namespace)
        return space.get(name) if space else None

    def latest(self, namespace: str, name: str) -> Entry | None:
        """The object as the next write finds it."""
        waiting = self.head.get((namespace, name))
        if waiting is None:
            return self.get(namespace, name)
        return None if waiting.type == DELETED else waiting.entry

    def ordered(self, namespace: str = "") -> list[Entry]:
        """The committed objects of one namespace, or of all, in the order of their keys.

        The list is never changed afterwards.
        """
        found = self._sorted.get(namespace)
        if found is None:
            if namespace or not self.kind.resource.namespaced:
                space = self.spaces.get(namespace, {})
                found = list(map(space.__getitem__, self._names_in(namespace)))
            else:
                found = []
                for each in sorted(self.spaces):
                    found += self.ordered(each)
            self._sorted[namespace] = found
        return found

    def _names_in(self, namespace: str) -> list[str]:
        found = self._names.get(namespace)
        if found is None:
            found = self._names[namespace] = sorted(self.spaces.get(namespace, ()))
        return found

    def entries(self) -> Iterator[Entry]:
        """The committed objects, in no order."""
        for space in list(self.spaces.values()):
            yield from list(space.values())

    def heads_of(self, namespace: str) -> Iterator[Entry]:
        """Those of one namespace as the next write finds them, in no order."""
        for entry in self.spaces.get(namespace, {}).values():
            if entry.key not in self.head:
                yield entry
        for waiting in self.head.values():
            if waiting.type != DELETED and waiting.entry.namespace == namespace:
                yield waiting.entry

    def heads(self) -> Iterator[Entry]:
        """The objects as the next write finds them, in no order."""
        # Copies, so that a reader in a thread meets a change of the state but no broken iterator.
        head = dict(self.head)
        for entry in self.entries():
            if entry.key not in head:
                yield entry
        for waiting in head.values():
            if waiting.type != DELETED:
                yield waiting.entry

    def since(self, rv: int) -> list[Event]:
        """The changes after version *rv*, oldest first.

        Raises:
            StatusError: 410, some of them are forgotten.
        """
        if rv < self.floor:
            raise expired(f"too old resource version: {rv} ({self.floor})")
        found = []
        for event in reversed(self.history):
            if event.rv <= rv:
                break
            found.append(event)
        found.reverse()
        return found

    def at(self, rv: int, namespace: str = "") -> list[Entry]:
        """The objects as they were at version *rv*.

        Raises:
            StatusError: 410, that version is forgotten.
        """
        found = self._past.get((rv, namespace))
        if found is None:
            later = self.since(rv)
            if not later:
                return self.ordered(namespace)
            then: dict[Key, Entry | None] = {}
            for event in later:
                then.setdefault(event.entry.key, event.previous)
            found = [entry for entry in self.ordered(namespace) if entry.key not in then]
            found += (
                entry
                for entry in then.values()
                if entry is not None and (not namespace or entry.namespace == namespace)
            )
            found.sort(key=_key_of)
            self.keep(rv, namespace, found)
        return found

    def keep(self, rv: int, namespace: str, state: list[Entry]) -> None:
        """Remember the *state* at version *rv*: there are more pages of it."""
        self._past[rv, namespace] = state
        if len(self._past) > STATES:
            self._past.popitem(last=False)

    def forget_before(self, rv: int) -> None:
        """Let states go that are older than *rv*."""
        for past in [each for each in self._past if each[0] < rv]:
            del self._past[past]

    def apply(self, event: Event) -> None:
        """Take over a committed change and tell the watchers."""
        entry = event.entry
        self.moves += 1
        if self.head.get(entry.key) is event:
            del self.head[entry.key]
        space = self.spaces.setdefault(entry.namespace, {})
        if event.type == DELETED:
            del space[entry.name]
            if not space:
                del self.spaces[entry.namespace]
        else:
            space[entry.name] = entry
        if event.type != MODIFIED and entry.namespace in self._names:
            self._keep_order(entry, gone=event.type == DELETED)
        if self._sorted:
            self._sorted.pop(entry.namespace, None)
            self._sorted.pop("", None)
        self.remember(event)
        self.hub.publish(event)

    def _keep_order(self, entry: Entry, *, gone: bool) -> None:
        names = self._names[entry.namespace]
        place = bisect_left(names, entry.name)
        if not gone:
            names.insert(place, entry.name)
            return
        del names[place]
        if not names:
            del self._names[entry.namespace]

    def remember(self, event: Event) -> None:
        """Put a change into the history."""
        self.history.append(event)
        if len(self.history) > HISTORY:
            self.floor = self.history.popleft().rv


class Pending(NamedTuple):
    """A write that is decided; *done* when it is on disk, or with why it could not be."""

    entry: Entry
    done: "asyncio.Future[None]"


class _Write(NamedTuple):
    shelf: Shelf
    event: Event
    waiters: "list[asyncio.Future[None]]"
    """One for each who waits: whoever is cancelled takes nobody along."""


class Registry:
    """All shelves and the one writer."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store")
        self._shelves: dict[tuple[str, str], Shelf] = {}
        self._waiting: list[_Write] = []
        self._wake = asyncio.Event()
        self._closing = False
        self._replayed = False
        self._since_compaction = 0
        self._next_look = 0.0
        self.next_forgetting = asyncio.get_running_loop().time() + FORGET_EVERY
        self._forget_next = 0
        self.oldest_rv = 0
        """The oldest version at which objects can be listed, even if more is remembered."""

        self.trouble = ""
        """Why nothing can be written at the moment."""

        self.failures: Counter[str] = Counter()
        """What failed how often: ``commit``, ``open``, ``compaction``."""

        self._rv = store.last_rv
        self.committed_rv = store.last_rv
        """The version of the state that readers see."""
        self.listeners: list[Callable[[Shelf, Event], None]] = []
        """Called for each committed change, in order; they must be quick and never raise."""
        self._version_waiters: list[tuple[int, asyncio.Future[None]]] = []

    def shelf(self, kind: KindInfo) -> Shelf:
        """Where the objects of *kind* are; made and loaded when first asked for."""
        resource = kind.stored_as or kind.resource
        shelf = self._shelves.get((resource.group, resource.plural))
        if shelf is None:
            # What is served only from now on is empty, and nobody can resume a watch of it.
            shelf = Shelf(kind, floor=self.committed_rv)
            if not self._replayed:
                shelf.floor = self._store.compacted_rv
                self._load(shelf)
            self._shelves[resource.group, resource.plural] = shelf
        return shelf

    def shelves(self) -> list[Shelf]:
        """All shelves that were asked for so far."""
        return list(self._shelves.values())

    def forget(self, kind: KindInfo) -> None:
        """Take an empty shelf away, because its resource is no longer served."""
        resource = kind.stored_as or kind.resource
        shelf = self._shelves.pop((resource.group, resource.plural), None)
        if shelf is not None:
            shelf.hub.close()

    def _load(self, shelf: Shelf) -> None:
        resource = shelf.resource
        for data in self._store.objects(resource.group, resource.plural):
            entry = Entry.load(shelf.kind, data)
            shelf.spaces.setdefault(entry.namespace, {})[entry.name] = entry

    def replay(self) -> None:
        """Fill the histories of all shelves from the log, so that watchers can resume.

        A change whose previous state is forgotten cannot be told to selective watchers, so the
        history of its resource starts after it.
        """
        self._replayed = True
        known: dict[tuple[str, str, str, str], Entry | None] = {}
        for change in self._store.changes():
            shelf = self._shelves.get((change.group, change.plural))
            if shelf is None:
                continue
            entry = Entry.load(shelf.kind, change.data)
            previous = known.get(change[1:5])
            known[change[1:5]] = None if change.type == DELETED else entry
            if change.type != ADDED and previous is None:
                shelf.history.clear()
                shelf.floor = change.rv
            else:
                shelf.remember(Event(change.type, entry, previous))

    def put(self, shelf: Shelf, obj: dict[str, Any], old: Entry | None) -> Pending:
        """Decide to store *obj*, which replaces *old* (the head).

        Raises:
            StatusError: 413, it grows beyond what is stored; 507, there is space for deletions
                alone.
        """
        if self._store.full and "deletionTimestamp" not in obj["metadata"]:
            raise disk_full()
        entry = seal(shelf.kind, obj, self._rv + 1)
        if len(entry.data) > OBJECT_LIMIT and (old is None or len(entry.data) > len(old.data)):
            raise too_large(OBJECT_LIMIT)
        self._rv += 1
        return self._enqueue(shelf, Event(MODIFIED if old else ADDED, entry, old))

    def remove(self, shelf: Shelf, obj: dict[str, Any], old: Entry) -> Pending:
        """Decide to remove *old*; *obj* is its last state, which watchers will see."""
        self._rv += 1
        return self._enqueue(shelf, Event(DELETED, seal(shelf.kind, obj, self._rv), old))

    def settled(self, shelf: Shelf, entry: Entry) -> "asyncio.Future[None] | None":
        """What to wait for before telling anybody about *entry*, if it is not yet on disk."""
        if shelf.get(*entry.key) is entry:
            return None
        write = next((each for each in self._waiting if each.event.entry is entry), None)
        if write is None:
            return None
        write.waiters.append(asyncio.get_running_loop().create_future())
        return write.waiters[-1]

    def _enqueue(self, shelf: Shelf, event: Event) -> Pending:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._closing:
            done.set_exception(StatusError(503, "ServiceUnavailable", "the server is stopping"))
            return Pending(event.entry, done)
        shelf.head[event.entry.key] = event
        shelf.moves += 1
        self._waiting.append(_Write(shelf, event, [done]))
        self._wake.set()
        return Pending(event.entry, done)

    async def run(self) -> None:
        """Commit what is decided, group by group, until :meth:`stop`."""
        loop = asyncio.get_running_loop()
        self._alarm = loop.call_at(self.next_forgetting, self._wake.set)
        try:
            await self._commit_groups()
        finally:
            self._alarm.cancel()

    async def _commit_groups(self) -> None:
        while True:
            if self._waiting:
                await self._write_group()
            elif self._closing:
                return
            elif self._since_compaction < COMPACT_EVERY:
                await self._rest()
            await self._keep_house()

    async def _rest(self) -> None:
        """Wait for a write, or until it is time to look for space or to forget."""
        self._wake.clear()
        if not self._store.full:
            await self._wake.wait()
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_FOR_SPACE_EVERY):
                await self._wake.wait()

    async def _write_group(self) -> None:
        group = self._waiting[:GROUP]
        try:
            await self._in_thread(lambda: self._commit(group))
        except OutcomeUnknownError as error:
            log.exception("cannot tell whether a write is on disk")
            self.failures["commit"] += 1
            if not await self._found_out(group[-1].event.rv, error):
                return
        except Exception as error:
            log.exception("cannot write to the store")
            self.failures["commit"] += 1
            self._fail(
                disk_full() if isinstance(error, DiskFullError) else cannot_store(str(error))
            )
            return
        del self._waiting[: len(group)]
        self._publish(group)

    async def _found_out(self, rv: int, error: Exception) -> bool:
        """Whether the group that ends with *rv* is on disk; nothing else happens until it is known.

        If it is not, or a stop comes first, whatever waits has failed.
        """
        self.trouble = str(error)
        for delay in _delays():
            try:
                held = await self._in_thread(lambda: self._store.holds(rv))
            except Exception:
                # Whatever it was: to write the group again could only do harm.
                log.exception("cannot open the store again")
                self.failures["open"] += 1
            else:
                self.trouble = ""
                if not held:
                    self._fail(cannot_store(str(error)))
                return held
            if self._closing:
                break
            await asyncio.sleep(delay)
        self._fail(outcome_unknown(str(error)))
        return False

    async def _keep_house(self) -> None:
        """Cut the log when it has grown, and look for space when there was none."""
        moment = asyncio.get_running_loop().time()
        if moment >= self.next_forgetting:
            self._forget_past(moment)
        if self._store.full and moment >= self._next_look:
            self._next_look = moment + LOOK_FOR_SPACE_EVERY
            await self._in_thread(self._store.look_for_space)
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

    def _forget_past(self, moment: float) -> None:
        self.next_forgetting = moment + FORGET_EVERY
        self._alarm.cancel()
        self._alarm = asyncio.get_running_loop().call_at(self.next_forgetting, self._wake.set)
        self.oldest_rv, self._forget_next = self._forget_next, self.committed_rv
        for shelf in self._shelves.values():
            shelf.forget_before(self.oldest_rv)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _commit(self, group: list[_Write]) -> None:
        """Runs in the writing thread."""
        changes = []
        durable = False
        for shelf, event, _ in group:
            resource, entry = shelf.resource, event.entry
            durable = durable or (resource.group, resource.plural) not in RELAXED
            changes.append(
                Change(
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

    def _publish(self, group: list[_Write]) -> None:
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
            self._tell_version_waiters()

    def _fail(self, error: StatusError) -> None:
        """Whatever waits may build on what could not be written: none of it happens."""
        failed, self._waiting = self._waiting, []
        for shelf, event, waiters in failed:
            shelf.head.pop(event.entry.key, None)
            shelf.moves += 1
            for waiter in waiters:
                if not waiter.done():
                    waiter.set_exception(error)
                    waiter.exception()  # the caller may have gone; the error is logged already

    def _tell_version_waiters(self) -> None:
        still = []
        for rv, waiter in self._version_waiters:
            if rv > self.committed_rv:
                still.append((rv, waiter))
            elif not waiter.done():
                waiter.set_result(None)
        self._version_waiters = still

    async def reach(self, rv: int, *, within: float | None = None) -> None:
        """Wait until readers see version *rv*, ``WAIT_FOR_VERSION`` seconds unless *within* others.

        Raises:
            StatusError: 504, it did not come.
        """
        if rv <= self.committed_rv:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._version_waiters.append((rv, waiter))
        try:
            async with asyncio.timeout(within or WAIT_FOR_VERSION):
                await waiter
        except TimeoutError:
            raise version_too_large(rv, self.committed_rv) from None

    @property
    def stopping(self) -> bool:
        """Whether :meth:`run` may end."""
        return self._closing

    @property
    def writable(self) -> bool:
        """Whether everything can be written, as far as is known."""
        return not (self.trouble or self._store.full)

    def stop(self) -> None:
        """Take no more writes; :meth:`run` ends when the waiting ones are on disk."""
        self._closing = True
        self._wake.set()

    def end_streams(self) -> None:
        """End all watches, and let none begin."""
        for shelf in self._shelves.values():
            shelf.hub.close()

    async def close(self) -> None:
        """Close the store, after :meth:`run` has ended."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._store.close)
        self._thread.shutdown()
