"""How controllers tell users what happened, without knowing how an Event is sent."""

from typing import Protocol

from ..kube.client.events import EventType
from ..model.meta import ObjectMeta, ObjectReference
from ..model.names import Resource


class Recorder(Protocol):
    """Takes notes about objects; the event recorder of ``kube`` is one."""

    def record(
        self,
        regarding: ObjectReference,
        *,
        type: EventType,  # noqa: A002 - the word of the API
        reason: str,
        message: str,
    ) -> None:
        """Note that something happened. Never blocks, never raises.

        *type* is ``Normal`` or ``Warning``, *reason* a word in CamelCase.
        """
        ...


def object_reference(resource: Resource, meta: ObjectMeta) -> ObjectReference:
    """How an Event names the object with *meta*."""
    return ObjectReference(
        api_version=resource.api_version,
        kind=resource.kind,
        namespace=meta.namespace,
        name=meta.name,
        uid=meta.uid,
        resource_version=meta.resource_version,
    )
