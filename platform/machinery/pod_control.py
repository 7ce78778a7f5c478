"""Writes to the children of an object, behind an interface: pods, services and the like.

A controller builds a child with :func:`from_template` and writes it through an
:class:`ObjectControl`: :class:`ApiObjectControl` sends requests and records events on the owner.

Every child has its name before the first request: a fixed one, or one of a :class:`NameGenerator`
with ``generateName`` set as well. So a child whose response was lost is recognized when the
informer reports it, and a second request for a fixed name finds the child of the first.
"""

import random
from collections.abc import Callable, Container, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from ..kube.client.client import Client, PatchType
from ..kube.client.events import EventType
from ..kube.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
)
from ..model.meta import HasMeta, ObjectMeta, ObjectReference, OwnerReference
from ..model.names import PODS, Resource
from .event_recorder import Recorder, object_reference

Json = dict[str, Any]
"""An object as decoded JSON."""

Child = TypeVar("Child", bound=HasMeta)

SUFFIX_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
"""Characters of generated names, those of the API server."""

SUFFIX_LENGTH = 5
"""Generated characters of a name."""

MAX_PREFIX_LENGTH = 58
"""Maximum length of a prefix; with the suffix the name is a DNS label."""

_ATTEMPTS = 100


class TemplateError(ValueError):
    """A child cannot be created as built."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The object that controls the children, and that events regard."""

    resource: Resource
    metadata: ObjectMeta

    def controller_reference(self) -> OwnerReference:
        """Return the controller reference of the children.

        Raises:
            TemplateError: a field that identifies the owner is empty.
        """
        reference = OwnerReference(
            api_version=self.resource.api_version,
            kind=self.resource.kind,
            name=self.metadata.name,
            uid=self.metadata.uid,
            controller=True,
            block_owner_deletion=True,
        )
        if not all((reference.api_version, reference.kind, reference.name, reference.uid)):
            raise TemplateError(f"controller reference is incomplete: {reference}")
        return reference

    def controls(self, child: HasMeta) -> bool:
        """Whether this owner controls *child*."""
        return self.metadata.controls(child.metadata)

    def reference(self) -> ObjectReference:
        """Return the reference for events."""
        return object_reference(self.resource, self.metadata)


class NameGenerator:
    """Generates names as the API server does: a prefix and five random characters."""

    def __init__(self, choose: Callable[[str], str] | None = None) -> None:
        """*choose* returns one of the characters of a string; at random by default."""
        self._choose = choose or random.Random().choice

    def generate(self, prefix: str, *, taken: Container[str] = ()) -> str:
        """Return a name that is not in *taken*.

        Raises:
            TemplateError: none was found; nearly all names of the prefix are taken.
        """
        for _ in range(_ATTEMPTS):
            suffix = "".join(self._choose(SUFFIX_ALPHABET) for _ in range(SUFFIX_LENGTH))
            name = prefix[:MAX_PREFIX_LENGTH] + suffix
            if name not in taken:
                return name
        raise TemplateError(f"cannot generate a name: no free name found for {prefix!r}")


def from_template(
    template: Mapping[str, Any], owner: Owner, *, name: str, generate_name: str = ""
) -> Json:
    """Return a child of *owner* with a deep copy of the template's content.

    The copy has labels, annotations, finalizers and spec; all else of the template is dropped.
    *name* is the whole name; *generate_name* is the prefix of a generated one, however long.
    """
    given = template.get("metadata") or {}
    metadata: Json = {"name": name, "namespace": owner.metadata.namespace}
    if generate_name:
        metadata["generateName"] = generate_name
    metadata["labels"] = dict(given.get("labels") or {})
    metadata["annotations"] = dict(given.get("annotations") or {})
    metadata["finalizers"] = list(given.get("finalizers") or ())
    metadata["ownerReferences"] = [msgspec.to_builtins(owner.controller_reference())]
    return {"metadata": metadata, "spec": deepcopy(template.get("spec") or {})}


@dataclass(frozen=True)  # slots prevent Created[Pod](...) in Python 3.11
class Created(Generic[Child]):
    """A child after its creation."""

    child: Child

    existed: bool = False
    """An earlier request created it, whose response was lost or is not in the informer yet."""


class ObjectControl(Protocol[Child]):
    """Writes children of one kind."""

    async def create(self, owner: Owner, body: Json) -> Created[Child]:
        """Create a child; one of this fixed name that *owner* controls counts as created.

        Raises:
            TemplateError: the child has no name or no labels.
            AlreadyExistsError: the name is taken, or its child is terminating.
            ApiError, ConnectionLostError: see :func:`~batholith.kube.errors.was_rejected`.
        """
        ...

    async def patch(self, child: ObjectMeta, body: Mapping[str, object]) -> None:
        """Send a strategic merge patch with the uid of *child* as a precondition.

        Raises:
            ApiError, ConnectionLostError: among them NotFoundError; a child with another uid is
                InvalidError or ConflictError.
        """
        ...

    async def delete(self, owner: Owner, child: ObjectMeta) -> None:
        """Delete a child with the uid of *child*.

        Raises:
            NotFoundError: no child of this uid exists.
            ApiError, ConnectionLostError: see :func:`~batholith.kube.errors.was_rejected`.
        """
        ...


def is_namespace_terminating(error: BaseException) -> bool:
    """Whether a creation was rejected because the namespace is being deleted."""
    if not isinstance(error, ForbiddenError):
        return False
    causes = error.details.get("causes")
    return isinstance(causes, list) and any(
        isinstance(cause, dict) and cause.get("reason") == "NamespaceTerminating"
        for cause in causes
    )


def check_child(body: Json) -> ObjectMeta:
    """Return the metadata of a child that is to be created.

    Raises:
        TemplateError: it has no name or no labels.
    """
    metadata = msgspec.convert(body["metadata"], ObjectMeta)
    if not metadata.name:
        raise TemplateError("cannot create child: it has no name")
    if not metadata.labels:
        raise TemplateError(f"cannot create {metadata.name}: its template has no labels")
    return metadata


class ApiObjectControl(Generic[Child]):
    """Sends the requests, and records an event on the owner for each creation and deletion."""

    def __init__(
        self,
        client: Client,
        resource: Resource,
        view: type[Child],
        *,
        recorder: Recorder | None = None,
        reason_suffix: str = "",
    ) -> None:
        """*reason_suffix* ends the reasons of events, as in ``SuccessfulCreatePod``."""
        self._client = client
        self._resource = resource
        self._view = view
        self._recorder = recorder
        self._reason_suffix = reason_suffix

    async def create(self, owner: Owner, body: Json) -> Created[Child]:
        """Create a child; see :meth:`ObjectControl.create`."""
        metadata = check_child(body)
        try:
            created = await self._create(owner, metadata, body)
        except ApiError as error:
            if not is_namespace_terminating(error):
                self._record(owner, "Warning", "FailedCreate", f"Error creating: {error.message}")
            raise
        if not created.existed:
            message = f"Created {self._kind}: {created.child.metadata.name}"
            self._record(owner, "Normal", "SuccessfulCreate", message)
        return created

    async def _create(self, owner: Owner, metadata: ObjectMeta, body: Json) -> Created[Child]:
        namespace = owner.metadata.namespace
        try:
            return Created(
                await self._client.create(
                    self._resource, body, namespace=namespace, view=self._view
                )
            )
        except AlreadyExistsError as error:
            if body["metadata"].get("generateName"):
                raise  # another child has the generated name
            try:
                found = await self._client.get(
                    self._resource, metadata.name, namespace=namespace, view=self._view
                )
            except NotFoundError:
                raise error from None  # deleted since; the next sync creates it
            if not owner.controls(found) or found.metadata.deletion_timestamp:
                raise
            return Created(found, existed=True)

    async def patch(self, child: ObjectMeta, body: Mapping[str, object]) -> None:
        """Patch a child; see :meth:`ObjectControl.patch`."""
        await self._client.patch(
            self._resource,
            child.name,
            with_uid(child, body),
            namespace=child.namespace,
            kind=PatchType.STRATEGIC,
        )

    async def delete(self, owner: Owner, child: ObjectMeta) -> None:
        """Delete a child; see :meth:`ObjectControl.delete`."""
        try:
            await self._client.delete(
                self._resource, child.name, namespace=child.namespace, uid=child.uid
            )
        except NotFoundError:
            raise
        except ApiError as error:
            if isinstance(error, ConflictError) and await self._is_replaced(child):
                raise NotFoundError(error.message, status=404, reason="NotFound") from error
            self._record(owner, "Warning", "FailedDelete", f"Error deleting: {error.message}")
            raise
        message = f"Deleted {self._kind}: {child.name}"
        self._record(owner, "Normal", "SuccessfulDelete", message)

    async def _is_replaced(self, child: ObjectMeta) -> bool:
        """Whether no child of this uid exists."""
        try:
            found = await self._client.get(
                self._resource, child.name, namespace=child.namespace, view=self._view
            )
        except NotFoundError:
            return True
        return found.metadata.uid != child.uid

    @property
    def _kind(self) -> str:
        return self._resource.kind.lower()

    def _record(self, owner: Owner, event_type: EventType, reason: str, message: str) -> None:
        if self._recorder is not None:
            self._recorder.record(
                owner.reference(),
                type=event_type,
                reason=f"{reason}{self._reason_suffix}",
                message=message,
            )


def pod_control(
    client: Client, view: type[Child], *, recorder: Recorder | None = None, reason_suffix: str = ""
) -> ApiObjectControl[Child]:
    """Return the control of pods, decoded as *view*."""
    return ApiObjectControl(client, PODS, view, recorder=recorder, reason_suffix=reason_suffix)


def with_uid(child: ObjectMeta, body: Mapping[str, object]) -> Json:
    """Return a patch with the uid of *child* as a precondition."""
    metadata = body.get("metadata")
    given = metadata if isinstance(metadata, Mapping) else {}
    return {**body, "metadata": {**given, "uid": child.uid}}


def finalizer_removal(*finalizers: str) -> Json:
    """Return the strategic merge patch that removes *finalizers*."""
    return {"metadata": {"$deleteFromPrimitiveList/finalizers": list(finalizers)}}
