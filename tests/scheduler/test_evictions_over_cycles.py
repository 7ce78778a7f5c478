"""Evictions in cycles that are too short: no gang is left out, for any order of actions."""

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest
from support.preemption import EvictingWorld, conf, node, share
from support.scheduler import SchedulerWorld

from batholith.model.meta import LabelSelector, ObjectMeta
from batholith.scheduler import conf as configuration
from batholith.scheduler.framework import preemption_attempt
from batholith.scheduler.framework.decision import Decision
from batholith.scheduler.framework.victim_plan import choose_victims
from batholith.scheduler.plugins.extension_points import Preemptor
from batholith.scheduler.plugins.registry import PLUGINS
from batholith.scheduler.state.cache.events import PodDisruptionBudgetEvent
from batholith.scheduler.state.core_types import Affinity, PodAffinity, PodAffinityTerm
from batholith.scheduler.state.gangs.disruption_budgets import (
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)
from batholith.scheduler.state.gangs.gang import Task

ORDER = "enqueue, allocate, backfill, reclaim, preempt"


def _after(calls: int) -> Callable[[], bool]:
    """Return a function that returns true from the call after *calls* calls on."""
    counter = count()
    return lambda: next(counter) > calls


def _run_cycle(world: EvictingWorld, *, calls: int) -> Decision:
    """Run a cycle whose time is over after *calls* gangs, and carry out its decision."""
    decision = world.core.run_once(now=world.time, time=world.time, interrupted=_after(calls))
    world.validate()
    for placement in decision.placements:
        world.started(placement.name, placement.node)
    for eviction in decision.evictions:
        world.evicted.append(eviction.name)
        world.terminating(eviction.name)
    for nomination in decision.nominations:
        world.nominated_on(nomination.name, nomination.node)
    return decision


def _full_world(text: str = "", *, nodes: int = 10) -> EvictingWorld:
    """Nodes of 4 CPUs, each with four pods of low priority."""
    world = EvictingWorld(text)
    names = tuple(f"n{number:02}" for number in range(nodes))
    world.upsert(*(node(name, cpu=4) for name in names))
    world.gang("low", 4 * nodes, minimum=1, nodes=names)
    world.run()
    return world


@pytest.mark.parametrize("calls", [0, 1, 7])
@pytest.mark.parametrize("order", [ORDER, ORDER.replace("allocate, ", "") + ", allocate"])
def test_every_gang_preempts_at_once_if_cycles_are_stopped(order: str, calls: int) -> None:
    world = _full_world(conf().replace(ORDER, order))
    for number in range(12):
        world.gang(f"high{number}", 1, priority="high", cpu=f"{1000 + number}m")
    cycles = 0
    while world.cluster.has_changes():
        _run_cycle(world, calls=calls)
        cycles += 1
        assert cycles < 100
    assert len({name for name in world.nominated if name.startswith("high")}) == 12
    world.finish_termination()
    while world.cluster.has_changes():
        _run_cycle(world, calls=calls)
    assert all(world.node_of(f"high{number}-t-0") for number in range(12))


@pytest.mark.parametrize(
    "order",
    [
        "enqueue, allocate, backfill, {action}",
        "enqueue, {action}, allocate, backfill",
        "{action}, enqueue, allocate",
        "{action}, allocate, backfill",
    ],
)
@pytest.mark.parametrize("action", ["preempt", "reclaim"])
def test_action_evicts_pods_wherever_it_stands(action: str, order: str) -> None:
    world = EvictingWorld(conf().replace(ORDER, order.format(action=action)))
    world.upsert(node("a", cpu=4))
    world.upsert(share("q1", reclaimable=True), share("q2", reclaimable=True))
    world.gang("one", 4, minimum=1, nodes=("a",), queue_name="q1")
    queue_name = "q1" if action == "preempt" else "q2"
    world.gang("two", 1, queue_name=queue_name, priority="high")
    while world.cluster.has_changes():
        world.run()
    assert len(world.evicted) == 1
    world.finish_termination()
    world.run()
    assert world.node_of("two-t-0") == "a"


def test_gangs_to_be_allocated_do_not_keep_others_from_preempting() -> None:
    """Each action tries one gang at least, however long those before it take."""
    world = _full_world()
    world.gang("high", 1, priority="high", cpu=2)
    for number in range(30):
        world.gang(f"new{number}", 1, cpu=f"{4000 + number}m")
    decision = _run_cycle(world, calls=0)
    assert [decision.rejected > 0, len(decision.evictions)] == [True, 2]
    assert world.cluster.changes.is_unfinished


class _Refuses:
    """A plugin that permits one victim only."""

    asked = 0

    def __init__(self, arguments: object) -> None:
        """Ignore the arguments."""

    def preemptable(self, preemptor: Preemptor, candidates: Sequence[Task]) -> list[Task]:
        _Refuses.asked += 1
        return [task for task in candidates if task.name == "low-t-7"]


def test_search_for_victims_continues_in_the_next_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PLUGINS, "refuses", _Refuses)
    world = _full_world(conf(more="  - name: refuses\n"), nodes=3)
    world.gang("high", 1, priority="high")
    cycles = 0
    while world.cluster.has_changes():
        before = _Refuses.asked
        _run_cycle(world, calls=-1)
        assert _Refuses.asked - before <= 2
        cycles += 1
        assert cycles < 100
    assert world.evicted == ["low-t-7"]
    assert cycles > 2


def test_search_that_finds_no_victims_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PLUGINS, "refuses", _Refuses)
    world = _full_world(conf(more="  - name: refuses\n"), nodes=1)
    world.gang("high", 1, priority="high")
    cycles = 0
    while world.cluster.has_changes():
        _run_cycle(world, calls=-1)
        cycles += 1
        assert cycles < 100
    assert world.evicted == []


def _budget(allowed: int) -> PodDisruptionBudget:
    return PodDisruptionBudget(
        metadata=ObjectMeta(name="budget", namespace="ns"),
        spec=PodDisruptionBudgetSpec(selector=LabelSelector()),
        status=PodDisruptionBudgetStatus(disruptions_allowed=allowed),
    )


def test_pods_of_an_exhausted_budget_are_excluded_all_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plans = count()

    def counted(*arguments: Any) -> object:
        next(plans)
        return choose_victims(*arguments)

    monkeypatch.setattr(f"{preemption_attempt.__name__}.choose_victims", counted)
    world = _full_world(conf(more="  - name: pdb\n"))
    world.cluster.apply(PodDisruptionBudgetEvent(None, _budget(0)))
    world.gang("high", 1, priority="high")
    world.run()
    assert (world.evicted, next(plans)) == ([], 0)
    world.cluster.apply(PodDisruptionBudgetEvent(_budget(0), _budget(1)))
    world.gang("higher", 1, priority="high", cpu=2)
    world.run(time=1.0)
    assert len(world.evicted) == 1


def test_budget_counts_for_pods_that_arrive_after_it_and_are_labelled_later() -> None:
    world = EvictingWorld(conf(more="  - name: pdb\n"))
    world.upsert(node("a", cpu=2))
    budget = PodDisruptionBudget(
        metadata=ObjectMeta(name="budget", namespace="ns"),
        spec=PodDisruptionBudgetSpec(selector=LabelSelector(match_labels={"app": "x"})),
    )
    world.cluster.apply(PodDisruptionBudgetEvent(None, budget))
    world.gang("low", 2, minimum=1, nodes=("a",), labels={"app": "x"})
    world.gang("high", 1, priority="high")
    world.run(time=0.0)
    assert world.evicted == []
    world.gang("low", 2, minimum=1, nodes=("a",), labels={"app": "y"})
    world.run(time=1.0)
    assert len(world.evicted) == 1


@pytest.mark.parametrize(
    ("text", "nodes", "is_large"),
    [(conf(), 60, True), (conf(), 10, False), (configuration.DEFAULT, 60, False)],
)
def test_cycle_that_may_compare_many_tasks_for_evictions_is_work_for_a_thread(
    text: str, nodes: int, is_large: bool
) -> None:
    world = _full_world(text, nodes=nodes)
    world.gang("high", 1, priority="high")
    assert (world.core.tasks_to_try(time=0.0, at_most=200) > 200) is is_large


def test_cycle_in_which_nothing_waits_is_no_work_for_a_thread() -> None:
    world = _full_world(nodes=60)
    assert world.core.tasks_to_try(time=0.0, at_most=200) == 0


def test_gangs_do_not_wait_for_evictions_without_an_action_for_them() -> None:
    world = SchedulerWorld()
    assert not world.cluster.scheduling_queue.starving.actions


@pytest.mark.parametrize("calls", [0, 5])
def test_a_search_for_a_node_to_clear_goes_on_in_the_next_cycle(calls: int) -> None:
    """On all nodes but the last one a pod stays that excludes the new one."""
    world = EvictingWorld()
    names = tuple(f"n{number:02}" for number in range(10))
    hosts = (node(name, cpu=8, labels={"kubernetes.io/hostname": name}) for name in names)
    world.upsert(*hosts)
    world.gang("stays", 9, minimum=0, nodes=names[:9], priority="high", labels={"app": "x"})
    world.gang("leaves", 10, minimum=0, nodes=names, labels={"app": "x"})
    term = PodAffinityTerm(
        topology_key="kubernetes.io/hostname",
        label_selector=LabelSelector(match_labels={"app": "x"}),
    )
    apart = PodAffinity(required_during_scheduling_ignored_during_execution=(term,))
    world.gang("high", 1, priority="high", affinity=Affinity(pod_anti_affinity=apart))
    cycles = 0
    while world.cluster.has_changes():
        _run_cycle(world, calls=calls)
        cycles += 1
        assert cycles < 100
    assert world.evicted == ["leaves-t-9"]
    assert world.nominated == {"high-t-0": "n09"}
    assert cycles > 2
