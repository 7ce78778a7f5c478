"""Gangs of which some members are bound: completed first, or evicted as a whole after a timeout."""

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.scheduler import SchedulerWorld, node, pod, podgroup, queue

from batholith.model.meta import ObjectMeta
from batholith.model.podgroup import PodGroup, PodGroupCondition, PodGroupStatus
from batholith.scheduler.framework.completeness import has_bound_tasks, was_complete
from batholith.scheduler.framework.decision import Decision
from batholith.scheduler.framework.stranded_gangs import DEFAULT_TIMEOUT, REPLACEMENT_SECONDS
from batholith.scheduler.state.cache.events import PlacementForgotten
from batholith.scheduler.state.core_types import Pod, PriorityClass
from batholith.scheduler.state.planning.reservations import Purpose


class World(SchedulerWorld):
    """Gangs on nodes of two CPUs, and a clock."""

    def __init__(self, *, nodes: int = 2, cpu: int = 2) -> None:
        super().__init__()
        self.now = 0.0
        self.upsert(*(node(f"n{number}", cpu=cpu) for number in range(nodes)))

    def after(self, seconds: float = 0.0) -> Decision:
        """Run a cycle *seconds* later, as the recheck of a gang does."""
        self.now += seconds
        for gang in list(self.cluster.gangs.values()):
            self.cluster.changes.mark(gang)
        return self.decision(now=self.now)

    def half_bound(self, name: str, members: int, bound: int, **more: Any) -> None:
        """Add a gang of which the first pods are bound, as a crash leaves it."""
        self.upsert(podgroup(name, members, **more))
        for number in range(members):
            where = f"n{number % 2}" if number < bound else ""
            self.upsert(pod(f"{name}-{number}", name, node_name=where))

    def block(self, name: str, where: str, cpu: int = 1) -> Pod:
        """Add a pod of another scheduler."""
        blocker = pod(name, scheduler="other", node_name=where, phase="Running", cpu=cpu)
        self.upsert(blocker)
        return blocker


def allocated(decision: Decision) -> set[str]:
    return {each.name for each in decision.placements}


def evicted(decision: Decision) -> set[str]:
    return {each.name for each in decision.evictions}


def test_a_stranded_gang_is_completed_before_all_others() -> None:
    world = World(nodes=2, cpu=2)
    world.half_bound("late", 3, 1, created="2026-01-03T00:00:00Z")
    world.half_bound("early", 3, 1, created="2026-01-02T00:00:00Z")
    world.upsert(
        podgroup("whole", 2, created="2026-01-01T00:00:00Z", priority_class=""),
        pod("whole-0", "whole", priority=9),
        pod("whole-1", "whole", priority=9),
    )
    assert allocated(world.after()) == {"early-1", "early-2"}


def test_a_gang_that_lost_a_member_is_admitted_so_that_it_is_created_again() -> None:
    """Its controller creates pods of an admitted gang only."""
    world = World()
    failed = pod("g-0", "g", node_name="n0", phase="Failed")
    world.upsert(podgroup("g", 2), failed, pod("g-1", "g", node_name="n1"))
    world.after()
    world.remove(failed)
    (report,) = world.after(1).reports
    assert report.status.phase == "Pending"
    assert [each.key for each in world.after(1).enqueued] == ["ns/g"]
    world.upsert(pod("g-2", "g"))
    assert allocated(world.after(1)) == {"g-2"}


def test_what_a_stranded_gang_lacks_is_reserved() -> None:
    world = World(nodes=1, cpu=3)
    world.upsert(
        podgroup("g", 3), pod("g-0", "g", node_name="n0"), pod("g-1", "g"), pod("g-2", "g")
    )
    blockers = [world.block(name, "n0") for name in ("x", "y")]
    assert allocated(world.after()) == set()
    reservation = world.cluster.reservations.get("ns/g")
    assert reservation is not None
    assert reservation.purpose is Purpose.STRANDED
    world.remove(blockers[0])
    world.upsert(pod("single", scheduler="default-scheduler"))
    assert allocated(world.after()) == set()  # one is free, and held
    world.remove(blockers[1])
    assert allocated(world.after()) == {"g-1", "g-2"}
    assert world.cluster.reservations.get("ns/g") is None


def test_members_of_a_stranded_gang_are_evicted_after_the_timeout() -> None:
    world = World(nodes=2, cpu=1)
    world.half_bound("g", 3, 2)
    assert world.after().rechecks == {"ns/g": DEFAULT_TIMEOUT}
    assert evicted(world.after(DEFAULT_TIMEOUT - 1)) == set()
    decision = world.after(1)
    assert evicted(decision) == {"g-0", "g-1"}
    assert {(each.reason, each.replaced) for each in decision.evictions} == {
        ("GangIncomplete", True)
    }
    assert [each.gang.key for each in decision.incomplete] == ["ns/g"]
    assert not world.cluster.reservations
    assert evicted(world.after(DEFAULT_TIMEOUT)) == set()  # they are leaving already
    for number in range(2):
        world.remove(pod(f"g-{number}", "g", node_name=f"n{number}"))
    world.upsert(node("n2", cpu=1), pod("g-0", "g"), pod("g-1", "g"))
    assert allocated(world.after()) == {"g-0", "g-1", "g-2"}


def test_a_gang_that_is_completed_in_time_keeps_its_members() -> None:
    world = World(nodes=3, cpu=1)
    blocker = world.block("x", "n2")
    world.half_bound("g", 3, 2)
    world.after()
    world.remove(blocker)
    assert allocated(world.after(DEFAULT_TIMEOUT - 1)) == {"g-2"}
    assert evicted(world.after(5)) == set()
    world.upsert(pod("g-2", "g", node_name="n2"))
    assert evicted(world.after(DEFAULT_TIMEOUT)) == set()


def test_a_gang_whose_binding_is_refused_again_and_again_is_evicted_after_the_timeout() -> None:
    """Its nodes fit all the time; the evicted pods are created again."""
    world = World(nodes=2, cpu=2)
    world.upsert(podgroup("g", 4), *(pod(f"g-{number}", "g") for number in range(4)))
    ends = []
    for second in range(3 * int(DEFAULT_TIMEOUT)):
        decision = world.after(1.0)
        for each in decision.placements:
            if each.name == "g-3":
                world.cluster.apply(PlacementForgotten(each.uid))
            else:
                world.upsert(pod(each.name, "g", node_name=each.node))
        if decision.evictions:
            ends.append(second)
            assert evicted(decision) == {"g-0", "g-1", "g-2"}
        for eviction in decision.evictions:
            world.remove(world.pod_objects[eviction.uid])
            world.upsert(pod(eviction.name, "g"))
    assert DEFAULT_TIMEOUT <= ends[0] <= DEFAULT_TIMEOUT + 3
    assert len(ends) == 2


def test_a_gang_that_fits_for_the_first_time_at_the_timeout_keeps_its_members() -> None:
    world = World(nodes=3, cpu=1)
    blocker = world.block("x", "n2")
    world.half_bound("g", 3, 2)
    world.after()
    world.remove(blocker)
    assert allocated(world.after(DEFAULT_TIMEOUT)) == {"g-2"}
    decision = world.after(1)  # its binding is in progress
    assert evicted(decision) == set()
    assert decision.rechecks == {}
    world.upsert(pod("g-2", "g", node_name="n2"))
    assert evicted(world.after(DEFAULT_TIMEOUT)) == set()


def complete(world: World, name: str, members: int, **more: Any) -> None:
    """Add a gang that was complete once, and of which one pod was lost and is replaced."""
    group = podgroup(name, members, **more)
    status = PodGroupStatus(phase="Running", conditions=(SCHEDULED,))
    world.upsert(PodGroup(metadata=group.metadata, spec=group.spec, status=status))
    for number in range(members - 1):
        world.upsert(pod(f"{name}-{number}", name, node_name="n0", phase="Running"))
    world.upsert(pod(f"{name}-new", name, cpu=2))


def test_what_is_reserved_for_a_replacement_is_for_others_after_a_time() -> None:
    world = World(nodes=1, cpu=2)
    complete(world, "g", 2)
    world.after()
    world.upsert(pod("single", scheduler="default-scheduler"))
    assert allocated(world.after(REPLACEMENT_SECONDS - 1)) == set()
    assert allocated(world.after(1)) == {"single"}
    assert world.cluster.reservations.get("ns/g") is None
    for _ in range(3):
        world.after(REPLACEMENT_SECONDS)
        assert world.cluster.reservations.get("ns/g") is None


def test_resources_are_reserved_again_for_a_gang_that_was_ready_in_between() -> None:
    world = World(nodes=1, cpu=2)
    complete(world, "g", 2)
    world.after()
    world.after(REPLACEMENT_SECONDS)
    world.upsert(pod("g-new", "g", node_name="n0", phase="Running"))
    world.after()
    world.upsert(pod("g-newer", "g", cpu=2))
    world.remove(pod("g-new", "g", node_name="n0", phase="Running"))
    world.after()
    assert world.cluster.reservations.get("ns/g") is not None


def classes(world: World) -> None:
    for name, value in (("low", 1), ("high", 9)):
        found = PriorityClass(metadata=ObjectMeta(name=name), value=value)
        world.cluster.update_priority_class(None, found)


@pytest.mark.parametrize("priority", ["low", "high"])
def test_a_reservation_does_not_precede_a_higher_priority(priority: str) -> None:
    world = World(nodes=1, cpu=2)
    classes(world)
    complete(world, "g", 2, priority_class="low")
    world.after()
    world.upsert(podgroup("other", 1, priority_class=priority), pod("other-0", "other"))
    assert allocated(world.after()) == ({"other-0"} if priority == "high" else set())


@pytest.mark.parametrize(("own", "expected"), [(1, {"other-0"}), (3, set())])
def test_a_reservation_does_not_precede_a_queue_that_is_first(own: int, expected: set[str]) -> None:
    """The queue of the holder has two CPUs."""
    world = World(nodes=2, cpu=8)
    world.upsert(queue("one", weight=1), queue("two", weight=1))
    complete(world, "g", 3, queue="one")
    world.upsert(podgroup("old", 1, phase="Running", queue="two"))
    world.upsert(pod("old-0", "old", node_name="n1", phase="Running", cpu=own))
    world.block("x", "n0", cpu=5)
    world.block("y", "n1", cpu=8 - own)
    world.after()
    assert world.cluster.reservations.get("ns/g") is not None
    world.upsert(podgroup("other", 1, queue="two"), pod("other-0", "other"))
    assert allocated(world.after()) & {"other-0"} == expected


SCHEDULED = PodGroupCondition(type="Scheduled", status="True")


@pytest.mark.parametrize(
    "status",
    [
        PodGroupStatus(phase="Running"),
        PodGroupStatus(phase="Unknown"),
        PodGroupStatus(phase="Pending", conditions=(SCHEDULED,)),
        PodGroupStatus(phase="Inqueue", conditions=(SCHEDULED,)),
    ],
)
def test_a_gang_that_was_complete_once_keeps_its_members(status: PodGroupStatus) -> None:
    """Also after a restart of the scheduler: it is read from the status of the PodGroup."""
    world = World(nodes=2, cpu=1)
    group = podgroup("g", 3)
    world.upsert(PodGroup(metadata=group.metadata, spec=group.spec, status=status))
    for number in range(2):
        world.upsert(pod(f"g-{number}", "g", node_name=f"n{number}", phase="Running"))
    world.upsert(pod("g-2", "g"))
    for _ in range(3):
        assert evicted(world.after(DEFAULT_TIMEOUT)) == set()
    assert world.cluster.reservations.get("ns/g") is not None
    world.remove(pod("g-0", "g", node_name="n0", phase="Running"))
    world.upsert(pod("single", scheduler="default-scheduler"))
    assert allocated(world.after()) != {"single"}


def test_completeness_is_observed_without_a_status() -> None:
    world = World(nodes=2, cpu=1)
    world.half_bound("g", 2, 2)
    report = next(each for each in world.after().reports if each.key == "ns/g")
    assert [each.type for each in report.status.conditions] == ["Scheduled"]
    world.remove(pod("g-1", "g", node_name="n1"))
    world.upsert(node("n1", cpu=1, cordoned=True), pod("g-1", "g"))
    assert evicted(world.after(DEFAULT_TIMEOUT)) == set()


def test_bindings_in_progress_do_not_make_a_gang_complete() -> None:
    """Else a crash between them would leave a stranded gang that counts as complete."""
    world = World(nodes=2, cpu=1)
    world.upsert(podgroup("g", 2), pod("g-0", "g"), pod("g-1", "g"))
    report = next(each for each in world.after().reports if each.key == "ns/g")
    assert report.status.conditions == ()
    world.upsert(pod("g-0", "g", node_name="n0"))
    report = next(each for each in world.after().reports if each.key == "ns/g")
    assert report.status.conditions == ()
    assert not was_complete(world.cluster.gangs["ns/g"])


def test_a_gang_that_never_was_complete_is_not_unknown() -> None:
    """Policies of its job would react to that phase."""
    world = World(nodes=2, cpu=1)
    world.upsert(
        podgroup("g", 3), pod("g-0", "g", node_name="n0", phase="Running"), pod("g-1", "g")
    )
    report = next(each for each in world.after().reports if each.key == "ns/g")
    assert report.status.phase == "Inqueue"


def test_a_stranded_gang_whose_admission_was_lost_is_admitted_again() -> None:
    world = World(nodes=2, cpu=2)
    world.half_bound("g", 3, 1, phase="", resources={"cpu": 999})
    assert allocated(world.after()) == {"g-1", "g-2"}


def test_a_gang_with_missing_pods_holds_nothing_until_they_exist() -> None:
    world = World(nodes=2, cpu=2)
    world.upsert(podgroup("g", 3), pod("g-0", "g", node_name="n0"))
    world.after()
    assert not world.cluster.reservations
    assert evicted(world.after(DEFAULT_TIMEOUT)) == {"g-0"}


def test_nothing_is_held_for_a_pod_that_fits_no_node() -> None:
    world = World(nodes=2, cpu=2)
    world.upsert(podgroup("g", 2), pod("g-0", "g", node_name="n0"), pod("g-1", "g", cpu=64))
    world.after()
    assert not world.cluster.reservations


def test_elastic_gangs_above_their_minimum_are_not_stranded() -> None:
    world = World(nodes=2, cpu=1)
    world.upsert(podgroup("g", 2), pod("g-2", "g"))
    for number in range(2):
        world.upsert(pod(f"g-{number}", "g", node_name=f"n{number}"))
    assert evicted(world.after(DEFAULT_TIMEOUT)) == set()
    assert evicted(world.after(DEFAULT_TIMEOUT)) == set()


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3)), min_size=1, max_size=4),
    st.integers(1, 4),
    st.integers(1, 3),
    st.lists(st.sampled_from(["confirm", "lose", "wait"]), max_size=6),
)
def test_no_gang_stays_partly_bound_longer_than_the_timeout(
    gangs: list[tuple[int, int]], nodes: int, cpu: int, steps: list[str]
) -> None:
    """After any crash, with any of the later bindings confirmed or lost."""
    world = World(nodes=nodes, cpu=cpu)
    for number, (members, bound) in enumerate(gangs):
        name = f"g{number}"
        world.upsert(podgroup(name, members))
        for index in range(members):
            where = f"n{(number + index) % nodes}" if index < min(bound, members) else ""
            world.upsert(pod(f"{name}-{index}", name, node_name=where))
    for step in [*steps, "wait", "wait", "wait"]:
        decision = world.after(DEFAULT_TIMEOUT if step == "wait" else 1.0)
        for eviction in decision.evictions:
            world.remove(world.pod_objects[eviction.uid])
        for each in decision.placements:
            if step == "lose":
                world.cluster.forget(each.uid)
            else:
                world.upsert(pod(each.name, each.name.partition("-")[0], node_name=each.node))
    world.after(DEFAULT_TIMEOUT)
    for gang in world.cluster.gangs.values():
        assert was_complete(gang) or gang.is_ready() or not has_bound_tasks(gang), gang.key


def test_what_is_reserved_on_a_full_node_excludes_no_pod_that_requests_nothing() -> None:
    """Only a node that is overcommitted does."""
    world = SchedulerWorld()
    world.upsert(node("a", cpu=2), podgroup("g", 2, phase="Running"))
    world.upsert(
        pod("g-0", "g", node_name="a", phase="Running"),
        pod("g-1", "g"),
        podgroup("other", 1, phase="Running"),
        pod("other-0", "other", node_name="a", phase="Running"),
        podgroup("idle", 1),
        pod("idle-0", "idle", cpu=0),
    )
    assert world.schedule() == {"idle-0": "a"}
    assert world.cluster.reservations.get("ns/g") is not None
    assert "free 0" in world.fit_message("g")


@pytest.mark.parametrize("seed", [43, 53, 100, 133, 223, 262])
def test_reservations_of_several_gangs_come_to_rest(seed: int) -> None:
    """Each choice of nodes wakes the other gangs: they must not choose again for that reason."""
    rng = random.Random(seed)
    world = SchedulerWorld()
    world.upsert(*(node(f"n{i}", cpu=rng.randint(1, 4)) for i in range(4)))
    for g in range(rng.randint(1, 4)):
        size = rng.randint(2, 4)
        world.upsert(podgroup(f"g{g}", size))
        for i in range(size):
            where = f"n{rng.randint(0, 3)}" if i == 0 else ""
            phase = "Running" if where else "Pending"
            cpu = rng.randint(1, 3)
            world.upsert(pod(f"g{g}-{i}", f"g{g}", node_name=where, phase=phase, cpu=cpu))
    for h in range(3):
        world.upsert(podgroup(f"h{h}", 1), pod(f"h{h}-0", f"h{h}", cpu=rng.randint(1, 3)))
    for step in range(6):
        if rng.random() < 0.5:
            where = f"n{rng.randint(0, 3)}"
            world.upsert(pod(f"x{step}", node_name=where, scheduler="other", phase="Running"))
        else:
            world.upsert(node(f"n{rng.randint(0, 3)}", cpu=rng.randint(1, 5)))
        cycles = 0
        while world.cluster.has_changes():
            world.core.run_once(now=float(step))
            cycles += 1
            assert cycles <= 10
