"""A cache of one resource that a controller writes through, and that shows its writes at once.

Between a write and its watch event the informer has the state before the write. A controller that
decided from that state would repeat the write, or count on what it has already changed. So the
response of each write is kept until the informer has that version or a later one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import msgspec

from ...kube.client.client import Client, PatchType
from ...kube.errors import (
    AlreadyExistsError,
    ConflictError,
    InvalidError,
    NotFoundError,
    was_rejected,
)
from ...kube.informer.informer import Informer
from ...model.meta import HasMeta, ObjectMeta, preconditions
from ...model.names import Resource
from ..clock import Clock
from ..controller import RequeueError, requeue_on_conflict
from ..expectations import TTL

T = TypeVar("T", bound=HasMeta)

_MIN_PRUNED = 64
"""Own writes that are kept before those that the informer has are looked for and dropped."""


@dataclass(frozen=True, slots=True)
class _OwnWrite(Generic[T]):
    """The response of a write."""

    uid: str
    obj: T | None
    """The object; ``None`` if it was deleted."""
    written_at: float


class WriteThroughCache(Generic[T]):
    """Objects as the informer has them, or as this controller wrote them if that is newer.

    An own write is dropped once the informer has its version, and after `TTL` seconds at the
    latest, because a server that was restored from a backup never reaches it.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        view: type[T],
        informer: Informer[T],
        *,
        clock: Clock,
    ) -> None:
        self.informer = informer
        self._client = client
        self._resource = resource
        self._view = view
        self._clock = clock
        self._own: dict[str, _OwnWrite[T]] = {}
        self._by_value: dict[tuple[str, str], set[str]] = {}
        """Keys of own writes by the name of an index and the value of the written object."""
        self._prune_at = _MIN_PRUNED
        self._unconfirmed: set[str] = set()
        self._creating: set[str] = set()

    # Reads.

    def get(self, key: str) -> T | None:
        """Return the object ``namespace/name`` (or ``name``), if it exists."""
        observed = self.informer.get(key)
        own = self._current(key, observed)
        return observed if own is None else own.obj

    def by_index(self, index: str, value: str) -> list[T]:
        """Return the objects with *value* in *index* of the informer.

        Raises:
            KeyError: the index does not exist.
        """
        found = self.informer.by_index(index, value)
        if not self._own:
            return list(found)
        objects = {obj.metadata.key: obj for obj in found}
        for key in (*(objects.keys() & self._own.keys()), *self._by_value.get((index, value), ())):
            own = self._current(key, self.informer.get(key))
            if own is None:
                continue
            if own.obj is not None and value in self.informer.index_values(index, own.obj):
                objects[key] = own.obj
            else:
                objects.pop(key, None)
        return list(objects.values())

    def is_own_write(self, obj: T) -> bool:
        """Whether *obj* is exactly what this controller wrote: its event reports nothing new."""
        own = self._own.get(obj.metadata.key)
        return (
            own is not None
            and own.obj is not None
            and own.obj.metadata.resource_version == obj.metadata.resource_version
        )

    def is_creating(self, key: str) -> bool:
        """Whether :meth:`create_or_get` waits for a response: an event may precede that."""
        return key in self._creating

    def is_behind(self, key: str) -> bool:
        """Whether the informer does not have the own write of *key* yet."""
        return self._current(key, self.informer.get(key)) is not None

    def is_unobserved(self, key: str) -> bool:
        """Whether the informer has not reported what was written under *key*.

        It may be behind, or never report it: the object was deleted while its watch was broken.
        Reads as :meth:`get` find that out.
        """
        own, observed = self._own.get(key), self.informer.get(key)
        if own is None or own.obj is None:
            return False
        version = _number(own.obj.metadata.resource_version)
        return observed is None or _number(observed.metadata.resource_version) < version

    def _current(self, key: str, observed: T | None) -> _OwnWrite[T] | None:
        """Return the own write of *key* if it is newer than *observed*, else drop it."""
        own = self._own.get(key)
        if own is None or self._is_newer(own, observed):
            return own
        self._drop(key)
        return None

    def _is_newer(self, own: _OwnWrite[T], observed: T | None) -> bool:
        if self._clock.monotonic() - own.written_at > TTL:
            return False
        if own.obj is None:  # until the informer has removed that object
            return observed is not None and observed.metadata.uid == own.uid
        version = _number(own.obj.metadata.resource_version)
        if observed is not None and observed.metadata.uid == own.uid:
            return _number(observed.metadata.resource_version) < version
        # The informer lacks the object: it has yet to be added, or was deleted since.
        return _number(self.informer.resource_version) < version

    # Writes.

    async def create(self, body: object, *, namespace: str = "") -> T:
        """Create an object.

        Raises:
            AlreadyExistsError, ApiError: it was rejected.
            ConnectionLostError: it may have been created.
        """
        created = await self._client.create(
            self._resource, body, namespace=namespace, view=self._view
        )
        self.wrote(created)
        return created

    async def create_or_get(self, body: HasMeta) -> T:
        """Create an object of a fixed name, or return the one that exists, perhaps by a former try.

        Raises:
            RequeueError: it existed, but was deleted since.
            ApiError, ConnectionLostError: it was rejected, or may have been created.
        """
        meta = body.metadata
        self._creating.add(meta.key)
        try:
            return await self.create(body, namespace=meta.namespace)
        except AlreadyExistsError:
            found = await self.read(meta.key)
        finally:
            self._creating.discard(meta.key)
        if found is None:
            raise RequeueError(f"{self._resource.kind} was deleted concurrently")
        return found

    async def patch(
        self,
        meta: ObjectMeta,
        body: Mapping[str, Any],
        *,
        subresource: str = "",
        kind: PatchType = PatchType.MERGE,
    ) -> T:
        """Patch the object of *meta* if it still has that version; return the result.

        Raises:
            RequeueError: it was modified or deleted concurrently.
            ApiError: the patch was rejected.
            ConnectionLostError: it may have taken effect; :meth:`confirm` finds out.
        """
        metadata = {**body.get("metadata", {}), **preconditions(meta)}
        try:
            with requeue_on_conflict(self._resource.kind):
                written = await self._client.patch(
                    self._resource,
                    meta.name,
                    {**body, "metadata": metadata},
                    namespace=meta.namespace,
                    subresource=subresource,
                    kind=kind,
                    view=self._view,
                )
        except NotFoundError as error:
            raise RequeueError(f"{self._resource.kind} not found") from error
        except InvalidError as error:
            if _is_other_object(error):
                raise RequeueError(f"{self._resource.kind} was replaced concurrently") from error
            raise
        except BaseException as error:
            if not was_rejected(error) and not isinstance(error.__cause__, ConflictError):
                self._unconfirmed.add(meta.key)
            raise
        self.wrote(written)
        return written

    async def patch_status(self, meta: ObjectMeta, status: Mapping[str, Any]) -> T:
        """Patch the status of the object of *meta*, as :meth:`patch` does."""
        return await self.patch(meta, {"status": status}, subresource="status")

    async def delete(
        self,
        meta: ObjectMeta,
        *,
        unmodified: bool = False,
        propagation: str = "",
        grace_period: int | None = None,
    ) -> bool:
        """Delete the object with this uid; return false if it was deleted already.

        With *unmodified* it is deleted only if it still has the version of *meta*.

        Raises:
            RequeueError: it was modified, or another object has its name.
            ApiError, ConnectionLostError: it was not deleted, or may have been.
        """
        try:
            with requeue_on_conflict(self._resource.kind):
                response = await self._client.delete(
                    self._resource,
                    meta.name,
                    namespace=meta.namespace,
                    uid=meta.uid,
                    resource_version=meta.resource_version if unmodified else "",
                    propagation=propagation,
                    grace_period=grace_period,
                )
        except NotFoundError:  # the informer may still have it
            self._set(meta.key, _OwnWrite(meta.uid, None, self._clock.monotonic()))
            return False
        self._deleted(meta, response)
        return True

    def wrote(self, obj: T) -> None:
        """Keep an object as another writer, such as a pod control, returned it."""
        key = obj.metadata.key
        self._unconfirmed.discard(key)
        self._set(key, _OwnWrite(obj.metadata.uid, obj, self._clock.monotonic()))

    def _deleted(self, meta: ObjectMeta, response: msgspec.Raw) -> None:
        """Keep that an object is deleted, or terminating if finalizers or its grace period hold it.

        The response is the object if it is terminating, and else a Status or the deleted object.
        """
        try:
            obj = msgspec.json.decode(response, type=self._view)
        except msgspec.MsgspecError:
            obj = None
        terminating = (
            obj is not None
            and obj.metadata.uid == meta.uid
            and obj.metadata.deletion_timestamp is not None
        )
        now = self._clock.monotonic()
        self._set(meta.key, _OwnWrite(meta.uid, obj if terminating else None, now))

    async def confirm(self, key: str) -> None:
        """Read the object of *key* if a patch of it ended without a response.

        Raises:
            ApiError, ConnectionLostError: the request failed.
        """
        if key in self._unconfirmed:
            await self.read(key)

    async def read(self, key: str) -> T | None:
        """Read the object of *key* from the server; its state is visible from then on.

        Raises:
            ApiError, ConnectionLostError: the request failed.
        """
        namespace, _, name = key.rpartition("/")
        try:
            obj = await self._client.get(self._resource, name, namespace=namespace, view=self._view)
        except NotFoundError:
            self._unconfirmed.discard(key)
            return None
        self.wrote(obj)
        return obj

    def forget(self, key: str) -> None:
        """Drop the own write of *key*, whose object is deleted."""
        self._unconfirmed.discard(key)
        self._drop(key)

    # The own writes by index values.

    def _set(self, key: str, own: _OwnWrite[T]) -> None:
        self._drop(key)
        self._own[key] = own
        for entry in self._index_entries(own):
            self._by_value.setdefault(entry, set()).add(key)
        if len(self._own) > self._prune_at:
            for each in [*self._own]:
                self._current(each, self.informer.get(each))
            self._prune_at = max(2 * len(self._own), _MIN_PRUNED)

    def _drop(self, key: str) -> None:
        own = self._own.pop(key, None)
        if own is None:
            return
        for entry in self._index_entries(own):
            keys = self._by_value.get(entry, set())
            keys.discard(key)
            if not keys:
                self._by_value.pop(entry, None)

    def _index_entries(self, own: _OwnWrite[T]) -> list[tuple[str, str]]:
        if own.obj is None:
            return []
        informer, obj = self.informer, own.obj
        return [
            (name, value)
            for name in informer.index_names
            for value in informer.index_values(name, obj)
        ]

    def __len__(self) -> int:
        """Number of own writes that are kept."""
        return len(self._own)


def _is_other_object(error: InvalidError) -> bool:
    """Whether a patch was rejected because another object has the name now.

    Some servers compare the version first, which is a conflict; others check that the uid in the
    patch does not change.
    """
    causes = error.details.get("causes") or ()
    return any(isinstance(each, dict) and each.get("field") == "metadata.uid" for each in causes)


def _number(resource_version: str) -> int:
    return int(resource_version) if resource_version.isdecimal() else 0
