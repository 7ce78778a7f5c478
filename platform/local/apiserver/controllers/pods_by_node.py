"""The pods of each node, kept up to date with the committed changes."""

from collections.abc import Iterator

from ..storage.resource_store import Key, ResourceStore
from ..storage.stored_objects import DELETED, StoredObject, WatchEvent


class PodsByNode:
    """An index that several controllers share; to be registered as a listener of the store."""

    def __init__(self, pods: ResourceStore) -> None:
        """Start empty; :meth:`rebuild` adds the stored pods."""
        self.pods = pods
        self._keys: dict[str, dict[Key, None]] = {}
        self._unassigned_terminating: dict[Key, None] = {}

    def rebuild(self) -> None:
        """Index the stored pods."""
        self._keys.clear()
        self._unassigned_terminating.clear()
        for entry in self.pods.entries():
            self._add(entry)

    def observe(self, resource_store: ResourceStore, event: WatchEvent) -> None:
        """Apply a committed change."""
        if resource_store is not self.pods:
            return
        entry, previous = event.entry, event.previous
        if previous is not None and (event.type == DELETED or previous.node != entry.node):
            self._remove(previous)
        if event.type == DELETED:
            self._remove(entry)
        else:
            self._add(entry)

    def nodes(self) -> list[str]:
        """Return the names of all nodes that have pods, whether they exist or not."""
        return list(self._keys)

    def on_node(self, name: str) -> Iterator[StoredObject]:
        """Yield the pods of one node as the next write finds them."""
        for key in list(self._keys.get(name, ())):
            entry = self.pods.latest(*key)
            if entry is not None and entry.node == name:
                yield entry

    def unassigned_terminating(self) -> Iterator[StoredObject]:
        """Yield the pods that are being deleted and have no node."""
        for key in list(self._unassigned_terminating):
            entry = self.pods.latest(*key)
            if entry is not None and entry.deleting and not entry.node:
                yield entry

    def _add(self, entry: StoredObject) -> None:
        if entry.node:
            self._keys.setdefault(entry.node, {})[entry.key] = None
            self._unassigned_terminating.pop(entry.key, None)
        elif entry.deleting:
            self._unassigned_terminating[entry.key] = None

    def _remove(self, entry: StoredObject) -> None:
        self._unassigned_terminating.pop(entry.key, None)
        keys = self._keys.get(entry.node)
        if keys is not None:
            keys.pop(entry.key, None)
            if not keys:
                del self._keys[entry.node]
