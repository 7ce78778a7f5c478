"""Custom resource definitions: establish, serve and terminate them."""

import hashlib
from typing import Any

import msgspec

from ....model import names
from ..current_time import now
from ..custom.crds import CLEANUP_FINALIZER, is_established, reconciled_status, terminating_status
from ..custom.kinds import custom_kinds
from ..http import offload
from ..http.requests import Json
from ..kinds.info import KindInfo
from ..storage.resource_store import ResourceStore
from ..storage.slices import PARSED_SLICE_SIZE, slices
from ..storage.stored_objects import DELETED, StoredObject, WatchEvent
from ..verbs.options import DeleteOptions
from .base import Controller, ControllerContext, internal_request, without_finalizer

_INLINE_COMPILE_SIZE = 8 * 1024
"""Bytes of a definition up to which it is compiled on the event loop, its patterns being cached."""


class _Metadata(msgspec.Struct):
    name: str


class _Spec(msgspec.Struct):
    group: str


class _Status(msgspec.Struct, rename="camel"):
    accepted_names: dict[str, Any] | None = None


class _Names(msgspec.Struct):
    """A definition without its schemas."""

    metadata: _Metadata
    spec: _Spec
    status: _Status | None = None


_names_decoder = msgspec.json.Decoder(_Names)


class CrdController(Controller):
    """Serves the kinds of custom resource definitions; the key is a definition's name."""

    name = "definitions"

    def __init__(self, context: ControllerContext) -> None:
        super().__init__(context)
        self._kind = context.catalog.require(names.CRDS)
        self._crds = context.resource_store(names.CRDS)
        self._compiled: dict[str, bytes] = {}
        """Digest of ``spec`` of each served definition."""

    def on_event(self, resource_store: ResourceStore, event: WatchEvent) -> None:
        """Enqueue definitions that change, or whose last object may be deleted."""
        if resource_store is self._crds:
            self.queue.add(event.entry.name)
            if event.type == DELETED:
                # A name may be available for another definition now.
                for entry in resource_store.entries():
                    self.queue.add(entry.name)
        elif resource_store.kind.custom and event.type == DELETED and not len(resource_store):
            self.queue.add(_crd_name(resource_store))

    def enqueue_all(self) -> None:
        """Serve definitions established before, and enqueue all."""
        for entry in self._crds.ordered():
            obj = entry.parse()
            if is_established(obj):
                self._serve(entry.name, custom_kinds(obj))
                self._show_older(entry)
                self._compiled[entry.name] = _digest(obj["spec"])
            if entry.deleting:
                self.context.catalog.terminating_crds.add(entry.name)
            self.queue.add(entry.name)

    async def reconcile(self, key: str) -> float | None:
        """Serve or terminate a definition."""
        entry = self._crds.latest("", key)
        if entry is None:
            self._unserve(key)
        elif entry.deleting:
            await self._finalize(entry)
        else:
            await self._sync(entry)
        return None

    async def _sync(self, entry: StoredObject) -> None:
        obj = entry.parse()
        suffix = f".{obj['spec']['group']}"  # of the names of all definitions of the group
        others = [
            _names(each.data)
            for each in self._crds.latest_entries()
            if each.name != entry.name and each.name.endswith(suffix)
        ]
        status = reconciled_status(obj, others, now())
        if is_established({"status": status}):
            # Clients that wait for Established use the kinds immediately.
            await self._compile(entry, obj)
        if status == obj.get("status"):
            return  # after an own write; a write without changes parses the schemas twice
        written = self.context.update_unchecked(
            self._kind, entry.key, lambda current: {**current, "status": status}
        )
        await written.committed()

    async def _compile(self, entry: StoredObject, obj: Json) -> None:
        digest = _digest(obj["spec"])
        if self._compiled.get(entry.name) == digest:
            return
        if len(entry.data) <= _INLINE_COMPILE_SIZE:
            kinds = custom_kinds(obj)
        else:
            kinds = await offload.run_in_thread(lambda: custom_kinds(obj))
        self._serve(entry.name, kinds)
        for kind in kinds[:1]:  # all are of one resource; none may be served
            await self._show_stored(self.context.writer.store.resource_store(kind))
        self._compiled[entry.name] = digest

    async def _show_stored(self, resource_store: ResourceStore) -> None:
        """Show what is stored by the new definition, as kube-apiserver does."""
        store = self.context.writer.store
        if resource_store.pending:
            # Writes by the former definition.
            await store.wait_until_fresh(max(each.rv for each in resource_store.pending.values()))
        async for entries in slices(list(resource_store.entries()), PARSED_SLICE_SIZE):
            for entry in entries:
                resource_store.show(entry)

    async def _finalize(self, entry: StoredObject) -> None:
        self.context.catalog.terminating_crds.add(entry.name)
        if CLEANUP_FINALIZER not in (entry.parse()["metadata"].get("finalizers") or ()):
            return
        remaining = await self._delete_instances(entry)
        if remaining:
            written = self.context.update_unchecked(self._kind, entry.key, _in_progress)
        else:
            written = self.context.update_unchecked(
                self._kind, entry.key, lambda obj: without_finalizer(obj, CLEANUP_FINALIZER)
            )
        await written.committed()

    async def _delete_instances(self, entry: StoredObject) -> int:
        kinds = self.context.catalog.crd_kinds(entry.name)
        if not kinds:
            return 0
        resource_store = self.context.writer.store.resource_store(kinds[0])
        going = [each for each in resource_store.latest_entries() if not each.deleting]
        await self.context.deleter.delete_each(
            internal_request(kinds[0], ("", "")), going, DeleteOptions()
        )
        return len(resource_store)

    def _show_older(self, definition: StoredObject) -> None:
        """Show the objects that were stored before the definition was changed last."""
        kinds = self.context.catalog.crd_kinds(definition.name)
        if not kinds:
            return
        resource_store = self.context.writer.store.resource_store(kinds[0])
        for entry in list(resource_store.entries()):
            if entry.rv < definition.rv:
                resource_store.show(entry)

    def _serve(self, name: str, kinds: list[KindInfo]) -> None:
        former = self.context.catalog.crd_kinds(name)
        self.context.catalog.add_crd(name, tuple(kinds))
        store = self.context.writer.store
        for kind in former[:1]:
            if any(each.conversion_webhook is not None for each in (*former, *kinds)):
                # Its watches would go on with the former webhook.
                store.resource_store(kind).broadcaster.end_watches()
        for kind in kinds:
            resource_store = store.resource_store(kind)
            if kind.storage_version == kind.resource.version:
                resource_store.kind = kind

    def _unserve(self, name: str) -> None:
        self._compiled.pop(name, None)
        self.context.catalog.terminating_crds.discard(name)
        for kind in self.context.catalog.remove_crd(name):
            self.context.writer.store.remove_resource(kind)


def _digest(spec: Json) -> bytes:
    """Return a short value for *spec*, which may be large."""
    return hashlib.sha256(msgspec.json.encode(spec)).digest()


def _names(data: bytes) -> Json:
    """Return the part of a definition that holds its names: schemas take long to parse."""
    names_of: Json = msgspec.to_builtins(_names_decoder.decode(data))
    return names_of


def _in_progress(obj: Json) -> Json:
    return {**obj, "status": terminating_status(obj, now(), in_progress=True)}


def _crd_name(resource_store: ResourceStore) -> str:
    return f"{resource_store.resource.plural}.{resource_store.resource.group}"
