"""The garbage collector: deletes objects whose owners no longer exist.

Its graph, objects by uid and dependents by owner uid, is built from the committed changes
themselves, so it is never older than what a client could have read.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import NamedTuple

from ..errors.status import StatusError
from ..http.requests import Json
from ..storage.resource_store import ResourceStore
from ..storage.slices import PARSED_SLICE_SIZE, slices
from ..storage.stored_objects import DELETED, OwnerRef, StoredObject, WatchEvent
from ..verbs.options import DeleteOptions
from ..verbs.planned_writes import WriteResult
from ..verbs.write_requests import FOREGROUND, ORPHAN
from .base import Controller, ControllerContext, internal_request, without_finalizer

_DELETED_OWNER_PREFIX = "deleted|"
"""Prefix of the uid of a deleted owner: the key under which its dependents are reconciled."""

_MAX_DELETED_OWNERS = 10_000
_IGNORED_RESOURCES = frozenset({("", "events")})


class ObjectKey(NamedTuple):
    """Resource, namespace and name of an object."""

    group: str
    plural: str
    namespace: str
    name: str

    @property
    def queue_key(self) -> str:
        """The object's key in the work queue."""
        return "|".join(self)


class GarbageCollector(Controller):
    """Deletes objects whose owners are all deleted; the key is an object or a deleted owner."""

    name = "garbage"
    workers = 16

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._object_keys: dict[str, ObjectKey] = {}
        self._dependents: dict[str, dict[ObjectKey, bool]] = {}
        """Dependents by owner uid; each with whether it blocks the owner's deletion."""

        self._blocking_counts: Counter[str] = Counter()
        """Number of blocking dependents by owner uid."""

        self.orphan_elsewhere: Callable[[str], Awaitable[None]] = _none_elsewhere
        """Removes the references to an owner from objects of other servers."""

        self._deleted_owners: dict[str, None] = {}
        """The uids of owners that were deleted last, also of kinds that are not served any more."""

        self._resource_stores: dict[tuple[str, str], ResourceStore] = {}

    def on_event(self, resource_store: ResourceStore, event: WatchEvent) -> None:
        """Update the graph, and enqueue the keys that the change may concern."""
        resource = resource_store.resource
        if (resource.group, resource.plural) in _IGNORED_RESOURCES:
            return
        self._resource_stores[resource.group, resource.plural] = resource_store
        entry, previous = event.entry, event.previous
        object_key = ObjectKey(resource.group, resource.plural, entry.namespace, entry.name)
        if previous is not None and previous.owners != entry.owners:
            self._unlink(object_key, previous)
            for owner in previous.owners:
                self._enqueue_unblocked_owner(owner)
        if event.type == DELETED:
            self._unlink(object_key, entry)
            self._object_keys.pop(entry.uid, None)
            if entry.uid in self._dependents:
                self.owner_is_deleted(entry.uid)
            for owner in entry.owners:
                self._enqueue_unblocked_owner(owner)
            return
        self._link(object_key, entry)
        if entry.deleting or (previous is None and entry.owners) or _owners_changed(event):
            self.queue.add(object_key.queue_key)

    def owner_is_deleted(self, uid: str) -> None:
        """Enqueue the dependents of an owner that is deleted, here or on another server."""
        self._deleted_owners[uid] = None
        if len(self._deleted_owners) > _MAX_DELETED_OWNERS:
            del self._deleted_owners[next(iter(self._deleted_owners))]
        self.queue.add(_DELETED_OWNER_PREFIX + uid)

    def unknown_owners(self) -> dict[str, tuple[str, str]]:
        """Return the uids of owners that this server does not have, with their version and kind."""
        return {
            uid: (owner.api_version, owner.kind)
            for uid in self._dependents.keys() - self._object_keys.keys()
            for owner in self._references_to(uid)
        }

    def _references_to(self, uid: str) -> Iterator[OwnerRef]:
        for object_key in self._dependents[uid]:
            resource_store = self._resource_stores[object_key.group, object_key.plural]
            found = resource_store.latest(object_key.namespace, object_key.name)
            yield from (owner for owner in (found.owners if found else ()) if owner.uid == uid)

    def is_deleted(self, uid: str, api_version: str, kind: str) -> bool:
        """Whether an owner does not exist; one of an unknown kind may be on another server."""
        if uid in self._object_keys:
            return False
        if uid in self._deleted_owners:
            return True
        return self.context.catalog.kind_named(api_version, kind) is not None

    def enqueue_all(self) -> None:
        """Rebuild the graph from the stored objects."""
        for known in (self._object_keys, self._dependents, self._blocking_counts):
            known.clear()
        for resource_store in self.context.writer.store.resource_stores():
            resource = resource_store.resource
            if (resource.group, resource.plural) in _IGNORED_RESOURCES:
                continue
            self._resource_stores[resource.group, resource.plural] = resource_store
            for entry in resource_store.entries():
                object_key = ObjectKey(resource.group, resource.plural, entry.namespace, entry.name)
                self._link(object_key, entry)
                if entry.owners or entry.deleting:
                    self.queue.add(object_key.queue_key)

    def _link(self, object_key: ObjectKey, entry: StoredObject) -> None:
        self._object_keys[entry.uid] = object_key
        for owner in entry.owners:
            dependents = self._dependents.setdefault(owner.uid, {})
            self._blocking_counts[owner.uid] += owner.blocks_deletion - dependents.get(
                object_key, False
            )
            dependents[object_key] = owner.blocks_deletion

    def _unlink(self, object_key: ObjectKey, entry: StoredObject) -> None:
        for owner in entry.owners:
            dependents = self._dependents.get(owner.uid)
            if dependents is not None and object_key in dependents:
                self._blocking_counts[owner.uid] -= dependents.pop(object_key)
                if not dependents:
                    del self._dependents[owner.uid], self._blocking_counts[owner.uid]

    def _enqueue_unblocked_owner(self, owner: OwnerRef) -> None:
        """Enqueue an owner without blocking dependents."""
        object_key = self._object_keys.get(owner.uid)
        if object_key is not None and not self._blocking_counts.get(owner.uid):
            self.queue.add(object_key.queue_key)

    async def reconcile(self, key: str) -> float | None:
        """Release, keep or delete one object, or all dependents of a deleted owner."""
        if key.startswith(_DELETED_OWNER_PREFIX):
            await self._delete_dependents(key.removeprefix(_DELETED_OWNER_PREFIX))
            return None
        object_key = ObjectKey(*key.split("|"))
        resource_store = self._resource_stores.get((object_key.group, object_key.plural))
        entry = (
            resource_store.latest(object_key.namespace, object_key.name) if resource_store else None
        )
        if resource_store is None or entry is None:
            return None
        try:
            if entry.deleting:
                await self._finish_deletion(resource_store, entry)
            elif entry.owners:
                written = self.check_owners(resource_store, entry)
                if written is not None:
                    await written.committed()
        except StatusError as error:
            if error.reason not in ("NotFound", "Conflict"):
                raise
            self.queue.add(key)
        return None

    def check_owners(
        self, resource_store: ResourceStore, entry: StoredObject
    ) -> WriteResult | None:
        """Delete the object if no owner is left; else remove references to deleted owners."""
        absent, waiting, solid = self._classify_references(resource_store, entry)
        if solid:
            # A solid owner remains: the object stays, but blocks no owner's deletion.
            leaving = {owner.uid for owner in (*absent, *waiting)}
            if not leaving:
                return None
            call = internal_request(resource_store.kind, entry.key)
            return self.context.writer.update_unchecked(
                call, lambda obj: _without_owners(obj, leaving)
            )
        if not (absent or waiting):
            return None
        has_dependents = bool(self._dependents.get(entry.uid))
        policy = "Foreground" if waiting and has_dependents else "Background"
        call = internal_request(resource_store.kind, entry.key)
        if waiting and self._has_waiting_dependent(entry.uid):
            # Probably a circle, in which each would wait for the next one.
            self.context.writer.update_unchecked(call, _without_blocking)
        options = DeleteOptions(uid=entry.uid, propagation_policy=policy)
        return self.context.deleter.delete(call, options)

    def _has_waiting_dependent(self, uid: str) -> bool:
        """Whether a dependent itself waits for the deletion of its dependents."""
        for object_key in self._dependents.get(uid, ()):
            resource_store = self._resource_stores[object_key.group, object_key.plural]
            found = resource_store.latest(object_key.namespace, object_key.name)
            if found is None or not (found.deleting and found.has_finalizers):
                continue
            if FOREGROUND in _finalizers(found):
                return True
        return False

    def _classify_references(
        self, resource_store: ResourceStore, entry: StoredObject
    ) -> tuple[list[OwnerRef], list[OwnerRef], list[OwnerRef]]:
        """Return the dangling owners, those waiting for dependents deletion, and the solid ones."""
        absent, waiting, solid = [], [], []
        for owner in entry.owners:
            found = self._find_owner(resource_store, entry, owner)
            if found is None:
                absent.append(owner)
            elif found in ("misplaced", "unknown"):
                # A cluster-scoped object cannot have a namespaced owner, and an owner of an unknown
                # kind may exist on another server: treat it as neither.
                solid.append(owner)
            elif found == "waiting":
                waiting.append(owner)
            else:
                solid.append(owner)
        return absent, waiting, solid

    def _find_owner(
        self, resource_store: ResourceStore, entry: StoredObject, owner: OwnerRef
    ) -> str | None:
        object_key = self._object_keys.get(owner.uid)
        if object_key is None:
            is_deleted = self.is_deleted(owner.uid, owner.api_version, owner.kind)
            return None if is_deleted else "unknown"
        owner_store = self._resource_stores.get((object_key.group, object_key.plural))
        found = owner_store.latest(object_key.namespace, object_key.name) if owner_store else None
        if owner_store is None or found is None or found.uid != owner.uid:
            return None
        if object_key.namespace and not resource_store.resource.namespaced:
            return "misplaced"
        if object_key.namespace and object_key.namespace != entry.namespace:
            return None
        if found.deleting and FOREGROUND in _finalizers(found):
            return "waiting"
        return "here"

    async def _finish_deletion(self, resource_store: ResourceStore, entry: StoredObject) -> None:
        finalizers = _finalizers(entry)
        call = internal_request(resource_store.kind, entry.key)
        if ORPHAN in finalizers:
            await self._orphan_dependents(entry.uid)
            written = self.context.writer.update_unchecked(
                call, lambda obj: without_finalizer(obj, ORPHAN)
            )
            await written.committed()
        elif FOREGROUND in finalizers:
            await self._delete_dependents(entry.uid)
            if not self._blocking_counts.get(entry.uid):
                written = self.context.writer.update_unchecked(
                    call, lambda obj: without_finalizer(obj, FOREGROUND)
                )
                await written.committed()

    async def _orphan_dependents(self, uid: str) -> None:
        def orphan(resource_store: ResourceStore, dependent: StoredObject) -> WriteResult:
            call = internal_request(resource_store.kind, dependent.key)
            return self.context.writer.update_unchecked(
                call, lambda obj: _without_owners(obj, {uid})
            )

        await self._for_each_dependent(uid, orphan)
        await self.orphan_elsewhere(uid)

    async def _delete_dependents(self, uid: str) -> None:
        """Delete the dependents that have no other owner, and release the others."""

        def delete(resource_store: ResourceStore, dependent: StoredObject) -> WriteResult | None:
            return None if dependent.deleting else self.check_owners(resource_store, dependent)

        await self._for_each_dependent(uid, delete)

    async def _for_each_dependent(
        self, uid: str, work: Callable[[ResourceStore, StoredObject], WriteResult | None]
    ) -> None:
        """Apply *work* to each dependent of an owner, slice by slice."""
        async for batch in slices(list(self._dependents.get(uid, ())), PARSED_SLICE_SIZE):
            writes = []
            for object_key in batch:
                resource_store = self._resource_stores[object_key.group, object_key.plural]
                dependent = resource_store.latest(object_key.namespace, object_key.name)
                if dependent is None or all(owner.uid != uid for owner in dependent.owners):
                    continue
                try:
                    writes.append(work(resource_store, dependent))
                except StatusError as error:
                    if error.reason not in ("NotFound", "Conflict"):
                        raise
                    self.queue.add(object_key.queue_key)
            for written in writes:
                if written is not None:
                    await written.committed()


async def _none_elsewhere(_: str) -> None:
    """There is no other server."""


def _owners_changed(event: WatchEvent) -> bool:
    return event.previous is not None and event.previous.owners != event.entry.owners


def _finalizers(entry: StoredObject) -> list[str]:
    return entry.parse()["metadata"].get("finalizers") or []


def _without_blocking(obj: Json) -> Json:
    owners = [
        {**each, "blockOwnerDeletion": False} for each in obj["metadata"].get("ownerReferences", ())
    ]
    return {**obj, "metadata": {**obj["metadata"], "ownerReferences": owners}}


def _without_owners(obj: Json, uids: set[str]) -> Json:
    metadata = dict(obj["metadata"])
    owners = metadata.get("ownerReferences") or ()
    metadata["ownerReferences"] = [each for each in owners if each.get("uid") not in uids]
    if not metadata["ownerReferences"]:
        del metadata["ownerReferences"]
    return {**obj, "metadata": metadata}
