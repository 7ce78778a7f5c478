"""Start reservations: no gang delays the planned start of one that precedes it."""

import math
import random
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from batholith.scheduler.framework.backfilling.profile import (
    MAX_TIMES,
    Held,
    Occupation,
    PodNeed,
    Profile,
    choose_nodes,
)
from batholith.scheduler.framework.backfilling.start_plan import (
    Cause,
    StartPlan,
    StartReservation,
    Waiting,
)
from batholith.scheduler.state.resources import IntVector, Matrix

ROWS = 3
"""CPU, memory, pods."""


@dataclass(eq=False)
class Job:
    """A gang of equal pods."""

    key: str
    count: int
    cpu: int
    limit: float
    """Seconds; infinite if it has none."""

    duration: float
    """Seconds that it runs, no more than its limit."""

    priority: int = 0
    queue: str = "default"
    zone: int = -1
    """Which nodes are feasible: those whose index leaves this modulo 2; all if negative."""

    version: int = 0
    started: float = math.inf
    occupation: Occupation | None = None

    @property
    def end(self) -> float:
        """When it ends, as the scheduler knows it."""
        return self.started + self.limit


@dataclass
class Cluster:
    """A cluster of one scheduler in virtual time."""

    nodes: int = 4
    cpus: int = 4
    max_idle: float = 50.0
    depth: int = 3
    now: float = 0.0
    waiting: list[Job] = field(default_factory=list)
    running: list[Job] = field(default_factory=list)
    lost: set[int] = field(default_factory=set)
    queue_limit: float = math.inf
    """CPUs that a queue may use."""

    def __post_init__(self) -> None:
        self.plan = StartPlan(max_idle=self.max_idle)

    def allocatable(self) -> Matrix:
        """Return what the nodes have."""
        total = np.tile(np.array([[self.cpus], [100], [10]], np.int64), (1, self.nodes))
        total[:, sorted(self.lost)] = 0
        return total

    def free(self) -> Matrix:
        """Return what is free now."""
        free = self.allocatable()
        for job in self.running:
            assert job.occupation is not None
            free[:, job.occupation.nodes] -= job.occupation.amounts
        return free

    def profile(self) -> Profile:
        """Return what will be free, without reservations."""
        nodes: list[int] = []
        amounts: list[IntVector] = []
        ends = []
        for job in self.running:
            assert job.occupation is not None
            for column, node in enumerate(job.occupation.nodes.tolist()):
                nodes.append(node)
                amounts.append(job.occupation.amounts[:, column])
                ends.append(job.end)
        held = Held(
            np.array(nodes, np.int64),
            np.array(amounts, np.int64).T if amounts else np.zeros((ROWS, 0), np.int64),
        )
        times = [time for each in self.plan for time in (each.start, each.occupation.end)]
        return Profile(self.now, self.free(), np.array(ends, np.float64), held, times)

    def waiting_of(self, job: Job) -> Waiting:
        """Return *job* as the plan sees it."""
        feasible = np.array(
            [node not in self.lost and job.zone in (-1, node % 2) for node in range(self.nodes)]
        )
        need = PodNeed(np.array([job.cpu, 1, 1], np.int64), feasible, job.count)
        return Waiting(
            job.key,
            job.queue,
            job.priority,
            (need,),
            job.limit,
            lambda time: self._is_within_limit(job, time),
            job.version,
        )

    def _is_within_limit(self, job: Job, time: float) -> bool:
        used = sum(
            each.count * each.cpu
            for each in self.running
            if each.queue == job.queue and each.end > time and math.isfinite(time)
        )
        return used + job.count * job.cpu <= self.queue_limit

    def cycle(self, *, cause: Cause = Cause.OTHERS) -> list[Job]:
        """Plan, and start what may start; returns what was started."""
        by_key = {job.key: job for job in self.waiting}

        def current(reservation: StartReservation) -> Waiting | None:
            job = by_key.get(reservation.waiting.key)
            return self.waiting_of(job) if job else None

        self.plan.begin(self.profile(), current, cause)
        started = []
        for job in sorted(self.waiting, key=lambda each: -each.priority):
            if self.start(job):
                started.append(job)
            elif job.key in self.plan.reservations:
                self.plan.postpone(job.key)
            elif len(self.plan) < self.depth:
                self.plan.reserve(self.waiting_of(job))
        self.plan.end()
        return started

    def start(self, job: Job) -> bool:
        """Start *job* if it fits in what is left to it."""
        waiting = self.waiting_of(job)
        if not waiting.allowed(self.now):
            return False
        with self.plan.free_for(waiting) as free:
            found = choose_nodes(waiting.pod_needs, np.minimum(free, self.free()))
        if found is None:
            return False
        job.started, job.occupation = self.now, Occupation(self.now, self.now + job.limit, *found)
        self.waiting.remove(job)
        self.running.append(job)
        self.plan.drop(job.key)
        self.plan.occupy(waiting, job.occupation)
        return True

    def finish_due(self) -> None:
        """End the jobs that have run for their duration."""
        self.running = [each for each in self.running if each.started + each.duration > self.now]


@pytest.fixture
def cluster() -> Cluster:
    """A cluster of four nodes with four CPUs each."""
    return Cluster()


def job(key: str, count: int, cpu: int, limit: float, **more: float) -> Job:
    """A job that runs as long as its limit, unless given."""
    duration = more.pop("duration", limit)
    return Job(key, count, cpu, limit, duration, **more)  # type: ignore[arg-type]


def test_a_large_gang_starts_when_the_running_one_ends_and_not_after_later_small_ones(
    cluster: Cluster,
) -> None:
    cluster.waiting = [job("a", 2, 4, 100), job("large", 4, 4, 100)]
    cluster.cycle()
    assert cluster.plan.reservations["large"].start == 100
    for step in range(1, 10):
        cluster.now = step * 10
        cluster.waiting.append(job(f"small{step}", 1, 2, 50))
        cluster.cycle()
    cluster.now = 100
    cluster.running = [each for each in cluster.running if each.started + each.duration > 100]
    assert [each.key for each in cluster.cycle()] == ["large"]


def test_a_later_gang_starts_at_once_if_it_ends_before_the_nodes_are_needed(
    cluster: Cluster,
) -> None:
    cluster.waiting = [job("a", 2, 4, 100), job("large", 4, 4, 100), job("short", 2, 4, 100)]
    assert [each.key for each in cluster.cycle()] == ["a", "short"]


def test_a_later_gang_without_an_estimate_gets_only_what_no_reservation_needs(
    cluster: Cluster,
) -> None:
    cluster.waiting = [
        job("a", 2, 4, 100),
        job("large", 3, 4, 100),
        job("endless", 1, 4, math.inf),
        job("endless2", 1, 4, math.inf),
    ]
    assert [each.key for each in cluster.cycle()] == ["a", "endless"]


def test_a_start_that_waits_for_an_unknown_end_keeps_capacity_for_a_bounded_time(
    cluster: Cluster,
) -> None:
    cluster.waiting = [job("endless", 2, 4, math.inf), job("large", 4, 4, 10)]
    cluster.cycle()
    planned = cluster.plan.reservations["large"]
    assert (planned.start, planned.is_kept) == (math.inf, True)
    cluster.waiting.append(job("small", 1, 1, 10))
    cluster.now = 49
    assert cluster.cycle() == []
    before = cluster.plan.version
    cluster.now = 50
    assert [each.key for each in cluster.cycle()] == ["small"]
    assert not cluster.plan.reservations["large"].is_kept
    assert cluster.plan.version > before


def test_a_gang_of_unknown_run_time_keeps_nothing_while_its_start_is_unknown(
    cluster: Cluster,
) -> None:
    cluster.waiting = [job("endless", 2, 4, math.inf), job("large", 4, 4, math.inf)]
    cluster.waiting.append(job("small", 1, 1, 10))
    assert [each.key for each in cluster.cycle()] == ["endless", "small"]


def test_early_ends_move_a_planned_start_to_the_front(cluster: Cluster) -> None:
    cluster.waiting = [job("a", 2, 4, 100, duration=30), job("large", 4, 4, 100)]
    cluster.cycle()
    cluster.now = 30
    cluster.finish_due()
    assert [each.key for each in cluster.cycle()] == ["large"]


def test_a_lost_node_delays_a_start_and_is_recorded_as_the_cause(cluster: Cluster) -> None:
    cluster.waiting = [job("a", 2, 4, 100), job("b", 1, 4, 300), job("large", 3, 4, 100)]
    cluster.cycle()
    planned = cluster.plan.reservations["large"]
    assert planned.start == 100
    cluster.lost.add(3)
    cluster.cycle(cause=Cause.NODES)
    planned = cluster.plan.reservations["large"]
    assert (planned.start, planned.bound, planned.delays) == (300, 100, [Cause.NODES])


def test_a_gang_of_higher_priority_takes_the_place_and_is_recorded_as_the_cause(
    cluster: Cluster,
) -> None:
    cluster.waiting = [job("a", 2, 4, 100), job("large", 4, 4, 100)]
    cluster.cycle()
    cluster.waiting.append(job("urgent", 4, 4, 70, priority=1))
    cluster.cycle()
    assert [(each.waiting.key, each.start) for each in cluster.plan] == [
        ("urgent", 100),
        ("large", 170),
    ]
    assert cluster.plan.reservations["large"].delays == [Cause.PRIORITY]


def test_a_gang_of_another_queue_does_not_take_the_place(cluster: Cluster) -> None:
    cluster.waiting = [job("a", 2, 4, 100), job("large", 4, 4, 100)]
    cluster.cycle()
    other = job("other", 2, 4, 150, priority=1)
    other.queue = "other"
    cluster.waiting.append(other)
    assert cluster.cycle() == []
    assert [each.waiting.key for each in cluster.plan] == ["large", "other"]


def test_an_exceeded_estimate_delays_those_after_it_in_their_order(cluster: Cluster) -> None:
    cluster.waiting = [job("a", 3, 4, 100), job("x", 4, 4, 10), job("y", 4, 4, 10)]
    cluster.cycle()
    assert [each.start for each in cluster.plan] == [100, 110]
    cluster.running[0].limit = 200
    cluster.cycle(cause=Cause.OVERRUN)
    assert [each.start for each in cluster.plan] == [200, 210]
    assert [each.delays for each in cluster.plan] == [[Cause.OVERRUN], [Cause.OVERRUN]]


def test_a_start_waits_for_the_limit_of_its_queue(cluster: Cluster) -> None:
    cluster.queue_limit = 8
    cluster.waiting = [job("a", 1, 4, 100), job("b", 1, 4, 60), job("c", 2, 4, 10)]
    cluster.cycle()
    assert cluster.plan.reservations["c"].start == 100
    cluster.waiting.append(job("huge", 3, 4, 10))
    cluster.cycle()
    assert "huge" not in cluster.plan.reservations


def test_a_gang_that_is_rejected_although_all_seems_free_keeps_it_for_a_bounded_time(
    cluster: Cluster,
) -> None:
    rejected = job("rejected", 4, 4, 10)
    cluster.plan.begin(cluster.profile(), lambda each: None, Cause.OTHERS)
    cluster.plan.reserve(cluster.waiting_of(rejected))
    cluster.plan.postpone("rejected")
    assert cluster.plan.reservations["rejected"].start == math.inf


def test_of_many_ends_the_first_are_exact_and_none_is_free_too_early() -> None:
    ends = np.arange(1.0, 201.0)
    held = Held(np.zeros(200, np.int64), np.tile(np.array([[1], [1], [1]], np.int64), (1, 200)))
    profile = Profile(0.0, np.zeros((ROWS, 1), np.int64), ends, held)
    assert len(profile.times) == MAX_TIMES + 1
    assert [int(free[0, 0]) for free in profile.free] == profile.times.tolist()
    assert profile.times[1:17].tolist() == list(range(1, 17))


def test_pods_are_placed_only_where_all_resources_and_the_filters_permit() -> None:
    free = np.array([[4, 4, 9], [1, 9, 9], [9, 9, 9]], np.int64)
    need = PodNeed(np.array([2, 1, 1], np.int64), np.array([True, True, False]), 3)
    found = choose_nodes([need], free)
    assert found is not None
    nodes, amounts = found
    assert nodes.tolist() == [0, 1]
    assert amounts[0].tolist() == [2, 4]
    assert choose_nodes([PodNeed(need.request, need.feasible, 4)], free) is None
    assert choose_nodes([need, need], free) is None


# -- random histories ------------------------------------------------------------------------------


def _run(seed: int, steps: int, *, events: bool) -> None:
    """Run random steps; each planned start is met unless its recorded causes explain that."""
    rng = random.Random(seed)
    cluster = Cluster(depth=rng.choice([1, 3, 20]))
    promised: dict[str, float] = {}
    for step in range(steps):
        cause = _step(cluster, rng, step, events=events)
        before = {each.waiting.key: (each.start, len(each.delays)) for each in cluster.plan}
        for started in cluster.cycle(cause=cause):
            assert events or started.started <= promised.get(started.key, math.inf)
        assert (cluster.free() >= 0).all()
        for each in cluster.plan:
            key = each.waiting.key
            if each.is_kept:
                promised[key] = min(promised.get(key, math.inf), each.start)
            start, delays = before.get(key, (math.inf, 0))
            if each.start > max(start, cluster.now):
                assert len(each.delays) > delays
                assert events
                assert set(each.delays) <= {Cause.PRIORITY, Cause.NODES}


def _step(cluster: Cluster, rng: random.Random, number: int, *, events: bool) -> Cause:
    """Let something happen; returns the cause that it may be of delays."""
    kind = rng.randint(0, 9)
    if kind <= 4 and len(cluster.waiting) < 12:
        cluster.waiting.append(_random_job(rng, f"j{number}", events=events))
    elif kind == 5 and events:
        cluster.lost ^= {rng.randint(0, cluster.nodes - 1)}
        for each in [*cluster.running]:
            assert each.occupation is not None
            if cluster.lost.intersection(each.occupation.nodes.tolist()):
                cluster.running.remove(each)
        return Cause.NODES
    else:
        times = [each.started + each.duration for each in cluster.running]
        times += [each.start for each in cluster.plan if cluster.now < each.start < math.inf]
        cluster.now = min(times, default=cluster.now + rng.choice([0.5, 5.0]))
        cluster.finish_due()
    return Cause.OTHERS


def _random_job(rng: random.Random, key: str, *, events: bool) -> Job:
    """Return a job; if there are *events*, it may have a priority, and no limit."""
    limit = float(rng.randint(1, 60))
    duration = max(limit * rng.choice([0.1, 0.5, 1.0]), 0.5)
    new = job(key, rng.randint(1, 5), rng.choice([1, 2, 3, 4]), limit, duration=duration)
    new.zone = rng.choice([-1, -1, -1, 0, 1])
    new.queue = rng.choice(["p", "q"])
    if events:
        new.priority = rng.choice([0, 0, 0, 1])
        new.limit = rng.choice([new.limit, new.limit, math.inf])
    return new


@settings(max_examples=examples(25), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_with_true_limits_no_later_gang_delays_a_planned_start(seed: int) -> None:
    _run(seed, 100, events=False)


@settings(max_examples=examples(25), deadline=None)
@given(seed=st.integers(0, 2**32))
def test_each_delay_of_a_planned_start_has_a_recorded_cause(seed: int) -> None:
    _run(seed, 100, events=True)


@pytest.mark.soak
@pytest.mark.timeout(1800)  # on a busy machine, too
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("events", [False, True])
def test_planned_starts_hold_in_long_histories(seed: int, events: bool) -> None:
    for number in range(50):
        _run(1000 * seed + number, 1000, events=events)
