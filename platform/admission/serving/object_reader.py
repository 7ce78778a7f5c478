"""What the rules may read of the cluster: watch caches, and the server itself in doubt."""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from ...kube.client.client import Client
from ...kube.errors import NotFoundError
from ...kube.informer.informer import Informer
from ...model.admission import Json
from ...model.base import ApiStruct
from ...model.meta import ObjectMeta
from ...model.names import NAMESPACES, QUEUES, Resource

LOOKED_UP_RESOURCES: dict[str, tuple[Resource, ...]] = {
    "/jobs/mutate": (NAMESPACES,),
    "/jobs/validate": (QUEUES,),
    "/podgroups/mutate": (NAMESPACES,),
    "/podgroups/validate": (QUEUES,),
    "/queues/validate": (QUEUES,),
}
"""Admission paths whose rules look at other objects, and at which."""


class LookupObject(ApiStruct, frozen=True):
    """An object as rules read it."""

    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = {}
    status: dict[str, Any] = {}


class InformerReader:
    """A cache for each of *resources*; they live in :meth:`informers`."""

    def __init__(self, client: Client, resources: Iterable[Resource]) -> None:
        self._client = client
        self._informers = {
            each: Informer(client, each, LookupObject) for each in sorted(resources, key=str)
        }

    @property
    def informers(self) -> Sequence[Informer[LookupObject]]:
        """What must run and be synced before the first review."""
        return tuple(self._informers.values())

    def recording(self) -> "RecordingReader":
        """A view for one review."""
        return RecordingReader(self._informers)

    async def refetch(self, recorded: "RecordingReader") -> "RecordingReader":
        """The same view, but of what the server holds now.

        Raises:
            ApiError, ConnectionLostError, UnreadableAnswerError: the server does not say.
        """
        fresh = RecordingReader(self._informers)
        for resource in recorded.listed:
            listing = await self._client.list(resource, view=LookupObject)
            fresh.lists[resource] = [msgspec.to_builtins(each) for each in listing.items]
        for resource, namespace, name in recorded.requested:
            try:
                found = await self._client.get(
                    resource, name, namespace=namespace, view=LookupObject
                )
            except (NotFoundError, ValueError):  # of a name that no object can have
                fresh.objects[resource, namespace, name] = None
            else:
                fresh.objects[resource, namespace, name] = msgspec.to_builtins(found)
        return fresh


class RecordingReader:
    """A :class:`~batholith.model.admission.ObjectReader` that remembers what it was asked."""

    def __init__(self, informers: dict[Resource, Informer[LookupObject]]) -> None:
        self.requested: set[tuple[Resource, str, str]] = set()
        self.listed: set[Resource] = set()
        self.had_miss = False
        """Whether an object was asked for that was not there."""
        self.objects: dict[tuple[Resource, str, str], Json | None] = {}
        self.lists: dict[Resource, list[Json]] = {}
        self._informers = informers

    def get(self, resource: Resource, namespace: str, name: str) -> Json | None:
        """One object, or ``None``."""
        key = (resource, namespace, name)
        self.requested.add(key)
        if key in self.objects:
            return self.objects[key]
        held = self._informers[resource].get(f"{namespace}/{name}" if namespace else name)
        self.had_miss |= held is None
        return None if held is None else msgspec.to_builtins(held)

    def list(self, resource: Resource) -> Iterable[Json]:
        """All objects of a resource, over all namespaces."""
        self.listed.add(resource)
        known = self.lists.get(resource)
        if known is not None:
            return known
        return [msgspec.to_builtins(held) for held in self._informers[resource]]
