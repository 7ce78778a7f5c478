"""The objects of one resource, in memory: committed state, pending writes and recent history."""

from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator

from ....model.names import Resource
from ..errors.status import expired
from ..kinds.info import KindInfo
from .stored_objects import DELETED, MODIFIED, StoredObject, WatchEvent
from .watch import Broadcaster

WATCH_HISTORY_SIZE = 10_000
"""Changes of one resource from which watches can resume."""

MAX_SNAPSHOTS = 8
"""Past states of a resource that are kept for further pages of a list."""

Key = tuple[str, str]
Listener = Callable[["ResourceStore", WatchEvent], None]


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
        self.listeners: list[Listener] = []
        """Called for each committed change after the listeners of all stores, by the same rules."""
        self.change_count = 0
        """Increases whenever the pending or the committed objects change."""

        self._names: dict[str, list[str]] = {}
        """Sorted names of the namespaces that were listed, updated with each change."""

        self._sorted: dict[str, list[StoredObject]] = {}
        self._snapshots: OrderedDict[tuple[int, str], list[StoredObject]] = OrderedDict()
        """States at the versions that further pages refer to."""

    @property
    def resource(self) -> Resource:
        """The stored resource."""
        return self.kind.stored_as or self.kind.resource

    def __len__(self) -> int:
        return sum(map(len, self.by_namespace.values()))

    def get(self, namespace: str, name: str) -> StoredObject | None:
        """Return the committed object."""
        space = self.by_namespace.get(namespace)
        return space.get(name) if space else None

    def latest(self, namespace: str, name: str) -> StoredObject | None:
        """Return the object as the next write finds it."""
        waiting = self.pending.get((namespace, name))
        if waiting is None:
            return self.get(namespace, name)
        return None if waiting.type == DELETED else waiting.entry

    def ordered(self, namespace: str = "") -> list[StoredObject]:
        """Return the committed objects of one namespace, or of all, sorted by key.

        The list is never modified afterwards.
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
        """Yield the committed objects, unordered."""
        for space in list(self.by_namespace.values()):
            yield from list(space.values())

    def latest_entries_in(self, namespace: str) -> Iterator[StoredObject]:
        """Yield the objects of one namespace as the next write finds them, unordered."""
        for entry in self.by_namespace.get(namespace, {}).values():
            if entry.key not in self.pending:
                yield entry
        for waiting in self.pending.values():
            if waiting.type != DELETED and waiting.entry.namespace == namespace:
                yield waiting.entry

    def latest_entries(self) -> Iterator[StoredObject]:
        """Yield the objects as the next write finds them, unordered."""
        # Copies: a reader in a thread may see a concurrent change, but no broken iterator.
        head = dict(self.pending)
        for entry in self.entries():
            if entry.key not in head:
                yield entry
        for waiting in head.values():
            if waiting.type != DELETED:
                yield waiting.entry

    def events_since(self, rv: int) -> list[WatchEvent]:
        """Return the changes after version *rv*, oldest first.

        Raises:
            StatusError: 410, the history starts later.
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
        """Return the objects as they were at version *rv*.

        Raises:
            StatusError: 410, that version has expired.
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
        """Keep the *state* at version *rv* for further pages."""
        self._snapshots[rv, namespace] = state
        if len(self._snapshots) > MAX_SNAPSHOTS:
            self._snapshots.popitem(last=False)

    def drop_snapshots_before(self, rv: int) -> None:
        """Drop the states that are older than *rv*."""
        for past in [each for each in self._snapshots if each[0] < rv]:
            del self._snapshots[past]

    def show(self, entry: StoredObject) -> None:
        """Show a committed object as the kind has become, if it is still the present one."""
        found = self.by_namespace.get(entry.namespace, {})
        shown = entry.shown_as(self.kind)
        if shown is not entry and found.get(entry.name) is entry:
            found[entry.name] = shown
            self._sorted.clear()
            self.change_count += 1

    def apply(self, event: WatchEvent) -> None:
        """Apply a committed change and publish it to the watchers."""
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
        position = bisect_left(names, entry.name)
        if not deleted:
            names.insert(position, entry.name)
            return
        del names[position]
        if not names:
            del self._names[entry.namespace]

    def append_history(self, event: WatchEvent) -> None:
        """Append a change to the history."""
        self.history.append(event)
        if len(self.history) > WATCH_HISTORY_SIZE:
            self.oldest_version = self.history.popleft().rv
