"""Object readers for the rules: informers, and live reads from the API server."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ...kube.client.client import Client
from ...kube.errors import NotFoundError
from ...kube.informer.informer import Informer
from ...model.admission import Json
from ...model.base import ApiStruct
from ...model.meta import ObjectMeta
from ...model.names import HYPERNODES, NAMESPACES, QUEUES, Resource
from ...model.training.kinds import TRAINING_KINDS

LOOKED_UP_RESOURCES: dict[str, tuple[Resource, ...]] = {
    "/hypernodes/validate": (HYPERNODES,),
    "/jobs/mutate": (NAMESPACES, QUEUES),
    "/jobs/validate": (HYPERNODES, QUEUES),
    "/podgroups/mutate": (NAMESPACES,),
    "/podgroups/validate": (HYPERNODES, QUEUES),
    "/queues/validate": (QUEUES,),
    **{kind.webhook_path: (QUEUES,) for kind in TRAINING_KINDS},
}
"""Resources that the rules of an admission path look up."""

_WITHOUT_INFORMER = frozenset((HYPERNODES,))
"""Resources that are read from the API server at each review. HyperNodes are written rarely, and
their definition may be missing after an upgrade: then an informer would never be synced."""


class LookupObject(ApiStruct, frozen=True):
    """Fields of an object that rules read."""

    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


class InformerReader:
    """Reads from one informer per resource, with few exceptions."""

    def __init__(self, client: Client, resources: Iterable[Resource]) -> None:
        self._client = client
        self._informers = {
            each: Informer(client, each, LookupObject)
            for each in sorted(resources, key=str)
            if each not in _WITHOUT_INFORMER
        }

    @property
    def informers(self) -> Sequence[Informer[LookupObject]]:
        """Informers that must be synced before the first review."""
        return tuple(self._informers.values())

    def recording(self) -> "RecordingReader":
        """Return a reader for one review."""
        return RecordingReader(self._informers)

    async def refetch(self, recorded: "RecordingReader") -> "RecordingReader":
        """Return a reader with the recorded objects re-read from the API server.

        Raises:
            ApiError, ConnectionLostError, DecodeError: a read failed.
        """
        fresh = RecordingReader(self._informers)
        for resource in recorded.listed:
            fresh.lists[resource] = await self._list(resource)
        for resource, namespace, name in recorded.requested:
            try:
                found = await self._client.get(
                    resource, name, namespace=namespace, view=LookupObject
                )
            except (NotFoundError, ValueError):  # ValueError: invalid name.
                fresh.objects[resource, namespace, name] = None
            else:
                fresh.objects[resource, namespace, name] = msgspec.to_builtins(found)
        return fresh

    async def _list(self, resource: Resource) -> list[Json]:
        """Return all objects of a resource; none if its definition is not installed."""
        try:
            listing = await self._client.list(resource, view=LookupObject)
        except NotFoundError:
            if resource in _WITHOUT_INFORMER:
                return []
            raise
        return [msgspec.to_builtins(each) for each in listing.items]


class RecordingReader:
    """A :class:`~batholith.model.admission.ObjectReader` that records lookups."""

    def __init__(self, informers: dict[Resource, Informer[LookupObject]]) -> None:
        self.requested: set[tuple[Resource, str, str]] = set()
        self.listed: set[Resource] = set()
        self.had_miss = False
        """Whether an object was not found, or objects have no informer."""
        self.is_unread = False
        """Whether objects without an informer were looked up, so that none were found."""
        self.objects: dict[tuple[Resource, str, str], Json | None] = {}
        self.lists: dict[Resource, list[Json]] = {}
        self._informers = informers

    def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """Return one object, or ``None``."""
        key = (resource, namespace, name)
        self.requested.add(key)
        if key in self.objects:
            return self.objects[key]
        cached = self._informers[resource].get(f"{namespace}/{name}" if namespace else name)
        self.had_miss |= cached is None
        return None if cached is None else msgspec.to_builtins(cached)

    def list(self, resource: Resource) -> Iterable[Json]:
        """Return all objects of a resource in all namespaces."""
        self.listed.add(resource)
        fresh = self.lists.get(resource)
        if fresh is not None:
            return fresh
        if resource not in self._informers:
            self.had_miss = self.is_unread = True
            return []
        return [msgspec.to_builtins(cached) for cached in self._informers[resource]]
