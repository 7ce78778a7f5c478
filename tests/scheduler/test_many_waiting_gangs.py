"""The work of cycles with many waiting gangs, in numbers of gangs that are tried and reported."""

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import FrameType
from typing import TypeVar

import msgspec
import pytest
from support.scheduler import SchedulerWorld, node, pod, podgroup, queue

from batholith.machinery.testing import FakeClock
from batholith.scheduler import conf
from batholith.scheduler.cycle_time_limit import CycleTimeLimit
from batholith.scheduler.framework.session import Session
from batholith.scheduler.state.core_types import PodStatus
from batholith.scheduler.state.gangs.gang import Gang
from batholith.scheduler.state.queue.scheduling_queue import RESYNC_SECONDS

T = TypeVar("T")

GANGS = 500
LIMIT: dict[str, str | int | float] = {"cpu": 10, "memory": "100Gi"}


CONFIGURATIONS = {
    plugin: conf.DEFAULT.replace("name: proportion", f"name: {plugin}")
    for plugin in ("proportion", "capacity")
}


def _world(plugin: str = "proportion") -> SchedulerWorld:
    """A queue with two free CPUs, in which gangs wait that need more; another is empty."""
    world = _untried_world(plugin)
    assert world.decision().rejected == GANGS
    return world


def _untried_world(plugin: str = "proportion") -> SchedulerWorld:
    world = SchedulerWorld(CONFIGURATIONS[plugin])
    world.upsert(node("a", cpu=64), queue("full", capability=LIMIT), queue("other"))
    running = [pod(f"run-t-{i}", "run", node_name="a", phase="Running") for i in range(8)]
    world.upsert(podgroup("run", 8, phase="Running", queue="full"), *running)
    for number in range(GANGS):
        resources = {"cpu": f"{3000 + number}m"}
        world.upsert(
            podgroup(f"w{number}", 1, phase="Pending", queue="full", resources=dict(resources))
        )
    return world


def _work(world: SchedulerWorld) -> tuple[int, int]:
    """Run cycles until nothing is left to do; return how many gangs they reject and report."""
    rejected = reported = 0
    while world.cluster.has_changes():
        decision = world.decision()
        rejected += decision.rejected
        reported += len(decision.reports)
    return rejected, reported


def _run_one_pod(world: SchedulerWorld, queue_name: str) -> tuple[int, int]:
    """Submit a job of one pod, and let it end; return the work of all cycles."""
    world.upsert(podgroup("new", 1, phase="Pending", queue=queue_name, resources={"cpu": 1}))
    work = [_work(world)]
    world.upsert(pod("new-t-0", "new"))
    decision = world.decision()
    assert [each.name for each in decision.placements] == ["new-t-0"]
    work += [(decision.rejected, len(decision.reports)), _work(world)]
    world.upsert(pod("new-t-0", "new", node_name="a", phase="Running"))
    work.append(_work(world))
    world.remove(world.pod_objects["uid-new-t-0"])
    work.append(_work(world))
    return sum(rejected for rejected, _ in work), sum(reported for _, reported in work)


def test_without_events_no_waiting_gang_is_tried_or_reported() -> None:
    world = _world()
    decision = world.decision()
    assert (decision.rejected, decision.reports, decision.queue_allocations) == (0, (), ())


@pytest.mark.parametrize("plugin", CONFIGURATIONS)
def test_job_in_another_queue_does_not_have_waiting_gangs_tried(plugin: str) -> None:
    world = _world(plugin)
    rejected, reported = _run_one_pod(world, "other")
    assert (rejected, reported <= 6) == (0, True)


@pytest.mark.parametrize("plugin", CONFIGURATIONS)
def test_job_in_the_same_queue_does_not_have_gangs_tried_for_which_it_has_no_room(
    plugin: str,
) -> None:
    world = _world(plugin)
    rejected, reported = _run_one_pod(world, "full")
    assert (rejected, reported <= 6) == (0, True)


@pytest.mark.parametrize("plugin", CONFIGURATIONS)
def test_gang_for_which_the_queue_has_room_again_is_admitted(plugin: str) -> None:
    world = _world(plugin)
    world.remove(world.pod_objects["uid-run-t-0"])
    decision = world.decision()
    assert [each.key for each in decision.enqueued] == ["ns/w0"]
    assert decision.rejected <= 1


@pytest.mark.parametrize("plugin", CONFIGURATIONS)
def test_gang_is_told_that_its_queue_takes_no_jobs_any_more(plugin: str) -> None:
    world = _world(plugin)
    world.upsert(queue("full", state="Closed", capability=LIMIT))
    world.decision()
    diagnosis = world.cluster.gangs["ns/w7"].diagnosis
    assert diagnosis is not None
    assert diagnosis.reason == "QueueNotOpen"


def test_gangs_wait_until_the_cluster_has_enough_left_for_them() -> None:
    world = SchedulerWorld()
    limits: dict[str, str | int | float] = {"cpu": 2000}
    world.upsert(node("a", cpu=10), queue("q", capability=limits))
    running = [pod(f"run-t-{i}", "run", node_name="a", phase="Running") for i in range(9)]
    world.upsert(podgroup("run", 9, phase="Running"), *running)
    for number in range(3):
        resources: dict[str, str | int | float] = {"cpu": 4 + number}
        world.upsert(podgroup(f"w{number}", 1, phase="Pending", queue="q", resources=resources))
    assert world.decision().rejected == 3  # 3 of 12 CPUs are left
    world.remove(world.pod_objects["uid-run-t-0"])
    decision = world.decision()
    assert ([each.key for each in decision.enqueued], decision.rejected) == (["ns/w0"], 0)
    for number in range(1, 7):
        world.remove(world.pod_objects[f"uid-run-t-{number}"])
    decision = world.decision()
    assert ([each.key for each in decision.enqueued], decision.rejected) == (["ns/w1"], 1)


def test_gangs_rejected_together_are_tried_again_in_several_cycles() -> None:
    world = _world()
    tried, cycles, now = 0, 0, RESYNC_SECONDS
    while tried < GANGS:
        rejected = world.core.run_once(now=now, time=now).rejected
        assert 0 < rejected <= GANGS / 5
        tried, cycles = tried + rejected, cycles + 1
    assert tried == GANGS
    assert world.core.run_once(now=now, time=now).rejected == 0


def test_gangs_without_pods_count_as_work_for_a_thread() -> None:
    world = _world()
    world.cluster.scheduling_queue.wake_due(RESYNC_SECONDS)
    assert world.core.tasks_to_try(time=RESYNC_SECONDS, at_most=10) > 10


def test_action_tries_gangs_as_long_as_it_took_to_order_them() -> None:
    clock = FakeClock()
    limit = CycleTimeLimit(clock)
    limit.start_cycle()
    limit.start_action()
    clock.tick(0.01)
    assert not limit.is_reached()
    clock.tick(0.05)
    assert limit.is_reached()
    limit.start_cycle()
    limit.start_action()
    clock.tick(2.0)  # ten thousand gangs are ordered
    assert not limit.is_reached()
    clock.tick(1.9)
    assert not limit.is_reached()
    clock.tick(0.2)
    assert limit.is_reached()


def test_gangs_that_take_longer_to_order_than_a_cycle_lasts_need_few_cycles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = FakeClock()
    limit = CycleTimeLimit(clock)

    def slow(method: Callable[[Session, Gang], T]) -> Callable[[Session, Gang], T]:
        def call(session: Session, gang: Gang) -> T:
            clock.tick(0.001)
            return method(session, gang)

        return call

    def timer(_: str) -> AbstractContextManager[object]:
        limit.start_action()
        return nullcontext()

    monkeypatch.setattr(Session, "job_order", slow(Session.job_order))
    monkeypatch.setattr(Session, "job_enqueueable", slow(Session.job_enqueueable))
    world = _untried_world()
    world.core.action_timer = timer
    cycles = 0
    while world.cluster.has_changes():
        limit.start_cycle()
        world.core.run_once(now=clock.monotonic(), interrupted=limit.is_reached)
        cycles += 1
    assert len(world.cluster.scheduling_queue) == GANGS
    assert cycles <= 5


def test_gangs_of_other_sizes_are_not_tried_once_others_have_what_was_freed() -> None:
    """All of them fit what a pod leaves, but only the first few get it."""
    world = SchedulerWorld()
    world.upsert(*(node(f"n{number}", cpu=8) for number in range(3)))
    for number in range(3):
        world.upsert(podgroup(f"old{number}", 1, phase="Running"))
        old = pod(f"old{number}-t-0", f"old{number}", node_name=f"n{number}", cpu="7500m")
        world.upsert(msgspec.structs.replace(old, status=PodStatus(phase="Running")))
    for number in range(GANGS):
        world.upsert(podgroup(f"w{number:03}", 1))
        world.upsert(pod(f"w{number:03}-t-0", f"w{number:03}", cpu=f"{1000 + number}m"))
    assert world.decision().rejected == GANGS
    allocated: list[str] = []
    for number in range(3):
        world.remove(world.pod_objects[f"uid-old{number}-t-0"])
        decision = world.decision()
        assert decision.rejected <= 1
        assert len(decision.placements) >= 5
        allocated += [each.name for each in decision.placements]
        for each in decision.placements:
            found = world.pod_objects[each.uid]
            spec = msgspec.structs.replace(found.spec, node_name=each.node)
            world.upsert(
                msgspec.structs.replace(found, spec=spec, status=PodStatus(phase="Running"))
            )
        assert world.decision().rejected == 0
    assert allocated == sorted(allocated)
    assert len(world.cluster.scheduling_queue) == GANGS - len(allocated)


def _calls_for_changed_queues(count: int) -> int:
    """Return how many Python functions a cycle calls in which a gang of each queue has started."""
    world = SchedulerWorld()
    world.upsert(node("a", cpu=count), *(queue(f"q{number}") for number in range(count)))
    world.decision()
    for number in range(count):
        running = pod(f"r{number}-t-0", f"r{number}", node_name="a", phase="Running")
        group = podgroup(f"r{number}", 1, phase="Running", queue=f"q{number}")
        world.upsert(group, running)
    calls = 0

    def observe(_frame: FrameType, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(observe)
    try:
        decision = world.decision()
    finally:
        sys.setprofile(None)
    assert len(decision.queue_allocations) >= count
    return calls


def test_change_of_a_queue_costs_a_hundred_calls_however_many_others_change() -> None:
    some, many = (_calls_for_changed_queues(count) for count in (200, 400))
    assert (many - some) / 200 < 100
