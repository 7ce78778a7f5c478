"""Members that are allocated before their pods exist."""

from collections import Counter

import msgspec
import pytest
from support.planned_gangs import START, PlanningWorld, created_pod, planned_gang, role
from support.scheduler import node, pod, podgroup, queue

from batholith.model.names import MEMBERS, PLAN, TASK_SPEC
from batholith.model.placement import (
    GRACE_SECONDS,
    PLAN_SECONDS,
    MemberRole,
    Plan,
    decode_plan,
    hash_of,
)
from batholith.scheduler.state.core_types import (
    PersistentVolumeClaimVolumeSource,
    Pod,
    Taint,
    Toleration,
    Volume,
)
from batholith.scheduler.state.gangs.gang import TaskStatus
from batholith.scheduler.state.planning.reservations import Purpose


@pytest.fixture
def world() -> PlanningWorld:
    created = PlanningWorld()
    created.upsert(node("n1", cpu=4), node("n2", cpu=4))
    return created


def test_a_gang_that_fits_is_planned_in_the_patch_that_admits_it(world: PlanningWorld) -> None:
    decisions = world.submit(planned_gang("j", role("t", 6)))
    plan = world.current_plan("j")
    assert sorted(plan.nodes) == [("t", index) for index in range(6)]
    assert set(plan.nodes.values()) == {"n1", "n2"}
    assert plan.until == START + PLAN_SECONDS
    assert world.phase("j") == "Inqueue"
    assert not any(decision.placements for decision in decisions)
    admitted = [r for d in decisions for r in d.reports if r.status.phase == "Inqueue"]
    assert all(each.plan is not None and each.plan.text for each in admitted)
    assert world.idle("n1") + world.idle("n2") == 2000
    assert world.allocated() == 6000


def test_pods_replace_their_members(world: PlanningWorld) -> None:
    world.submit(planned_gang("j", role("t", 3), role("u", 2)))
    world.create_planned("j")
    world.settle()
    assert world.allocated() == 5000
    assert world.idle("n1") + world.idle("n2") == 3000
    assert world.phase("j") == "Running"
    assert world.plan("j") is None  # removed with the new phase
    gang = world.cluster.gangs["ns/j-uid-j"]
    assert not any(task.planned for task in gang.tasks.values())


def test_a_pod_takes_the_place_of_its_member_on_the_node(world: PlanningWorld) -> None:
    world.submit(planned_gang("j", role("t", 3), role("u", 2)))
    matrix, gang = world.cluster.node_matrix, world.cluster.gangs["ns/j-uid-j"]
    position, version = matrix.usage_changes.position, gang.version
    world.create_planned("j")
    assert matrix.usage_changes.position == position  # no node was vacated
    assert gang.version > version
    assert not any(task.planned for task in gang.tasks.values())
    for role_name, count in {"t": 3, "u": 2}.items():
        assert gang.role_counts(role_name)[TaskStatus.BOUND] == count
    assert gang.counts[TaskStatus.BOUND] == gang.counts.valid == 5
    world.cluster.task_table.validate([gang])


@pytest.mark.parametrize(
    "change",
    ["request", "role", "toleration", "priority", "terminating", "finished", "PVC"],
)
def test_a_pod_that_is_not_as_described_replaces_its_member(
    world: PlanningWorld, change: str
) -> None:
    world.submit(planned_gang("j", role("t", 2)))
    plan = world.current_plan("j")
    created = created_pod("j", "t", 0, node=plan.nodes["t", 0], cpu=2 if change == "request" else 1)
    meta, spec, status = created.metadata, created.spec, created.status
    replace = msgspec.structs.replace
    match change:
        case "role":
            meta = replace(meta, annotations=meta.annotations | {TASK_SPEC: "u"})
        case "toleration":
            spec = replace(spec, tolerations=(Toleration(key="k", operator="Exists"),))
        case "priority":
            spec = replace(spec, priority=7)
        case "terminating":
            meta = replace(meta, deletion_timestamp="2026-01-01T00:00:00Z")
        case "finished":
            status = replace(status, phase="Succeeded")
        case "PVC":
            claim = PersistentVolumeClaimVolumeSource(claim_name="c")
            spec = replace(spec, volumes=(Volume(name="v", persistent_volume_claim=claim),))
    world.upsert(replace(created, metadata=meta, spec=spec, status=status))
    gang = world.cluster.gangs["ns/j-uid-j"]
    world.cluster.task_table.validate([gang])
    world.cluster.node_matrix.validate()
    (task,) = (each for each in gang.tasks.values() if not each.planned)
    assert task.role == ("u" if change == "role" else "t")
    assert task.priority == (7 if change == "priority" else 1)
    assert bool(task.pvcs) == (change == "PVC")
    used = {"request": 3000, "finished": 1000}.get(change, 2000)
    assert 8000 - world.idle("n1") - world.idle("n2") == used
    world.remove(world.pod_objects[created.metadata.uid])
    world.cluster.task_table.validate([gang])
    assert all(each.planned for each in gang.tasks.values())


def test_a_gang_that_does_not_fit_is_admitted_without_a_plan(world: PlanningWorld) -> None:
    world.submit(planned_gang("j", role("t", 9)))
    assert world.phase("j") == "Inqueue"
    assert world.plan("j") is None
    assert not world.cluster.gangs["ns/j-uid-j"].tasks
    assert world.idle("n1") == world.idle("n2") == 4000
    assert world.allocated() == 0
    world.upsert(*(created_pod("j", "t", index) for index in range(9)), node("n3", cpu=4))
    assert len(world.schedule()) == 9


def test_what_exceeds_the_minimum_is_planned_as_far_as_it_fits(world: PlanningWorld) -> None:
    world.submit(planned_gang("j", role("t", 10), minimum=3))
    plan = world.current_plan("j")
    assert sorted(plan.nodes) == [("t", index) for index in range(8)]
    world.create_planned("j")
    world.upsert(created_pod("j", "t", 8), created_pod("j", "t", 9))
    world.settle()
    assert world.allocated() == 8000


def test_the_limit_of_the_queue_holds_for_planned_members() -> None:
    world = PlanningWorld()
    world.upsert(node("n1", cpu=8), queue(capability={"cpu": "4"}))
    world.add(planned_gang("a", role("t", 3)))
    world.submit(planned_gang("b", role("t", 3)))
    assert [world.plan(name) is not None for name in ("a", "b")] == [True, False]
    assert world.allocated() == 3000


def test_others_do_not_get_what_is_planned(world: PlanningWorld) -> None:
    world.submit(planned_gang("j", role("t", 6)))
    world.upsert(podgroup("g", 3), *(pod(f"p-{i}", "g") for i in range(3)))
    assert world.schedule() == {}
    world.upsert(podgroup("h", 2), *(pod(f"q-{i}", "h") for i in range(2)))
    assert len(world.schedule()) == 2


def test_a_plan_without_progress_ends_and_its_places_are_free_within_60_seconds(
    world: PlanningWorld,
) -> None:
    world.submit(planned_gang("j", role("t", 8)))
    world.create_planned("j", ("t", 0))
    world.settle()
    due = world.cluster.planned.next_due()
    assert due == START + PLAN_SECONDS + GRACE_SECONDS <= START + 60
    world.time = due - 1
    world.settle()
    assert world.allocated() == 8000
    world.time = due
    world.settle()
    assert world.allocated() == 1000
    assert world.idle("n1") + world.idle("n2") == 7000
    assert world.cluster.planned.next_due() is None


def test_a_plan_with_progress_is_extended(world: PlanningWorld) -> None:
    world.submit(planned_gang("j", role("t", 8)))
    first = world.plan("j")
    world.time = START + 20
    world.create_planned("j", ("t", 0))
    world.settle()
    plan = world.plan("j")
    assert first is not None and plan is not None
    assert (plan.id, plan.until) == (first.id, START + 50)
    assert sorted(plan.nodes) == [("t", index) for index in range(1, 8)]
    world.time = START + 55
    world.settle()
    assert world.allocated() == 8000
    world.time = START + 65
    world.settle()
    assert world.allocated() == 1000


@pytest.mark.parametrize("on_nodes", [0, 2])
def test_an_unplaced_pod_gets_the_node_of_its_member(world: PlanningWorld, on_nodes: int) -> None:
    """They arrive one after another; a gang with a bound pod would be allocated first anyway."""
    world.submit(planned_gang("j", role("t", 8)))
    for index in range(on_nodes):
        world.create_planned("j", ("t", index))
    world.upsert(podgroup("g", 1, created="2020-01-01T00:00:00Z"), pod("p", "g"))
    allocated = world.schedule()
    for index in range(on_nodes, 8):
        world.upsert(created_pod("j", "t", index))
        allocated |= world.schedule()
    assert sorted(allocated) == [f"j-t-{index}" for index in range(on_nodes, 8)]
    assert not world.cluster.reservations


def test_a_reservation_for_unplaced_pods_expires(world: PlanningWorld) -> None:
    world.upsert(node("n1", cpu=4), node("n2", cpu=4))
    world.submit(planned_gang("j", role("t", 8)))
    world.upsert(created_pod("j", "t", 0))
    world.cluster.planned.update()
    held = world.cluster.reservations.get("ns/j-uid-j")
    assert held is not None
    assert held.purpose is Purpose.PLANNED
    assert held.until == START + PLAN_SECONDS
    world.validate()


def test_a_pod_that_arrives_elsewhere_releases_its_member(world: PlanningWorld) -> None:
    world.submit(planned_gang("j", role("t", 8)))
    plan = world.current_plan("j")
    world.upsert(node("n3", cpu=4))
    there = plan.nodes["t", 0]
    world.upsert(created_pod("j", "t", 0, node="n3"))
    world.settle()
    assert world.idle(there) == 1000
    assert world.idle("n3") == 3000
    assert world.allocated() == 8000


def lose(world: PlanningWorld, how: str) -> None:
    """Let node n1 be lost to some of its planned members, which need the label ``a``."""
    labels = {"a": "a"}
    match how:
        case "deleted":
            world.remove(node("n1", cpu=4, labels=labels))
        case "cordoned":
            world.upsert(node("n1", cpu=4, labels=labels, cordoned=True))
        case "tainted":
            taint = Taint(key="k", effect="NoSchedule")
            world.upsert(node("n1", cpu=4, labels=labels, taints=(taint,)))
        case "shrunk":
            world.upsert(node("n1", cpu=1, labels=labels))
        case "shrunk and labelled":
            world.upsert(node("n1", cpu=1, labels={"a": "a", "b": "b"}))
        case "labelled":
            world.upsert(node("n1", cpu=4))
        case "filled":
            world.upsert(pod("other", scheduler="x", node_name="n1", cpu=3))


LOST = ["deleted", "cordoned", "tainted", "shrunk", "shrunk and labelled", "filled", "labelled"]
STAYING = {"shrunk": 1, "shrunk and labelled": 1, "filled": 1}


@pytest.fixture
def labelled() -> PlanningWorld:
    """Nodes with the label that :func:`choosy` members need, filled by a plan for 8 of them."""
    world = PlanningWorld()
    for name in ("n1", "n2"):
        world.upsert(node(name, cpu=4, labels={"a": "a"}))
    world.submit(planned_gang("j", choosy(8)))
    assert world.plan("j") is not None
    return world


def choosy(count: int) -> MemberRole:
    container = {"image": "i", "resources": {"requests": {"cpu": 1}}}
    return role("t", count, spec={"nodeSelector": {"a": "a"}, "containers": [container]})


@pytest.mark.parametrize("how", LOST)
def test_members_leave_a_node_that_cannot_take_them(labelled: PlanningWorld, how: str) -> None:
    world = labelled
    first = world.current_plan("j")
    lose(world, how)
    world.settle()
    plan = world.current_plan("j")
    assert plan.id != first.id
    left = sum(node == "n1" for node in plan.nodes.values())
    assert left == STAYING.get(how, 0)
    assert sum(node == "n2" for node in plan.nodes.values()) == 4
    assert world.allocated() == 8000  # a pod may still be created by the first plan
    for index in range(8):
        at = plan.nodes.get(("t", index), "")
        world.upsert(created_pod("j", "t", index, node=at))
    held = world.cluster.reservations.get("ns/j-uid-j")
    assert held is None or held.purpose is not Purpose.PLANNED
    allocated = world.schedule()
    assert len(allocated) == (4 if how == "labelled" else 0)  # these pods need no label
    assert world.allocated() == (4 + left + len(allocated)) * 1000


@pytest.mark.parametrize("how", LOST)
def test_members_that_leave_a_node_get_another_one(labelled: PlanningWorld, how: str) -> None:
    world = labelled
    first = world.current_plan("j")
    world.create_planned("j", ("t", 7))
    world.upsert(node("n3", cpu=4, labels={"a": "a"}))
    world.settle()
    before = world.idle("n2")
    lose(world, how)
    world.settle()
    plan = world.current_plan("j")
    assert (plan.members, plan.version, plan.until) == (first.members, 0, first.until)
    assert plan.id != first.id
    assert sorted(plan.nodes) == [("t", index) for index in range(7)]
    staying = STAYING.get(how, 0)
    assert Counter(plan.nodes.values()) == Counter(n1=staying, n2=3, n3=4 - staying)
    assert {node for _, node in plan.former} == {"n1"}
    # Once in the queue, but on both nodes: a pod may still be created by the first plan.
    assert world.allocated() == 8000
    assert world.idle("n2") == before
    assert world.idle("n3") == staying * 1000
    lacking = {"shrunk": -3000, "shrunk and labelled": -3000, "filled": -3000, "deleted": -4000}
    assert world.idle("n1") == lacking.get(how, 0)
    world.create_planned("j")
    world.settle()
    assert world.phase("j") == "Running"
    assert world.allocated() == 8000
    taken = {"shrunk": 0, "shrunk and labelled": 0, "filled": 0, "deleted": 0}
    assert world.idle("n1") == taken.get(how, 4000)


def test_a_node_that_changes_but_still_suits_keeps_its_members(world: PlanningWorld) -> None:
    world.submit(planned_gang("j", role("t", 8)))
    first = world.plan("j")
    world.upsert(node("n1", cpu=4, labels={"new": "yes"}), node("n3", cpu=4))
    world.settle()
    assert world.plan("j") == first
    assert world.idle("n3") == 4000


def test_a_gang_that_does_not_fit_any_more_gets_no_other_nodes(world: PlanningWorld) -> None:
    """All or nothing: two of the four that leave would fit."""
    world.submit(planned_gang("j", role("t", 8)))
    world.upsert(node("n3", cpu=2))
    world.remove(node("n1"))
    world.settle()
    plan = world.current_plan("j")
    assert Counter(plan.nodes.values()) == {"n2": 4}
    assert world.idle("n3") == 2000
    assert world.allocated() == 8000
    world.time = START + PLAN_SECONDS + GRACE_SECONDS
    world.settle()
    assert world.allocated() == 0


def test_what_exceeds_the_minimum_gets_other_nodes_as_far_as_it_fits(
    world: PlanningWorld,
) -> None:
    world.submit(planned_gang("j", role("t", 8), minimum=4))
    world.upsert(node("n3", cpu=2))
    world.remove(node("n1"))
    world.settle()
    plan = world.current_plan("j")
    assert Counter(plan.nodes.values()) == {"n2": 4, "n3": 2}
    assert world.allocated() == 8000


def test_a_pod_that_was_created_by_the_earlier_plan_is_charged_where_it_is(
    world: PlanningWorld,
) -> None:
    world.submit(planned_gang("j", role("t", 8)))
    first = world.current_plan("j")
    late = next(key for key, at in first.nodes.items() if at == "n1")
    world.upsert(node("n3", cpu=4), node("n1", cpu=4, cordoned=True))
    world.settle()
    assert world.idle("n3") == 0
    world.upsert(created_pod("j", *late, node="n1"))
    world.settle()
    assert world.idle("n3") == 1000
    assert world.idle("n1") == 0
    assert world.allocated() == 8000
    plan = world.current_plan("j")
    world.create_planned("j", *(key for key in plan.nodes if key != late))
    world.settle()
    assert world.phase("j") == "Running"
    assert (world.idle("n1"), world.idle("n2"), world.idle("n3")) == (3000, 0, 1000)


def test_the_earlier_place_is_charged_until_no_pod_can_be_created_there(
    world: PlanningWorld,
) -> None:
    world.submit(planned_gang("j", role("t", 4)))
    world.upsert(node("n1", cpu=4, cordoned=True), node("n2", cpu=4, cordoned=True))
    world.upsert(node("n3", cpu=4))
    world.settle()
    world.upsert(node("n1", cpu=4), node("n2", cpu=4))
    world.upsert(podgroup("g", 5), *(pod(f"p-{i}", "g") for i in range(5)))
    assert world.schedule() == {}
    world.time = START + PLAN_SECONDS + GRACE_SECONDS
    assert len(world.schedule()) == 5


def test_a_pod_that_is_deleted_is_charged_wherever_it_may_be_created_again(
    world: PlanningWorld,
) -> None:
    world.submit(planned_gang("j", role("t", 1)))
    world.upsert(node("n1", cpu=4, cordoned=True), node("n2", cpu=4, cordoned=True))
    world.upsert(node("n3", cpu=4))
    world.settle()
    world.create_planned("j")
    world.settle()
    assert [world.idle(name) for name in ("n1", "n2", "n3")] == [4000, 4000, 3000]
    world.remove(world.pod_objects["uid-j-t-0"])
    world.settle()
    assert sorted(world.idle(name) for name in ("n1", "n2", "n3")) == [3000, 3000, 4000]
    world.time = START + PLAN_SECONDS + GRACE_SECONDS
    world.settle()
    assert [world.idle(name) for name in ("n1", "n2", "n3")] == [4000, 4000, 4000]


def test_members_leave_node_after_node(world: PlanningWorld) -> None:
    world.submit(planned_gang("j", role("t", 3)))
    seen = []
    for number in range(3, 6):
        for old in range(1, number):
            world.upsert(node(f"n{old}", cpu=4, cordoned=True))
        world.upsert(node(f"n{number}", cpu=4))
        world.settle()
        plan = world.plan("j")
        assert plan is not None
        assert set(plan.nodes.values()) == {f"n{number}"}
        seen.append(plan)
    assert len({each.id for each in seen}) == 3
    assert len(seen[-1].former) == 9
    world.create_planned("j")
    world.settle()
    assert world.phase("j") == "Running"
    assert sum(world.idle(f"n{number}") for number in range(1, 6)) == 17000


def test_a_gang_that_waits_does_not_get_what_leaves_a_node() -> None:
    world = PlanningWorld()
    world.upsert(node("n1", cpu=4), queue(capability={"cpu": "4"}))
    world.submit(planned_gang("j", role("t", 4)))
    assert world.plan("j") is not None
    world.upsert(podgroup("g", 4, created="2020-01-01T00:00:00Z"))
    world.upsert(*(pod(f"p-{i}", "g") for i in range(4)))
    world.settle()
    world.upsert(node("n1", cpu=4, cordoned=True), node("n2", cpu=4))
    decisions = world.settle()
    plan = world.current_plan("j")
    assert set(plan.nodes.values()) == {"n2"}
    assert not any(decision.placements for decision in decisions)


def test_a_plan_whose_nodes_are_all_lost_is_withdrawn(world: PlanningWorld) -> None:
    world.submit(planned_gang("j", role("t", 2)))
    world.remove(node("n1"))
    world.remove(node("n2"))
    world.settle()
    plan = world.current_plan("j")
    assert not plan.nodes


def test_no_plan_is_made_for_nodes_that_are_lost_after_its_end(world: PlanningWorld) -> None:
    world.submit(planned_gang("j", role("t", 2)))
    first = world.plan("j")
    world.time = START + PLAN_SECONDS
    world.upsert(node("n3", cpu=4))
    world.remove(node("n1"))
    world.remove(node("n2"))
    world.settle()
    assert world.plan("j") == first
    assert world.idle("n3") == 4000
    assert world.allocated() == 2000


def test_a_plan_that_ends_while_members_are_tried_is_not_renewed(world: PlanningWorld) -> None:
    world.submit(planned_gang("j", role("t", 2)))
    assert world.plan("j") is not None
    world.upsert(node("n3", cpu=4))
    world.remove(node("n1"))
    world.remove(node("n2"))
    world.time = START + PLAN_SECONDS - 0.1
    world.decision()
    world.time = START + PLAN_SECONDS
    world.settle()
    assert world.plan("j") is None
    assert world.idle("n3") == 4000
    assert world.allocated() == 2000


def test_nothing_is_reserved_for_members_without_pods(world: PlanningWorld) -> None:
    """A gang with bound pods whose other members leave a node is not stranded."""
    world.submit(planned_gang("j", role("t", 8)))
    plan = world.current_plan("j")
    world.create_planned("j", *(key for key, at in plan.nodes.items() if at == "n2"))
    world.settle()
    world.upsert(node("n3", cpu=2), node("n1", cpu=4, cordoned=True))
    world.settle()
    assert not world.cluster.reservations
    assert world.idle("n3") == 2000
    assert len(world.pod_objects) == 4
    world.upsert(podgroup("g", 2), *(pod(f"p-{i}", "g") for i in range(2)))
    assert len(world.schedule()) == 2


def test_nothing_is_evicted_for_pods_that_do_not_exist(world: PlanningWorld) -> None:
    """Of a node that another scheduler fills, members without pods leave; those with pods fit."""
    world.submit(planned_gang("j", role("t", 8)))
    plan = world.current_plan("j")
    there = [key for key, at in plan.nodes.items() if at == "n1"]
    world.create_planned("j", *there[:2])
    world.settle()
    world.upsert(pod("other", scheduler="x", node_name="n1", cpu=2))
    decisions = world.settle()
    world.time = START + 6
    world.upsert(node("n3", cpu=1))
    decisions += world.settle()
    assert not any(decision.evictions for decision in decisions)


def test_the_places_of_a_deleted_podgroup_are_charged_until_no_pod_can_be_created(
    world: PlanningWorld,
) -> None:
    world.submit(planned_gang("j", role("t", 8)))
    world.create_planned("j", ("t", 0))
    world.settle()
    world.drop_group("j")
    world.settle()
    assert world.idle("n1") + world.idle("n2") == 0
    world.time = START + PLAN_SECONDS + GRACE_SECONDS
    world.settle()
    assert world.idle("n1") + world.idle("n2") == 7000


def test_a_pod_that_is_created_after_its_podgroup_was_deleted_is_charged_once(
    world: PlanningWorld,
) -> None:
    world.submit(planned_gang("j", role("t", 8)))
    plan = world.current_plan("j")
    world.drop_group("j")
    world.settle()
    world.upsert(created_pod("j", "t", 3, node=plan.nodes["t", 3]))
    world.settle()
    assert world.idle("n1") == world.idle("n2") == 0


def test_the_place_of_a_deleted_pod_is_charged_while_it_may_be_created_again(
    world: PlanningWorld,
) -> None:
    world.submit(planned_gang("j", role("t", 8)))
    world.create_planned("j")
    world.settle()
    deleted = world.pod_objects["uid-j-t-3"]
    world.remove(deleted)
    world.settle()
    assert world.idle("n1") + world.idle("n2") == 0
    again = created_pod("j", "t", 3, uid="again")
    world.upsert(again)
    assert world.schedule() == {"j-t-3": deleted.spec.node_name}


def test_the_places_of_a_deleted_job_are_free_at_once(world: PlanningWorld) -> None:
    world.submit(planned_gang("j", role("t", 8)))
    world.create_planned("j")
    world.settle()
    for each in list(world.pod_objects.values()):
        world.remove(each)
    world.drop_group("j")
    world.settle()
    assert world.idle("n1") == world.idle("n2") == 4000


def test_a_podgroup_is_planned_once(world: PlanningWorld) -> None:
    world.submit(planned_gang("j", role("t", 8)))
    world.time = START + 60
    world.settle()
    assert world.allocated() == 0
    group = world.groups["j-uid-j"]
    assert PLAN not in group.metadata.annotations or world.plan("j") is not None
    world.cluster.gangs["ns/j-uid-j"].phase = "Pending"
    world.cluster.recheck("ns/j-uid-j")
    world.settle()
    assert world.allocated() == 0


def test_a_gang_with_pods_is_not_planned(world: PlanningWorld) -> None:
    world.upsert(created_pod("j", "t", 0))
    world.submit(planned_gang("j", role("t", 4)))
    assert world.plan("j") is None


def test_finished_pods_of_an_earlier_run_are_not_planned_again(world: PlanningWorld) -> None:
    world.upsert(created_pod("j", "t", 0, node="n1", phase="Succeeded"))
    world.submit(planned_gang("j", role("t", 4)))
    plan = world.current_plan("j")
    assert sorted(plan.nodes) == [("t", 1), ("t", 2), ("t", 3)]


def test_nothing_is_planned_unless_enabled() -> None:
    world = PlanningWorld()
    world.cluster.planned._enabled = False
    world.upsert(node("n1", cpu=4))
    world.submit(planned_gang("j", role("t", 2)))
    assert world.plan("j") is None
    assert world.phase("j") == "Inqueue"


@pytest.mark.parametrize(
    "spec",
    [
        {"nodeName": "n1"},
        {"schedulerName": "other"},
        {"schedulingGates": [{"name": "g"}]},
        {"resourceClaims": [{"name": "c"}]},
        {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]},
        {"overhead": {"cpu": "-8"}},
        {"resources": {"requests": {"cpu": "-8"}}},
        {"topologySpreadConstraints": [{"topologyKey": "k"}]},
        {"affinity": {"podAntiAffinity": {}}},
        {"containers": [{"resources": {"requests": {"cpu": "-4"}}}]},
        {"containers": [{"resources": {"limits": {"cpu": "-4"}}}]},
        {"initContainers": [{"resources": {"requests": {"memory": "-4Gi"}}}]},
        {"containers": [{"ports": [{"hostPort": -1}]}]},
        {"containers": [{"ports": [{"hostPort": 10**9}]}]},
        {"containers": 5},
        {"nodeSelector": {"a": 1}},
    ],
)
def test_a_description_that_no_job_has_is_refused(
    world: PlanningWorld, spec: dict[str, object]
) -> None:
    world.submit(planned_gang("j", role("t", 2, spec=spec)))
    assert world.plan("j") is None
    assert world.phase("j") == "Inqueue"
    assert world.idle("n1") == world.idle("n2") == 4000


def test_a_description_of_another_job_is_refused(world: PlanningWorld) -> None:
    group = planned_gang("j", role("t", 2))
    other = planned_gang("k", role("t", 2)).metadata.annotations[MEMBERS]
    meta = msgspec.structs.replace(group.metadata, annotations={MEMBERS: other})
    world.add(msgspec.structs.replace(group, metadata=meta))
    world.settle()
    assert world.plan("j") is None


def test_a_description_without_a_job_is_refused(world: PlanningWorld) -> None:
    group = planned_gang("j", role("t", 2))
    meta = msgspec.structs.replace(group.metadata, owner_references=())
    world.add(msgspec.structs.replace(group, metadata=meta))
    world.settle()
    assert world.plan("j") is None


def test_requests_of_planned_members_are_those_of_their_pods(world: PlanningWorld) -> None:
    spec = {
        "containers": [
            {"resources": {"limits": {"cpu": "1", "memory": "1Gi"}}},
            {"resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": "2"}}},
        ],
        "initContainers": [
            {"restartPolicy": "Always", "resources": {"requests": {"cpu": "100m"}}},
            {"resources": {"requests": {"cpu": "1800m"}}},
        ],
    }
    world.submit(planned_gang("j", role("t", 1, spec=spec)))
    before = world.idle("n1"), world.idle("n2")
    plan = world.current_plan("j")
    body = {
        "metadata": msgspec.to_builtins(created_pod("j", "t", 0).metadata),
        "spec": {"schedulerName": "volcano", "nodeName": plan.nodes["t", 0], **spec},
    }
    world.upsert(msgspec.convert(body, Pod))
    world.settle()
    assert (world.idle("n1"), world.idle("n2")) == before
    assert min(before) == 2100


# -- another leader --------------------------------------------------------------------------------


def restarted(world: PlanningWorld, *, pods_first: bool = False) -> PlanningWorld:
    """A scheduler that finds what *world* has left."""
    after = PlanningWorld()
    after.time = world.time
    after.upsert(node("n1", cpu=4), node("n2", cpu=4))
    pods = list(world.pod_objects.values())
    if pods_first:
        after.upsert(*pods)
    for group in world.groups.values():
        after.add(group)
    if not pods_first:
        after.upsert(*pods)
    return after


@pytest.mark.parametrize("pods_first", [True, False])
def test_the_next_leader_charges_members_that_it_does_not_see(
    world: PlanningWorld, pods_first: bool
) -> None:
    world.submit(planned_gang("j", role("t", 6)))
    world.create_planned("j", ("t", 0), ("t", 5))
    plan = world.plan("j")
    after = restarted(world, pods_first=pods_first)
    after.settle()
    assert (after.idle("n1"), after.idle("n2")) == (world.idle("n1"), world.idle("n2"))
    assert after.allocated() == 6000
    assert after.plan("j") == plan
    after.create_planned("j", *((("t", index)) for index in range(1, 5)))
    after.settle()
    assert after.phase("j") == "Running"
    assert after.allocated() == 6000


@pytest.mark.parametrize("fits", [True, False])
def test_the_next_leader_charges_the_places_of_earlier_plans(
    world: PlanningWorld, fits: bool
) -> None:
    nodes = [node("n1", cpu=4), node("n2", cpu=4), node("n3", cpu=4 if fits else 1)]
    world.submit(planned_gang("j", role("t", 8)))
    world.upsert(nodes[2], node("n1", cpu=4, cordoned=True))
    world.settle()
    assert world.idle("n3") == (0 if fits else 1000)
    after = restarted(world)
    after.upsert(*nodes)
    after.settle()
    for each in ("n1", "n2", "n3"):
        assert after.idle(each) == world.idle(each)
    plan = after.plan("j")
    assert plan is not None
    assert plan == world.plan("j")
    late = plan.former[0][0]
    after.upsert(created_pod("j", *late, node="n1"))
    after.settle()
    assert after.idle("n1") == 0
    assert after.idle("n3") == 1000
    after.time = START + PLAN_SECONDS + GRACE_SECONDS
    after.settle()
    assert after.idle("n1") == 3000
    assert after.idle("n2") == 4000


def test_a_late_plan_is_charged_with_the_places_of_earlier_ones(world: PlanningWorld) -> None:
    world.add(planned_gang("j", role("t", 9)))
    world.settle()  # it does not fit
    text = world.groups["j-uid-j"].metadata.annotations[MEMBERS]
    plan = Plan(
        id="late",
        members=hash_of(text),
        version=0,
        until=int(START) + 20,
        nodes={("t", 0): "n1"},
        former=((("t", 0), "n2"), (("t", 1), "n2")),
    )
    old = world.groups["j-uid-j"]
    annotations = {**old.metadata.annotations, PLAN: plan.encode()}
    new = msgspec.structs.replace(
        old, metadata=msgspec.structs.replace(old.metadata, annotations=annotations)
    )
    world.groups["j-uid-j"] = new
    world.cluster.update_podgroup(old, new)
    world.settle()
    assert (world.idle("n1"), world.idle("n2")) == (3000, 2000)
    world.time = START + 20 + GRACE_SECONDS
    world.settle()
    assert (world.idle("n1"), world.idle("n2")) == (4000, 4000)


def test_a_plan_that_becomes_too_long_falls_back() -> None:
    world = PlanningWorld()
    world.upsert(*(node(f"n{number}", cpu=100) for number in range(4)))
    world.submit(planned_gang("j", role("t", 400)))
    first = world.current_plan("j")
    world.upsert(*(node(f"node-{'x' * 200}-{index}", cpu=1) for index in range(400)))
    world.upsert(*(node(f"n{number}", cpu=100, cordoned=True) for number in range(4)))
    world.settle()
    plan = world.current_plan("j")
    assert plan.id != first.id
    assert not plan.nodes
    assert world.allocated() == 400_000
    world.time = START + PLAN_SECONDS + GRACE_SECONDS
    world.settle()
    assert world.allocated() == 0
    assert sum(world.idle(f"n{number}") for number in range(4)) == 400_000


def test_the_next_leader_ends_the_plan_in_time(world: PlanningWorld) -> None:
    world.submit(planned_gang("j", role("t", 6)))
    after = restarted(world)
    after.settle()
    after.time = START + PLAN_SECONDS + GRACE_SECONDS
    after.settle()
    assert after.allocated() == 0


def test_the_next_leader_ignores_a_plan_that_has_ended(world: PlanningWorld) -> None:
    world.submit(planned_gang("j", role("t", 6)))
    world.time = START + PLAN_SECONDS + GRACE_SECONDS
    after = restarted(world)
    after.settle()
    assert after.allocated() == 0
    assert after.idle("n1") + after.idle("n2") == 8000


def test_a_plan_from_the_future_is_charged_no_longer_than_one_of_now(world: PlanningWorld) -> None:
    world.submit(planned_gang("j", role("t", 6)))
    plan = world.current_plan("j")
    forged = Plan(
        id="f", members=plan.members, version=0, until=int(START) + 10**6, nodes=plan.nodes
    )
    after = PlanningWorld()
    after.upsert(node("n1", cpu=4), node("n2", cpu=4))
    after.add(planned_gang("j", role("t", 6), plan=forged.encode(), phase="Inqueue"))
    after.settle()
    assert after.allocated() == 6000
    after.time = START + PLAN_SECONDS + GRACE_SECONDS
    after.settle()
    assert after.allocated() == 0


def late_plan(job: str, nodes: dict[tuple[str, int], str], members: str) -> str:
    return Plan(
        id="late", members=hash_of(members), version=0, until=int(START) + 20, nodes=nodes
    ).encode()


def test_a_late_plan_of_a_former_leader_is_charged_and_removed(world: PlanningWorld) -> None:
    world.upsert(podgroup("g", 1), pod("p", "g", cpu=3))
    world.add(planned_gang("j", role("t", 7)))
    world.settle()  # it does not fit, and is admitted without a plan
    assert world.plan("j") is None
    idle = world.idle("n1") + world.idle("n2")
    old = world.groups["j-uid-j"]
    at = "n1" if world.idle("n1") == 4000 else "n2"
    text = late_plan("j", {("t", 0): at, ("t", 1): at}, old.metadata.annotations[MEMBERS])
    annotations = {**old.metadata.annotations, PLAN: text}
    new = msgspec.structs.replace(
        old, metadata=msgspec.structs.replace(old.metadata, annotations=annotations)
    )
    world.groups["j-uid-j"] = new
    world.cluster.update_podgroup(old, new)
    decisions = world.settle()
    notes = [r.plan for d in decisions for r in d.reports if r.plan is not None]
    assert any(note.text is None and note.is_due for note in notes)
    assert world.plan("j") is None
    assert world.idle("n1") + world.idle("n2") == idle - 2000
    world.upsert(created_pod("j", "t", 0, node=at))
    world.settle()
    assert world.idle("n1") + world.idle("n2") == idle - 2000
    world.time = START + 20 + GRACE_SECONDS
    world.settle()
    assert world.idle("n1") + world.idle("n2") == idle - 1000


def test_a_forged_plan_has_no_effect_later(world: PlanningWorld) -> None:
    world.settle()
    world.time = START + 1000
    group = planned_gang("j", role("t", 7), phase="Inqueue")
    text = group.metadata.annotations[MEMBERS]
    plan = Plan(
        id="f", members=hash_of(text), version=0, until=int(START) + 1010, nodes={("t", 0): "n1"}
    )
    world.submit(planned_gang("j", role("t", 7), phase="Inqueue", plan=plan.encode()))
    assert world.idle("n1") == 4000


def test_a_plan_for_other_members_is_ignored(world: PlanningWorld) -> None:
    plan = Plan(id="f", members="x", version=0, until=int(START) + 10, nodes={("t", 0): "n1"})
    world.submit(planned_gang("j", role("t", 7), phase="Inqueue", plan=plan.encode()))
    assert world.idle("n1") == 4000
    assert decode_plan(plan.encode()) == plan


def test_a_plan_that_is_too_long_is_not_made() -> None:
    world = PlanningWorld()
    world.upsert(*(node(f"node-{'x' * 200}-{index}", cpu=1) for index in range(400)))
    world.submit(planned_gang("j", role("t", 400)))
    assert world.plan("j") is None
    assert world.phase("j") == "Inqueue"
    assert world.allocated() == 0


def test_nothing_is_evicted_for_members_without_pods(world: PlanningWorld) -> None:
    low = [pod(f"p-{i}", "g", priority=0, node_name="n1", phase="Running") for i in range(4)]
    world.upsert(podgroup("g", 1), *low)
    world.upsert(*(pod(f"q-{i}", "h", node_name="n2", phase="Running") for i in range(4)))
    world.upsert(podgroup("h", 4))
    decisions = world.submit(planned_gang("j", role("t", 2), priority_class="high"))
    assert not any(decision.evictions or decision.nominations for decision in decisions)
    assert world.phase("j") in ("Inqueue", "Pending")
