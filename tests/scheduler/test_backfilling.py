"""Gangs that wait get planned starts, and later gangs start before them only without a delay."""

import json
import math
import random
from dataclasses import replace

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from support.examples import examples
from support.planned_starts import World, backfilling
from support.running_controller import FakeRecorder
from support.scheduler import node, pod, podgroup, queue

from batholith.machinery.testing import FakeClock
from batholith.model.meta import ObjectMeta
from batholith.scheduler import conf
from batholith.scheduler.framework.backfilling.start_errors import LEAST
from batholith.scheduler.framework.backfilling.start_plan import Cause
from batholith.scheduler.framework.decision import Decision, StartDelay
from batholith.scheduler.framework.explanations import GangExplanation
from batholith.scheduler.metrics import SchedulerMetrics
from batholith.scheduler.plugins.placement import GangRef
from batholith.scheduler.state.core_types import PriorityClass
from batholith.scheduler.state.gangs.start_estimate import StartBasis, StartEstimate
from batholith.scheduler.writers.object_events import record_delay


def test_a_large_gang_starts_at_its_planned_time_although_small_ones_arrive() -> None:
    world = World()
    world.submit("a", 2)
    world.submit("large", 4)
    assert world.run() == ["a"]
    assert world.start_of("large") == 100
    for step in range(1, 10):
        world.submit(f"small{step}", 1, limit=95)
        assert world.run(step * 10) == []
    world.end("a")
    assert world.run(100) == ["large"]


def test_a_waiting_gang_states_when_it_starts_and_why_that_is_known() -> None:
    world = World(backfilling("conservative"))
    world.submit("a", 2)
    world.submit("b", 1, limit=200)
    world.submit("large", 3)
    world.submit("endless", 1, limit=None)
    world.submit("huge", 4)
    world.run(10)
    large, huge = (world.cluster.gangs[f"ns/{name}"].estimated_start for name in ("large", "huge"))
    assert large == StartEstimate(10, 110, StartBasis.LIMITS, 110, since=10)
    assert huge == StartEstimate(10, None, StartBasis.UNKNOWN, since=10)
    world.end("a")
    assert world.run(20) == ["large"]
    assert world.cluster.gangs["ns/large"].estimated_start is None


def test_a_gang_starts_when_most_gangs_with_a_plan_did() -> None:
    world = World()
    for number in range(LEAST):
        began = number * 1000.0
        world.submit(f"running{number}", 2)
        world.run(began)
        world.submit(f"large{number}", 4)
        world.run(began)
        world.end(f"running{number}")
        wait = 95 if number == LEAST - 1 else 20 + 4 * number
        assert world.run(began + wait) == [f"large{number}"]
        world.end(f"large{number}")
    world.submit("a", 2)
    world.submit("large", 4)
    world.run(100_000)
    large = world.cluster.gangs["ns/large"].estimated_start
    assert large is not None and large.basis is StartBasis.LIMITS
    assert (large.earliest, large.latest) == pytest.approx((100_020, 100_052))


def test_explanation_has_the_planned_start_and_is_written_again_if_that_changes_much() -> None:
    world = World()
    world.submit("a", 2)
    world.submit("large", 4)
    world.time = 10

    def why() -> GangExplanation:
        reports = world.decision().reports
        (found,) = (each.why for each in reports if each.key == "ns/large")
        assert found is not None
        return found

    first = why()
    start = dict.fromkeys(("expected", "latest"), "1970-01-01T00:01:50Z")
    start["earliest"] = "1970-01-01T00:00:10Z"
    assert json.loads(first.encode())["start"] == {**start, "basis": "limits"}
    world.cluster.recheck("ns/large")
    assert why().is_same_as(first)
    estimate = first.start
    assert estimate is not None
    for seconds, is_same in ((109.0, True), (120.0, True), (121.0, False), (None, False)):
        changed = replace(first, start=replace(estimate, latest=seconds))
        assert changed.is_same_as(first) is is_same
    assert not replace(first, start=None).is_same_as(first)
    assert not first.is_same_as(None)


def test_without_backfilling_small_gangs_start_first() -> None:
    world = World(backfilling("none"))
    world.submit("a", 2)
    world.submit("large", 4)
    world.submit("small", 1)
    assert world.run() == ["a", "small"]


def test_a_configuration_that_does_not_name_it_plans_nothing() -> None:
    world = World(conf.DEFAULT)
    world.submit("a", 2)
    world.submit("large", 4)
    world.submit("small", 1)
    assert world.run() == ["a", "small"]


def test_a_short_gang_starts_before_the_planned_one_and_says_why_a_long_one_does_not() -> None:
    world = World()
    world.submit("a", 2)
    world.submit("large", 4)
    world.submit("long", 1, limit=101)
    world.submit("short", 1, limit=100)
    assert world.run() == ["a", "short"]
    assert world.fit_message("long") == "it would delay a planned start: large precedes it"


def test_a_gang_without_a_limit_starts_only_where_nothing_is_planned() -> None:
    world = World()
    world.submit("a", 2)
    world.submit("large", 3)
    world.submit("endless1", 1, limit=None)
    world.submit("endless2", 1, limit=None)
    assert world.run() == ["a", "endless1"]


def test_a_pod_without_a_gang_does_not_delay_a_planned_start() -> None:
    world = World()
    world.submit("a", 2)
    world.submit("large", 4)
    world.run()
    world.upsert(pod("single", scheduler="default-scheduler", cpu=1))
    assert world.run(1) == []


def test_a_gang_that_was_held_back_starts_when_the_planned_one_is_deleted() -> None:
    world = World()
    world.submit("a", 2)
    world.submit("large", 4)
    world.submit("long", 1, limit=500)
    assert world.run() == ["a"]
    world.end("large")
    assert world.run(1) == ["long"]


def test_a_start_that_waits_for_an_unknown_end_keeps_nodes_idle_for_a_bounded_time() -> None:
    world = World(backfilling(max_idle="60s"))
    world.submit("endless", 2, limit=None)
    world.submit("large", 4)
    world.submit("small", 1)
    assert world.run() == ["endless"]
    assert world.start_of("large") == math.inf
    assert world.decision(now=0.0).rechecks == {"ns/large": 60.0}
    assert world.run(59) == []
    assert world.run(60) == ["small"]


def test_where_no_run_time_is_known_nothing_is_kept_idle() -> None:
    world = World()
    world.submit("endless", 2, limit=None)
    world.submit("large", 4, limit=None)
    world.submit("small", 1, limit=None)
    assert world.run() == ["endless", "small"]
    assert world.planned("large") is None


def test_an_exceeded_limit_moves_the_start_and_wakes_a_gang_that_it_held_back() -> None:
    world = World()
    world.submit("a", 2)
    world.submit("large", 4)
    world.submit("long", 1, limit=150)
    world.run()
    world.limits.seconds["a"] = 300
    assert world.run(100) == ["long"]
    planned = world.planned("large")
    assert planned is not None
    assert (planned.start, planned.bound, planned.delays) == (300, 100, [Cause.OVERRUN])


def test_a_start_is_unknown_once_the_end_that_it_waits_for_is_not_estimated_any_more() -> None:
    world = World()
    world.submit("a", 2)
    world.submit("large", 4)
    world.run()
    del world.limits.seconds["a"]
    world.run(100)
    assert world.start_of("large") == math.inf


def test_a_lost_node_moves_the_start_and_is_recorded() -> None:
    world = World()
    world.submit("a", 2)
    world.submit("b", 1, limit=300)
    world.submit("large", 3)
    world.run()
    assert world.start_of("large") == 100
    free = {"n0", "n1", "n2", "n3"} - {
        each.spec.node_name for each in world.pod_objects.values() if each.spec.node_name
    }
    world.remove(node(free.pop(), cpu=4))
    world.run(1)
    planned = world.planned("large")
    assert planned is not None
    assert (planned.start, planned.delays) == (300, [Cause.NODES])


def test_a_new_node_moves_the_start_to_the_front() -> None:
    world = World()
    world.submit("a", 2)
    world.submit("large", 4)
    world.run()
    world.upsert(node("n4", cpu=4), node("n5", cpu=4))
    assert world.run(5) == ["large"]


def test_a_gang_of_higher_priority_takes_the_place_in_its_queue() -> None:
    world = World()
    world.cluster.update_priority_class(
        None, PriorityClass(metadata=ObjectMeta(name="high"), value=10)
    )
    world.submit("a", 2)
    world.submit("large", 4)
    world.run()
    world.submit("urgent", 2, limit=500, priority_class="high")
    assert world.run(10) == ["urgent"]
    planned = world.planned("large")
    assert planned is not None
    assert (planned.start, planned.delays) == (510, [Cause.PRIORITY])


def test_conservative_backfilling_plans_as_many_as_the_depth() -> None:
    world = World(backfilling("conservative", depth=2))
    world.submit("a", 3)
    for number in range(4):
        world.submit(f"w{number}", 4)
    world.run()
    assert [world.planned(f"w{number}") is not None for number in range(4)] == [
        True,
        True,
        False,
        False,
    ]
    assert (world.start_of("w0"), world.start_of("w1")) == (100, 200)


@pytest.mark.parametrize("mode", ["easy", "conservative"])
def test_the_first_gang_of_each_queue_is_planned(mode: str) -> None:
    world = World(backfilling(mode, depth=1))
    world.upsert(queue("q"))
    world.submit("a", 1)
    world.submit("b", 2, queue="q", limit=50)
    world.submit("x", 2)
    world.submit("y", 1, queue="q")
    world.submit("z", 1, queue="q")
    world.run()
    assert (world.start_of("x"), world.start_of("y")) == (100, 50)
    assert world.planned("z") is None


def test_the_next_gang_is_planned_once_the_first_has_started() -> None:
    world = World()
    world.submit("a", 3)
    world.submit("x", 4)
    world.submit("y", 4)
    world.run()
    assert world.planned("y") is None
    world.end("a")
    assert world.run(50) == ["x"]
    world.submit("late", 1)
    world.run(60)
    assert world.start_of("y") == 150


def test_gangs_get_a_planned_start_only_after_they_have_waited() -> None:
    world = World(backfilling(reserve_after="30s"))
    world.submit("a", 2)
    world.submit("large", 4)
    world.run()
    assert world.planned("large") is None
    world.submit("small", 1, limit=10)
    assert world.run(10) == ["small"]
    world.end("small")
    world.submit("later", 1, limit=1000)
    world.run(40)
    world.submit("latest", 1, limit=1000)
    world.run(41)
    assert world.planned("large") is not None


def test_the_shortest_gang_starts_first_if_that_is_configured() -> None:
    for order, expected in (("queue", ["long"]), ("shortest-first", ["short"])):
        world = World(backfilling(order=order))
        world.submit("a", 3)
        world.submit("large", 4)
        world.submit("long", 1, limit=90)
        world.submit("short", 1, limit=10)
        assert [each for each in world.run() if each != "a"] == expected


def test_the_oldest_gangs_get_the_planned_starts_although_the_shortest_is_tried_first() -> None:
    world = World(backfilling("conservative", depth=2, order="shortest-first"))
    world.submit("a", 3)
    for name, limit in (("oldest", 100.0), ("second", 90.0), ("short", 10.0)):
        world.submit(name, 4, limit=limit)
    world.submit("shortest", 3, limit=5)
    assert world.run() == ["a"]
    planned = [name for name in ("oldest", "second", "short", "shortest") if world.planned(name)]
    assert planned == ["oldest", "second"]
    assert (world.start_of("oldest"), world.start_of("second")) == (100, 200)


def test_the_next_oldest_gang_gets_the_planned_start_that_is_left() -> None:
    world = World(backfilling("conservative", depth=1, order="shortest-first"))
    world.submit("a", 3)
    for name, limit in (("oldest", 100.0), ("second", 90.0), ("short", 10.0)):
        world.submit(name, 4, limit=limit)
    world.run()
    world.end("a")
    assert world.run(10) == ["oldest"]
    world.submit("shortest", 4, limit=5)
    world.run(20)
    assert world.start_of("second") == 110
    assert world.planned("short") is world.planned("shortest") is None


def test_further_pods_of_a_running_gang_do_not_delay_a_planned_start() -> None:
    world = World()
    world.submit("a", 2)
    world.submit("elastic", 3, minimum=1, limit=500)
    world.run()
    world.end("a")
    world.submit("b", 1, limit=100)
    world.run(1)
    started = [each.spec.node_name for each in world.pod_objects.values() if each.spec.node_name]
    assert len(started) == 4
    world.submit("large", 2, limit=50)
    world.run(2)
    world.upsert(pod("elastic-9", "elastic", cpu=4))
    world.end("b")
    world.upsert(node("n9", cpu=4))
    assert world.run(3) == ["large"]


def test_terminating_pods_count_as_free_soon() -> None:
    world = World()
    world.submit("a", 4, limit=1000)
    world.submit("large", 4)
    world.run()
    assert world.start_of("large") == 1000
    for each in list(world.pod_objects.values()):
        if each.metadata.name.startswith("a-"):
            meta = msgspec.structs.replace(each.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
            world.cluster.described.update_pod(each, msgspec.structs.replace(each, metadata=meta))
    world.run(1)
    assert world.start_of("large") == 31


def test_a_shorter_gang_starts_in_the_cycle_that_holds_an_equal_one_back() -> None:
    """They wait together for a node, but only one of them would delay a start."""
    world = World()
    world.submit("a", 3)
    world.submit("b", 1, limit=50)
    world.submit("large", 4)
    world.submit("long", 1, limit=1000)
    world.submit("as-long", 1, limit=1000)
    world.submit("short", 1, limit=40)
    world.run()
    assert world.start_of("large") == 100
    world.end("b")
    assert world.run(10) == ["short"]


def test_gang_that_its_queue_excludes_is_not_tried_again_because_starts_are_planned() -> None:
    world = World()
    world.upsert(queue("q", capability={"cpu": 4}))
    world.submit("in-q", 1, queue="q", limit=1000)
    world.submit("a", 1)
    world.submit("b", 1, limit=50)
    world.submit("c", 1, limit=50)
    world.submit("large", 3)
    world.submit("excluded", 1, queue="q", limit=10)
    world.run()
    assert world.start_of("large") == 100
    rejected = []
    for name, time in (("b", 10.0), ("c", 20.0)):
        world.end(name)
        world.time = time
        decision = world.decision()
        assert decision.placements == ()
        rejected.append(decision.rejected)
    assert rejected == [1, 0]  # the first time it waited for a node


# -- random histories ------------------------------------------------------------------------------


class History:
    """A cluster in which gangs arrive and end at random."""

    def __init__(self, rng: random.Random) -> None:
        mode = rng.choice(["easy", "conservative"])
        self.rng = rng
        self.world = World(backfilling(mode, depth=rng.choice([1, 3, 10])))
        self.queues = rng.choice([["default"], ["default", "q"]])
        self.causes = {Cause.QUEUE} if len(self.queues) > 1 else set()
        self.world.upsert(queue("q"))
        self.ends: dict[str, float] = {}
        """For how long the gangs run."""
        self.bounds: dict[str, float] = {}

    def step(self, number: int) -> None:
        """Add a gang, or let time pass until one ends or is planned to start; run cycles."""
        if self.rng.random() < 0.5 and len(self.world.names) < 14:
            limit = float(self.rng.randint(1, 60))
            name, size, cpu = f"g{number}", self.rng.randint(1, 5), self.rng.randint(1, 4)
            self.ends[name] = limit * self.rng.choice([0.2, 0.5, 1.0])
            queue_name = self.rng.choice(self.queues)
            self.world.submit(name, size, cpu=cpu, limit=limit, queue=queue_name)
        else:
            self._advance()
        while self._cycle():
            pass
        self._require_no_lost_wake_up()

    def _advance(self) -> None:
        now = self.world.time or 0.0
        times = {name: at + self.ends[name] for name, at in self.world.limits.started.items()}
        planned = [self.world.planned(name) for name in self.world.names]
        starts = [each.start for each in planned if each and now < each.start < math.inf]
        self.world.time = max(min([*times.values(), *starts], default=now + 1.0), now)
        for name, at in times.items():
            if at <= self.world.time:
                self.world.end(name)

    def _cycle(self) -> list[str]:
        now = self.world.time or 0.0
        started = self.world.run()
        for name in started:
            assert now <= self.bounds.get(name, math.inf)
        for name in self.world.names:
            planned = self.world.planned(name)
            if planned is not None:
                known = self.bounds.get(name, math.inf)
                assert planned.start <= known or Cause.QUEUE in planned.delays
                assert set(planned.delays) <= self.causes
                self.bounds[name] = planned.start
        for each in self.world.core.caches.start_plan.broken.values():
            # It has no planned start any more, since the other queue deserves more.
            assert set(each.delays) <= self.causes
            self.bounds.pop(each.waiting.key.removeprefix("ns/"), None)
        return started

    def _require_no_lost_wake_up(self) -> None:
        for gang in list(self.world.cluster.pending_gangs.values()):
            self.world.cluster.scheduling_queue.activate(gang)
        assert self._cycle() == []


def _run(seed: int, steps: int) -> None:
    """Run random steps with true limits."""
    history = History(random.Random(seed))
    for number in range(steps):
        history.step(number)


@settings(max_examples=examples(15), deadline=None)
@given(seed=st.integers(0, 2**32))
@example(seed=22002)
def test_planned_starts_are_met_and_gangs_that_were_held_back_are_woken(seed: int) -> None:
    _run(seed, 60)


@pytest.mark.soak
@pytest.mark.timeout(1800)  # on a busy machine, too
@pytest.mark.parametrize("seed", range(40))
def test_planned_starts_are_met_in_long_histories(seed: int) -> None:
    for number in range(10):
        _run(1000 * seed + number, 500)


# -- delays that are reported ----------------------------------------------------------------------


def delays(world: World, until: float) -> list[tuple[str, Cause, float, float]]:
    """Run a cycle and return what it has delayed."""
    world.time = until
    found = world.decision().delays
    return [(each.gang.key, each.cause, each.earlier, each.later) for each in found]


def planned_world() -> World:
    """A gang waits for the end of another one at 100."""
    world = World()
    world.submit("a", 2)
    world.submit("large", 4)
    world.run()
    assert world.start_of("large") == 100
    return world


def test_exceeded_estimate_is_the_cause_and_is_reported_once() -> None:
    world = planned_world()
    world.limits.seconds["a"] = 300
    assert delays(world, 100) == [("ns/large", Cause.OVERRUN, 100, 300)]
    world.upsert(node("n9", cpu=1))
    assert delays(world, 101) == []


def test_lost_node_is_the_cause_if_no_start_is_possible_any_more() -> None:
    world = planned_world()
    world.remove(node("n3", cpu=4))
    assert delays(world, 1) == [("ns/large", Cause.NODES, 100, math.inf)]
    world.upsert(node("n9", cpu=1))
    world.submit("small", 1, cpu=1)
    assert delays(world, 2) == []


def test_gang_of_a_higher_priority_is_the_cause() -> None:
    world = planned_world()
    high = PriorityClass(metadata=ObjectMeta(name="high"), value=10)
    world.cluster.update_priority_class(None, high)
    world.submit("urgent", 2, limit=500, priority_class="high")
    assert delays(world, 10) == [("ns/large", Cause.PRIORITY, 100, 510)]


def test_small_delays_are_reported_once_they_have_added_up() -> None:
    world = planned_world()
    world.limits.seconds["a"] = 130
    assert delays(world, 100) == []
    assert world.start_of("large") == 130
    world.limits.seconds["a"] = 170
    assert delays(world, 130) == [("ns/large", Cause.OVERRUN, 100, 170)]


def test_start_that_moves_to_an_earlier_time_is_not_reported() -> None:
    world = planned_world()
    world.limits.seconds["a"] = 50
    assert delays(world, 10) == []


@pytest.mark.parametrize(
    ("later", "text"), [(300.0, "1970-01-01T00:05:00Z"), (math.inf, "an unknown time")]
)
def test_event_of_the_podgroup_and_metric_have_the_cause(later: float, text: str) -> None:
    delay = StartDelay(GangRef("ns/large", podgroup("large", 4)), Cause.NODES, 100.0, later)
    recorder = FakeRecorder()
    record_delay(recorder, delay)
    message = f"planned start delayed from 1970-01-01T00:01:40Z to {text}: {Cause.NODES}"
    assert recorder.events == [("PodGroup", "large", "Normal", "StartDelayed", message)]
    registry = CollectorRegistry()
    SchedulerMetrics(registry, clock=FakeClock()).record_decision(Decision(delays=(delay,)))
    name = "batholith_scheduler_start_delays_total"
    assert registry.get_sample_value(name, {"cause": "nodes"}) == 1


def with_enqueue(mode: str = "easy", **more: object) -> World:
    """A cluster of 16 CPUs with the default plugins and actions, of which 12 are used until 100."""
    text = backfilling(mode, **more).replace("allocate, backfill", "enqueue, allocate, backfill")
    world = World(text)
    world.submit("a", 3, limit=100)
    assert world.run() == ["a"]
    return world


def keep_out(world: World, name: str, *, cpu: int = 16, limit: float = 50, queue: str = "") -> None:
    """Add a gang of four pods, which do not exist before it is admitted."""
    world.submitted += 1
    world.limits.seconds[name] = limit
    group = podgroup(
        name,
        4,
        phase="Pending",
        resources={"cpu": cpu},
        created=f"2026-01-02T00:00:{world.submitted:02}Z",
        queue=queue or "default",
    )
    world.upsert(group)


def estimates(world: World) -> dict[str, tuple[float, float | None]]:
    """Return when gangs without a start reservation are expected to start."""
    found = world.cluster.gangs.values()
    return {
        gang.name: (each.earliest, each.latest)
        for gang in found
        if (each := gang.estimated_start) is not None and world.planned(gang.name) is None
    }


def test_a_gang_that_is_not_admitted_states_when_it_is_expected_to_start() -> None:
    world = with_enqueue()
    keep_out(world, "large")
    world.time = 20
    (report,) = (each for each in world.decision().reports if each.key == "ns/large")
    assert report.status is not None and report.status.phase == "Pending"
    assert report.why is not None
    assert report.why.start == StartEstimate(20, 100, StartBasis.LIMITS, 100, since=20)


def test_the_estimate_of_a_gang_ends_when_it_is_admitted_and_starts() -> None:
    world = with_enqueue()
    keep_out(world, "large")
    world.run(20)
    assert estimates(world) == {"large": (20, 100)}
    world.end("a")
    world.run(60)
    world.names["large"] = [f"large-{number}" for number in range(4)]
    world.upsert(*(pod(each, "large", cpu=4) for each in world.names["large"]))
    assert world.run(61) == ["large"]
    assert estimates(world) == {}


def test_as_many_gangs_are_estimated_that_are_not_admitted_as_would_be_planned() -> None:
    for mode, depth, expected in (("easy", 10, 1), ("conservative", 3, 3)):
        world = with_enqueue(mode, depth=depth)
        for number in range(4):
            keep_out(world, f"large{number}", limit=50)
        world.run(20)
        ends = {f"large{number}": (20, 100 + 50 * number) for number in range(expected)}
        assert estimates(world) == ends


def test_the_first_gang_of_each_queue_is_estimated() -> None:
    world = with_enqueue()
    world.upsert(queue("other"))
    for name, queue_name in (("x1", ""), ("x2", ""), ("y1", "other"), ("y2", "other")):
        keep_out(world, name, queue=queue_name)
    world.run(20)
    assert estimates(world) == {"x1": (20, 100), "y1": (20, 150)}


def test_gangs_that_are_not_admitted_are_estimated_after_those_with_a_reservation() -> None:
    world = with_enqueue("conservative")
    world.submit("planned", 4, limit=30)
    keep_out(world, "large")
    world.run(20)
    assert world.start_of("planned") == 100
    assert estimates(world) == {"large": (20, 130)}


def test_a_gang_that_waits_for_an_unknown_end_has_no_latest_start() -> None:
    world = with_enqueue("conservative")
    world.submit("endless", 1, limit=None)
    world.run(15)
    keep_out(world, "large")
    world.run(25)
    assert estimates(world) == {"large": (25, None)}


def test_a_gang_that_never_fits_or_whose_run_time_is_unknown_is_not_estimated() -> None:
    world = with_enqueue("conservative")
    keep_out(world, "huge", cpu=20)
    keep_out(world, "unknown")
    del world.limits.seconds["unknown"]
    world.run(20)
    assert estimates(world) == {}


def test_estimates_of_gangs_that_are_not_admitted_follow_what_ends() -> None:
    world = with_enqueue()
    keep_out(world, "large")
    world.run(20)
    assert estimates(world) == {"large": (20, 100)}
    world.submit("b", 1, limit=400)
    assert world.run(40) == ["b"]
    assert estimates(world) == {"large": (40, 440)}


def test_a_gang_that_comes_right_after_an_estimate_is_estimated_soon() -> None:
    world = with_enqueue("conservative")
    keep_out(world, "large")
    world.run(20)
    keep_out(world, "next")
    world.time = 22
    assert world.decision().rechecks == {"ns/next": 8}
    world.run(30)
    assert estimates(world) == {"large": (20, 100), "next": (30, 150)}
