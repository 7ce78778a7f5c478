"""The plugin ``capacity``: absolute limits of queues, flat and in a tree."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.scheduler import SchedulerWorld, node, podgroup
from support.scheduler_queues import allocated_pods, configuration, queue, submit

from batholith.scheduler.plugins.hierarchical_capacity import HierarchicalCapacityPlugin

FLAT = configuration("{name: gang}", "{name: capacity}")
TREE = configuration("{name: gang}", "{name: capacity, enableHierarchy: true}")


def test_a_queue_borrows_what_nobody_is_guaranteed() -> None:
    world = SchedulerWorld(FLAT)
    world.upsert(node("a", cpu=10), queue("one", deserved={"cpu": 2}))
    world.upsert(queue("two", guarantee={"cpu": 4}))
    submit(world, "big", 10, queue="one")
    assert allocated_pods(world) == {"big": 6}
    assert world.fit_message("big") == (
        "queue resource quota insufficient: insufficient cpu (requested 1, free 0 of 6)"
    )
    submit(world, "own", 10, queue="two")
    assert allocated_pods(world) == {"own": 4}


def test_a_queue_gets_no_more_than_its_capability() -> None:
    world = SchedulerWorld(FLAT)
    world.upsert(node("a", cpu=10), queue("one", deserved={"cpu": 2}, capability={"cpu": 3}))
    submit(world, "big", 10, queue="one")
    assert allocated_pods(world) == {"big": 3}


def test_queues_below_what_they_deserve_are_first() -> None:
    world = SchedulerWorld(FLAT)
    world.upsert(node("a", cpu=6), queue("one", deserved={"cpu": 4}), queue("none"))
    world.upsert(queue("two", deserved={"cpu": 2}))
    for name in ("none", "one", "two"):
        submit(world, name, 6, queue=name)
    assert allocated_pods(world) == {"one": 4, "two": 2}


def test_a_queue_of_higher_priority_is_first() -> None:
    world = SchedulerWorld(FLAT)
    world.upsert(node("a", cpu=2), queue("one", deserved={"cpu": 4}), queue("two", priority=1))
    for name in ("one", "two"):
        submit(world, name, 6, queue=name)
    assert allocated_pods(world) == {"two": 2}


@pytest.mark.parametrize("state", ["", "Closed", "Closing", "Unknown"])
def test_only_an_open_queue_takes_gangs(state: str) -> None:
    """Quirk 16: without the queue controller, which sets the state, nothing is scheduled."""
    world = SchedulerWorld(FLAT)
    world.upsert(node("a"), queue("one", state=state))
    submit(world, "g", 1, queue="one")
    assert allocated_pods(world) == {}
    assert world.fit_message("g").startswith('queue "one" takes no jobs')


def test_gangs_are_admitted_up_to_the_limit_of_each_ancestor() -> None:
    world = SchedulerWorld(TREE)
    world.upsert(node("a", cpu=100), queue("root"), queue("dept", capability={"cpu": 5}))
    world.upsert(queue("x", parent="dept", capability={"cpu": 4}), queue("y", parent="dept"))
    for name, where in (("one", "x"), ("two", "x"), ("three", "y"), ("four", "y")):
        world.upsert(podgroup(name, 1, phase="", queue=where, resources={"cpu": 2}))
    world.schedule()
    phases = {key: gang.phase for key, gang in world.cluster.gangs.items()}
    assert sorted(phases.values()) == ["Inqueue", "Inqueue", "Pending", "Pending"]
    rejected = next(key.removeprefix("ns/") for key, p in phases.items() if p == "Pending")
    assert world.fit_message(rejected) == (
        'queue "dept" resource quota insufficient: insufficient cpu (requested 2, free 1 of 5)'
    )


def test_pods_of_queues_that_share_an_ancestor_count_in_its_limit() -> None:
    world = SchedulerWorld(TREE)
    world.upsert(node("a", cpu=100), queue("dept", capability={"cpu": 5}))
    world.upsert(queue("x", parent="dept"), queue("y", parent="dept"), queue("z"))
    for name in ("x", "y", "z"):
        submit(world, name, 10, queue=name)
    counts = allocated_pods(world)
    assert counts.get("x", 0) + counts.get("y", 0) == 5 and counts["z"] == 10
    world.remove(world.pod_objects["uid-x-t-0"])
    assert sum(allocated_pods(world).values()) == 1


def test_a_guarantee_in_a_subtree_is_kept_from_siblings() -> None:
    world = SchedulerWorld(TREE)
    world.upsert(node("a", cpu=10), queue("dept", guarantee={"cpu": 4}, capability={"cpu": 6}))
    world.upsert(queue("x", parent="dept"), queue("y", parent="dept", guarantee={"cpu": 3}))
    world.upsert(queue("other"))
    for name in ("x", "other"):
        submit(world, name, 10, queue=name)
    assert allocated_pods(world) == {"x": 3, "other": 6}


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ([queue("mid", parent="none"), queue("x", parent="mid")], 'parent queue "none" of queue'),
        ([queue("mid", parent="x"), queue("x", parent="mid")], "form a cycle"),
        ([queue("x"), queue("below", parent="x")], 'queue "below" is below it'),
    ],
    ids=["missing", "cycle", "inner"],
)
def test_an_invalid_subtree_rejects_only_itself(broken: list[object], message: str) -> None:
    """Volcano rejects everything then (its plugin is not ready)."""
    world = SchedulerWorld(TREE)
    world.upsert(node("a", cpu=10), queue("fine"), *broken)  # type: ignore[arg-type]
    for name in ("fine", "x"):
        submit(world, name, 1, queue=name)
        world.upsert(podgroup(f"{name}-new", 1, phase="", queue=name, resources={"cpu": 1}))
    assert allocated_pods(world) == {"fine": 1}
    for name in ("x", "x-new"):
        assert world.fit_message(name).startswith('queue "x" takes no jobs: ')
        assert message in world.fit_message(name)
    assert world.cluster.gangs["ns/fine-new"].phase == "Inqueue"


def test_a_repaired_subtree_takes_gangs_again() -> None:
    world = SchedulerWorld(TREE)
    world.upsert(node("a", cpu=10), queue("x", parent="none"))
    submit(world, "g", 1, queue="x")
    assert allocated_pods(world) == {}
    world.upsert(queue("none"))
    assert allocated_pods(world) == {"g": 1}


def test_shares_are_compared_from_the_top_of_the_tree() -> None:
    """b1 has less than a1, but b has more of what it deserves than a."""
    world = SchedulerWorld(TREE)
    world.upsert(node("a", cpu=20), queue("a", deserved={"cpu": 10}))
    world.upsert(queue("b", deserved={"cpu": 4}), queue("b2", parent="b", deserved={"cpu": 2}))
    world.upsert(queue("a1", parent="a", deserved={"cpu": 4}))
    world.upsert(queue("b1", parent="b", deserved={"cpu": 2}))
    submit(world, "old-a", 2, queue="a1")
    submit(world, "old-b", 2, queue="b2")
    allocated_pods(world)
    world.upsert(node("a", cpu=5))
    submit(world, "a", 1, queue="a1")
    submit(world, "b", 1, queue="b1")
    assert allocated_pods(world) == {"a": 1}


# -- against a reference in plain Python ---------------------------------------------------------


@dataclass(frozen=True)
class Limits:
    """A queue of the random trees, in CPUs; ``None`` is unlimited."""

    parent: int
    """Index of the parent; -1 is root."""
    capability: int | None
    guarantee: int


def reference_maximum(queues: list[Limits], allocated: Mapping[int, int], total: int) -> list[int]:
    """How much more each leaf may get, level by level."""

    def used(index: int) -> int:
        below = [i for i, each in enumerate(queues) if each.parent == index]
        return allocated.get(index, 0) + sum(used(i) for i in below)

    def maximum(index: int) -> int:
        if index == -1:
            return total
        each = queues[index]
        siblings = [other for other in queues if other.parent == each.parent]
        available = maximum(each.parent) - sum(other.guarantee for other in siblings)
        limit = max(available, 0) + each.guarantee
        return limit if each.capability is None else min(limit, each.capability)

    def left(index: int) -> int:
        if index == -1:
            return total - sum(used(i) for i, each in enumerate(queues) if each.parent == -1)
        return min(maximum(index) - used(index), left(queues[index].parent))

    return [max(left(index), 0) for index in range(len(queues))]


@st.composite
def trees(draw: st.DrawFn) -> list[Limits]:
    queues: list[Limits] = []
    for index in range(draw(st.integers(1, 7))):
        parent = draw(st.integers(-1, index - 1))
        capability = draw(st.none() | st.integers(1, 12))
        queues.append(Limits(parent, capability, draw(st.integers(0, 3))))
    return queues


@settings(max_examples=examples(40), deadline=None)
@given(trees(), st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4)), max_size=6))
def test_every_limit_of_a_tree_holds_and_is_used_up(
    queues: list[Limits], gangs: list[tuple[int, int]]
) -> None:
    total = 16
    world = SchedulerWorld(TREE)
    world.upsert(node("a", cpu=total))
    for index, each in enumerate(queues):
        world.upsert(
            queue(
                f"q{index}",
                parent=f"q{each.parent}" if each.parent >= 0 else "",
                capability=None if each.capability is None else {"cpu": each.capability},
                guarantee={"cpu": each.guarantee} if each.guarantee else None,
            )
        )
    leaves = set(range(len(queues))) - {each.parent for each in queues}
    allocated: dict[int, int] = {}
    for number, (index, pods) in enumerate(gangs):
        if index not in leaves:
            continue
        submit(world, f"g{number}", pods, queue=f"q{index}", minimum=pods)
        possible = reference_maximum(queues, allocated, total)[index]
        expected = {f"g{number}": pods} if pods <= possible else {}
        counts = allocated_pods(world)
        # Gangs that were rejected before are still rejected: nothing was freed since.
        assert counts == expected
        allocated[index] = allocated.get(index, 0) + counts.get(f"g{number}", 0)


@settings(max_examples=examples(30), deadline=None)
@given(trees(), st.lists(st.tuples(st.integers(0, 6), st.integers(1, 4)), max_size=6))
def test_sums_of_ancestors_are_exact_after_any_history(
    queues: list[Limits], gangs: list[tuple[int, int]]
) -> None:
    world = SchedulerWorld(TREE)
    world.upsert(node("a", cpu=16))
    for index, each in enumerate(queues):
        parent = f"q{each.parent}" if each.parent >= 0 else ""
        capability = None if each.capability is None else {"cpu": each.capability}
        world.upsert(queue(f"q{index}", parent=parent, capability=capability))
    for number, (index, pods) in enumerate(gangs):
        submit(world, f"g{number}", pods, queue=f"q{index % len(queues)}", minimum=pods)
        world.schedule()
        if number % 2:
            for uid in list(world.pod_objects):
                if uid.startswith(f"uid-g{number - 1}-"):
                    world.remove(world.pod_objects[uid])
    world.schedule()
    (plugin,) = (
        each
        for each in world.core.framework.plugins
        if isinstance(each, HierarchicalCapacityPlugin)
    )
    plugin._stale.update(world.cluster.queues.by_name)
    plugin._add_up()
    for name, level in plugin._tree.items():
        expected = {
            k: v for k, v in world.cluster.queues.subtrees_allocated([name])[name].items() if v
        }
        assert level.allocated == expected, name
