"""Pods with bound volumes: node affinity and zones, attach limits, ReadWriteOncePod."""

from typing import Any

import msgspec
import pytest
from support.scheduler import SchedulerWorld, node, pod, podgroup
from support.scheduler_terms import labelled, node_for, single

from batholith.scheduler.state.cache.events import CSINodeEvent
from batholith.scheduler.state.core_types import (
    CSINode,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    StorageClass,
)

Json = dict[str, Any]

ZONE = "topology.kubernetes.io/zone"
_IN_ZONE_2 = {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["z2"]}]}
_ZONE_AFFINITY = {"nodeAffinity": {"required": {"nodeSelectorTerms": [_IN_ZONE_2]}}}


def volume(
    name: str,
    *,
    claim: str = "c",
    labels: dict[str, str] | None = None,
    handle: str = "",
    affinity: Json | None = None,
) -> PersistentVolume:
    """A volume that is bound to *claim*, of the driver ``d`` with *handle*."""
    source = {"csi": {"driver": "d", "volumeHandle": handle}} if handle else {}
    spec = {"claimRef": {"namespace": "ns", "name": claim}, **source, **(affinity or {})}
    body = {"metadata": {"name": name, "labels": labels or {}}, "spec": spec}
    return msgspec.convert(body, PersistentVolume)


def claim(name: str, volume_name: str = "", **spec: Any) -> PersistentVolumeClaim:
    """A claim, bound to a volume if given."""
    body = {
        "metadata": {"name": name, "namespace": "ns", "uid": f"claim-{name}"},
        "spec": {"volumeName": volume_name, **spec},
        "status": {"phase": "Bound" if volume_name else "Pending"},
    }
    return msgspec.convert(body, PersistentVolumeClaim)


def using(base: Pod, *claims: str) -> Pod:
    """*base* with volumes of *claims*."""
    volumes = [{"name": each, "persistentVolumeClaim": {"claimName": each}} for each in claims]
    return labelled(base, spec={"volumes": volumes})


def limits(name: str, count: int) -> CSINode:
    """The limit of driver ``d`` on a node."""
    drivers = [{"name": "d", "allocatable": {"count": count}}]
    return msgspec.convert({"metadata": {"name": name}, "spec": {"drivers": drivers}}, CSINode)


@pytest.fixture
def world() -> SchedulerWorld:
    found = SchedulerWorld()
    found.upsert(
        node("a", labels={"zone": "z1", ZONE: "z1"}), node("b", labels={"zone": "z2", ZONE: "z2"})
    )
    return found


@pytest.mark.parametrize(
    ("bound", "reason"),
    [
        (volume("v", affinity=_ZONE_AFFINITY), "didn't match PersistentVolume's node affinity"),
        (volume("v", labels={ZONE: "z2__z3"}), "had no available volume zone"),
        (
            volume("v", labels={"failure-domain.beta.kubernetes.io/zone": "z2"}),
            "had no available volume zone",
        ),
    ],
)
def test_pod_goes_where_its_volume_can_be_used(
    world: SchedulerWorld, bound: PersistentVolume, reason: str
) -> None:
    world.cluster.update_pvc(None, claim("c", "v"))
    world.cluster.update_volume(None, bound)
    assert node_for(world, using(single("p"), "c")) == "b"
    world.remove(node("b"))
    world.upsert(podgroup("g", 1), using(pod("g-0", "g"), "c"))
    assert world.schedule() == {}
    assert world.fit_message("g") == f"0/1 nodes are unavailable: 1 node(s) {reason}."


def test_volume_that_becomes_known_later_is_respected(world: SchedulerWorld) -> None:
    world.cluster.update_volume(None, volume("other", claim="x"))
    world.upsert(podgroup("g", 1), using(pod("g-0", "g"), "c"))
    world.cluster.update_pvc(None, claim("c", "v"))
    assert world.schedule() == {}
    assert world.fit_message("g").endswith('is bound to volume "v", which does not exist')
    world.cluster.update_volume(None, volume("v", affinity=_ZONE_AFFINITY))
    assert world.cluster.has_changes()
    assert world.schedule() == {"g-0": "b"}


def test_nodes_without_zones_are_in_all_of_them() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"))
    world.cluster.update_pvc(None, claim("c", "v"))
    world.cluster.update_volume(None, volume("v", labels={ZONE: "z2"}))
    assert node_for(world, using(single("p"), "c")) == "a"


def test_attach_limit_of_a_driver(world: SchedulerWorld) -> None:
    world.remove(node("b"))
    for number in range(4):
        world.cluster.update_pvc(None, claim(f"c{number}", f"v{number}"))
        world.cluster.update_volume(
            None, volume(f"v{number}", claim=f"c{number}", handle=f"h{number}")
        )
    world.cluster.apply(CSINodeEvent(None, limits("a", 2)))
    assert node_for(world, using(single("p0"), "c0")) == "a"
    existing = using(pod("x", node_name="a", scheduler="x"), "c1")
    world.upsert(existing)
    assert node_for(world, using(single("p1"), "c1")) == "a"  # attached already
    assert node_for(world, using(single("p2"), "c2")) is None
    assert node_for(world, using(single("p3"), "c0", "c3")) is None
    world.cluster.apply(CSINodeEvent(limits("a", 2), limits("a", 3)))
    assert world.schedule() == {"p2": "a"}
    world.cluster.apply(CSINodeEvent(limits("a", 3), None))
    assert world.schedule() == {"p3": "a"}
    for uid in list(world.pod_objects):
        world.remove(world.pod_objects[uid])
    assert not world.cluster.node_matrix.attached_volumes._attached.get("d")


def test_volumes_of_one_gang_count_together(world: SchedulerWorld) -> None:
    world.cluster.apply(CSINodeEvent(None, limits("a", 1)))
    world.cluster.apply(CSINodeEvent(None, limits("b", 1)))
    world.upsert(podgroup("g", 3))
    for number in range(3):
        world.cluster.update_pvc(None, claim(f"c{number}", f"v{number}"))
        bound = volume(f"v{number}", claim=f"c{number}", handle=f"h{number}")
        world.cluster.update_volume(None, bound)
        world.upsert(using(pod(f"g-{number}", "g"), f"c{number}"))
    assert world.schedule() == {}
    expected = "0/2 nodes are unavailable: 2 node(s) exceed max volume count."
    assert world.fit_message("g") == expected
    world.upsert(podgroup("g", 2))
    assert sorted(world.schedule().values()) == ["a", "b"]


def test_one_pod_uses_a_read_write_once_pod_claim(world: SchedulerWorld) -> None:
    exclusive = claim("c", "v", accessModes=["ReadWriteOncePod"])
    world.cluster.update_pvc(None, exclusive)
    world.cluster.update_volume(None, volume("v"))
    world.upsert(podgroup("g", 2), *(using(pod(f"g-{i}", "g"), "c") for i in range(2)))
    assert world.schedule() == {}
    assert "ReadWriteOncePod access mode" in world.fit_message("g")
    first = using(single("p"), "c")
    assert node_for(world, first) in ("a", "b")
    assert node_for(world, using(single("q"), "c")) is None
    world.remove(first)
    assert "q" in world.schedule()


def test_claim_that_is_to_be_bound_at_once_is_rejected_by_name(world: SchedulerWorld) -> None:
    body = {"metadata": {"name": "sc"}, "volumeBindingMode": "Immediate"}
    world.cluster.pod_classes.pvcs.update_class(None, msgspec.convert(body, StorageClass))
    world.cluster.update_pvc(None, claim("c", storageClassName="sc"))
    world.upsert(podgroup("g", 1), using(pod("g-0", "g"), "c"))
    assert world.schedule() == {}
    expected = 'spec.volumes[0].persistentVolumeClaim: persistentvolumeclaim "c" is not bound'
    assert world.fit_message("g") == expected
