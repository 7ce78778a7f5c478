"""Which tasks the queue plugins permit to evict, and for whom."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from support.preemption import EvictingWorld
from support.scheduler import SchedulerWorld, node, pod, podgroup
from support.scheduler_queues import annotated, annotated_group, configuration, queue, submit

from batholith.model.queue import Queue
from batholith.scheduler.state.gangs.gang import Gang, QueueInfo, Task
from batholith.scheduler.state.podinfo.equivalence import EquivalenceClass

CAPACITY = configuration("{name: gang}, {name: capacity}", actions="allocate")
TREE = "{{name: capacity, enableHierarchy: true, arguments: {{ancestorReclaimLevel: {}}}}}"


@dataclass(frozen=True)
class Preemptor:
    """Pods that are to get resources of others."""

    gang: Gang
    queue: QueueInfo
    eq_class: EquivalenceClass
    count: int = 1
    priority: int = 0


def plugin(world: SchedulerWorld, method: str) -> Any:
    """The last plugin with a method."""
    return [each for each in world.core.framework.plugins if hasattr(each, method)][-1]


def preemptor(world: SchedulerWorld, name: str) -> Preemptor:
    gang = world.cluster.gangs[f"ns/{name}"]
    task = next(iter(gang.pending_tasks.values()))
    return Preemptor(gang, world.cluster.queues.of(gang), task.eq_class)


def tasks(world: SchedulerWorld, *names: str) -> list[Task]:
    found = (world.cluster.gangs[f"ns/{name}"].tasks.values() for name in names)
    return sorted((task for each in found for task in each), key=lambda task: task.name)


def run(world: SchedulerWorld, name: str, count: int, where: str, **requests: int) -> None:
    """A gang with running pods on node a."""
    world.upsert(podgroup(name, 1, queue=where))
    world.upsert(
        *(
            pod(f"{name}-t-{i}", name, node_name="a", phase="Running", cpu=requests.get("cpu", 1))
            for i in range(count)
        )
    )


def reclaimed(world: SchedulerWorld, name: str, *victims: str) -> list[str]:
    world.schedule()
    function = plugin(world, "reclaimable").reclaimable
    found: Sequence[Task] = function(preemptor(world, name), tasks(world, *victims))
    return [task.name for task in found]


def test_a_queue_gives_back_what_it_has_beyond_what_it_deserves() -> None:
    world = SchedulerWorld(CAPACITY)
    world.upsert(node("a", cpu=6), queue("rich", deserved={"cpu": 4}), queue("poor"))
    run(world, "old", 6, "rich")
    submit(world, "new", 4, queue="poor")
    assert reclaimed(world, "new", "old") == ["old-t-0", "old-t-1"]


def test_a_guarantee_is_kept_and_a_best_effort_queue_gives_back_all() -> None:
    world = SchedulerWorld(CAPACITY)
    world.upsert(node("a", cpu=6), queue("none"), queue("poor"))
    world.upsert(queue("kept", guarantee={"cpu": 2}, deserved={"cpu": 1}))
    run(world, "guaranteed", 3, "kept")
    run(world, "free", 3, "none")
    submit(world, "new", 4, queue="poor")
    assert reclaimed(world, "new", "guaranteed", "free") == [
        *(f"free-t-{i}" for i in range(3)),
        "guaranteed-t-0",
    ]


def test_a_queue_reclaims_up_to_what_it_deserves() -> None:
    world = SchedulerWorld(CAPACITY)
    world.upsert(node("a", cpu=9), queue("q", deserved={"cpu": 4}, capability={"cpu": 5}))
    world.upsert(queue("closed", deserved={"cpu": 4}, state="Closed"))
    run(world, "old", 1, "q")
    submit(world, "new", 1, queue="q")
    world.upsert(node("a", cpu=1))
    world.schedule()
    eq_class = preemptor(world, "new").eq_class
    capacity = plugin(world, "preemptive_count")
    assert capacity.preemptive_count(world.cluster.queues.named("q"), eq_class) == 0
    world.upsert(node("a", cpu=9), node("b", cordoned=True))
    world.schedule()
    counts = [
        capacity.preemptive_count(world.cluster.queues.named(name), eq_class)
        for name in ("q", "closed", "default")
    ]
    assert counts == [2, 0, 0]


@pytest.mark.parametrize(("level", "expected"), [(0, ["x-t-0"]), (1, [])])
def test_ancestors_keep_what_they_deserve_by_the_argument(level: int, expected: list[str]) -> None:
    world = SchedulerWorld(configuration("{name: gang}, " + TREE.format(level)))
    world.upsert(node("a", cpu=3), queue("dept", deserved={"cpu": 8}), queue("other"))
    world.upsert(queue("q", parent="dept", deserved={"cpu": 2}))
    run(world, "x", 3, "q")
    submit(world, "new", 1, queue="other")
    assert reclaimed(world, "new", "x") == expected


def test_queues_that_are_closer_in_the_tree_lose_first() -> None:
    world = SchedulerWorld(configuration("{name: gang}, " + TREE.format(0)))
    world.upsert(node("a"), queue("dept"), queue("far"))
    world.upsert(queue("q", parent="dept"), queue("near", parent="dept"))
    world.schedule()
    capacity, named = plugin(world, "victim_queue_order"), world.cluster.queues.named
    order = [capacity.victim_queue_order(named(name), named("q")) for name in ("near", "far")]
    assert order == sorted(order) and order[0] < order[1]


def tree_queue(path: str) -> Queue:
    return queue(path.rpartition("/")[2], annotations={"volcano.sh/hierarchy": path})


def test_with_hierarchical_drf_a_queue_reclaims_until_shares_are_equal() -> None:
    text = configuration("{name: gang}, {name: drf, enableHierarchy: true}", actions="allocate")
    world = SchedulerWorld(text)
    world.upsert(node("a", cpu=6), tree_queue("root/x"), tree_queue("root/y"))
    run(world, "old", 6, "x")
    submit(world, "new", 6, queue="y")
    assert reclaimed(world, "new", "old") == ["old-t-0", "old-t-1"]
    before = plugin(world, "reclaimable").queue_order(world.cluster.queues.named("x"))
    reclaimed(world, "new", "old")
    assert plugin(world, "reclaimable").queue_order(world.cluster.queues.named("x")) == before


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({}, 1),
        ({"volcano.sh/jdb-max-unavailable": "2"}, 2),
        ({"volcano.sh/jdb-max-unavailable": "50%"}, 2),
        ({"volcano.sh/jdb-min-available": "1"}, 3),
    ],
)
def test_tdm_evicts_running_pods_within_the_budget_of_their_gang(
    annotations: dict[str, str], expected: int
) -> None:
    world = SchedulerWorld(configuration("{name: gang}, {name: tdm}", actions="allocate"))
    world.upsert(node("a", cpu=4))
    run(world, "old", 4, "default")
    world.upsert(annotated_group(podgroup("old", 1), annotations))
    submit(world, "new", 1)
    world.upsert(podgroup("soft", 1))
    world.upsert(annotated(pod("soft-0", "soft"), volcano__preemptable="true"))
    world.schedule()
    function = plugin(world, "preemptable").preemptable
    assert len(function(preemptor(world, "new"), tasks(world, "old"))) == expected
    assert not function(preemptor(world, "soft"), tasks(world, "old"))


def test_reclaim_takes_what_a_queue_has_beyond_what_it_deserves() -> None:
    """The whole way: action, votes of gang and capacity, evictions."""
    world = SchedulerWorld(
        configuration(
            "{name: gang, enableReclaimable: false}",
            "{name: capacity}",
            actions="allocate, reclaim",
        )
    )
    world.upsert(node("a", cpu=6), queue("rich", deserved={"cpu": 4}))
    world.upsert(queue("poor", deserved={"cpu": 2}))
    run(world, "old", 6, "rich")
    submit(world, "new", 2, queue="poor", minimum=2)
    evicted = [each.name for each in world.decision().evictions]
    assert len(evicted) == 2 and all(name.startswith("old-") for name in evicted)


@pytest.mark.parametrize("idle", [0, 1])
def test_a_queue_reclaims_in_a_tree_that_is_full(idle: int) -> None:
    """Its ancestors are at their limits before the evictions, and below them afterwards."""
    world = EvictingWorld(
        configuration(
            "{name: gang}",
            "{name: predicates}, {name: capacity, enableHierarchy: true}",
            actions="enqueue, allocate, reclaim",
        )
    )
    world.upsert(node("a", cpu=8 + idle), queue("rich", deserved={"cpu": 4}))
    world.upsert(queue("dept"), queue("poor", parent="dept", deserved={"cpu": 4}))
    world.gang("old", 8, minimum=1, nodes=("a",), queue_name="rich")
    world.gang("new", 1, queue_name="poor", cpu=2)
    world.run(time=0.0)
    assert len(world.evicted) == 2 - idle
    world.finish_termination()
    world.run(time=1.0)
    assert world.node_of("new-t-0") == "a"
    assert len(world.evicted) == 2 - idle


@pytest.mark.parametrize(("kept", "expected"), [(False, 1), (True, 0)])
def test_only_evictions_below_a_full_ancestor_make_room_in_it(kept: bool, expected: int) -> None:
    """The other branch has pods that may be evicted, which would not help."""
    world = EvictingWorld(
        configuration(
            "{name: gang}",
            "{name: predicates}, {name: capacity, enableHierarchy: true}",
            actions="enqueue, allocate, reclaim",
        )
    )
    world.upsert(node("a", cpu=8), queue("far", deserved={"cpu": 1}))
    world.upsert(queue("dept", deserved={"cpu": 4}, capability={"cpu": 4}))
    world.upsert(queue("near", parent="dept", deserved={"cpu": 2}, reclaimable=not kept))
    world.upsert(queue("poor", parent="dept", deserved={"cpu": 2}))
    world.gang("other", 4, minimum=1, nodes=("a",), queue_name="far")
    world.gang("sibling", 4, minimum=1, nodes=("a",), queue_name="near")
    world.gang("new", 1, queue_name="poor")
    world.run(time=0.0)
    assert [name.split("-")[0] for name in world.evicted] == ["sibling"] * expected
    world.finish_termination()
    world.run(time=1.0)
    assert bool(world.node_of("new-t-0")) is not kept
