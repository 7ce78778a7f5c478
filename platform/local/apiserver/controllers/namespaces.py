"""Namespace life cycle: default objects, and deletion of content."""

from collections.abc import Iterable

from ....model import names
from ..aggregation.content import RemainingContent, RemoteContent
from ..current_time import now
from ..http.requests import Json
from ..kinds.info import KindInfo
from ..storage.resource_store import ResourceStore
from ..storage.stored_objects import DELETED, StoredObject, WatchEvent
from ..verbs.options import DeleteOptions
from .base import Controller, ControllerContext, internal_request

FINALIZER = "kubernetes"
_CA_FILE = "ca.crt"
_ACCOUNT = "default"
_RETRY_INTERVAL = 1.0
"""Seconds between attempts to delete what other API servers have."""


class NamespaceController(Controller):
    """Creates default objects in namespaces, and deletes their content on termination.

    The key is the name.
    """

    name = "namespaces"
    workers = 4
    """Another API server may keep one waiting."""

    def __init__(self, context: ControllerContext, *, ca: bytes, remote: RemoteContent) -> None:
        super().__init__(context)
        self._ca = ca.decode()
        self._remote = remote
        self._kind = context.catalog.require(names.NAMESPACES)
        self._namespaces = context.resource_store(names.NAMESPACES)
        self._config_maps = context.resource_store(names.CONFIGMAPS)

    def on_event(self, resource_store: ResourceStore, event: WatchEvent) -> None:
        """Enqueue namespaces that change, lose an object, or whose default objects change."""
        if resource_store is self._namespaces:
            self.queue.add(event.entry.name)
        elif resource_store is self._config_maps and event.entry.name == names.ROOT_CA:
            self.queue.add(event.entry.namespace)
        elif event.type == DELETED and event.entry.namespace:
            space = self._namespaces.get("", event.entry.namespace)
            if space is None:
                return
            # Only the last object of a resource is progress that counts.
            emptied = space.name not in resource_store.by_namespace
            if (space.deleting and emptied) or event.entry.name == _ACCOUNT:
                self.queue.add(space.name)

    def enqueue_all(self) -> None:
        """Enqueue all namespaces."""
        for entry in self._namespaces.ordered():
            self.queue.add(entry.name)

    async def reconcile(self, key: str) -> float | None:
        """Create the default objects of a namespace, or finalize it."""
        entry = self._namespaces.latest("", key)
        if entry is None:
            return None
        if entry.deleting:
            return await self._finalize(entry)
        await self._ensure_defaults(entry)
        return None

    async def _ensure_defaults(self, namespace: StoredObject) -> None:
        fixtures: tuple[tuple[names.Resource, Json], ...] = (
            (names.SERVICEACCOUNTS, {"metadata": {"name": _ACCOUNT}}),
            (
                names.CONFIGMAPS,
                {"metadata": {"name": names.ROOT_CA}, "data": {_CA_FILE: self._ca}},
            ),
        )
        for resource, obj in fixtures:
            if (
                self.context.resource_store(resource).latest(
                    namespace.name, obj["metadata"]["name"]
                )
                is None
            ):
                await self.context.create(resource, namespace.name, obj).committed()
        found = self._config_maps.latest(namespace.name, names.ROOT_CA)
        if found is not None and found.parse().get("data") != {_CA_FILE: self._ca}:
            kind = self.context.catalog.require(names.CONFIGMAPS)
            await self.context.update_unchecked(kind, found.key, self._with_ca).committed()

    def _with_ca(self, config_map: Json) -> Json:
        return {**config_map, "data": {_CA_FILE: self._ca}}

    async def _finalize(self, namespace: StoredObject) -> float | None:
        remaining, kept = await self._delete_content(namespace)
        remote = await self._remote.delete_in(namespace.name)
        remaining += remote.objects
        if not self._is_current(namespace):
            return None
        if remaining or remote.problem:
            conditions = _conditions(remaining, kept, remote.problem)

            def with_conditions(obj: Json) -> Json:
                return _with_conditions(obj, conditions)

            await self.context.update_unchecked(
                self._kind, namespace.key, with_conditions
            ).committed()
            # The end of objects of other servers is not watched.
            return _RETRY_INTERVAL if remote != RemainingContent() else None
        if FINALIZER in ((namespace.parse().get("spec") or {}).get("finalizers") or ()):
            await self.context.update_unchecked(
                self._kind, namespace.key, _without_finalizer
            ).committed()
        return None

    def _is_current(self, namespace: StoredObject) -> bool:
        """Whether no client has finalized the namespace, and perhaps created it again."""
        latest = self._namespaces.latest("", namespace.name)
        return latest is not None and latest.uid == namespace.uid

    async def _delete_content(self, namespace: StoredObject) -> tuple[int, int]:
        """Delete the content; return how many objects remain, and how many have finalizers.

        Pods are deleted first, and the rest once no pod is left, which may need it until its end.
        """
        kinds = [kind for kind in self.context.catalog.stored_kinds() if kind.resource.namespaced]
        pods = [kind for kind in kinds if kind.resource == names.PODS]
        found = await self._delete_kinds(namespace, pods)
        if found[0]:
            return found
        return await self._delete_kinds(namespace, kinds)

    async def _delete_kinds(
        self, namespace: StoredObject, kinds: Iterable[KindInfo]
    ) -> tuple[int, int]:
        """Delete the objects of *kinds*; return how many remain, and how many have finalizers."""
        resource_stores = [(kind, self.context.writer.store.resource_store(kind)) for kind in kinds]
        kept = 0
        for kind, resource_store in resource_stores:
            if not self._is_current(namespace):
                break
            entries = list(resource_store.by_namespace.get(namespace.name, {}).values())
            kept += sum(entry.has_finalizers for entry in entries)
            active = [entry for entry in entries if not entry.deleting]
            request = internal_request(kind, (namespace.name, ""))
            options = DeleteOptions(propagation_policy="Background")
            await self.context.deleter.delete_each(request, active, options)
        remaining = sum(
            len(resource_store.by_namespace.get(namespace.name, ()))
            for _, resource_store in resource_stores
        )
        return remaining, kept


def _without_finalizer(obj: Json) -> Json:
    spec = obj.get("spec") or {}
    left = [name for name in spec.get("finalizers") or () if name != FINALIZER]
    kept = {key: value for key, value in spec.items() if key != "finalizers"}
    return {**obj, "spec": {**kept, "finalizers": left} if left else kept}


def _conditions(remaining: int, kept: int, problem: str) -> list[Json]:
    facts = [
        (
            "NamespaceDeletionDiscoveryFailure",
            bool(problem),
            "DiscoveryFailed" if problem else "ResourcesDiscovered",
            f"Discovery failed for some groups: {problem}"
            if problem
            else "All resources successfully discovered",
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
        (
            "NamespaceContentRemaining",
            remaining > 0,
            "SomeResourcesRemain" if remaining else "ContentRemoved",
            f"{remaining} objects remain",
        ),
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
