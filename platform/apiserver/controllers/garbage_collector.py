"""The garbage collector: objects go when all their owners are gone.

It knows every object by uid and every dependent by its owners' uids, from the committed changes
themselves, so its picture is never older than what anybody else could have read.
"""

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from ..errors.status import StatusError
from ..http.requests import Json
from ..storage.object_store import Shelf
from ..storage.slices import PARSED, slices
from ..storage.stored_objects import DELETED, Entry, Event, Owner
from ..verbs.options import DeleteOptions
from ..verbs.writes import FOREGROUND, ORPHAN, Written
from .base import Keeper, Tools, call_for, without_finalizer

_GONE = "gone|"
"""Before the uid of an owner that is gone: the key under which its dependents are looked at."""

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
        self._dependents: dict[str, dict[Spot, bool]] = {}
        """By owner; whether the dependent holds up the end of an owner that waits for it."""

        self._holding: Counter[str] = Counter()
        """How many dependents of an owner do."""

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
            for owner in previous.owners:
                self._look_again(owner)
        if event.type == DELETED:
            self._unlink(spot, entry)
            self._spots.pop(entry.uid, None)
            if entry.uid in self._dependents:
                self.queue.add(_GONE + entry.uid)
            for owner in entry.owners:
                self._look_again(owner)
            return
        self._add(spot, entry)
        if entry.deleting or (previous is None and entry.owners) or _owners_changed(event):
            self.queue.add(spot.key)

    def start(self) -> None:
        """Take in everything that is stored, instead of what was known before."""
        for known in (self._spots, self._dependents, self._holding):
            known.clear()
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
            dependents = self._dependents.setdefault(owner.uid, {})
            self._holding[owner.uid] += owner.blocks - dependents.get(spot, False)
            dependents[spot] = owner.blocks

    def _unlink(self, spot: Spot, entry: Entry) -> None:
        for owner in entry.owners:
            dependents = self._dependents.get(owner.uid)
            if dependents is not None and spot in dependents:
                self._holding[owner.uid] -= dependents.pop(spot)
                if not dependents:
                    del self._dependents[owner.uid], self._holding[owner.uid]

    def _look_again(self, owner: Owner) -> None:
        """Queue an owner that nothing holds up any more."""
        spot = self._spots.get(owner.uid)
        if spot is not None and not self._holding.get(owner.uid):
            self.queue.add(spot.key)

    async def reconcile(self, key: str) -> float | None:
        """Release, keep or delete one object, or all dependents of one that is gone."""
        if key.startswith(_GONE):
            await self._end_dependents(key.removeprefix(_GONE))
            return None
        spot = Spot(*key.split("|"))
        shelf = self._shelves.get((spot.group, spot.plural))
        entry = shelf.latest(spot.namespace, spot.name) if shelf else None
        if shelf is None or entry is None:
            return None
        try:
            if entry.deleting:
                await self._finish_deletion(shelf, entry)
            elif entry.owners:
                written = self._check_owners(shelf, entry)
                if written is not None:
                    await written.settled()
        except StatusError as error:
            if error.reason not in ("NotFound", "Conflict"):
                raise
            self.queue.add(key)
        return None

    def _check_owners(self, shelf: Shelf, entry: Entry) -> Written | None:
        """Delete the object if no owner is left; else forget the owners that are gone."""
        absent, waiting, solid = self._sort_owners(shelf, entry)
        if solid:
            # One of them lives on: the object stays, but holds up no one's end.
            leaving = {owner.uid for owner in (*absent, *waiting)}
            if not leaving:
                return None
            call = call_for(shelf.kind, entry.key)
            return self.tools.writer.put(call, lambda obj: _disowned(obj, leaving))
        if not (absent or waiting):
            return None
        has_dependents = bool(self._dependents.get(entry.uid))
        policy = "Foreground" if waiting and has_dependents else "Background"
        call = call_for(shelf.kind, entry.key)
        options = DeleteOptions(uid=entry.uid, policy=policy)
        return self.tools.deleter.delete(call, options)

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
            await self._orphan_dependents(entry.uid)
            written = self.tools.writer.put(call, lambda obj: without_finalizer(obj, ORPHAN))
            await written.settled()
        elif FOREGROUND in finalizers:
            await self._end_dependents(entry.uid)
            if not self._holding.get(entry.uid):
                written = self.tools.writer.put(
                    call, lambda obj: without_finalizer(obj, FOREGROUND)
                )
                await written.settled()

    async def _orphan_dependents(self, uid: str) -> None:
        def let_go(shelf: Shelf, dependent: Entry) -> Written:
            call = call_for(shelf.kind, dependent.key)
            return self.tools.writer.put(call, lambda obj: _disowned(obj, {uid}))

        await self._with_dependents(uid, let_go)

    async def _end_dependents(self, uid: str) -> None:
        """Begin to delete what belongs to an owner alone, and let the rest go."""

        def end(shelf: Shelf, dependent: Entry) -> Written | None:
            return None if dependent.deleting else self._check_owners(shelf, dependent)

        await self._with_dependents(uid, end)

    async def _with_dependents(
        self, uid: str, work: Callable[[Shelf, Entry], Written | None]
    ) -> None:
        """Do something with each dependent of an owner, slice by slice."""
        async for part in slices(list(self._dependents.get(uid, ())), PARSED):
            writes = []
            for spot in part:
                shelf = self._shelves[spot.group, spot.plural]
                dependent = shelf.latest(spot.namespace, spot.name)
                if dependent is None or all(owner.uid != uid for owner in dependent.owners):
                    continue
                try:
                    writes.append(work(shelf, dependent))
                except StatusError as error:
                    if error.reason not in ("NotFound", "Conflict"):
                        raise
                    self.queue.add(spot.key)
            for written in writes:
                if written is not None:
                    await written.settled()


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
