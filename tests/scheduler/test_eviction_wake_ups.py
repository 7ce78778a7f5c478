"""Gangs for which no pods could be evicted are tried again once that may be possible."""

from collections.abc import Callable
from functools import partial
from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.preemption import EvictingWorld, conf, member, node, share
from support.scheduler import podgroup

from batholith.model.meta import LabelSelector, ObjectMeta
from batholith.model.queue import Guarantee, Queue
from batholith.scheduler import conf as configuration
from batholith.scheduler.actions import starving
from batholith.scheduler.framework.preemption import evict_for
from batholith.scheduler.state.cache.events import EvictionForgotten, PodDisruptionBudgetEvent
from batholith.scheduler.state.core_types import PriorityClass
from batholith.scheduler.state.gangs.disruption_budgets import (
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from batholith.scheduler.state.queue.starving_groups import RETRY_INTERVAL

PDB = conf(more="  - name: pdb\n")

World = EvictingWorld
Step = Callable[[EvictingWorld], object]


def _queue(name: str, *, weight: int = 1, reclaimable: bool = True) -> Queue:
    return share(name, weight=weight, reclaimable=reclaimable)


def _two_queues(world: World, first: Queue, second: Queue, *, count: int = 1) -> None:
    """A queue that uses the whole node, and a gang that waits in another one."""
    world.upsert(node("a", cpu=4), first, second)
    world.gang("one", 4, minimum=1, nodes=("a",), queue_name=first.metadata.name)
    for number in range(count):
        world.gang(f"two{number}", 1, queue_name=second.metadata.name)


def _one_queue(
    world: World, *, priority: str = "low", minimum: int = 1, preemptable: str = "", count: int = 1
) -> None:
    """A full node, and gangs of higher priority that wait."""
    world.upsert(node("a", cpu=4))
    world.gang("one", 4, minimum=minimum, nodes=("a",), priority=priority, preemptable=preemptable)
    for number in range(count):
        world.gang(f"two{number}", 1, priority="mid")


def _guaranteed(cpu: int) -> Queue:
    built = _queue("q1")
    guarantee = Guarantee(resource={"cpu": cpu})
    return msgspec.structs.replace(
        built, spec=msgspec.structs.replace(built.spec, guarantee=guarantee)
    )


def _set_group(world: World, *, minimum: int = 1, priority: str = "low") -> None:
    world.upsert(podgroup("one", minimum, phase="Running", priority_class=priority))


def _set_members(world: World, preemptable: str) -> None:
    for index in range(4):
        world.upsert(member(f"one-t-{index}", "one", "a", preemptable=preemptable))


def _set_class(world: World, value: int | None) -> None:
    old = PriorityClass(metadata=ObjectMeta(name="high"), value=100)
    new = None if value is None else PriorityClass(metadata=ObjectMeta(name="high"), value=value)
    world.cluster.update_priority_class(old, new)


def _budget(allowed: int, labels: dict[str, str] | None = None) -> PodDisruptionBudget:
    return PodDisruptionBudget(
        metadata=ObjectMeta(name="budget", namespace="ns"),
        spec=PodDisruptionBudgetSpec(selector=LabelSelector(match_labels=labels or {})),
        status=PodDisruptionBudgetStatus(disruptions_allowed=allowed),
    )


def _set_budget(
    world: World, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None
) -> None:
    world.cluster.apply(PodDisruptionBudgetEvent(old, new))


def _under_budget(world: World, *, count: int = 1) -> None:
    _one_queue(world, count=count)
    _set_budget(world, None, _budget(0))


_CHANGES: dict[str, tuple[str, Step, Step]] = {
    "queue becomes reclaimable": (
        conf(),
        lambda world: _two_queues(world, _queue("q1", reclaimable=False), _queue("q2")),
        lambda world: world.upsert(_queue("q1")),
    ),
    "weight of the victims' queue": (
        conf(),
        lambda world: _two_queues(world, _queue("q1", weight=100), _queue("q2")),
        lambda world: world.upsert(_queue("q1")),
    ),
    "weight of the gang's queue": (
        conf(),
        lambda world: _two_queues(world, _queue("q1", weight=100), _queue("q2")),
        lambda world: world.upsert(_queue("q2", weight=100)),
    ),
    "guarantee of the victims' queue": (
        conf(),
        lambda world: _two_queues(world, _guaranteed(4), _queue("q2")),
        lambda world: world.upsert(_queue("q1")),
    ),
    "class of the victims' gang": (
        conf(),
        lambda world: _one_queue(world, priority="high"),
        _set_group,
    ),
    "deleted priority class": (
        conf(),
        lambda world: _one_queue(world, priority="high"),
        lambda world: _set_class(world, None),
    ),
    "value of a priority class": (
        conf(),
        lambda world: _one_queue(world, priority="high"),
        lambda world: _set_class(world, 2),
    ),
    "annotation preemptable": (
        conf(),
        lambda world: _one_queue(world, preemptable="false"),
        lambda world: _set_members(world, "true"),
    ),
    "minMember of the victims' gang": (
        conf(),
        lambda world: _one_queue(world, minimum=4),
        lambda world: _set_group(world, minimum=3),
    ),
    "budget allows more": (
        PDB,
        _under_budget,
        lambda world: _set_budget(world, _budget(0), _budget(1)),
    ),
    "budget selects others": (
        PDB,
        _under_budget,
        lambda world: _set_budget(world, _budget(0), _budget(0, {"app": "other"})),
    ),
    "budget is deleted": (
        PDB,
        _under_budget,
        lambda world: _set_budget(world, _budget(0), None),
    ),
    "configuration": (
        configuration.DEFAULT,
        _one_queue,
        lambda world: world.reload(conf()),
    ),
}


@pytest.mark.parametrize("name", _CHANGES)
def test_gang_is_tried_again_when_victims_may_be_evicted(name: str) -> None:
    text, setup, change = _CHANGES[name]
    world = EvictingWorld(text)
    setup(world)
    world.run(time=0.0)
    world.run(time=5.0)
    assert world.evicted == []
    change(world)
    assert world.cluster.has_changes()
    world.run(time=6.0)
    assert len(world.evicted) == 1


def test_further_gangs_with_equal_demand_follow_in_the_same_cycle() -> None:
    world = EvictingWorld(PDB)
    _under_budget(world, count=3)
    world.run(time=0.0)
    _set_budget(world, _budget(0), _budget(2))
    world.run(time=5.0)
    assert len(world.evicted) == 2
    assert sorted(name for name in world.nominated if name.startswith("two")) == [
        "two0-t-0",
        "two1-t-0",
    ]


def test_next_gang_with_equal_demand_is_tried_after_the_first_is_gone() -> None:
    world = EvictingWorld(PDB)
    _under_budget(world, count=2)
    world.run(time=0.0)
    world.remove(world.pod_objects["uid-two0-t-0"])
    world.remove(podgroup("two0", 1))
    world.run(time=1.0)
    _set_budget(world, _budget(0), _budget(1))
    world.run(time=2.0)
    assert list(world.nominated) == ["two1-t-0"]


def test_gang_that_never_preempts_does_not_hold_up_others_with_equal_demand() -> None:
    world = EvictingWorld(PDB)
    _under_budget(world, count=0)
    world.gang("never", 1, priority="mid", policy="Never")
    world.gang("two", 1, priority="mid")
    world.run(time=0.0)
    _set_budget(world, _budget(0), _budget(1))
    world.run(time=5.0)
    assert list(world.nominated) == ["two-t-0"]


def test_all_gangs_with_equal_demand_preempt_after_the_cooldown_of_their_victims() -> None:
    world = EvictingWorld(conf(more="  - name: cdp\n"))
    world.upsert(node("a", cpu=4))
    cooldown = {"volcano.sh/cooldown-time": "60s"}
    world.gang(
        "one", 4, minimum=1, nodes=("a",), started="1970-01-01T00:00:10Z", annotations=cooldown
    )
    for number in range(3):
        world.gang(f"two{number}", 1, priority="mid")
    world.run(time=20.0)
    assert world.evicted == []
    assert world.cluster.scheduling_queue.next_due() == 70.0
    world.run(time=70.0)
    assert len(world.evicted) == 3


def test_pod_whose_eviction_was_refused_is_chosen_again_after_a_time() -> None:
    world = EvictingWorld()
    world.upsert(node("a", cpu=1))
    world.gang("one", 1, minimum=0, nodes=("a",))
    world.gang("two", 1, priority="mid")
    world.cluster.apply(EvictionForgotten("uid-one-t-0", 100.0))
    world.run(time=0.0)
    assert world.evicted == []
    assert world.cluster.scheduling_queue.next_due() == 100.0
    world.run(time=100.0)
    assert world.evicted == ["one-t-0"]


def test_gangs_without_victims_are_tried_once_a_second_at_most() -> None:
    world = EvictingWorld()
    _one_queue(world, priority="high")
    world.run(time=0.0)
    for number in range(3):
        world.upsert(node(f"b{number}", cpu=1, cordoned=True))
        world.run(time=10.0)
    assert world.cluster.scheduling_queue.next_due() == 10.0 + RETRY_INTERVAL
    world.upsert(podgroup("one", 1, phase="Running", priority_class="low"))
    world.run(time=10.1)
    assert world.evicted == []
    world.run(time=10.0 + RETRY_INTERVAL)
    assert len(world.evicted) == 1


def test_gangs_that_no_pod_can_make_way_for_are_not_tried_after_each_event(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searches = count()

    def counted(*arguments: Any) -> bool:
        next(searches)
        return evict_for(*arguments)

    monkeypatch.setattr(f"{starving.__name__}.evict_for", counted)
    world = EvictingWorld()
    world.upsert(node("a", cpu=4), _queue("q1", reclaimable=False))
    world.gang("one", 4, minimum=1, nodes=("a",), priority="mid", queue_name="q1")
    for number in range(20):
        world.gang(f"two{number}", 1, priority="mid", queue_name="q1", cpu=f"{1000 + number}m")
    for time in range(5):
        world.run(time=float(time))
        world.upsert(node(f"b{time}", cpu=1, cordoned=True))
    assert next(searches) == 0
    world.gang("three", 1, priority="high", queue_name="q1")
    world.run(time=10.0)
    assert (next(searches), len(world.evicted)) == (2, 1)


def test_gangs_without_victims_do_not_keep_the_scheduler_busy() -> None:
    world = EvictingWorld()
    _one_queue(world, priority="high", count=3)
    cycles = 0
    while world.cluster.has_changes():
        world.run(time=float(cycles))
        cycles += 1
        assert cycles < 10
    assert world.core.tasks_to_try(time=float(cycles), at_most=100) == 0


def test_gang_that_waits_for_victims_takes_what_becomes_free_elsewhere() -> None:
    world = EvictingWorld()
    _one_queue(world)
    world.run(time=0.0)
    assert len(world.evicted) == 1
    world.upsert(node("b", cpu=1))
    world.run(time=1.0)
    assert world.node_of("two0-t-0") == "b"


def test_reservation_expires_although_its_gang_was_tried_in_the_meantime() -> None:
    world = EvictingWorld()
    _one_queue(world)
    world.run(time=0.0)
    until = world.cluster.scheduling_queue.next_due()
    world.upsert(node("b", cpu=1, cordoned=True), node("c", cpu="500m"))
    world.run(time=1.0)
    world.run(time=2.0)
    assert world.cluster.scheduling_queue.next_due() == until


def test_what_was_held_for_a_gang_goes_to_the_first_gang_in_order() -> None:
    """What the scheduler releases itself wakes gangs before others that have just arrived."""
    world = EvictingWorld()
    world.upsert(node("a", cpu=2))
    world.gang("stranded", 1, nodes=("a",), priority="high", cpu=2)
    world.gang("mid", 1, priority="mid", cpu=2)
    world.run(time=0.0)
    world.upsert(podgroup("stranded", 2, phase="Running", priority_class="high"))
    world.upsert(member("stranded-t-1", "stranded", cpu=2))
    world.run(time=1.0)
    world.run(time=2.0)
    assert [each.gang.name for each in world.cluster.reservations] == ["stranded"]
    world.finish_termination("stranded-t-0")
    world.gang("low", 1, cpu=2)
    world.run(time=3.0)
    assert world.node_of("mid-t-0") == "a"


def test_what_pods_were_evicted_for_is_not_lost_to_an_incomplete_gang() -> None:
    """Else the gang would be tried again, and might evict others as its queue has less by then."""
    world = EvictingWorld()
    world.upsert(node("a", cpu=4))
    world.gang("old", 2, minimum=1, nodes=("a",), cpu=2)
    world.gang("new", 2, priority="high")
    world.run(time=0.0)
    assert len(world.evicted) == 1
    world.upsert(member("old-t-2", "old", cpu=2))
    world.upsert(podgroup("old", 2, phase="Running", priority_class="low"))
    world.run(time=1.0)
    reservations = world.cluster.reservations
    assert {each.gang.name for each in reservations} == {"old", "new"}
    held = reservations.get("ns/new")
    assert held is not None and reservations.is_backed(held)
    world.cluster.scheduling_queue.activate(held.gang)
    world.run(time=2.0)
    assert reservations.get("ns/new") is held
    world.finish_termination()
    world.run(time=3.0)
    assert [world.node_of(f"new-t-{number}") for number in range(2)] == ["a", "a"]
    assert world.node_of("old-t-2") == ""


def test_gang_takes_what_becomes_free_next_to_what_was_held_after_its_rejection() -> None:
    world = EvictingWorld()
    cordoned = node("a", cpu=2, cordoned=True)
    world.upsert(cordoned, node("b", cpu=3), _queue("q1", weight=9))
    world.gang("old", 2, nodes=("a", "b"), cpu=2)
    world.gang("first", 4, minimum=1, queue_name="q1")
    world.run(time=0.0)
    world.finish_termination("old-t-1")
    world.run(time=1.0)
    assert [world.node_of(f"first-t-{number}") for number in range(4)] == ["b", "b", "b", ""]
    world.upsert(member("old-t-1", "old", cpu=2))
    world.run(time=2.0)
    assert [each.gang.name for each in world.cluster.reservations] == ["old"]
    world.upsert(node("b", cpu=4))
    world.run(time=3.0)
    assert world.node_of("first-t-3") == "b"


_OLD = [f"old-t-{number}" for number in range(4)]


def test_gang_whose_evicted_pods_are_taken_by_one_that_outranks_it_waits_for_nodes() -> None:
    """It was not tried in the cycle in which it lost them."""
    world = EvictingWorld()
    world.upsert(node("a", cpu=4))
    world.gang("old", 4, minimum=2, nodes=("a",) * 4)
    world.gang("first", 1, priority="mid")
    world.run(time=0.0)
    world.run(time=1.0)
    world.gang("second", 1, priority="high", cpu=2)
    world.run(time=2.0)
    assert len(world.evicted) == 2
    assert [each.gang.name for each in world.cluster.reservations] == ["second"]
    world.run(time=3.0)
    world.finish_termination(next(name for name in _OLD if name not in world.evicted))
    world.run(time=4.0)
    assert world.node_of("first-t-0") == "a"


# -- against trying everything in each cycle ------------------------------------------------


class TwoWorlds:
    """The same cluster twice: in one of them, every gang is tried in each cycle."""

    def __init__(self, text: str) -> None:
        self.ours = EvictingWorld(text)
        self.eager = EvictingWorld(text)
        self.budget: PodDisruptionBudget | None = None
        self._states: list[object] = []
        for name in ("q1", "q2"):
            self.both(lambda world, name=name: world.upsert(_queue(name)))  # type: ignore[misc]

    def both(self, change: Step) -> None:
        """Apply *change* to both."""
        change(self.ours)
        change(self.eager)

    def schedule(self) -> None:
        """Run cycles in both until nothing is left to do, and compare what they have done."""
        self.ours.evicted.clear()
        self.eager.evicted.clear()
        is_quiet = False
        while not is_quiet:
            for gang in list(self.eager.cluster.pending_gangs.values()):
                self.eager.cluster.scheduling_queue.activate(gang)
            states = []
            for world in (self.ours, self.eager):
                world.run(time=world.time + RETRY_INTERVAL)
                states.append(self._state(world))
            is_quiet = not self._has_work(self.ours) and states == self._states
            self._states = states
        assert self._state(self.ours) == self._state(self.eager)

    def _has_work(self, world: EvictingWorld) -> bool:
        due = world.cluster.scheduling_queue.starving.next_due()
        return world.cluster.has_changes() or (due is not None and due <= world.time + 1)

    def _state(self, world: EvictingWorld) -> object:
        nodes = {
            each.metadata.name: (each.spec.node_name, each.status.nominated_node_name)
            for each in world.pod_objects.values()
        }
        return sorted(world.evicted), nodes


def _add_node(data: st.DataObject, worlds: TwoWorlds, step: int) -> None:
    name, cpu = f"n{data.draw(st.integers(0, 2))}", data.draw(st.integers(1, 4))
    worlds.both(lambda world: world.upsert(node(name, cpu=cpu)))


def _add_gang(data: st.DataObject, worlds: TwoWorlds, step: int) -> None:
    count = data.draw(st.integers(1, 3))
    minimum = data.draw(st.integers(1, count))
    fields = {
        "queue_name": data.draw(st.sampled_from(["default", "q1", "q2"])),
        "priority": data.draw(st.sampled_from(["low", "mid", "high"])),
        "cpu": data.draw(st.integers(1, 2)),
        "preemptable": data.draw(st.sampled_from(["", "", "false"])),
        "labels": {"app": data.draw(st.sampled_from("xy"))},
    }
    for number in range(data.draw(st.sampled_from([1, 1, 3]))):
        add = partial(_gang, name=f"g{step}-{number}", count=count, minimum=minimum, fields=fields)
        worlds.both(add)


def _gang(
    world: EvictingWorld, name: str, count: int, minimum: int, fields: dict[str, object]
) -> None:
    world.gang(name, count, minimum=minimum, **fields)  # type: ignore[arg-type]


def _names(worlds: TwoWorlds) -> list[str]:
    return sorted(
        each.metadata.name for each in worlds.ours.pod_objects.values() if each.spec.node_name
    )


def _finish(data: st.DataObject, worlds: TwoWorlds, step: int) -> None:
    """A pod that terminates or runs is deleted."""
    terminating = [
        each.metadata.name
        for each in worlds.ours.pod_objects.values()
        if each.metadata.deletion_timestamp
    ]
    names = terminating if data.draw(st.booleans()) else _names(worlds)
    if names:
        chosen = data.draw(st.sampled_from(sorted(names)))
        worlds.both(lambda world: world.finish_termination(chosen))


def _set_queue(data: st.DataObject, worlds: TwoWorlds, step: int) -> None:
    new = _queue(
        data.draw(st.sampled_from(["q1", "q2"])),
        weight=data.draw(st.sampled_from([1, 3])),
        reclaimable=data.draw(st.booleans()),
    )
    worlds.both(lambda world: world.upsert(new))


def _set_priority(data: st.DataObject, worlds: TwoWorlds, step: int) -> None:
    name, value = data.draw(st.sampled_from(["low", "mid"])), data.draw(st.integers(0, 20))
    new = PriorityClass(metadata=ObjectMeta(name=name), value=value)
    worlds.both(lambda world: world.cluster.update_priority_class(None, new))


def _change_budget(data: st.DataObject, worlds: TwoWorlds, step: int) -> None:
    old = worlds.budget
    new = _budget(data.draw(st.integers(0, 2)), {"app": data.draw(st.sampled_from("xy"))})
    worlds.budget = None if data.draw(st.integers(0, 3)) == 0 else new
    worlds.both(lambda world: _set_budget(world, old, worlds.budget))


def _change_pod(data: st.DataObject, worlds: TwoWorlds, step: int) -> None:
    """A pod that runs gets another annotation or label."""
    names = _names(worlds)
    if not names:
        return
    found = worlds.ours.pod_objects[f"uid-{data.draw(st.sampled_from(names))}"]
    preemptable = data.draw(st.sampled_from(["true", "false"]))
    meta = msgspec.structs.replace(
        found.metadata,
        annotations=found.metadata.annotations | {"volcano.sh/preemptable": preemptable},
        labels={"app": data.draw(st.sampled_from("xy"))},
    )
    worlds.both(lambda world: world.upsert(msgspec.structs.replace(found, metadata=meta)))


def _change_minimum(data: st.DataObject, worlds: TwoWorlds, step: int) -> None:
    groups = {
        key: gang.podgroup
        for key, gang in worlds.ours.cluster.gangs.items()
        if gang.podgroup is not None
    }
    if not groups:
        return
    found = groups[data.draw(st.sampled_from(sorted(groups)))]
    spec = msgspec.structs.replace(found.spec, min_member=data.draw(st.integers(1, 3)))
    worlds.both(lambda world: world.upsert(msgspec.structs.replace(found, spec=spec)))


_EVENTS = [
    _add_node, _add_gang, _add_gang, _add_gang, _finish, _finish, _set_queue, _set_priority,
    _change_budget, _change_pod, _change_minimum,
]  # fmt: skip
_ACTIONS = [
    "enqueue, allocate, backfill, reclaim, preempt",
    "enqueue, allocate, preempt, backfill",
    "enqueue, allocate, reclaim",
]


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_pods_are_evicted_as_if_all_gangs_were_tried_in_each_cycle(data: st.DataObject) -> None:
    text = conf(gang=data.draw(st.booleans()), drf=data.draw(st.booleans()), more="  - name: pdb\n")
    worlds = TwoWorlds(text.replace(_ACTIONS[0], data.draw(st.sampled_from(_ACTIONS))))
    for step in range(3):
        _add_node(data, worlds, step)
    for step in range(data.draw(st.integers(4, 20))):
        for number in range(data.draw(st.integers(1, 2))):
            data.draw(st.sampled_from(_EVENTS))(data, worlds, step * 10 + number)
        worlds.schedule()
