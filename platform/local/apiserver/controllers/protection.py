"""Keep deleted objects while something uses them.

Admission adds the finalizers, and these controllers remove them. They read the users of an object
only while it waits for its deletion.
"""

from abc import abstractmethod
from collections.abc import Mapping

from ....model import names
from ....model.names import Resource
from ....model.pod import FINISHED
from ..builtin.pod_references import CLAIMS, references
from ..builtin.protection_finalizers import (
    ATTRIBUTES_CLASSES,
    PROTECTION_FINALIZERS,
    add_finalizer,
)
from ..http.requests import Json
from ..storage.resource_store import ResourceStore
from ..storage.stored_objects import StoredObject, WatchEvent
from .base import Controller, ControllerContext, internal_request, without_finalizer


class ProtectionController(Controller):
    """Removes the finalizer of deleted objects of one kind; the key is namespace and name."""

    resource: Resource
    users: Mapping[Resource, bytes] = {}
    """Kinds of which objects use these, and what the JSON of a user contains."""

    adds_finalizer = True
    """Whether an object that lacks the finalizer gets it: it may be older than the controller."""

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self.objects = context.resource_store(self.resource)
        self.user_stores = [
            (context.resource_store(resource), content) for resource, content in self.users.items()
        ]
        self.observed = (self.objects, *(store for store, _ in self.user_stores))
        self._finalizer = PROTECTION_FINALIZERS[self.resource]
        self._mark = self._finalizer.encode()
        self._waiting: set[tuple[str, str]] = set()
        """Deleted objects that are in use."""

    def on_event(self, resource_store: ResourceStore, event: WatchEvent) -> None:
        """Enqueue a changed object, and those that may have waited for a changed user."""
        entry = event.entry
        if resource_store is self.objects:
            self._enqueue(entry)
        elif self._waiting and self._may_use(resource_store, entry):
            for key in self._waiting:
                if key[0] in ("", entry.namespace):
                    self.queue.add("/".join(key))

    def _may_use(self, resource_store: ResourceStore, entry: StoredObject) -> bool:
        return any(
            resource_store is store and content in entry.data for store, content in self.user_stores
        )

    def enqueue_all(self) -> None:
        """Enqueue all objects that may need work."""
        for entry in self.objects.entries():
            self._enqueue(entry)

    def _enqueue(self, entry: StoredObject) -> None:
        has_finalizer = self._mark in entry.data
        if has_finalizer if entry.deleting else self.adds_finalizer and not has_finalizer:
            self.queue.add("/".join(entry.key))

    async def reconcile(self, key: str) -> float | None:
        """Remove the finalizer of a deleted object that nothing uses, or add it to another one."""
        namespace, _, name = key.partition("/")
        self._waiting.discard((namespace, name))
        entry = self.objects.latest(namespace, name)
        if entry is None:
            return None
        held = self._finalizer in (entry.parse()["metadata"].get("finalizers") or ())
        if entry.deleting != held:
            return None
        if held and self.is_used(entry):
            self._waiting.add((namespace, name))
            return None
        change = self._without if held else self._with
        call = internal_request(self.objects.kind, entry.key)
        await self.context.writer.update_unchecked(call, change).committed()
        return None

    def _with(self, obj: Json) -> Json:
        changed = {**obj, "metadata": dict(obj["metadata"])}
        add_finalizer(changed, self._finalizer)
        return changed

    def _without(self, obj: Json) -> Json:
        return without_finalizer(obj, self._finalizer)

    @abstractmethod
    def is_used(self, entry: StoredObject) -> bool:
        """Whether something uses a deleted object."""


class PodGroupProtectionController(ProtectionController):
    """Keeps PodGroups of Kubernetes itself while pods that have not ended name them."""

    name = "podgroup-protection"
    resource = names.NATIVE_PODGROUPS
    users = {names.PODS: b'"schedulingGroup"'}
    adds_finalizer = False

    def is_used(self, entry: StoredObject) -> bool:
        """See :meth:`ProtectionController.is_used`."""
        ((pods, content),) = self.user_stores
        return any(
            content in pod.data and _names_podgroup(pod.parse(), entry.name)
            for pod in pods.latest_entries_in(entry.namespace)
        )


def _names_podgroup(pod: Json, name: str) -> bool:
    """Return whether a pod that has not ended names the PodGroup *name*."""
    group = (pod.get("spec") or {}).get("schedulingGroup") or {}
    phase = (pod.get("status") or {}).get("phase", "")
    return group.get("podGroupName") == name and phase not in FINISHED


class ClaimProtectionController(ProtectionController):
    """Keeps claims while there are pods with a node that mount them, also ended ones."""

    name = "pvc-protection"
    resource = names.PERSISTENTVOLUMECLAIMS
    users = {names.PODS: b'"volumes"'}

    def is_used(self, entry: StoredObject) -> bool:
        """See :meth:`ProtectionController.is_used`."""
        ((pods, content),) = self.user_stores
        key = CLAIMS, entry.namespace, entry.name
        return any(
            pod.node and content in pod.data and key in references(pod.parse())
            for pod in pods.latest_entries_in(entry.namespace)
        )


class VolumeProtectionController(ProtectionController):
    """Keeps volumes while they are bound."""

    name = "pv-protection"
    resource = names.PERSISTENTVOLUMES

    def is_used(self, entry: StoredObject) -> bool:
        """See :meth:`ProtectionController.is_used`."""
        return bool((entry.parse().get("status") or {}).get("phase") == "Bound")


class AttributesClassProtectionController(ProtectionController):
    """Keeps VolumeAttributesClasses while claims or volumes have them."""

    name = "vac-protection"
    resource = ATTRIBUTES_CLASSES
    users = dict.fromkeys(
        (names.PERSISTENTVOLUMECLAIMS, names.PERSISTENTVOLUMES), b"olumeAttributesClassName"
    )

    def is_used(self, entry: StoredObject) -> bool:
        """See :meth:`ProtectionController.is_used`."""
        return any(
            content in user.data and entry.name in _attributes_classes(user.parse())
            for store, content in self.user_stores
            for user in store.latest_entries()
        )


def _attributes_classes(obj: Json) -> set[str]:
    """Return the names of the classes of a claim or volume."""
    spec, status = obj.get("spec") or {}, obj.get("status") or {}
    target = (status.get("modifyVolumeStatus") or {}).get("targetVolumeAttributesClassName")
    return {
        name
        for name in (
            spec.get("volumeAttributesClassName"),
            status.get("currentVolumeAttributesClassName"),
            target,
        )
        if name
    }


PROTECTION_CONTROLLERS = (
    AttributesClassProtectionController,
    ClaimProtectionController,
    PodGroupProtectionController,
    VolumeProtectionController,
)
