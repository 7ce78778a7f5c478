"""PodGroups of Kubernetes itself: their pods are gangs like any others."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.native_podgroups import grouped, native, put
from support.preemption import EvictingWorld, conf
from support.scheduler import SchedulerWorld, node, pod, podgroup, queue

from batholith.model.meta import Condition
from batholith.model.names import NATIVE_PODGROUPS, NATIVE_PODGROUPS_BETA
from batholith.scheduler.framework.completeness import SCHEDULED
from batholith.scheduler.state.cache.events import (
    DeviceClassEvent,
    ResourceClaimEvent,
    ResourceSliceEvent,
)
from batholith.scheduler.state.core_types import PodResourceClaim
from batholith.scheduler.state.devices.types import DeviceClass, ResourceClaim, ResourceSlice


def allocated(world: SchedulerWorld) -> dict[str, str]:
    """What two cycles allocate: the first one admits."""
    return world.schedule() | world.schedule()


def test_a_gang_starts_once_its_minimum_fits_and_not_before() -> None:
    """INV-NG-2."""
    world = SchedulerWorld()
    world.upsert(node("a", cpu=2))
    put(world, native("g", 3))
    world.upsert(*(grouped(f"p{index}", "g") for index in range(3)))
    assert allocated(world) == {}
    world.upsert(node("b", cpu=2))
    assert set(allocated(world)) == {"p0", "p1", "p2"}


def test_nothing_is_placed_before_the_podgroup_and_enough_pods_exist() -> None:
    """INV-NG-3."""
    world = SchedulerWorld()
    world.upsert(node("a"), grouped("p0", "g"))
    assert allocated(world) == {}
    put(world, native("g", 2))
    assert allocated(world) == {}
    assert world.fit_message("native:g") == "1 of the 2 pods that the group needs exist"
    world.upsert(grouped("p1", "g"))
    assert set(allocated(world)) == {"p0", "p1"}


def test_pods_of_the_basic_policy_and_those_above_the_minimum_start_alone() -> None:
    """INV-NG-5, INV-NG-8."""
    world = SchedulerWorld()
    world.upsert(node("a", cpu=3))
    put(world, native("g", None))
    put(world, native("h", 1))
    world.upsert(grouped("basic", "g"), grouped("large", "g", cpu=9))
    world.upsert(grouped("first", "h"), grouped("larger", "h", cpu=9))
    assert set(allocated(world)) == {"basic", "first"}


def test_pods_of_default_scheduler_are_gangs_too_and_pods_of_others_are_no_members() -> None:
    """INV-NG-1."""
    world = SchedulerWorld()
    world.upsert(node("a"))
    put(world, native("g", 2))
    world.upsert(grouped("p0", "g", scheduler="default-scheduler"))
    world.upsert(grouped("p1", "g", scheduler="other"))
    assert allocated(world) == {}
    world.upsert(grouped("p2", "g", scheduler="default-scheduler"))
    assert set(allocated(world)) == {"p0", "p2"}


def test_a_podgroup_without_pods_of_this_scheduler_is_not_admitted_or_reported() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), grouped("p0", "g", scheduler="other"))
    put(world, native("g", 1))
    assert world.decision().reports == ()
    assert not world.cluster.gangs


def test_podgroups_of_both_kinds_may_have_one_name() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), podgroup("g", 2), pod("volcano", "g"))
    put(world, native("g", 1))
    world.upsert(grouped("native", "g"))
    assert set(allocated(world)) == {"native"}
    world.upsert(pod("volcano-1", "g"))
    assert set(allocated(world)) == {"volcano", "volcano-1"}


def test_members_with_gates_or_that_terminate_do_not_count() -> None:
    """INV-NG-7."""
    world = SchedulerWorld()
    world.upsert(node("a"))
    put(world, native("g", 2))
    world.upsert(grouped("p0", "g"), grouped("terminating", "g", terminating=True))
    world.upsert(grouped("gated", "g", gates=("example.com/gate",)))
    assert allocated(world) == {}


def test_the_minimum_is_read_again() -> None:
    """INV-NG-14."""
    world = SchedulerWorld()
    world.upsert(node("a"))
    before = native("g", 3)
    put(world, before, resource=NATIVE_PODGROUPS_BETA)
    world.upsert(grouped("p0", "g"), grouped("p1", "g"))
    assert allocated(world) == {}
    put(world, native("g", 2), before, resource=NATIVE_PODGROUPS_BETA)
    assert set(allocated(world)) == {"p0", "p1"}


def test_a_podgroup_that_was_created_again_begins_anew() -> None:
    """INV-NG-13."""
    world = SchedulerWorld()
    world.upsert(node("a", cpu=1))
    before = native("g", 1)
    put(world, before)
    world.upsert(grouped("p0", "g", node_name="a", phase="Running"))
    world.report("native:g")
    put(world, None, before)
    world.upsert(grouped("p1", "g"), node("b"))
    assert allocated(world) == {}
    put(world, native("g", 3, uid="other"))
    assert allocated(world) == {}
    world.upsert(grouped("p2", "g"))
    assert set(allocated(world)) == {"p1", "p2"}


def test_of_two_versions_of_one_podgroup_the_later_one_is_read() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"))
    put(world, native("g", 2), resource=NATIVE_PODGROUPS_BETA)
    put(world, native("g", 1), resource=NATIVE_PODGROUPS)
    world.upsert(grouped("p0", "g"))
    assert allocated(world) == {}
    put(world, None, native("g", 1), resource=NATIVE_PODGROUPS)
    world.upsert(grouped("p1", "g"))
    assert set(allocated(world)) == {"p0", "p1"}


def test_a_gang_waits_in_the_queue_that_its_annotation_names_else_in_the_default_one() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), queue("shut", state="Closed"))
    put(world, native("g", 1, annotations={"scheduling.volcano.sh/queue-name": "shut"}))
    put(world, native("h", 1))
    world.upsert(grouped("p0", "g"), grouped("p1", "h"))
    assert set(allocated(world)) == {"p1"}


def test_the_priority_is_that_of_the_podgroup_else_that_of_the_pods() -> None:
    world = SchedulerWorld()
    world.upsert(node("a", cpu=1))
    put(world, native("g", 1, priority=7))
    put(world, native("h", 1))
    world.upsert(grouped("low", "h", priority=5), grouped("high", "g", priority=1))
    assert allocated(world) == {"high": "a"}
    assert world.cluster.gangs["ns/native:h"].priority == 5


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"resourceClaims": [{"name": "gpu"}]}, "spec.resourceClaims: "),
        ({"parentCompositePodGroupName": "tree"}, "spec.parentCompositePodGroupName: "),
        ({"schedulingConstraints": {"topology": [{"key": "a"}, {"key": "b"}]}}, "one key"),
        ({"disruptionMode": {"some": {}}}, "spec.disruptionMode: "),
        ({"schedulingPolicy": {}}, "spec.schedulingPolicy: "),
    ],
)
def test_what_is_not_implemented_holds_the_group_and_is_named(
    fields: dict[str, Any], message: str
) -> None:
    """INV-NG-15."""
    world = SchedulerWorld()
    world.upsert(node("a"))
    put(world, native("g", 1, **fields))
    world.upsert(grouped("p0", "g"))
    assert allocated(world) == {}
    report = world.report("native:g", now=10.0)
    assert message in report.pod_conditions[0].message
    assert report.pod_conditions[0].reason == "Unschedulable"


def test_a_group_with_claims_of_its_own_gets_no_devices_and_evicts_nothing() -> None:
    """INV-NG-16."""
    world = EvictingWorld(conf(gang=False))
    world.upsert(node("a", cpu=1))
    device_class = {"metadata": {"name": "gpu"}}
    world.cluster.apply(DeviceClassEvent(None, msgspec.convert(device_class, DeviceClass)))
    pool = {"name": "a", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": "d.io", "nodeName": "a", "pool": pool, "devices": [{"name": "only"}]}
    found = msgspec.convert({"metadata": {"name": "a"}, "spec": spec}, ResourceSlice)
    world.cluster.apply(ResourceSliceEvent(None, found))
    exactly = {"deviceClassName": "gpu", "count": 1}
    devices = {"requests": [{"name": "r", "exactly": exactly}]}
    meta = {"name": "c", "namespace": "ns", "uid": "claim"}
    body = {"metadata": meta, "spec": {"devices": devices}}
    world.cluster.apply(ResourceClaimEvent(None, msgspec.convert(body, ResourceClaim)))
    world.gang("low", 1, nodes=("a",), priority="low", preemptable="true")
    claims = [{"name": "gpu", "resourceClaimName": "c"}]
    put(world, native("g", 1, priority=100, resourceClaims=claims))
    member = grouped("p0", "g")
    used = (PodResourceClaim("gpu", "c"),)
    member = msgspec.structs.replace(
        member, spec=msgspec.structs.replace(member.spec, resource_claims=used)
    )
    world.upsert(member)
    for _ in range(3):
        assert world.run().placements == ()
    assert world.evicted == []
    message = world.report("native:g", now=10.0).pod_conditions[0].message
    assert "spec.resourceClaims: " in message
    put(world, native("g", 1, priority=100))
    world.run()
    assert world.evicted == ["low-t-0"]
    world.remove(world.pod_objects["uid-low-t-0"])
    assert world.schedule() == {"p0": "a"}


def test_all_pods_go_to_nodes_with_one_value_of_the_topology_key() -> None:
    """INV-NG-11."""
    world = SchedulerWorld()
    for name, labels in (("a", {"rack": "1"}), ("b", {"rack": "2"}), ("c", {"rack": "2"})):
        world.upsert(node(name, cpu=2, labels=labels))
    world.upsert(node("unlabelled", cpu=64))
    put(world, native("g", 4, schedulingConstraints={"topology": [{"key": "rack"}]}))
    world.upsert(*(grouped(f"p{index}", "g") for index in range(4)))
    assert set(allocated(world).values()) == {"b", "c"}
    world.upsert(grouped("late", "g", cpu=3))
    assert allocated(world) == {}
    assert "value of the node label rack" in world.fit_message("native:g")


def test_members_in_two_domains_or_without_one_keep_the_others_out() -> None:
    """INV-NG-11."""
    for other in ("b", "unlabelled"):
        world = SchedulerWorld()
        world.upsert(node("a", labels={"rack": "1"}), node("b", labels={"rack": "2"}))
        world.upsert(node("unlabelled"))
        put(world, native("g", 1, schedulingConstraints={"topology": [{"key": "rack"}]}))
        world.upsert(grouped("p0", "g", node_name="a", phase="Running"))
        world.upsert(grouped("p1", "g", node_name=other, phase="Running"))
        world.upsert(grouped("p2", "g"))
        assert allocated(world) == {}
        assert "there is no value of the node label rack with all pods" in world.fit_message(
            "native:g"
        )


def test_a_label_that_no_node_has_keeps_the_gang_out() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"))
    put(world, native("g", 1, schedulingConstraints={"topology": [{"key": "rack"}]}))
    world.upsert(grouped("p0", "g"))
    assert allocated(world) == {}
    world.upsert(node("b", labels={"rack": "1"}))
    assert allocated(world) == {"p0": "b"}


def test_a_gang_that_was_scheduled_once_is_so_after_a_restart() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"))
    scheduled = Condition(type="PodGroupScheduled", status="True", reason="Scheduled")
    put(world, native("g", 2, condition=scheduled))
    world.upsert(grouped("p0", "g", node_name="a", phase="Running"))
    report = world.report("native:g")
    assert [each.type for each in report.status.conditions if each.status == "True"] == [SCHEDULED]
    assert world.decision(now=1000.0).evictions == ()


def evicting(mode: object, **fields: Any) -> EvictingWorld:
    """Two pods run as a gang on two full nodes, and a gang of high priority needs one node."""
    world = EvictingWorld(conf(gang=False))
    world.upsert(node("a", cpu=1), node("b", cpu=1))
    put(world, native("g", 1, disruptionMode=mode, priority=1))
    for name in ("a", "b"):
        world.upsert(grouped(f"on-{name}", "g", node_name=name, phase="Running"))
    put(world, native("high", 1, priority=100, **fields))
    world.upsert(grouped("urgent", "high", priority=100))
    for _ in range(4):
        world.run()
    return world


@pytest.mark.parametrize("mode", ["PodGroup", {"all": {}}])
def test_a_group_that_is_disrupted_as_a_whole_loses_all_pods_or_none(mode: object) -> None:
    """INV-NG-12."""
    assert sorted(evicting(mode).evicted) == ["on-a", "on-b"]


@pytest.mark.parametrize("mode", ["Pod", {"single": {}}])
def test_a_group_that_is_disrupted_by_pod_loses_no_more_than_needed(mode: object) -> None:
    assert len(evicting(mode).evicted) == 1


def test_a_group_that_is_not_to_preempt_waits() -> None:
    """INV-NG-12."""
    assert evicting("Pod", preemptionPolicy="Never").evicted == []


def test_no_pod_of_a_whole_group_is_evicted_if_one_may_not_be() -> None:
    """INV-NG-12."""
    world = EvictingWorld(conf(gang=False))
    world.upsert(*(node(name, cpu=1) for name in "abc"))
    put(world, native("g", 1, disruptionMode="PodGroup", priority=1))
    world.upsert(grouped("on-a", "g", node_name="a", phase="Running"))
    world.upsert(grouped("on-b", "g", node_name="b", phase="Running", priority=1000))
    world.gang("other", 1, nodes=("c",), priority="mid", preemptable="true")
    put(world, native("high", 1, priority=100))
    world.upsert(grouped("urgent", "high", priority=100))
    for _ in range(4):
        world.run()
    assert world.evicted == ["other-t-0"]


def test_a_gang_that_does_not_fit_leaves_nothing_behind() -> None:
    """INV-NG-4: nothing is bound, nominated, evicted or held for it, also if evictions would free a
    part of what it needs."""
    world = EvictingWorld(conf(gang=False))
    world.upsert(node("a", cpu=1), node("b", cpu=1))
    world.gang("low", 1, nodes=("a",), priority="low", preemptable="true")
    world.gang("higher", 1, nodes=("b",), priority="high")
    put(world, native("g", 2, priority=10))
    world.upsert(grouped("p0", "g", priority=10), grouped("p1", "g", priority=10))
    for _ in range(4):
        decision = world.run()
        assert (decision.placements, decision.evictions, decision.nominations) == ((), (), ())
        assert not world.cluster.reservations
    # Another pod gets what is idle.
    world.upsert(node("c", cpu=1), pod("single", scheduler="default-scheduler"))
    assert [each.name for each in world.run().placements] == ["single"]


@pytest.mark.parametrize("phase", ["Succeeded", "Failed", None])
def test_members_that_have_ended_never_cost_those_that_run(phase: str | None) -> None:
    """INV-NG-6."""
    world = EvictingWorld(conf())
    world.upsert(node("a", cpu=2))
    put(world, native("g", 2))
    running = [grouped(f"p{i}", "g", node_name="a", phase="Running") for i in range(2)]
    world.upsert(*running)
    world.run()
    if phase is None:
        world.remove(running[0])
    else:
        world.upsert(grouped("p0", "g", node_name="a", phase=phase))
    for time in (1.0, 1000.0, 100000.0):
        assert world.run(time=time).evictions == ()
    world.upsert(grouped("again", "g"))
    assert [each.name for each in world.run().placements] == ["again"]


@given(st.permutations(["node a", "node b", "node c", "group", "p0", "p1", "p2", "p3"]))
def test_equal_pods_start_in_any_order_of_their_events(order: list[str]) -> None:
    """INV-NG-17."""
    world = SchedulerWorld()
    chosen: dict[str, str] = {}
    for each in order:
        if each == "group":
            put(world, native("g", 4))
        elif each.startswith("node"):
            world.upsert(node(each[-1], cpu=2 if each == "node a" else 1))
        else:
            world.upsert(grouped(each, "g"))
        before = allocated(world)
        assert not before or not chosen
        chosen |= before
        assert len(chosen) in (0, 4)
    assert sorted(chosen.values()) == ["a", "a", "b", "c"]
