"""Fields of ResourceClaims, DeviceClasses and ResourceSlices that the scheduler reads."""

from collections.abc import Iterator
from typing import Any, NamedTuple

from ....model.base import ApiStruct
from ....model.meta import ObjectMeta
from ..core_types import NodeSelector

Json = dict[str, Any]

FINALIZER = "resource.kubernetes.io/delete-protection"
"""Set with an allocation: the claim exists until its devices are free."""

MAX_CONSUMERS = 256
"""Pods that may use one claim at a time."""


class DeviceRef(NamedTuple):
    """The name of a device."""

    driver: str
    pool: str
    device: str


class Consumer(ApiStruct, frozen=True):
    """A pod, or another object, for which a claim is reserved."""

    api_group: str = ""
    resource: str = ""
    name: str = ""
    uid: str = ""


class AllocatedDevice(ApiStruct, frozen=True):
    """A device of an allocated claim."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None


class AllocatedDevices(ApiStruct, frozen=True):
    """The devices of an allocated claim."""

    results: tuple[AllocatedDevice, ...] = ()


class Allocation(ApiStruct, frozen=True):
    """What a claim has got, and on which nodes that can be used."""

    devices: AllocatedDevices = AllocatedDevices()
    node_selector: NodeSelector | None = None

    def in_use(self) -> Iterator[DeviceRef]:
        """Yield the devices that no other claim may get."""
        for each in self.devices.results:
            if not each.admin_access:
                yield DeviceRef(each.driver, each.pool, each.device)


class ClaimStatus(ApiStruct, frozen=True):
    """``status`` of a ResourceClaim."""

    allocation: Allocation | None = None
    reserved_for: tuple[Consumer, ...] = ()


class ClaimSpec(ApiStruct, frozen=True):
    """``spec`` of a ResourceClaim."""

    devices: Json = {}


class ResourceClaim(ApiStruct, frozen=True):
    """A claim of devices."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()


class DeviceClassSpec(ApiStruct, frozen=True):
    """``spec`` of a DeviceClass."""

    selectors: tuple[Json, ...] = ()
    config: tuple[Json, ...] = ()


class DeviceClass(ApiStruct, frozen=True):
    """A class of devices."""

    metadata: ObjectMeta = ObjectMeta()
    spec: DeviceClassSpec = DeviceClassSpec()


class ResourcePool(ApiStruct, frozen=True):
    """The pool of a slice."""

    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class ResourceSliceSpec(ApiStruct, frozen=True):
    """``spec`` of a ResourceSlice."""

    driver: str = ""
    pool: ResourcePool = ResourcePool()
    node_name: str = ""
    node_selector: NodeSelector | None = None
    all_nodes: bool | None = None
    per_device_node_selection: bool | None = None
    devices: tuple[Json, ...] = ()
    shared_counters: tuple[Json, ...] = ()


class ResourceSlice(ApiStruct, frozen=True):
    """Devices of one pool."""

    metadata: ObjectMeta = ObjectMeta()
    spec: ResourceSliceSpec = ResourceSliceSpec()
