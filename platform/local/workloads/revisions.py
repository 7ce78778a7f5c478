"""Revisions of the pod templates of StatefulSets and DaemonSets, as ControllerRevisions."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from ...kube.client.client import Client
from ...kube.errors import AlreadyExistsError
from ...kube.informer.informer import Informer
from ...machinery.clock import Clock
from ...machinery.controller import RequeueError
from ...machinery.pod_control import Owner
from ...machinery.reconcile.cache import WriteThroughCache
from ...model.base import ApiStruct
from ...model.meta import ObjectMeta
from ...model.names import CONTROLLERREVISIONS
from .template_hash import template_hash
from .types import Json

REVISION_LABEL = "controller-revision-hash"
HASH_LABEL = "controller.kubernetes.io/hash"


class Revision(ApiStruct, frozen=True):
    """A ControllerRevision."""

    metadata: ObjectMeta = ObjectMeta()
    revision: int = 0
    data: Json = {}

    @property
    def template(self) -> Json:
        """The pod template."""
        template = (self.data.get("spec") or {}).get("template") or {}
        return {key: value for key, value in template.items() if key != "$patch"}


@dataclass(frozen=True, slots=True)
class DeleteRevision:
    """Effect: delete a revision beyond the limit of the history."""

    revision: Revision


def template_data(template: Json) -> Json:
    """Return the content of a revision: a strategic merge patch that replaces the template.

    Its keys are sorted, since Kubernetes' programs compare the bytes.
    """
    patch = {"spec": {"template": {**template, "$patch": "replace"}}}
    content: Json = msgspec.json.decode(msgspec.json.encode(patch, order="sorted"))
    return content


@dataclass(frozen=True, slots=True)
class History:
    """The revisions of an owner."""

    revisions: Sequence[Revision]
    """The oldest first."""

    def equal(self, data: Json) -> Revision | None:
        """Return the latest revision with this content."""
        return next((each for each in reversed(self.revisions) if each.data == data), None)

    def named(self, name: str) -> Revision | None:
        """Return a revision by its name."""
        return next((each for each in self.revisions if each.metadata.name == name), None)

    @property
    def next_number(self) -> int:
        """The number of the next revision."""
        return max((each.revision for each in self.revisions), default=0) + 1

    def expired(self, live: Iterable[str], limit: int | None) -> list[Revision]:
        """Return the oldest revisions beyond *limit* that are not among the *live* names."""
        if limit is None:
            return []
        kept = set(live)
        unused = [each for each in self.revisions if each.metadata.name not in kept]
        return unused[: max(len(unused) - limit, 0)]


class RevisionWrites:
    """Reads and writes the revisions of one kind of owner."""

    def __init__(
        self,
        client: Client,
        revisions: Informer[Revision],
        *,
        clock: Clock,
        hash_label: str = HASH_LABEL,
    ) -> None:
        """*revisions* has the index ``owner``; *hash_label* is that of the revisions' hashes."""
        self._hash_label = hash_label
        self._cache = WriteThroughCache(
            client, CONTROLLERREVISIONS, Revision, revisions, clock=clock
        )

    def of(self, meta: ObjectMeta) -> History:
        """Return the revisions that the object of *meta* controls."""
        found = self._cache.by_index("owner", meta.identity)
        return History(sorted(found, key=lambda each: (each.revision, each.metadata.name)))

    async def ensure(
        self, owner: Owner, data: Json, *, labels: Json, collisions: int | None
    ) -> tuple[History, Revision, int | None]:
        """Return the revisions, the latest one with the content *data*, and the collisions.

        Raises:
            RequeueError: a revision was changed or deleted concurrently.
            ApiError, ConnectionLostError: it was rejected, or may have been created.
        """
        history = self.of(owner.metadata)
        equal = history.equal(data)
        if equal is not None:
            if equal.revision < history.next_number - 1:
                equal = await self._renumber(equal, history.next_number)
            return history, equal, collisions
        while True:
            created = await self._create(
                owner, data, labels=labels, number=history.next_number, collisions=collisions
            )
            if created is not None:
                return self.of(owner.metadata), created, collisions
            collisions = (collisions or 0) + 1

    async def _create(
        self, owner: Owner, data: Json, *, labels: Json, number: int, collisions: int | None
    ) -> Revision | None:
        """Create a revision, or return the one of a request without response.

        Return None if its name is taken by another one: the next hash must be tried.

        Raises:
            RequeueError: it was deleted concurrently.
            ApiError, ConnectionLostError: it was rejected, or may have been created.
        """
        meta = owner.metadata
        digest = template_hash(data, collisions)
        name = f"{meta.name[:223]}-{digest}"
        body = {
            "metadata": {
                "name": name,
                "namespace": meta.namespace,
                "labels": {**labels, self._hash_label: digest},
                "ownerReferences": [msgspec.to_builtins(owner.controller_reference())],
            },
            "data": data,
            "revision": number,
        }
        try:
            return await self._cache.create(body, namespace=meta.namespace)
        except AlreadyExistsError:
            found = await self._cache.read(f"{meta.namespace}/{name}")
            if found is None:
                raise RequeueError("ControllerRevision was deleted concurrently") from None
            return found if found.data == data and meta.controls(found.metadata) else None

    async def _renumber(self, found: Revision, number: int) -> Revision:
        """Renumber a former revision to be the latest one: the owner was rolled back to it."""
        return await self._cache.patch(found.metadata, {"revision": number})

    async def delete(self, found: Revision) -> None:
        """Delete a revision."""
        await self._cache.delete(found.metadata)
