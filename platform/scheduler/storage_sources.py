"""Informers of what pods claim, volumes and devices, and the events that they cause."""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from ..kube.client.client import Client
from ..kube.informer.informer import Informer, KindSource, OptionalSource
from ..model import names
from ..model.meta import HasMeta
from ..model.names import Resource
from .state.cache.events import (
    CacheEvent,
    CSIDriverEvent,
    CSINodeEvent,
    CSIStorageCapacityEvent,
    DeviceClassEvent,
    DeviceTaintRuleEvent,
    PVCEvent,
    PVEvent,
    ResourceClaimEvent,
    ResourceSliceEvent,
    StorageClassEvent,
    VolumeAttachmentEvent,
)
from .state.core_types import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from .state.devices.types import DeviceClass, DeviceTaintRule, ResourceClaim, ResourceSlice

T = TypeVar("T", bound=HasMeta)


class StorageSources:
    """What the scheduler watches of storage, and of devices."""

    def __init__(self, client: Client, enqueue: Callable[[CacheEvent], None]) -> None:
        """Call *enqueue* with the events."""
        self._client = client
        self._enqueue = enqueue
        self.pvcs = Informer(client, names.PERSISTENTVOLUMECLAIMS, PersistentVolumeClaim)
        self.volumes = Informer(client, names.PERSISTENTVOLUMES, PersistentVolume)
        self.device_claims = Informer(client, names.RESOURCECLAIMS, ResourceClaim)

    def __iter__(self) -> Iterator[KindSource[Any] | OptionalSource[Any]]:
        yield self._optional(names.STORAGECLASSES, StorageClass, StorageClassEvent)
        yield self._optional(names.CSIDRIVERS, CSIDriver, CSIDriverEvent)
        yield self._optional(names.CSINODES, CSINode, CSINodeEvent)
        yield self._optional(
            names.CSISTORAGECAPACITIES, CSIStorageCapacity, CSIStorageCapacityEvent
        )
        yield OptionalSource(self.volumes, lambda old, new: self._enqueue(PVEvent(old, new)))
        yield self._optional(names.VOLUMEATTACHMENTS, VolumeAttachment, VolumeAttachmentEvent)
        yield self._optional(names.DEVICECLASSES, DeviceClass, DeviceClassEvent)
        yield self._optional(names.DEVICETAINTRULES, DeviceTaintRule, DeviceTaintRuleEvent)
        yield self._optional(names.RESOURCESLICES, ResourceSlice, ResourceSliceEvent)
        yield OptionalSource(
            self.device_claims, lambda old, new: self._enqueue(ResourceClaimEvent(old, new))
        )
        yield KindSource(self.pvcs, lambda old, new: self._enqueue(PVCEvent(old, new)))

    def _optional(
        self,
        resource: Resource,
        view: type[T],
        event: Callable[[T | None, T | None], CacheEvent],
    ) -> OptionalSource[T]:
        """Return the source of a kind without which the scheduler works, too."""
        informer = Informer(self._client, resource, view)
        return OptionalSource(informer, lambda old, new: self._enqueue(event(old, new)))
