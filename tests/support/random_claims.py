"""Random volumes and claims that wait for their first consumer, on a real server and in a world."""

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from batholith.model import quantity
from batholith.model.names import (
    CSIDRIVERS,
    CSINODES,
    CSISTORAGECAPACITIES,
    PERSISTENTVOLUMECLAIMS,
    PERSISTENTVOLUMES,
    STORAGECLASSES,
    VOLUMEATTACHMENTS,
    Resource,
)
from batholith.scheduler.plugins.placement import Placement
from batholith.scheduler.state.cache import events
from batholith.scheduler.state.core_types import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)

from .random_pods import HOSTNAME, ZONE
from .realkube import RealServer
from .scheduler import SchedulerWorld

Json = dict[str, Any]

NAMESPACE = "ns-a"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
DRIVER = "csi.ex.io"
_NODE_COUNT = 8
_ZONES = ("z0", "z1", "z2")

CLASSES: dict[str, Json] = {
    "static": {"provisioner": "kubernetes.io/no-provisioner"},
    "zonal": {
        "provisioner": "zonal.ex.io",
        "allowedTopologies": [{"matchLabelExpressions": [{"key": ZONE, "values": ["z0", "z1"]}]}],
    },
    "tracked": {"provisioner": DRIVER},
}
"""By name."""

_KINDS: tuple[tuple[Resource, Any, Any], ...] = (
    (STORAGECLASSES, StorageClass, events.StorageClassEvent),
    (CSIDRIVERS, CSIDriver, events.CSIDriverEvent),
    (CSINODES, CSINode, events.CSINodeEvent),
    (CSISTORAGECAPACITIES, CSIStorageCapacity, events.CSIStorageCapacityEvent),
    (PERSISTENTVOLUMES, PersistentVolume, events.PVEvent),
    (PERSISTENTVOLUMECLAIMS, PersistentVolumeClaim, events.PVCEvent),
    (VOLUMEATTACHMENTS, VolumeAttachment, events.VolumeAttachmentEvent),
)


class RandomStorage:
    """Creates the objects, is the provisioner, and adds all that it finds to the world."""

    def __init__(self, rng: random.Random, server: RealServer, world: SchedulerWorld) -> None:
        self._rng = rng
        self._server = server
        self._world = world
        self._known: dict[tuple[Resource, str], Any] = {}
        self._claims: list[str] = []
        self._zones: dict[str, str] = {}
        self._provisioned: set[str] = set()
        self.used_classes: set[str] = set()
        """Of claims that were bound."""

    def nodes(self) -> list[Json]:
        """Nodes with capacity for all pods, in zones or none."""
        found = []
        for index in range(_NODE_COUNT):
            name = f"n{index}"
            labels = {HOSTNAME: name}
            if self._rng.random() < 0.9:
                labels[ZONE] = self._zones[name] = self._rng.choice(_ZONES)
            amounts = {"cpu": "100", "memory": "100Gi", "pods": "1000"}
            status = {"capacity": dict(amounts), "allocatable": amounts}
            metadata = {"name": name, "labels": labels}
            found.append({"metadata": metadata, "spec": {"taints": []}, "status": status})
        return found

    async def create_objects(self) -> None:
        """Create classes, volumes, and what is known of the CSI driver."""
        for name, body in CLASSES.items():
            late = {"metadata": {"name": name}, "volumeBindingMode": "WaitForFirstConsumer"}
            await self._server.create(STORAGECLASSES.path(), {**late, **body})
        driver = {"metadata": {"name": DRIVER}, "spec": {"storageCapacity": True}}
        await self._server.create(CSIDRIVERS.path(), driver)
        for index in range(_NODE_COUNT):
            allocatable = {"count": self._rng.randrange(1, 4)}
            drivers = [{"name": DRIVER, "nodeID": f"n{index}", "allocatable": allocatable}]
            body = {"metadata": {"name": f"n{index}"}, "spec": {"drivers": drivers}}
            await self._server.create(CSINODES.path(), body)
        for zone in _ZONES:
            body = {
                "metadata": {"name": zone},
                "storageClassName": "tracked",
                "capacity": f"{self._rng.randrange(1, 5)}Gi",
                "nodeTopology": {"matchLabels": {ZONE: zone}},
            }
            await self._server.create(CSISTORAGECAPACITIES.path(NAMESPACE), body)
        for index in range(20):
            await self._create_volume(f"v{index}", self._rng.choice(("static", "zonal")))
        await self._wait_available()

    async def new_pod(self, name: str) -> Json:
        """Return a pod with one or two claims, which are created or used already."""
        claims: list[str] = []
        for index in range(self._rng.choice((1, 1, 2))):
            if self._claims and self._rng.random() < 0.15:
                claims.append(self._rng.choice(self._claims))
                continue
            claim = f"{name}-{index}"
            await self._create_claim(claim)
            self._claims.append(claim)
            claims.append(claim)
        volumes = [
            {"name": f"v{index}", "persistentVolumeClaim": {"claimName": each}}
            for index, each in enumerate(dict.fromkeys(claims))
        ]
        spec = {"containers": [{"name": "c", "image": "i"}], "volumes": volumes}
        return {"metadata": {"name": name, "namespace": NAMESPACE}, "spec": spec}

    async def update(self) -> None:
        """Add what has changed on the server to the world."""
        for resource, view, event in _KINDS:
            for stored in (await self._server.get(resource.path()))["items"]:
                meta = stored["metadata"]
                key = resource, f"{meta.get('namespace', '')}/{meta['name']}"
                new, old = msgspec.convert(stored, view), self._known.get(key)
                if new != old:
                    self._known[key] = new
                    self._world.cluster.apply(event(old, new))

    def sizes(self, placement: Placement | None) -> dict[str, str]:
        """The size of the available volume that each claim of *placement* is to be bound to."""
        found = {}
        for each in placement.volumes if placement is not None else ():
            self.used_classes.add(each.claim.spec.storage_class_name)
            if each.volume:
                found[each.claim.metadata.name] = self._size(each.volume)
        return found

    def bound_sizes(self, claims: dict[str, str]) -> dict[str, str]:
        """The sizes of the volumes that *claims* are bound to."""
        return {name: self._size(self._claim(name).spec.volume_name) for name in claims}

    @asynccontextmanager
    async def provisioning(self) -> AsyncIterator[None]:
        """Provision volumes for claims with a selected node within the block."""
        task = asyncio.create_task(self._provision())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _provision(self) -> None:
        while True:
            for claim in (await self._server.get(PERSISTENTVOLUMECLAIMS.path(NAMESPACE)))["items"]:
                node = claim["metadata"].get("annotations", {}).get(SELECTED_NODE)
                name = f"new-{claim['metadata']['name']}"
                if node and not claim["spec"].get("volumeName") and name not in self._provisioned:
                    self._provisioned.add(name)
                    await self._provision_for(claim, name, node)
            await asyncio.sleep(0.05)

    async def _provision_for(self, claim: Json, name: str, node: str) -> None:
        spec, meta = claim["spec"], claim["metadata"]
        zone = self._zones.get(node)
        key, value = (ZONE, zone) if zone else (HOSTNAME, node)
        about = {"namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]}
        body = _volume(
            name,
            spec["storageClassName"],
            spec["resources"]["requests"]["storage"],
            (key, value),
            source={"csi": {"driver": DRIVER, "volumeHandle": name}},
            claimRef={"apiVersion": "v1", "kind": "PersistentVolumeClaim", **about},
        )
        await self._server.create(PERSISTENTVOLUMES.path(), body)
        if self._rng.random() < 0.3:
            at = {"attacher": DRIVER, "nodeName": f"n{self._rng.randrange(_NODE_COUNT)}"}
            source = {"source": {"persistentVolumeName": name}}
            body = {"metadata": {"name": f"at-{name}"}, "spec": {**at, **source}}
            await self._server.create(VOLUMEATTACHMENTS.path(), body)

    async def _create_volume(self, name: str, storage_class: str) -> None:
        where = self._rng.choice(
            (None, (ZONE, self._rng.choice(_ZONES)), *[(HOSTNAME, f"n{i}") for i in range(6)])
        )
        size = f"{self._rng.randrange(1, 5)}Gi"
        body = _volume(name, storage_class, size, where, source={"hostPath": {"path": "/d"}})
        body["metadata"]["labels"] = {"tier": self._rng.choice(("fast", "slow"))}
        await self._server.create(PERSISTENTVOLUMES.path(), body)

    async def _create_claim(self, name: str) -> None:
        spec: Json = {
            "storageClassName": self._rng.choice(tuple(CLASSES)),
            "accessModes": [self._rng.choice(("ReadWriteOnce", "ReadWriteOnce", "ReadWriteMany"))],
            "resources": {"requests": {"storage": f"{self._rng.randrange(1, 5)}Gi"}},
        }
        if spec["storageClassName"] == "static" and self._rng.random() < 0.2:
            spec["selector"] = {"matchLabels": {"tier": self._rng.choice(("fast", "slow"))}}
        body = {"metadata": {"name": name}, "spec": spec}
        await self._server.create(PERSISTENTVOLUMECLAIMS.path(NAMESPACE), body)

    async def _wait_available(self) -> None:
        """Wait until the volume controller has set the phases."""
        while True:
            volumes = (await self._server.get(PERSISTENTVOLUMES.path()))["items"]
            if all(each["status"].get("phase") == "Available" for each in volumes):
                return
            await asyncio.sleep(0.1)

    def _claim(self, name: str) -> PersistentVolumeClaim:
        found: PersistentVolumeClaim = self._known[PERSISTENTVOLUMECLAIMS, f"{NAMESPACE}/{name}"]
        return found

    def _size(self, volume: str) -> str:
        found = self._known[PERSISTENTVOLUMES, f"/{volume}"].spec.capacity["storage"]
        return str(quantity.parse(found))


def _volume(
    name: str, storage_class: str, size: str, where: tuple[str, str] | None, **fields: Any
) -> Json:
    source = fields.pop("source")
    spec: Json = {
        "storageClassName": storage_class,
        "capacity": {"storage": size},
        "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
        "persistentVolumeReclaimPolicy": "Retain",
        **source,
        **fields,
    }
    if where is not None:
        requirement = {"key": where[0], "operator": "In", "values": [where[1]]}
        terms = [{"matchExpressions": [requirement]}]
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
    return {"metadata": {"name": name}, "spec": spec}
