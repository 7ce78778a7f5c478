"""Fields of ResourceClaims, DeviceClasses and ResourceSlices that the scheduler reads."""

from collections.abc import Iterator
from typing import Any

import msgspec

from ....model.base import ApiStruct
from ....model.device_taints import TaintRuleSpec
from ....model.meta import ObjectMeta
from ....model.node_selectors import NodeSelector
from .capacity import DeviceRef, DeviceUse, in_billionths

Json = dict[str, Any]

FINALIZER = "resource.kubernetes.io/delete-protection"
"""Set with an allocation: the claim exists until its devices are free."""

MAX_CONSUMERS = 256
"""Pods that may use one claim at a time."""


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
    share_id: str | None = msgspec.field(default=None, name="shareID")
    consumed_capacity: dict[str, str | int | float] = {}
    binding_conditions: tuple[str, ...] = ()
    binding_failure_conditions: tuple[str, ...] = ()

    @property
    def use(self) -> DeviceUse:
        """What it uses of the device."""
        capacity = in_billionths(self.consumed_capacity) if self.share_id is not None else None
        return DeviceUse(DeviceRef(self.driver, self.pool, self.device), capacity)


class AllocatedDevices(ApiStruct, frozen=True):
    """The devices of an allocated claim."""

    results: tuple[AllocatedDevice, ...] = ()


class Allocation(ApiStruct, frozen=True):
    """What a claim has got, and on which nodes that can be used."""

    devices: AllocatedDevices = AllocatedDevices()
    node_selector: NodeSelector | None = None

    def in_use(self) -> Iterator[DeviceUse]:
        """Yield what other claims cannot get."""
        return (each.use for each in self.devices.results if not each.admin_access)


class DeviceCondition(ApiStruct, frozen=True):
    """A condition of an allocated device."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class DeviceStatus(ApiStruct, frozen=True):
    """What a driver reports of an allocated device."""

    driver: str = ""
    pool: str = ""
    device: str = ""
    share_id: str | None = msgspec.field(default=None, name="shareID")
    conditions: tuple[DeviceCondition, ...] = ()


class ClaimStatus(ApiStruct, frozen=True):
    """``status`` of a ResourceClaim."""

    allocation: Allocation | None = None
    reserved_for: tuple[Consumer, ...] = ()
    devices: tuple[DeviceStatus, ...] = ()


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
    extended_resource_name: str | None = None


class DeviceClass(ApiStruct, frozen=True):
    """A class of devices."""

    metadata: ObjectMeta = ObjectMeta()
    spec: DeviceClassSpec = DeviceClassSpec()


class DeviceTaintRule(ApiStruct, frozen=True):
    """A taint that an administrator has added to devices."""

    metadata: ObjectMeta = ObjectMeta()
    spec: TaintRuleSpec = TaintRuleSpec()


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
