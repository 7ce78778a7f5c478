"""Keeps a deleted PodGroup of Kubernetes itself while pods that have not ended name it.

Admission adds the finalizer; this controller removes it. It reads pods only while a PodGroup
waits for its deletion.
"""

from ....model import names
from ....model.pod import FINISHED
from ..builtin.pod_groups import PROTECTION
from ..storage.resource_store import ResourceStore
from ..storage.stored_objects import StoredObject, WatchEvent
from .base import Controller, ControllerContext, internal_request, without_finalizer

_FIELD = b'"schedulingGroup"'


class PodGroupProtectionController(Controller):
    """Removes the finalizer of deleted PodGroups; the key is namespace and name."""

    name = "podgroup-protection"

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._podgroups = context.resource_store(names.NATIVE_PODGROUPS)
        self._pods = context.resource_store(names.PODS)
        self._waiting: set[tuple[str, str]] = set()
        """Deleted PodGroups that pods name."""

    def on_event(self, resource_store: ResourceStore, event: WatchEvent) -> None:
        """Enqueue a deleted PodGroup, and those that may have waited for a changed pod."""
        entry = event.entry
        if resource_store is self._podgroups:
            self._enqueue(entry)
        elif resource_store is self._pods and self._waiting and _FIELD in entry.data:
            for key in self._waiting:
                if key[0] == entry.namespace:
                    self.queue.add("/".join(key))

    def enqueue_all(self) -> None:
        """Enqueue all deleted PodGroups."""
        for entry in self._podgroups.entries():
            self._enqueue(entry)

    def _enqueue(self, entry: StoredObject) -> None:
        if entry.deleting and entry.has_finalizers:
            self.queue.add("/".join(entry.key))

    async def reconcile(self, key: str) -> float | None:
        """Remove the finalizer of one PodGroup, if no pod needs it."""
        namespace, _, name = key.partition("/")
        self._waiting.discard((namespace, name))
        entry = self._podgroups.latest(namespace, name)
        if entry is None or not entry.deleting:
            return None
        if PROTECTION not in (entry.parse()["metadata"].get("finalizers") or ()):
            return None
        if self._is_used(namespace, name):
            self._waiting.add((namespace, name))
            return None
        call = internal_request(self._podgroups.kind, entry.key)
        written = self.context.writer.update_unchecked(
            call, lambda obj: without_finalizer(obj, PROTECTION)
        )
        await written.committed()
        return None

    def _is_used(self, namespace: str, name: str) -> bool:
        return any(
            _names_podgroup(entry, name)
            for entry in self._pods.latest_entries()
            if entry.namespace == namespace and _FIELD in entry.data
        )


def _names_podgroup(entry: StoredObject, name: str) -> bool:
    """Return whether a pod that has not ended names the PodGroup *name*."""
    pod = entry.parse()
    group = (pod.get("spec") or {}).get("schedulingGroup") or {}
    phase = (pod.get("status") or {}).get("phase", "")
    return group.get("podGroupName") == name and phase not in FINISHED
