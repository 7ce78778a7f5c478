"""The plugin ``fairshare``: orders by past usage, which survives restarts."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from support.examples import examples
from support.fair_share import (
    CONFIGURATION,
    HALF_LIFE,
    START,
    FairWorld,
    annotated_queue,
)
from support.scheduler import node, pod, podgroup, queue

from batholith.machinery.testing import FakeClock
from batholith.model.meta import ObjectMeta
from batholith.scheduler import conf
from batholith.scheduler.metrics import SchedulerMetrics
from batholith.scheduler.plugins.fairshare import FairSharePlugin
from batholith.scheduler.state.core_types import PriorityClass
from batholith.scheduler.state.gangs.gang import Gang
from batholith.scheduler.state.past_usage import decayed_sums
from batholith.scheduler.state.past_usage.decayed_sums import DecayedSums
from batholith.scheduler.state.past_usage.past_usage import MAX_CHARACTERS
from batholith.scheduler.writers.kept_entries import KeptPastUsage, kept_entries

YEAR = 365 * 86400.0


def used_for(seconds: float, cpus: float = 1.0, ago: float = 0.0) -> float:
    """What *cpus* used for *seconds* until *ago* seconds ago count for, in thousandths."""
    whole = cpus * 1000 * HALF_LIFE / math.log(2)
    return whole * (2 ** (-ago / HALF_LIFE) - 2 ** (-(ago + seconds) / HALF_LIFE))


def test_use_counts_from_allocation_to_the_end_and_half_after_the_half_life() -> None:
    world = FairWorld()
    world.submit("g", "ann", cpu=2)
    assert world.cycle() == ["g"]
    world.advance(100)
    world.end(["g"])
    world.run()
    used = used_for(100, 2)
    expected = {("default", "ann"): used, ("default", ""): used, ("root", ""): used}
    assert world.used() == pytest.approx(expected)
    world.advance(HALF_LIFE)
    world.run()
    assert world.used() == pytest.approx(dict.fromkeys(expected, used / 2))


def test_user_is_the_namespace_without_the_annotation() -> None:
    world = FairWorld()
    world.submit("g")
    world.cycle()
    assert ("default", "ns") in world.used()


def test_user_without_use_goes_first_although_the_other_has_submitted_before() -> None:
    world = FairWorld(cpus=1)
    world.submit("old", "ann")
    world.cycle()
    world.advance(10)
    world.submit("a", "ann", created="2026-01-01T00:00:00Z")
    world.submit("b", "bob", created="2026-01-02T00:00:00Z")
    assert world.cycle() == []
    world.advance(1)
    world.end(["old"])
    assert world.cycle() == ["b"]


def test_order_of_rejected_gangs_with_equal_demand_follows_usage() -> None:
    """They wait in one group, which is sorted again when one user overtakes the other."""
    world = FairWorld(cpus=1)
    world.submit("first", "ann")
    world.cycle()
    for count in range(3):
        world.submit(f"a{count}", "ann", created="2026-01-01T00:00:00Z")
        world.submit(f"b{count}", "bob", created="2026-01-02T00:00:00Z")
    world.run()
    order, current = [], "first"
    for _ in range(6):
        world.advance(100)
        world.end([current])
        (current,) = world.cycle()
        order.append(current)
    assert order == ["b0", "a0", "b1", "a1", "b2", "a2"]


def test_priority_counts_before_usage() -> None:
    world = FairWorld(cpus=1)
    urgent = PriorityClass(metadata=ObjectMeta(name="urgent"), value=10)
    world.cluster.update_priority_class(None, urgent)
    world.submit("old", "ann")
    world.cycle()
    world.submit("b", "bob")
    world.submit("a", "ann", priority_class="urgent")
    world.advance(10)
    world.run()
    world.end(["old"])
    assert world.cycle() == ["a"]


def test_queue_with_less_use_for_its_weight_goes_first() -> None:
    world = FairWorld(cpus=1)
    world.upsert(queue("heavy", weight=3), queue("light", weight=1))
    for name, seconds in (("heavy", 200), ("light", 100)):
        world.submit(f"old-{name}", queue=name)
        world.cycle()
        world.advance(seconds)
        world.end([f"old-{name}"])
        world.run()
    world.submit("l", queue="light", created="2026-01-01T00:00:00Z")
    world.submit("h", queue="heavy", created="2026-01-02T00:00:00Z")
    world.advance(10)
    assert world.cycle() == ["h"]


def test_queues_of_one_parent_are_compared_before_those_below_them() -> None:
    world = FairWorld(cpus=1)
    world.upsert(annotated_queue("left"), annotated_queue("right"))
    for leaf, parent in (("l1", "left"), ("l2", "left"), ("r1", "right")):
        world.upsert(annotated_queue(leaf, parent=parent))
    for leaf, seconds in (("l1", 300), ("r1", 200)):
        world.submit(f"old-{leaf}", queue=leaf)
        world.cycle()
        world.advance(seconds)
        world.end([f"old-{leaf}"])
        world.run()
    world.advance(10)
    world.submit("l", queue="l2")
    world.submit("r", queue="r1")
    assert world.cycle() == ["r"], "l2 has used nothing, but left more than right"


def test_priority_of_a_queue_counts_before_its_usage() -> None:
    world = FairWorld(cpus=1)
    world.upsert(queue("high", priority=5), queue("low"))
    world.submit("old", queue="high")
    world.cycle()
    world.submit("l", queue="low")
    world.submit("h", queue="high")
    world.advance(10)
    world.run()
    world.end(["old"])
    assert world.cycle() == ["h"]


def test_resource_that_is_scarcest_counts() -> None:
    world = FairWorld(cpus=0)
    world.upsert(node("n", cpu=10, memory="100Gi"))
    world.upsert(podgroup("m", 1, queue="a"), pod("m-0", "m", cpu=1, memory="50Gi"))
    world.upsert(podgroup("c", 1, queue="b"), pod("c-0", "c", cpu=4))
    world.upsert(queue("a"), queue("b"))
    world.cycle()
    world.advance(100)
    world.run()
    keys, shares = world.cluster.past_usage.shares(world.cluster.node_matrix.total())
    by_key = dict(zip(keys, shares.tolist(), strict=True))
    whole = used_for(100) / 1000
    assert by_key["a", ""] == pytest.approx(whole * 0.5)
    assert by_key["b", ""] == pytest.approx(whole * 0.4)


def test_nothing_is_recorded_without_the_plugin() -> None:
    world = FairWorld(conf.DEFAULT)
    entry = KeptPastUsage(world.cluster.past_usage, FakeClock())
    world.submit("g", "ann")
    world.cycle()
    world.advance(100)
    world.run()
    assert world.used() == {}
    assert entry.version == 0


def test_plugin_that_is_added_and_removed_while_gangs_run_counts_from_then_on() -> None:
    world = FairWorld(conf.DEFAULT)
    world.submit("g", "ann")
    world.cycle()
    world.advance(1000)
    world.reload(CONFIGURATION)
    world.run()
    world.advance(100)
    world.run()
    assert world.used()["default", "ann"] == pytest.approx(used_for(100))
    world.reload(conf.DEFAULT)
    world.run()
    world.advance(HALF_LIFE)
    world.run()
    assert world.used()["default", "ann"] == pytest.approx(used_for(100) / 2)


def test_what_was_used_before_another_configuration_was_loaded_counts() -> None:
    world = FairWorld()
    world.submit("g", "ann")
    world.cycle()
    world.advance(1000)
    world.reload(CONFIGURATION.replace("interval: 1s", "interval: 2s"))
    world.run()
    assert world.used()["default", "ann"] == pytest.approx(used_for(1000))


def test_name_of_a_user_that_is_too_long_counts_as_none() -> None:
    world = FairWorld()
    world.submit("g", "x" * 257)
    world.submit("h", "y" * 256)
    world.cycle()
    users = {user for _, user in world.used()}
    assert users == {"", "ns", "y" * 256}


def test_gang_counts_for_another_parent_once_its_queue_has_moved() -> None:
    world = FairWorld()
    world.upsert(annotated_queue("one"), annotated_queue("two"))
    world.upsert(annotated_queue("leaf", parent="one"))
    world.submit("g", queue="leaf")
    world.cycle()
    world.advance(100)
    world.upsert(annotated_queue("leaf", parent="two"))
    world.run()
    world.advance(50)
    world.run()
    used = world.used()
    assert used["one", ""] == pytest.approx(used_for(100, ago=50))
    assert used["two", ""] == pytest.approx(used_for(50))
    assert used["leaf", ""] == pytest.approx(used_for(150))


def test_metric_has_the_usage_of_queues_as_of_the_scrape() -> None:
    world, registry, clock = FairWorld(), CollectorRegistry(), FakeClock()
    metrics = SchedulerMetrics(registry, clock=clock)
    world.submit("g", "ann", cpu=2)
    world.cycle()
    world.advance(3600)
    clock.tick(3600)
    metrics.record_decision(world.run())
    clock.tick(3600)

    def hours(resource: str) -> float | None:
        labels = {"queue_name": "default", "resource": resource}
        name = "batholith_scheduler_queue_past_usage_resource_hours"
        return registry.get_sample_value(name, labels)

    assert hours("cpu") == pytest.approx(used_for(7200, 2) / 3600 / 1000)
    assert hours("nvidia.com/gpu") is None


def test_order_stays_if_a_user_overtakes_one_of_another_queue() -> None:
    world = FairWorld()
    world.upsert(queue("other"))
    world.submit("g", "ann")
    world.submit("h", "bob", queue="other")
    world.cycle()
    world.advance(10)
    world.end(["g"])
    world.run()
    (plugin,) = (p for p in world.core.framework.plugins if isinstance(p, FairSharePlugin))
    before = plugin.order_generation
    world.advance(60)
    world.run()
    assert world.used()["other", "bob"] > world.used()["default", "ann"]
    assert plugin.order_generation == before


# -- restarts ------------------------------------------------------------------------------------


def kept_of(world: FairWorld) -> str:
    return world.cluster.past_usage.encode(world.now, world.time)


def restarted(
    world: FairWorld, kept: str = "", *, down: float = 0.0, clock_error: float = 0.0
) -> FairWorld:
    """A new process with the objects of *world*, after it was *down* for those seconds."""
    other = FairWorld()
    other.time = world.time + down + clock_error
    other.now = 77.0
    other.upsert(*(g.podgroup for g in world.cluster.gangs.values() if g.podgroup is not None))
    other.upsert(*world.pod_objects.values())
    other.running = dict(world.running)
    if kept:
        other.cluster.past_usage.restore(kept)
    other.run()
    return other


def test_use_is_the_same_after_a_restart_that_takes_an_hour() -> None:
    world = FairWorld()
    world.submit("g", "ann", cpu=2)
    world.submit("h", "bob")
    world.cycle()
    world.advance(100)
    world.end(["h"])
    world.run()
    world.advance(50)
    kept = kept_of(world)
    after = restarted(world, kept, down=3600)
    world.advance(3600)
    world.run()
    assert after.used() == pytest.approx(world.used(), rel=1e-6)
    after.advance(10)
    world.advance(10)
    after.run()
    world.run()
    assert after.used() == pytest.approx(world.used(), rel=1e-6)


def test_pod_that_was_started_after_the_last_write_counts_from_its_start() -> None:
    world = FairWorld()
    world.submit("g", "ann")
    world.cycle()
    world.advance(40)
    kept = kept_of(world)
    world.advance(20)
    world.submit("h", "bob")
    world.cycle()
    after = restarted(world, kept, down=100)
    assert after.used()["default", "bob"] == pytest.approx(used_for(100))
    assert after.used()["default", "ann"] == pytest.approx(used_for(160))


def test_what_is_restored_late_does_not_count_twice() -> None:
    world = FairWorld()
    world.submit("g", "ann")
    world.cycle()
    world.advance(100)
    kept = kept_of(world)
    after = restarted(world, down=10)
    after.cluster.past_usage.restore(kept)
    after.advance(30)
    after.run()
    assert after.used()["default", "ann"] == pytest.approx(used_for(140), rel=1e-3)


def test_wall_clock_that_jumps_changes_nothing_while_the_process_runs() -> None:
    world = FairWorld()
    world.submit("g", "ann")
    world.cycle()
    for jump in (YEAR, -3 * YEAR, 2 * YEAR):
        world.time += jump
        world.advance(10)
        world.run()
    assert world.used()["default", "ann"] == pytest.approx(used_for(30))


def test_wall_clock_that_is_behind_after_a_restart_neither_adds_nor_removes() -> None:
    world = FairWorld()
    world.submit("g", "ann")
    world.cycle()
    world.advance(100)
    after = restarted(world, kept_of(world), clock_error=-YEAR)
    assert after.used()["default", "ann"] == pytest.approx(used_for(100))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"resources": ["cpu"]}',
        '{"at": 0, "resources": ["cpu"], "usage": [["q", "u", []]]}',
        '{"at": 0, "resources": ["cpu"], "usage": [["q", "u", [-1]]]}',
        '{"at": 0, "resources": ["cpu"], "usage": [["q", "u", [1e999]]]}',
    ],
)
def test_malformed_text_is_an_error_and_restores_nothing(text: str) -> None:
    world = FairWorld()
    with pytest.raises(ValueError, match=r"."):
        world.cluster.past_usage.restore(text)
    world.run()
    assert world.used() == {}


async def test_use_that_grows_is_written_although_there_is_no_cycle() -> None:
    world, clock = FairWorld(), FakeClock()
    entry = kept_entries(world.cluster, clock)["usage"]
    world.submit("g", "ann")
    world.now = clock.monotonic()
    world.cycle()
    version, text = entry.version, entry.encode()
    await clock.advance(60)
    assert entry.version > version
    assert entry.encode() != text
    world.advance(60)
    world.end(["g"])
    world.run()
    version = entry.version
    await clock.advance(60)
    world.advance(60)
    world.run()
    assert entry.version == version, "nothing is used, so what is written stays true"


def test_what_is_kept_is_bounded_and_has_those_with_the_most_use() -> None:
    world = FairWorld()
    world.run()
    usage = world.cluster.past_usage
    kept = {
        "at": START,
        "resources": ["cpu"],
        "usage": [["default", f"user-{n:04}" + "x" * 200, [1e6 + n]] for n in range(3000)],
    }
    usage.restore(json.dumps(kept))
    world.run()
    text = kept_of(world)
    assert MAX_CHARACTERS - 1000 < len(text) <= MAX_CHARACTERS
    users = [each[1][:9] for each in json.loads(text)["usage"]]
    assert users[:2] == ["user-2999", "user-2998"]


def test_idle_keys_are_forgotten_and_those_in_use_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decayed_sums, "MAX_IDLE_KEYS", 10)
    sums = DecayedSums()
    sums.add_rate([("q", "busy")], {"cpu": 1})
    for number in range(30):
        sums.add_used(("q", f"user-{number}"), {"cpu": float(number + 1)})
        sums.forget_idle()
    assert len(sums) <= 11
    snapshot = sums.snapshot(0.0, 1.0)
    users = [user for _, user in snapshot.keys]
    assert "busy" in users
    assert "user-29" in users
    assert "user-0" not in users
    at = snapshot.keys.index(("q", "user-29"))
    assert snapshot.used[at, 0] == 30.0
    assert snapshot.rates[snapshot.keys.index(("q", "busy")), 0] == 1


# -- properties ----------------------------------------------------------------------------------


@settings(max_examples=examples(20))
@given(
    st.lists(st.floats(0, 300), min_size=2, max_size=3),
    st.sampled_from([1, 2, 3]),
    st.sampled_from([20.0, 60.0]),
    st.booleans(),
)
def test_equal_demand_leads_to_equal_usage(
    before: list[float], cpus: int, seconds: float, by_queue: bool
) -> None:
    """Of queues, and of users in a queue, for any usage before."""
    world = FairWorld(cpus=cpus)
    names = [f"x{number}" for number in range(len(before))]
    queues = names if by_queue else ["default"] * len(names)
    world.upsert(*(queue(name) for name in queues))
    usage = [[q, u, [1000 * s]] for q, u, s in zip(queues, names, before, strict=True)]
    totals = [[q, "", [1000 * s]] for q, s in zip(queues, before, strict=True)]
    kept = {"at": START, "resources": ["cpu"], "usage": usage + (totals if by_queue else [])}
    world.cluster.past_usage.restore(json.dumps(kept))
    waiting, number = dict.fromkeys(names, 0), 0
    for _ in range(50):
        for name, queue_name in zip(names, queues, strict=True):
            while waiting[name] < cpus:
                world.submit(f"{name}-{number}", name, queue=queue_name)
                number, waiting[name] = number + 1, waiting[name] + 1
        for started in world.cycle():
            waiting[started.split("-")[0]] -= 1
        world.advance(seconds)
        world.end(world.running)
    world.run()
    used = [world.used()[key] for key in zip(queues, names, strict=True)]
    assert max(used) - min(used) <= used_for(seconds, cpus) * 1.01


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(st.sampled_from([0, 10]), st.sampled_from([0, 7, 8, 900]), st.integers(1, 9)),
        min_size=2,
        max_size=6,
    )
)
def test_gangs_start_by_priority_then_usage_then_age(gangs: list[tuple[int, int, int]]) -> None:
    world = FairWorld(cpus=1)
    high = PriorityClass(metadata=ObjectMeta(name="high"), value=10)
    world.cluster.update_priority_class(None, high)
    usage = [["default", f"u{n}", [1000.0 * used]] for n, (_, used, _) in enumerate(gangs) if used]
    world.cluster.past_usage.restore(
        json.dumps({"at": START, "resources": ["cpu"], "usage": usage})
    )
    world.submit("first", "other")
    (current,) = world.cycle()
    for number, (priority, _, day) in enumerate(gangs):
        world.submit(
            f"g{number}",
            f"u{number}",
            priority_class="high" if priority else "",
            created=f"2026-01-0{day}T00:00:00Z",
        )
    started = []
    for _ in gangs:
        world.end([current])
        (current,) = world.cycle()
        started.append(int(current[1:]))
    numbers = range(len(gangs))
    assert started == sorted(numbers, key=lambda n: (-gangs[n][0], gangs[n][1], gangs[n][2], n))


Step = tuple[str, str, float]


@settings(max_examples=examples(60))
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["start", "end", "wait", "restart"]),
            st.sampled_from(["ann", "bob", "eve"]),
            st.floats(0, 2000),
        ),
        max_size=25,
    )
)
def test_usage_is_what_was_used_whatever_happens_between(steps: list[Step]) -> None:
    """Compared with the sum over the gangs' intervals; restarts keep all but what ended while the
    scheduler was down."""
    world, number = FairWorld(cpus=100), 0
    intervals: list[tuple[str, float, float | None]] = []
    started: dict[str, tuple[str, float]] = {}
    for kind, user, seconds in steps:
        whole = float(int(seconds))
        if kind == "start":
            world.submit(f"g{number}", user)
            world.cycle()
            started[f"g{number}"], number = (user, world.time), number + 1
        elif kind == "end" and started:
            name, (owner, since) = next(iter(started.items()))
            del started[name]
            intervals.append((owner, since, world.time))
            world.end([name])
            world.run()
        elif kind == "restart":
            world = _restarted_with_all(world, whole)
        else:
            world.advance(whole)
    world.run()
    intervals += [(user, since, None) for user, since in started.values()]
    expected = dict.fromkeys(("ann", "bob", "eve"), 0.0)
    for user, since, until in intervals:
        end = world.time if until is None else until
        expected[user] += used_for(end - since, ago=world.time - end)
    used = {user: world.used().get(("default", user), 0.0) for user in expected}
    assert used == pytest.approx(expected, rel=1e-5, abs=1e-3)


def _restarted_with_all(world: FairWorld, down: float) -> FairWorld:
    after = restarted(world, kept_of(world), down=down)
    after.upsert(node("n", cpu=100, memory="64Gi"))
    return after


def test_order_of_waiting_gangs_is_computed_again_only_if_a_user_overtakes_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[str] = []
    original = FairSharePlugin.job_order

    def counted(self: FairSharePlugin, gang: Gang) -> float:
        calls.append(gang.key)
        return original(self, gang)

    monkeypatch.setattr(FairSharePlugin, "job_order", counted)
    world = FairWorld(cpus=1)
    world.submit("first", "ann")
    (current,) = world.cycle()
    for number in range(100):
        world.submit(f"g{number}", "ann")
    world.advance(5)
    world.run()
    calls.clear()
    for _ in range(10):
        world.advance(5)
        world.end([current])
        (current,) = world.cycle()
    assert len(calls) < 100, "a sort of all of them in each cycle would be a thousand"
