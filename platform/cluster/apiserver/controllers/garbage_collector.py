"""The garbage collector: objects go when all their owners are gone.

It knows every object by uid and every dependent by its owners' uids, from the committed changes
themselves, so its picture is never older than what anybody else could have read.
"""

from typing import NamedTuple

from ..errors.status import StatusError
from ..http.requests import Json
from ..storage.entries import DELETED, Entry, Event, Owner
from ..storage.registry import Shelf
from ..verbs.options import DeleteOptions
from ..verbs.writes import FOREGROUND, ORPHAN
from .keeper import Keeper, Tools, call_for, without_finalizer

_BY_OWN_CLOCK = frozenset({("", "events")})


class Spot(NamedTuple):
    """Where an object is kept."""

    group: str
    plural: str
    namespace: str
    name: str

    @property
    def key(self) -> str:
        """The queue's key."""
        return "|".join(self)


class Collector(Keeper):
    """Deletes what nobody owns any more; the key is where the object is."""

    name = "garbage"
    workers = 16

    def __init__(self, tools: Tools) -> None:
        super().__init__(tools)
        self._spots: dict[str, Spot] = {}
        self._dependents: dict[str, dict[Spot, None]] = {}
        self._shelves: dict[tuple[str, str], Shelf] = {}

    def observe(self, shelf: Shelf, event: Event) -> None:
        """Keep the picture, and queue whom the change may concern."""
        resource = shelf.resource
        if (resource.group, resource.plural) in _BY_OWN_CLOCK:
            return
        self._shelves[resource.group, resource.plural] = shelf
        entry, previous = event.entry, event.previous
        spot = Spot(resource.group, resource.plural, entry.namespace, entry.name)
        if previous is not None and previous.owners != entry.owners:
            self._unlink(spot, previous)
        if event.type == DELETED:
            self._unlink(spot, entry)
            self._spots.pop(entry.uid, None)
            for dependent in self._dependents.get(entry.uid, ()):
                self.queue.add(dependent.key)
            for owner in entry.owners:
                self._look_again(owner)
            return
        self._add(spot, entry)
        if entry.deleting or (previous is None and entry.owners) or _owners_changed(event):
            self.queue.add(spot.key)

    def start(self) -> None:
        """Take in everything that is stored."""
        for shelf in self.tools.writer.registry.shelves():
            resource = shelf.resource
            if (resource.group, resource.plural) in _BY_OWN_CLOCK:
                continue
            self._shelves[resource.group, resource.plural] = shelf
            for entry in shelf.entries():
                spot = Spot(resource.group, resource.plural, entry.namespace, entry.name)
                self._add(spot, entry)
                if entry.owners or entry.deleting:
                    self.queue.add(spot.key)

    def _add(self, spot: Spot, entry: Entry) -> None:
        self._spots[entry.uid] = spot
        for owner in entry.owners:
            self._dependents.setdefault(owner.uid, {})[spot] = None

    def _unlink(self, spot: Spot, entry: Entry) -> None:
        for owner in entry.owners:
            dependents = self._dependents.get(owner.uid)
            if dependents is not None:
                dependents.pop(spot, None)
                if not dependents:
                    del self._dependents[owner.uid]

    def _look_again(self, owner: Owner) -> None:
        spot = self._spots.get(owner.uid)
        if spot is not None:
            self.queue.add(spot.key)

    async def reconcile(self, key: str) -> float | None:
        """Release, keep or delete one object."""
        spot = Spot(*key.split("|"))
        shelf = self._shelves.get((spot.group, spot.plural))
        entry = shelf.latest(spot.namespace, spot.name) if shelf else None
        if shelf is None or entry is None:
            return None
        try:
            if entry.deleting:
                await self._finish_deletion(shelf, entry)
            elif entry.owners:
                await self._check_owners(shelf, entry)
        except StatusError as error:
            if error.reason not in ("NotFound", "Conflict"):
                raise
            self.queue.add(key)
        return None

    async def _check_owners(self, shelf: Shelf, entry: Entry) -> None:
        """Delete the object if no owner is left; else forget the owners that are gone."""
        absent, waiting, solid = self._sort_owners(shelf, entry)
        if solid:
            # One of them lives on: the object stays, but holds up no one's end.
            leaving = {owner.uid for owner in (*absent, *waiting)}
            if leaving:
                call = call_for(shelf.kind, entry.key)
                await self.tools.writer.put(call, lambda o: _disowned(o, leaving)).settled()
            return
        if not (absent or waiting):
            return
        has_dependents = bool(self._dependents.get(entry.uid))
        policy = "Foreground" if waiting and has_dependents else "Background"
        call = call_for(shelf.kind, entry.key)
        options = DeleteOptions(uid=entry.uid, policy=policy)
        await self.tools.deleter.delete(call, options).settled()

    def _sort_owners(
        self, shelf: Shelf, entry: Entry
    ) -> tuple[list[Owner], list[Owner], list[Owner]]:
        """Owners that are gone, that wait for their dependents to go, and that are here to stay."""
        absent, waiting, solid = [], [], []
        for owner in entry.owners:
            found = self._find_owner(shelf, entry, owner)
            if found is None:
                absent.append(owner)
            elif found == "misplaced":
                # A cluster-wide object cannot have a namespaced owner: take no side.
                solid.append(owner)
            elif found == "waiting":
                waiting.append(owner)
            else:
                solid.append(owner)
        return absent, waiting, solid

    def _find_owner(self, shelf: Shelf, entry: Entry, owner: Owner) -> str | None:
        spot = self._spots.get(owner.uid)
        if spot is None:
            return None
        holder = self._shelves.get((spot.group, spot.plural))
        found = holder.latest(spot.namespace, spot.name) if holder else None
        if holder is None or found is None or found.uid != owner.uid:
            return None
        if spot.namespace and not shelf.resource.namespaced:
            return "misplaced"
        if spot.namespace and spot.namespace != entry.namespace:
            return None
        if found.deleting and FOREGROUND in _finalizers(found):
            return "waiting"
        return "here"

    async def _finish_deletion(self, shelf: Shelf, entry: Entry) -> None:
        finalizers = _finalizers(entry)
        call = call_for(shelf.kind, entry.key)
        if ORPHAN in finalizers:
            await self._orphan_dependents(entry)
            written = self.tools.writer.put(call, lambda o: without_finalizer(o, ORPHAN))
            await written.settled()
        elif FOREGROUND in finalizers:
            if await self._delete_dependents(entry):
                return
            written = self.tools.writer.put(call, lambda o: without_finalizer(o, FOREGROUND))
            await written.settled()

    async def _orphan_dependents(self, entry: Entry) -> None:
        for shelf, dependent in self._dependents_of(entry):
            call = call_for(shelf.kind, dependent.key)
            await self.tools.writer.put(call, lambda o: _disowned(o, {entry.uid})).settled()

    async def _delete_dependents(self, entry: Entry) -> bool:
        """Begin to delete what belongs to *entry*; whether something of it still holds it up."""
        blocked = False
        for shelf, dependent in self._dependents_of(entry):
            if not dependent.deleting:
                await self._check_owners(shelf, dependent)
            still = shelf.latest(*dependent.key)
            if still is not None and still.uid == dependent.uid:
                mine = (owner for owner in still.owners if owner.uid == entry.uid)
                blocked = blocked or any(owner.blocks for owner in mine)
        return blocked

    def _dependents_of(self, entry: Entry) -> list[tuple[Shelf, Entry]]:
        found = []
        for spot in self._dependents.get(entry.uid, ()):
            shelf = self._shelves[spot.group, spot.plural]
            dependent = shelf.latest(spot.namespace, spot.name)
            if dependent is not None and any(o.uid == entry.uid for o in dependent.owners):
                found.append((shelf, dependent))
        return found


def _owners_changed(event: Event) -> bool:
    return event.previous is not None and event.previous.owners != event.entry.owners


def _finalizers(entry: Entry) -> list[str]:
    return entry.parse()["metadata"].get("finalizers") or []


def _disowned(obj: Json, uids: set[str]) -> Json:
    metadata = dict(obj["metadata"])
    owners = metadata.get("ownerReferences") or ()
    metadata["ownerReferences"] = [each for each in owners if each.get("uid") not in uids]
    if not metadata["ownerReferences"]:
        del metadata["ownerReferences"]
    return {**obj, "metadata": metadata}
