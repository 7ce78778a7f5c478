"""Random devices and claims of devices, on a real server and in a world."""

import random
from typing import Any

import msgspec

from batholith.model.names import DEVICECLASSES, RESOURCECLAIMS, RESOURCESLICES
from batholith.scheduler.plugins.placement import Placement
from batholith.scheduler.state.cache.events import (
    DeviceClassEvent,
    ResourceClaimEvent,
    ResourceSliceEvent,
)
from batholith.scheduler.state.devices.types import DeviceClass, ResourceClaim, ResourceSlice

from .api_servers import merge_patch
from .random_pods import ZONE
from .realkube import RealServer
from .scheduler import SchedulerWorld

Json = dict[str, Any]

NAMESPACE = "ns-a"
DRIVER = "gpu.ex.io"
CARD = "ex.io/card"
_EXTENDED = "<extended-resources>"
"""A key for the claim for extended resources, whose name is generated."""
_NODE_COUNT = 6
_CLASSES = {
    "any": [],
    "large": [f'device.attributes["{DRIVER}"].model == "large"'],
    "memory": [f'device.capacity["{DRIVER}"].memory.compareTo(quantity("20Gi")) >= 0'],
    "other": ['has(device.attributes["other.io"].kind)'],
}


_POLICIES: tuple[Json | None, ...] = (
    None,
    {},
    {"validRange": {"min": "2Gi", "max": "10Gi", "step": "2Gi"}},
    {"validRange": {"min": "3Gi"}},
    {"validValues": ["4Gi", "8Gi"]},
)
"""Of requests for the memory of devices that several claims may have."""


class RandomDevices:
    """Devices of some nodes, and claims of pods, in both."""

    def __init__(self, rng: random.Random, server: RealServer, world: SchedulerWorld) -> None:
        self._rng = rng
        self._server = server
        self._world = world
        self._claims: dict[str, Json] = {}

    def nodes(self) -> list[Json]:
        return [
            {
                "metadata": {"name": f"n{index}", "labels": {ZONE: f"z{index % 2}"}},
                "spec": {"taints": []},
                "status": {
                    key: {"cpu": "100", "memory": "100Gi", "pods": "110"}
                    for key in ("capacity", "allocatable")
                },
            }
            for index in range(_NODE_COUNT)
        ]

    async def create_objects(self) -> None:
        """Create classes and slices."""
        for name, selectors in _CLASSES.items():
            cel = [{"cel": {"expression": each}} for each in selectors]
            body: Json = {"metadata": {"name": name}, "spec": {"selectors": cel}}
            if name == "large":
                body["spec"]["extendedResourceName"] = CARD
            stored = await self._server.create(DEVICECLASSES.path(), body)
            found = msgspec.convert(stored, DeviceClass)
            self._world.cluster.apply(DeviceClassEvent(None, found))
        for index in range(_NODE_COUNT - 1):
            await self._add_slices(f"n{index}", {"nodeName": f"n{index}"})
        expression = {"key": ZONE, "operator": "In", "values": ["z1"]}
        selector = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
        await self._add_slices("zonal", {"nodeSelector": selector})
        await self._add_slices("network", {"allNodes": True})

    async def _add_slices(self, pool: str, location: Json) -> None:
        count = self._rng.choice((1, 1, 2))
        for number in range(count):
            devices = [
                self._device(f"d{number}{index}") for index in range(self._rng.randint(1, 3))
            ]
            of = {"name": pool, "generation": 1, "resourceSliceCount": count}
            spec = {"driver": DRIVER, "pool": of, "devices": devices, **location}
            body = {"metadata": {"name": f"{pool}-{number}"}, "spec": spec}
            stored = await self._server.create(RESOURCESLICES.path(), body)
            found = msgspec.convert(stored, ResourceSlice)
            self._world.cluster.apply(ResourceSliceEvent(None, found))

    def _device(self, name: str) -> Json:
        rng = self._rng
        attributes: Json = {
            "model": {"string": rng.choice(("small", "large"))},
            "numa": {"int": rng.randrange(2)},
        }
        if rng.random() < 0.3:
            attributes["other.io/kind"] = {"bool": True}
        device: Json = {
            "name": name,
            "attributes": attributes,
            "capacity": {"memory": {"value": rng.choice(("10Gi", "20Gi", "40Gi"))}},
        }
        if rng.random() < 0.3:
            device["allowMultipleAllocations"] = True
            policy = rng.choice(_POLICIES)
            if policy is not None:
                device["capacity"]["memory"]["requestPolicy"] = {"default": "4Gi", **policy}
        if rng.random() < 0.2:
            device["taints"] = [{"key": "broken", "value": "yes", "effect": "NoSchedule"}]
        return device

    # -- claims --------------------------------------------------------------------------------

    async def new_pod(self, name: str, *, alternatives: int = 0) -> Json:
        """A pod with one or two claims, some of which others use, too; or with one claim whose
        request has *alternatives*."""
        names: list[str] = []
        if alternatives:
            first = [{"name": f"s{each}", **self._choice()} for each in range(alternatives)]
            devices = {"requests": [{"name": "r", "firstAvailable": first}]}
            return self._pod(name, [await self._create_claim(f"{name}-c", devices)])
        for index in range(self._rng.choice((1, 1, 2))):
            shared = sorted(self._claims)
            if shared and self._rng.random() < 0.15:
                names.append(self._rng.choice(shared))
                continue
            names.append(await self._create_claim(f"{name}-c{index}", self._devices()))
        pod = self._pod(name, names)
        spec = pod["spec"]
        (container,) = spec["containers"]
        if self._rng.random() < 0.3:
            container["resources"]["limits"] = {CARD: self._rng.choice(("1", "2"))}
            container["resources"]["requests"] |= container["resources"]["limits"]
            if self._rng.random() < 0.5:
                init: Json = {"name": "init", "image": "i", "resources": {"limits": {CARD: "2"}}}
                init["resources"]["requests"] = init["resources"]["limits"]
                spec["initContainers"] = [init]
        return pod

    async def _create_claim(self, name: str, devices: Json) -> str:
        body = {"metadata": {"name": name}, "spec": {"devices": devices}}
        await self._server.create(RESOURCECLAIMS.path(NAMESPACE), body)
        await self._read(name)
        return name

    def _pod(self, name: str, claims: list[str]) -> Json:
        used = [
            {"name": f"c{index}", "resourceClaimName": each}
            for index, each in enumerate(dict.fromkeys(claims))
        ]
        container = {"name": "c", "image": "i", "resources": {"requests": {"cpu": "1"}}}
        spec = {"containers": [container], "resourceClaims": used}
        return {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}

    def _devices(self) -> Json:
        rng = self._rng
        requests: list[Json] = []
        for index in range(rng.choice((1, 1, 2))):
            if rng.random() < 0.2:
                first = [{"name": f"s{number}", **self._choice()} for number in range(2)]
                requests.append({"name": f"r{index}", "firstAvailable": first})
            else:
                requests.append({"name": f"r{index}", "exactly": self._choice()})
        found: Json = {"requests": requests}
        if rng.random() < 0.4:
            kind = rng.choice(("matchAttribute", "distinctAttribute"))
            found["constraints"] = [{kind: f"{DRIVER}/{rng.choice(('numa', 'model'))}"}]
            if kind == "distinctAttribute":
                _want_single_devices(requests)
        return found

    def _choice(self) -> Json:
        rng = self._rng
        choice: Json = {"deviceClassName": rng.choice(sorted(_CLASSES))}
        if rng.random() < 0.15:
            choice["allocationMode"] = "All"
        else:
            choice["count"] = rng.choice((1, 1, 1, 2, 3))
        if rng.random() < 0.3:
            choice["tolerations"] = [{"key": "broken", "operator": "Exists"}]
        if rng.random() < 0.3:
            numa = f'device.attributes["{DRIVER}"].numa == {rng.randrange(2)}'
            choice["selectors"] = [{"cel": {"expression": numa}}]
        if rng.random() < 0.3:
            amount = rng.choice(("1Gi", "7Gi", "9000Mi", "13Gi"))
            choice["capacity"] = {"requests": {"memory": amount}}
        return choice

    async def update(self, pod: Json) -> dict[str, list[Json]]:
        """Read the claims of a pod; return the devices of each."""
        found = {}
        for each in pod["spec"]["resourceClaims"]:
            name = each["resourceClaimName"]
            stored = await self._read(name)
            allocation = stored.get("status", {}).get("allocation", {})
            results = allocation.get("devices", {}).get("results", ())
            found[name] = [_comparable(result) for result in results]
        for name in await self._created_for(pod):
            stored = await self._read(name)
            results = stored["status"]["allocation"]["devices"]["results"]
            found[_EXTENDED] = [_comparable(result) for result in results]
        return found

    async def _created_for(self, pod: Json) -> list[str]:
        """The claim that kube-scheduler has created for the extended resources of a pod."""
        if "extendedResourceClaimStatus" not in pod["status"]:
            return []
        return [pod["status"]["extendedResourceClaimStatus"]["resourceClaimName"]]

    def expected(self, placement: Placement | None) -> dict[str, list[Json]]:
        """What our decision gives to the claims that were not allocated before."""
        return {
            (_EXTENDED if each.new else each.claim.metadata.name): [
                _comparable(result) for result in each.allocation["devices"]["results"]
            ]
            for each in (placement.devices if placement is not None else ())
            if each.allocation is not None
        }

    def claims_of(self, pod: Json) -> list[Json]:
        """What the claims of a pod ask for."""
        return [
            self._claims[each["resourceClaimName"]]["spec"]["devices"]
            for each in pod["spec"]["resourceClaims"]
        ]

    async def free(self, pod: Json) -> None:
        """Free what a deleted pod has claimed, as the controller does."""
        own = await self._created_for(pod)
        for name in (*(each["resourceClaimName"] for each in pod["spec"]["resourceClaims"]), *own):
            stored = await self._read(name)
            status = stored.get("status", {})
            uid = pod["metadata"]["uid"]
            left = [found for found in status.get("reservedFor", ()) if found["uid"] != uid]
            change: Json = {"reservedFor": left or None}
            if not left:
                change["allocation"] = None
            path = RESOURCECLAIMS.path(NAMESPACE, name)
            await merge_patch(self._server, f"{path}/status", {"status": change})
            await self._read(name)

    async def _read(self, name: str) -> Json:
        stored: Json = await self._server.get(RESOURCECLAIMS.path(NAMESPACE, name))
        before, self._claims[name] = self._claims.get(name), stored
        old = msgspec.convert(before, ResourceClaim) if before is not None else None
        new = msgspec.convert(stored, ResourceClaim)
        self._world.cluster.apply(ResourceClaimEvent(old, new))
        return stored


def _comparable(result: Json) -> Json:
    """What is equal for any scheduler: not the identifier of a share."""
    return {**result, "shareID": "shareID" in result}


def _want_single_devices(requests: list[Json]) -> None:
    """Let each request want one device: kube-scheduler compares only one device of each."""
    for request in requests:
        choices = [request["exactly"]] if "exactly" in request else request["firstAvailable"]
        for choice in choices:
            choice.pop("allocationMode", None)
            choice["count"] = 1
