"""Writes of an object's status, behind an interface.

The status is written as a merge patch of the fields that differ, with the resourceVersion that the
decision was based on as a precondition: a concurrent write of any kind is a ConflictError.
"""

from collections.abc import Mapping
from typing import Any, Generic, Protocol, TypeVar

from ..kube.client.client import Client
from ..model.meta import HasMeta, ObjectMeta
from ..model.names import Resource

T = TypeVar("T", bound=HasMeta)
T_co = TypeVar("T_co", bound=HasMeta, covariant=True)


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch from *before* to *after*: what differs, and None for removed keys."""
    patch: dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            if changed := merge_patch(old, value):
                patch[key] = changed
        elif key not in before or old != value:
            patch[key] = value
    return patch


class StatusWriter(Protocol[T_co]):
    """Writes the status of objects of one kind."""

    async def write(self, metadata: ObjectMeta, patch: Mapping[str, object]) -> T_co:
        """Merge *patch* into the status of the object in this version; return the object.

        Raises:
            ConflictError: the object was modified or replaced since.
            ApiError, ConnectionLostError: among them NotFoundError.
        """
        ...


class ApiStatusWriter(Generic[T]):
    """Sends the patches."""

    def __init__(self, client: Client, resource: Resource, view: type[T]) -> None:
        self._client = client
        self._resource = resource
        self._view = view

    async def write(self, metadata: ObjectMeta, patch: Mapping[str, object]) -> T:
        """Patch the status subresource; see :meth:`StatusWriter.write`."""
        return await self._client.patch(
            self._resource,
            metadata.name,
            {"metadata": {"resourceVersion": metadata.resource_version}, "status": patch},
            namespace=metadata.namespace,
            subresource="status",
            view=self._view,
        )
