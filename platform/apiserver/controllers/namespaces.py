"""Namespaces: what every new one gets, and how one ends."""

from ...model import names
from ..http.requests import Json
from ..storage.object_store import Shelf
from ..storage.stored_objects import DELETED, Entry, Event
from ..verbs.options import DeleteOptions
from ..verbs.writes import now
from .base import Keeper, Tools, call_for

FINALIZER = "kubernetes"
_ROOT_CA = "kube-root-ca.crt"
_CA_FILE = "ca.crt"
_ACCOUNT = "default"


class Landlord(Keeper):
    """Furnishes namespaces and clears them when they are deleted; the key is the name."""

    name = "namespaces"

    def __init__(self, tools: Tools, *, ca: bytes) -> None:
        super().__init__(tools)
        self._ca = ca.decode()
        self._kind = tools.catalog.known(names.NAMESPACES)
        self._shelf = tools.shelf(names.NAMESPACES)
        self._config_maps = tools.shelf(names.CONFIGMAPS)

    def observe(self, shelf: Shelf, event: Event) -> None:
        """Queue namespaces that change, lose something, or whose fixtures change."""
        if shelf is self._shelf:
            self.queue.add(event.entry.name)
        elif shelf is self._config_maps and event.entry.name == _ROOT_CA:
            self.queue.add(event.entry.namespace)
        elif event.type == DELETED and event.entry.namespace:
            space = self._shelf.get("", event.entry.namespace)
            if space is None:
                return
            # The last object of its resource is gone: the only progress that counts.
            emptied = space.name not in shelf.spaces
            if (space.deleting and emptied) or event.entry.name == _ACCOUNT:
                self.queue.add(space.name)

    def start(self) -> None:
        """Queue all namespaces."""
        for entry in self._shelf.ordered():
            self.queue.add(entry.name)

    async def reconcile(self, key: str) -> float | None:
        """Furnish or clear one namespace."""
        entry = self._shelf.latest("", key)
        if entry is None:
            return None
        if entry.deleting:
            return await self._clear(entry)
        await self._furnish(entry)
        return None

    async def _furnish(self, space: Entry) -> None:
        fixtures: tuple[tuple[names.Resource, Json], ...] = (
            (names.SERVICEACCOUNTS, {"metadata": {"name": _ACCOUNT}}),
            (
                names.CONFIGMAPS,
                {"metadata": {"name": _ROOT_CA}, "data": {_CA_FILE: self._ca}},
            ),
        )
        for resource, obj in fixtures:
            if self.tools.shelf(resource).latest(space.name, obj["metadata"]["name"]) is None:
                await self.tools.create(resource, space.name, obj).settled()
        found = self._config_maps.latest(space.name, _ROOT_CA)
        if found is not None and found.parse().get("data") != {_CA_FILE: self._ca}:
            kind = self.tools.catalog.known(names.CONFIGMAPS)
            await self.tools.change(kind, found.key, self._with_ca).settled()

    def _with_ca(self, config_map: Json) -> Json:
        return {**config_map, "data": {_CA_FILE: self._ca}}

    async def _clear(self, space: Entry) -> float | None:
        remaining, kept = await self._delete_content(space.name)
        if remaining:
            conditions = _conditions(remaining, kept)

            def told(obj: Json) -> Json:
                return _with_conditions(obj, conditions)

            await self.tools.change(self._kind, space.key, told).settled()
            return None
        if FINALIZER in ((space.parse().get("spec") or {}).get("finalizers") or ()):
            await self.tools.change(self._kind, space.key, _released).settled()
        return None

    async def _delete_content(self, namespace: str) -> tuple[int, int]:
        """Delete all that is left; returns how much that is, and how much finalizers keep."""
        shelves = [
            (kind, self.tools.writer.registry.shelf(kind))
            for kind in self.tools.catalog.stored()
            if kind.resource.namespaced
        ]
        kept = 0
        for kind, shelf in shelves:
            entries = list(shelf.spaces.get(namespace, {}).values())
            kept += sum(entry.held for entry in entries)
            going = [entry for entry in entries if not entry.deleting]
            call = call_for(kind, (namespace, ""))
            await self.tools.deleter.delete_each(call, going, DeleteOptions())
        remaining = sum(len(shelf.spaces.get(namespace, ())) for _, shelf in shelves)
        return remaining, kept


def _released(obj: Json) -> Json:
    spec = obj.get("spec") or {}
    left = [name for name in spec.get("finalizers") or () if name != FINALIZER]
    kept = {key: value for key, value in spec.items() if key != "finalizers"}
    return {**obj, "spec": {**kept, "finalizers": left} if left else kept}


def _conditions(remaining: int, kept: int) -> list[Json]:
    facts = [
        (
            "NamespaceDeletionDiscoveryFailure",
            False,
            "ResourcesDiscovered",
            "All resources successfully discovered",
        ),
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            False,
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed",
        ),
        (
            "NamespaceDeletionContentFailure",
            False,
            "ContentDeleted",
            "All content successfully deleted, may be waiting on finalization",
        ),
        ("NamespaceContentRemaining", True, "SomeResourcesRemain", f"{remaining} objects remain"),
        (
            "NamespaceFinalizersRemaining",
            kept > 0,
            "SomeFinalizersRemain" if kept else "ContentHasNoFinalizers",
            f"{kept} objects wait for finalizers",
        ),
    ]
    return [
        {
            "type": name,
            "status": "True" if holds else "False",
            "reason": reason,
            "message": message,
        }
        for name, holds, reason, message in facts
    ]


def _with_conditions(obj: Json, conditions: list[Json]) -> Json:
    status = obj.get("status") or {}
    old = {each["type"]: each for each in status.get("conditions") or ()}
    merged = []
    for each in conditions:
        before = old.get(each["type"], {})
        changed = before.get("status") != each["status"]
        moment = now() if changed else before.get("lastTransitionTime", now())
        merged.append({**each, "lastTransitionTime": moment})
    return {**obj, "status": {**status, "phase": "Terminating", "conditions": merged}}
