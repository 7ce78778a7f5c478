"""Custom resource definitions come to life, and take their objects with them when they go."""

from ...model import names
from ..custom.crds import CLEANUP_FINALIZER, is_established, settled_status, terminating_status
from ..custom.kinds import custom_kind
from ..http import offload
from ..http.requests import Json
from ..kinds.info import KindInfo
from ..storage.object_store import Shelf
from ..storage.stored_objects import DELETED, Entry, Event
from ..verbs.options import DeleteOptions
from ..verbs.writes import now
from .base import Keeper, Tools, call_for, without_finalizer

_SMALL = 8 * 1024
"""Bytes of a definition that is compiled at once: its patterns are, since it was checked."""


class Definer(Keeper):
    """Serves what definitions describe; the key is the definition's name."""

    name = "definitions"

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._kind = tools.catalog.known(names.CRDS)
        self._shelf = tools.shelf(names.CRDS)
        self._compiled: dict[str, Json] = {}
        """The ``spec`` of each definition that is served."""

    def observe(self, shelf: Shelf, event: Event) -> None:
        """Queue definitions that change, or whose last object may be gone."""
        if shelf is self._shelf:
            self.queue.add(event.entry.name)
            if event.type == DELETED:
                # A name may be free for another definition now.
                for entry in shelf.entries():
                    self.queue.add(entry.name)
        elif shelf.kind.custom and event.type == DELETED and not len(shelf):
            self.queue.add(_name_of(shelf))

    def start(self) -> None:
        """Serve what was established before; queue everything."""
        for entry in self._shelf.ordered():
            obj = entry.parse()
            if is_established(obj):
                self._serve(entry.name, custom_kind(obj))
            if entry.deleting:
                self.tools.catalog.terminating.add(entry.name)
            self.queue.add(entry.name)

    async def reconcile(self, key: str) -> float | None:
        """Serve a definition, or end it."""
        entry = self._shelf.latest("", key)
        if entry is None:
            self._withdraw(key)
        elif entry.deleting:
            await self._end(entry)
        else:
            await self._settle(entry)
        return None

    async def _settle(self, entry: Entry) -> None:
        obj = entry.parse()
        others = [each.parse() for each in self._shelf.heads()]
        status = settled_status(obj, others, now())
        if is_established({"status": status}):
            # Whoever waits for Established uses the kinds at once.
            await self._compile(entry, obj)
        written = self.tools.change(
            self._kind, entry.key, lambda current: {**current, "status": status}
        )
        await written.settled()

    async def _compile(self, entry: Entry, obj: Json) -> None:
        if self._compiled.get(entry.name) == obj["spec"]:
            return
        if len(entry.data) <= _SMALL:
            kinds = custom_kind(obj)
        else:
            kinds = await offload.run(lambda: custom_kind(obj))
        self._serve(entry.name, kinds)
        self._compiled[entry.name] = obj["spec"]

    async def _end(self, entry: Entry) -> None:
        self.tools.catalog.terminating.add(entry.name)
        if CLEANUP_FINALIZER not in (entry.parse()["metadata"].get("finalizers") or ()):
            return
        remaining = await self._delete_instances(entry)
        if remaining:
            written = self.tools.change(self._kind, entry.key, _in_progress)
        else:
            written = self.tools.change(
                self._kind, entry.key, lambda obj: without_finalizer(obj, CLEANUP_FINALIZER)
            )
        await written.settled()

    async def _delete_instances(self, entry: Entry) -> int:
        kinds = self.tools.catalog.defined(entry.name)
        if not kinds:
            return 0
        shelf = self.tools.writer.registry.shelf(kinds[0])
        going = [each for each in shelf.heads() if not each.deleting]
        await self.tools.deleter.delete_each(call_for(kinds[0], ("", "")), going, DeleteOptions())
        return len(shelf)

    def _serve(self, name: str, kinds: list[KindInfo]) -> None:
        self.tools.catalog.define(name, tuple(kinds))
        registry = self.tools.writer.registry
        for kind in kinds:
            shelf = registry.shelf(kind)
            if kind.storage_version == kind.resource.version:
                shelf.kind = kind

    def _withdraw(self, name: str) -> None:
        self._compiled.pop(name, None)
        self.tools.catalog.terminating.discard(name)
        for kind in self.tools.catalog.undefine(name):
            self.tools.writer.registry.forget(kind)


def _in_progress(obj: Json) -> Json:
    return {**obj, "status": terminating_status(obj, now(), in_progress=True)}


def _name_of(shelf: Shelf) -> str:
    return f"{shelf.resource.plural}.{shelf.resource.group}"
