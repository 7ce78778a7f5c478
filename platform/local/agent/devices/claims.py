"""Devices that a pod has by ResourceClaims, and the ResourceSlice in which the node offers them.

The scheduler has decided which devices a claim gets; here they are found among those of the node.
A pod is read from the API server again, since only few pods have claims.
"""

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from ....kube.client.client import Client
from ....kube.errors import NotFoundError
from ....model.base import ApiStruct
from ....model.meta import ObjectMeta
from ....model.names import NODES, PODS, RESOURCECLAIMS, RESOURCESLICES
from .discovery import Device

Json = dict[str, Any]

_EXTENDED = "<extended-resources>"
"""No claim in a spec has such a name."""

DRIVER = "gpu.batholith.io"
"""The driver of the node's GPUs in slices and allocations."""


class ClaimError(Exception):
    """The claims of a pod cannot be prepared now; the message has the reason."""


class _ClaimUse(ApiStruct, frozen=True):
    name: str = ""
    request: str = ""


class _Resources(ApiStruct, frozen=True):
    claims: tuple[_ClaimUse, ...] = ()


class _Container(ApiStruct, frozen=True):
    name: str = ""
    resources: _Resources = _Resources()


class _PodClaim(ApiStruct, frozen=True):
    name: str = ""
    resource_claim_name: str = ""


class _Spec(ApiStruct, frozen=True):
    resource_claims: tuple[_PodClaim, ...] = ()
    containers: tuple[_Container, ...] = ()
    init_containers: tuple[_Container, ...] = ()


class _Mapping(ApiStruct, frozen=True):
    container_name: str = ""
    request_name: str = ""


class _ExtendedClaim(ApiStruct, frozen=True):
    """The claim for extended resources that devices provide."""

    resource_claim_name: str = ""
    request_mappings: tuple[_Mapping, ...] = ()


class _Status(ApiStruct, frozen=True):
    resource_claim_statuses: tuple[_PodClaim, ...] = ()
    extended_resource_claim_status: _ExtendedClaim | None = None


class _Pod(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: _Spec = _Spec()
    status: _Status = _Status()


class _Result(ApiStruct, frozen=True):
    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool | None = None


class _Results(ApiStruct, frozen=True):
    results: tuple[_Result, ...] = ()


class _Allocation(ApiStruct, frozen=True):
    devices: _Results = _Results()


class _Consumer(ApiStruct, frozen=True):
    uid: str = ""


class _ClaimStatus(ApiStruct, frozen=True):
    allocation: _Allocation | None = None
    reserved_for: tuple[_Consumer, ...] = ()


class _Claim(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    status: _ClaimStatus = _ClaimStatus()


class ClaimedDevices(msgspec.Struct, frozen=True):
    """The devices that a pod has by claims, by the names that slices have."""

    by_container: Mapping[str, tuple[str, ...]]
    exclusive: frozenset[str]
    """Those that no other pod has by a request for resources."""


def device_name(device: Device) -> str:
    """Return the name of a device in a slice: a DNS label."""
    return device.name.lower()


async def claimed_devices(
    client: Client, namespace: str, name: str, uid: str, *, node: str
) -> ClaimedDevices:
    """Return the devices that the containers of a pod have by claims.

    Raises:
        ClaimError: a claim is not allocated for the pod, or another driver is to prepare it.
        ApiError, ConnectionLostError: a request failed.
    """
    pod = await client.get(PODS, name, namespace=namespace, view=_Pod)
    if pod.metadata.uid != uid:
        raise ClaimError(f"pod {namespace}/{name} was replaced")
    created = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
    results: dict[str, tuple[_Result, ...]] = {}
    for each in pod.spec.resource_claims:
        claim = each.resource_claim_name or created.get(each.name, "")
        results[each.name] = await _results(client, namespace, claim, pod, node=node)
    containers = (*pod.spec.init_containers, *pod.spec.containers)
    by_container = {each.name: tuple(_devices_of(each, results)) for each in containers}
    if (extended := pod.status.extended_resource_claim_status) is not None:
        found = await _results(client, namespace, extended.resource_claim_name, pod, node=node)
        results[_EXTENDED] = found
        for mapping in extended.request_mappings:
            own = (each.device for each in found if each.request == mapping.request_name)
            known = by_container.get(mapping.container_name, ())
            by_container[mapping.container_name] = tuple(dict.fromkeys((*known, *own)))
    return ClaimedDevices(
        {name: found for name, found in by_container.items() if found},
        frozenset(
            each.device for found in results.values() for each in found if not each.admin_access
        ),
    )


async def _results(
    client: Client, namespace: str, name: str, pod: _Pod, *, node: str
) -> tuple[_Result, ...]:
    if not name:
        raise ClaimError(f'pod "{namespace}/{pod.metadata.name}": ResourceClaim not created yet')
    try:
        claim = await client.get(RESOURCECLAIMS, name, namespace=namespace, view=_Claim)
    except NotFoundError as error:
        raise ClaimError(f"ResourceClaim {name} not found") from error
    allocation = claim.status.allocation
    if allocation is None:
        raise ClaimError(f"ResourceClaim {name} is not allocated")
    if all(each.uid != pod.metadata.uid for each in claim.status.reserved_for):
        raise ClaimError(f"pod {pod.metadata.name} is not allowed to use ResourceClaim {name}")
    for each in allocation.devices.results:
        if each.driver != DRIVER:
            raise ClaimError(f"DRA driver {each.driver} is not registered")
        if each.pool != node:
            raise ClaimError(f"device {each.device} is of the node {each.pool}")
    return allocation.devices.results


def _devices_of(container: _Container, results: Mapping[str, tuple[_Result, ...]]) -> Iterator[str]:
    """Yield the devices of the claims, or requests of claims, that a container names."""
    seen: set[str] = set()
    for use in container.resources.claims:
        for each in results.get(use.name, ()):
            request = each.request.partition("/")[0]
            if each.device not in seen and use.request in ("", request):
                seen.add(each.device)
                yield each.device


def slice_device(device: Device) -> Json:
    """Return the entry of a device in a slice."""
    attributes: Json = {
        "vendor": {"string": device.driver},
        "index": {"int": device.index},
        "uuid": {"string": device.name[:64]},
    }
    attributes |= {key: {"string": text[:64]} for key, text in device.attributes.items()}
    entry: Json = {"name": device_name(device), "attributes": attributes}
    if device.memory:
        entry["capacity"] = {"memory": {"value": str(device.memory)}}
    return entry


class SlicePublisher:
    """Keeps the ResourceSlice of a node as its devices are."""

    def __init__(self, client: Client, node: str) -> None:
        self._client = client
        self._node = node
        self._name = f"{node}-{DRIVER}"
        self._published: list[Json] | None = None
        self.changed = asyncio.Event()
        """Set when the devices may differ."""

    async def publish(self, devices: list[Json]) -> None:
        """Write the slice if *devices* differ from what is published.

        Raises:
            ApiError, ConnectionLostError: a request failed.
        """
        if devices == self._published:
            return
        generation = 1
        # A node may list its own slices, and read no slice that does not exist.
        own = f"spec.nodeName={self._node},spec.driver={DRIVER}"
        listed = await self._client.list(RESOURCESLICES, field_selector=own, view=dict)
        by_name = {each["metadata"]["name"]: each for each in listed.items}
        found = by_name.get(self._name)
        if found is not None and found["spec"].get("devices", []) != devices:
            generation = found["spec"]["pool"].get("generation", 0) + 1
            body = {
                "metadata": {"resourceVersion": found["metadata"]["resourceVersion"]},
                "spec": {"pool": self._pool(generation), "devices": devices},
            }
            await self._client.patch(RESOURCESLICES, self._name, body, view=msgspec.Raw)
        elif found is None and devices:
            await self._client.create(
                RESOURCESLICES, await self._slice(generation, devices), view=msgspec.Raw
            )
        self._published = devices

    async def _slice(self, generation: int, devices: list[Json]) -> Json:
        node = await self._client.get(NODES, self._node, view=dict)
        owner = {
            "apiVersion": "v1",
            "kind": "Node",
            "name": self._node,
            "uid": node["metadata"]["uid"],
            "controller": True,
        }
        return {
            "apiVersion": RESOURCESLICES.api_version,
            "kind": RESOURCESLICES.kind,
            "metadata": {"name": self._name, "ownerReferences": [owner]},
            "spec": {
                "driver": DRIVER,
                "nodeName": self._node,
                "pool": self._pool(generation),
                "devices": devices,
            },
        }

    def _pool(self, generation: int) -> Json:
        return {"name": self._node, "generation": generation, "resourceSliceCount": 1}
