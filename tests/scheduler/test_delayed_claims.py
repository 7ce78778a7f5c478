"""Claims that are bound once their pod has a node (WaitForFirstConsumer)."""

from typing import Any

import msgspec
import pytest
from support.scheduler import SchedulerWorld, node, pod, podgroup
from support.scheduler_terms import labelled

from batholith.scheduler.framework.decision import Decision
from batholith.scheduler.state.cache.events import (
    CacheEvent,
    CSIDriverEvent,
    CSINodeEvent,
    CSIStorageCapacityEvent,
    PlacementForgotten,
    PVCEvent,
    PVEvent,
    StorageClassEvent,
    VolumeAttachmentEvent,
)
from batholith.scheduler.state.core_types import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    StorageClass,
    VolumeAttachment,
)

HOST = "kubernetes.io/hostname"


def storage_class(provisioner: str = "kubernetes.io/no-provisioner", **fields: Any) -> StorageClass:
    body = {"metadata": {"name": "late"}, "volumeBindingMode": "WaitForFirstConsumer"}
    return msgspec.convert({**body, "provisioner": provisioner, **fields}, StorageClass)


def claim(
    name: str,
    size: str = "1Gi",
    *,
    volume: str = "",
    annotations: dict[str, str] | None = None,
    mode: str = "ReadWriteOnce",
) -> PersistentVolumeClaim:
    body = {
        "metadata": {
            "name": name,
            "namespace": "ns",
            "uid": f"claim-{name}",
            "annotations": annotations or {},
        },
        "spec": {
            "storageClassName": "late",
            "accessModes": [mode],
            "resources": {"requests": {"storage": size}},
            "volumeName": volume,
        },
        "status": {"phase": "Bound" if volume else "Pending"},
    }
    return msgspec.convert(body, PersistentVolumeClaim)


def local_volume(
    name: str, host: str, size: str = "1Gi", *, claimed_by: str = ""
) -> PersistentVolume:
    """A volume on the nodes with the label *host*; empty for all nodes."""
    term = {"matchExpressions": [{"key": HOST, "operator": "In", "values": [host]}]}
    affinity = {"nodeAffinity": {"required": {"nodeSelectorTerms": [term]}}} if host else {}
    claimed = {"claimRef": {"namespace": "ns", "name": claimed_by}} if claimed_by else {}
    body = {
        "metadata": {"name": name},
        "spec": {
            "storageClassName": "late",
            "capacity": {"storage": size},
            "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
            **affinity,
            **claimed,
        },
        "status": {"phase": "Available"},
    }
    return msgspec.convert(body, PersistentVolume)


def using(base: Pod, *claims: str) -> Pod:
    volumes = [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in claims]
    return labelled(base, spec={"volumes": volumes})


def bound_to(decision: Decision) -> dict[str, tuple[str, str]]:
    """Node and volume of each claim; the volume is empty if it is to be provisioned."""
    return {
        each.claim.metadata.name: (placement.node, each.volume)
        for placement in decision.placements
        for each in placement.volumes
    }


def late_world(*, hosts: str = "abc", **fields: Any) -> SchedulerWorld:
    world = SchedulerWorld()
    world.cluster.apply(StorageClassEvent(None, storage_class(**fields)))
    world.upsert(*(node(host, cpu=2, labels={HOST: host, "zone": "z" + host}) for host in hosts))
    return world


def add(world: SchedulerWorld, *objects: PersistentVolume | PersistentVolumeClaim) -> None:
    for each in objects:
        if isinstance(each, PersistentVolume):
            world.cluster.apply(PVEvent(None, each))
        else:
            world.cluster.apply(PVCEvent(None, each))


def test_a_pod_goes_where_the_smallest_volume_that_suffices_is_available() -> None:
    world = late_world()
    add(world, local_volume("small", "a", "1Gi"), local_volume("large", "b", "8Gi"))
    add(world, local_volume("larger", "b", "9Gi"), claim("c", "2Gi"))
    world.upsert(podgroup("g", 1), using(pod("g-0", "g"), "c"))
    assert bound_to(world.decision()) == {"c": ("b", "large")}


def test_two_pods_do_not_get_the_same_volume() -> None:
    world = late_world()
    add(world, local_volume("v", ""), claim("c0"), claim("c1"))
    world.upsert(podgroup("g", 2), *(using(pod(f"g-{i}", "g"), f"c{i}") for i in range(2)))
    assert world.schedule() == {}
    assert "didn't find available persistent volumes to bind" in world.fit_message("g")
    add(world, local_volume("w", "c"))
    assert world.cluster.has_changes()
    decision = world.decision()
    assert sorted(volume for _, volume in bound_to(decision).values()) == ["v", "w"]
    assert ("c", "w") in bound_to(decision).values()


def test_a_gang_of_pods_with_a_claim_each_is_one_class_and_gets_a_volume_each() -> None:
    world = late_world(hosts="abcd")
    for host in "abcd":
        add(world, local_volume(f"v{host}", host), local_volume(f"w{host}", host))
    members = [using(pod(f"g-{i}", "g"), f"c{i}") for i in range(8)]
    add(world, *(claim(f"c{i}") for i in range(8)))
    world.upsert(podgroup("g", 8), *members)
    assert len({task.eq_class for task in world.cluster.gangs["ns/g"].tasks.values()}) == 1
    found = bound_to(world.decision())
    assert len({volume for _, volume in found.values()}) == 8
    assert all(volume[1] == host for host, volume in found.values())


def test_two_claims_of_a_pod_take_two_volumes_of_one_node() -> None:
    world = late_world()
    add(world, local_volume("va", "a"), local_volume("vb", "b"), local_volume("wb", "b"))
    add(world, claim("c"), claim("d"))
    world.upsert(podgroup("g", 1), using(pod("g-0", "g"), "c", "d"))
    found = bound_to(world.decision())
    assert {node for node, _ in found.values()} == {"b"}
    assert {volume for _, volume in found.values()} == {"vb", "wb"}


def test_a_volume_is_free_again_when_the_placement_is_forgotten() -> None:
    world = late_world()
    add(world, local_volume("v", "b"), claim("c"), claim("d"))
    world.upsert(podgroup("g", 1), using(pod("g-0", "g"), "c"))
    assert bound_to(world.decision()) == {"c": ("b", "v")}
    world.upsert(podgroup("h", 1), using(pod("h-0", "h"), "d"))
    assert world.schedule() == {}
    deleted = using(pod("g-0", "g"), "c")
    world.cluster.apply(PlacementForgotten(deleted.metadata.uid))
    world.remove(deleted)
    assert bound_to(world.decision()) == {"d": ("b", "v")}


def test_nothing_is_bound_for_a_gang_that_waits_for_resources_quirk_30() -> None:
    world = late_world(hosts="a")
    add(world, local_volume("v", "a"), claim("c"), claim("d"))
    world.upsert(pod("old", node_name="a", phase="Running", cpu=2, terminating=True))
    world.upsert(podgroup("g", 1), using(pod("g-0", "g"), "c"))
    assert bound_to(world.decision()) == {}
    world.upsert(podgroup("h", 1), using(pod("h-0", "h", cpu=0, memory="1Mi"), "d"))
    assert bound_to(world.decision()) == {"d": ("a", "v")}


def test_a_claim_that_is_bound_counts_once() -> None:
    world = late_world()
    add(world, local_volume("v", "b"), local_volume("w", "b"), claim("c"), claim("d"))
    world.upsert(podgroup("g", 1), using(pod("g-0", "g"), "c"))
    assert bound_to(world.decision()) == {"c": ("b", "v")}
    world.cluster.apply(PVEvent(local_volume("v", "b"), local_volume("v", "b", claimed_by="c")))
    world.cluster.apply(PVCEvent(claim("c"), claim("c", volume="v")))
    world.upsert(podgroup("h", 1), using(pod("h-0", "h"), "d"))
    assert bound_to(world.decision()) == {"d": ("b", "w")}


@pytest.mark.parametrize(
    ("mode", "nodes"), [("ReadWriteOnce", {"b"}), ("ReadWriteMany", {"a", "b", "c"})]
)
def test_pods_that_share_a_claim_are_where_its_volume_can_be(mode: str, nodes: set[str]) -> None:
    world = late_world(provisioner="d.example.com")
    add(world, claim("c", mode=mode))
    world.upsert(node("b", cpu=3, labels={HOST: "b"}))
    world.upsert(podgroup("g", 3), *(using(pod(f"g-{i}", "g"), "c") for i in range(3)))
    decision = world.decision()
    assert {each.node for each in decision.placements} == nodes
    first, *others = (each.volumes for each in decision.placements)
    assert first and all(each == first for each in others)
    world.upsert(podgroup("h", 1), using(pod("h-0", "h"), "c"))
    world.upsert(node("b", cpu=3 + (mode == "ReadWriteOnce"), labels={HOST: "b"}))
    assert set(world.schedule().values()) <= nodes


def test_pods_that_share_an_available_volume_stay_where_it_can_be_used() -> None:
    world = late_world()
    add(world, local_volume("v", "b"), claim("c", mode="ReadWriteMany"))
    world.upsert(podgroup("g", 2), *(using(pod(f"g-{i}", "g"), "c") for i in range(2)))
    assert set(world.schedule().values()) == {"b"}
    world.upsert(podgroup("h", 1), using(pod("h-0", "h"), "c"))
    assert world.schedule() == {}


def test_a_volume_is_provisioned_within_the_topology_of_its_class() -> None:
    terms = [{"matchLabelExpressions": [{"key": "zone", "values": ["zb", "zc"]}]}]
    world = late_world(provisioner="d.example.com", allowedTopologies=terms)
    add(world, claim("c"))
    world.upsert(node("b", cpu=0, labels={HOST: "b", "zone": "zb"}))
    world.upsert(podgroup("g", 1), using(pod("g-0", "g"), "c"))
    assert bound_to(world.decision()) == {"c": ("c", "")}


def test_a_claim_with_a_selected_node_stays_there() -> None:
    world = late_world(provisioner="d.example.com")
    add(world, claim("c", annotations={"volume.kubernetes.io/selected-node": "c"}))
    world.upsert(podgroup("g", 1), using(pod("g-0", "g"), "c"))
    assert bound_to(world.decision()) == {"c": ("c", "")}


def test_a_volume_that_names_the_claim_is_used() -> None:
    world = late_world(provisioner="kubernetes.io/no-provisioner")
    add(world, local_volume("v", "a"), local_volume("mine", "c", claimed_by="c"), claim("c"))
    world.upsert(podgroup("g", 1), using(pod("g-0", "g"), "c"))
    assert bound_to(world.decision()) == {"c": ("c", "mine")}


def capacity(zone: str, amount: str, largest: str | None = None) -> CSIStorageCapacity:
    body = {
        "metadata": {"name": zone, "namespace": "ns"},
        "storageClassName": "late",
        "capacity": amount,
        "maximumVolumeSize": largest,
        "nodeTopology": {"matchLabels": {"zone": zone}},
    }
    return msgspec.convert(body, CSIStorageCapacity)


def test_a_volume_is_provisioned_where_enough_storage_is_free() -> None:
    world = late_world(provisioner="d.example.com")
    driver = {"metadata": {"name": "d.example.com"}, "spec": {"storageCapacity": True}}
    world.cluster.apply(CSIDriverEvent(None, msgspec.convert(driver, CSIDriver)))
    add(world, claim("c", "5Gi"))
    world.upsert(podgroup("g", 1), using(pod("g-0", "g"), "c"))
    world.cluster.apply(CSIStorageCapacityEvent(None, capacity("za", "4Gi")))
    world.cluster.apply(CSIStorageCapacityEvent(None, capacity("zb", "9Gi", "4Gi")))
    assert world.schedule() == {}
    assert "did not have enough free storage" in world.fit_message("g")
    world.cluster.apply(
        CSIStorageCapacityEvent(capacity("zb", "9Gi", "4Gi"), capacity("zb", "9Gi", "5Gi"))
    )
    assert bound_to(world.decision()) == {"c": ("b", "")}


def test_volumes_that_are_still_to_be_provisioned_count_in_attach_limits() -> None:
    world = late_world(hosts="ab", provisioner="d.example.com")
    for host in "ab":
        drivers = [{"name": "d.example.com", "allocatable": {"count": 1}}]
        body = {"metadata": {"name": host}, "spec": {"drivers": drivers}}
        world.cluster.apply(CSINodeEvent(None, msgspec.convert(body, CSINode)))
    add(world, *(claim(f"c{i}") for i in range(3)))
    world.upsert(podgroup("g", 2), *(using(pod(f"g-{i}", "g"), f"c{i}") for i in range(3)))
    assert set(world.schedule().values()) == {"a", "b"}
    assert "exceed max volume count" in world.fit_message("g")


def attachment(volume: str, host: str) -> VolumeAttachment:
    source = {"persistentVolumeName": volume}
    spec = {"attacher": "d", "nodeName": host, "source": source}
    return msgspec.convert({"metadata": {"name": "at"}, "spec": spec}, VolumeAttachment)


@pytest.mark.parametrize("attachment_first", [False, True])
def test_volumes_that_are_attached_without_a_pod_count_in_attach_limits(
    attachment_first: bool,
) -> None:
    world = late_world(hosts="a")
    body = {"spec": {"drivers": [{"name": "d", "allocatable": {"count": 1}}]}}
    csi_node = msgspec.convert({"metadata": {"name": "a"}, **body}, CSINode)
    world.cluster.apply(CSINodeEvent(None, csi_node))
    source = {"csi": {"driver": "d", "volumeHandle": "h1"}}
    attached = msgspec.convert({"metadata": {"name": "v1"}, "spec": source}, PersistentVolume)
    source = {"csi": {"driver": "d", "volumeHandle": "h2"}, "claimRef": {"name": "c"}}
    own = msgspec.convert({"metadata": {"name": "v2"}, "spec": source}, PersistentVolume)
    events: list[CacheEvent] = [
        PVEvent(None, attached),
        VolumeAttachmentEvent(None, attachment("v1", "a")),
    ]
    for event in reversed(events) if attachment_first else events:
        world.cluster.apply(event)
    add(world, own, claim("c", volume="v2"))
    world.upsert(podgroup("g", 1), using(pod("g-0", "g"), "c"))
    assert world.schedule() == {}
    world.cluster.apply(VolumeAttachmentEvent(attachment("v1", "a"), None))
    assert world.schedule() == {"g-0": "a"}
