"""Interface by which controllers record events."""

from typing import Protocol

from ..kube.client.events import EventType
from ..model.meta import ObjectMeta, ObjectReference
from ..model.names import Resource


class Recorder(Protocol):
    """Records events; implemented by :class:`batholith.kube.client.events.EventRecorder`."""

    def record(
        self,
        regarding: ObjectReference,
        *,
        type: EventType,  # noqa: A002 - the API's name
        reason: str,
        message: str,
    ) -> None:
        """Record an event. Never blocks, never raises.

        *type* is ``Normal`` or ``Warning``, *reason* is in CamelCase.
        """
        ...


class SharedRecorder(Recorder, Protocol):
    """A recorder that several components use."""

    def with_component(self, component: str) -> Recorder:
        """Return a recorder whose events name *component* as their source."""
        ...


def object_reference(resource: Resource, meta: ObjectMeta) -> ObjectReference:
    """Return the reference to the object with *meta* for an Event."""
    return ObjectReference(
        api_version=resource.api_version,
        kind=resource.kind,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
    )
