"""A seeded trace of jobs, and a cluster in virtual time that runs what a policy allocates.

Gang sizes and durations are heavy-tailed, jobs arrive in bursts, and some queues ask for more
than their share. A job's pods are created once its gang is admitted, as the job controller does,
and each runs for the duration of the job. An evicted pod is created again after its grace period;
a gang that falls below its minimum starts over.
"""

import heapq
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Protocol

CPUS, MEMORY_PER_CPU = 64, 4
"""Of each node: CPUs, and GiB per CPU."""

PERIOD = 5.0
"""Least virtual seconds between two cycles."""

GRACE = 30.0
"""Seconds until an evicted pod has ended."""


@dataclass(frozen=True, slots=True)
class QueueSpec:
    """A queue of the trace."""

    name: str
    weight: int
    demand: float
    """Fraction of all jobs."""

    guarantee: float = 0.0
    """Fraction of the cluster."""


QUEUES = (
    QueueSpec("production", 3, 0.25, guarantee=0.15),
    QueueSpec("research", 4, 0.25),
    QueueSpec("batch", 2, 0.4),
    QueueSpec("students", 1, 0.1),
)
PRIORITIES = {"low": 0, "normal": 100, "high": 1000}


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of the trace."""

    name: str
    queue: str
    priority: str
    arrival: float
    duration: float
    size: int
    minimum: int
    cpu: int
    memory: int
    """CPUs and GiB of each pod."""

    user: str = "anyone"


def generate(jobs: int, nodes: int, *, seed: int, load: float = 0.95) -> list[TraceJob]:
    """Return *jobs* jobs that ask for *load* times the CPU of *nodes* nodes over the trace."""
    rng = random.Random(seed)  # not for cryptography
    largest = min(512, nodes * CPUS // 16)
    names = [spec.name for spec in QUEUES]
    shares = [spec.demand for spec in QUEUES]
    drawn = []
    for number in range(jobs):
        low, high = rng.choices(((1, 1), (2, 8), (9, 64), (65, 512)), (0.3, 0.4, 0.22, 0.08))[0]
        size = min(rng.randint(low, high), largest)
        elastic = size > 1 and rng.random() < 0.15
        cpu = rng.choice((1, 1, 2, 2, 4, 8))
        drawn.append(
            TraceJob(
                name=f"j{number}",
                queue=rng.choices(names, shares)[0],
                priority=rng.choices(tuple(PRIORITIES), (0.2, 0.7, 0.1))[0],
                arrival=0.0,
                duration=float(round(min(max(rng.lognormvariate(5.7, 1.2), 10), 6 * 3600))),
                size=size,
                minimum=size // 2 if elastic else size,
                cpu=cpu,
                memory=cpu * rng.choice((2, 3, 4)),
            )
        )
    work = sum(job.size * job.cpu * job.duration for job in drawn)
    span = work / (load * nodes * CPUS)
    arrivals = sorted(_arrivals(jobs, span, rng))
    return [replace(job, arrival=arrival) for job, arrival in zip(drawn, arrivals, strict=True)]


def _arrivals(jobs: int, span: float, rng: random.Random) -> Iterator[float]:
    """Yield times: a third in bursts of half a minute, the rest spread over the trace."""
    bursts = [rng.uniform(0, span) for _ in range(max(jobs // 200, 2))]
    for _ in range(jobs):
        if rng.random() < 1 / 3:
            yield round(rng.choice(bursts) + rng.uniform(0, 30), 1)
        else:
            yield round(rng.uniform(0, span), 1)


@dataclass(slots=True)
class Actions:
    """What a policy does in a cycle."""

    admitted: list[str] = field(default_factory=list)
    """Names of jobs."""

    placements: list[tuple[str, int, str]] = field(default_factory=list)
    """Job, index of the pod, node."""

    evicted: list[tuple[str, int]] = field(default_factory=list)


class Policy(Protocol):
    """A scheduler in virtual time."""

    def submit(self, job: TraceJob) -> None:
        """Add a gang without pods."""

    def create_pods(self, job: TraceJob, indexes: Iterable[int]) -> None:
        """Add pending pods."""

    def end_pods(self, job: TraceJob, indexes: Iterable[int], *, finished: bool) -> None:
        """Remove pods that have ended; *finished* is whether they succeeded."""

    def release_pods(self, job: TraceJob, indexes: Iterable[int]) -> None:
        """Mark pods as terminating."""

    def complete(self, job: TraceJob) -> None:
        """Remove a gang whose pods have all ended."""

    def cycle(self, now: float) -> Actions:
        """Run one scheduling cycle."""


@dataclass(slots=True)
class RunningJob:
    """A job in the cluster."""

    job: TraceJob
    started: dict[int, float] = field(default_factory=dict)
    """Since when each of its pods runs, by index."""

    pending: set[int] = field(default_factory=set)
    done: int = 0
    wait: float | None = None
    """Seconds until its minimum was allocated for the first time."""

    generation: dict[int, int] = field(default_factory=dict)
    """How often a pod was created again."""


@dataclass(slots=True)
class Totals:
    """What a run has cost and achieved."""

    waits: list[tuple[TraceJob, float]] = field(default_factory=list)
    used: float = 0.0
    """CPU seconds allocated while jobs arrive."""

    unfair: float = 0.0
    """CPU seconds that queues with waiting jobs lacked of their share while jobs arrive."""

    idle: float = 0.0
    """Those of them that no queue used."""

    lacking: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    exceeding: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """CPU seconds below and above its share, by queue."""

    victims: int = 0
    lost: float = 0.0
    """Pod-seconds of work that evictions discarded."""

    cycles: int = 0
    end: float = 0.0


class VirtualCluster:
    """Runs a trace under a policy."""

    def __init__(self, trace: list[TraceJob], nodes: int, policy: Policy) -> None:
        self.capacity = nodes * CPUS
        self.policy = policy
        self.totals = Totals()
        self.jobs: dict[str, RunningJob] = {}
        self.allocated: dict[str, int] = defaultdict(int)
        self.demand: dict[str, int] = defaultdict(int)
        """CPUs by queue: allocated, and asked for by all jobs that have arrived and not ended."""
        self._last_arrival = trace[-1].arrival
        self._events: list[tuple[float, int, str, str, tuple[tuple[int, int], ...]]] = []
        self._serial = count()
        self._trace = {job.name: job for job in trace}
        self._now = 0.0
        for job in trace:
            self._add(job.arrival, "arrive", job.name)

    def run(self) -> Totals:
        """Run until all jobs have ended.

        Raises:
            RuntimeError: jobs wait for ever.
        """
        while self._events:
            self._advance(max(self._events[0][0], self._now))
            while self._events and self._events[0][0] <= self._now:
                _, _, kind, name, pods = heapq.heappop(self._events)
                getattr(self, f"_{kind}")(name, pods)
            self._cycle()
            self._advance(self._now + PERIOD)
        if self.jobs:
            raise RuntimeError(f"{len(self.jobs)} jobs wait for ever: {list(self.jobs)[:5]}")
        self.totals.end = self._now
        return self.totals

    def _add(self, at: float, kind: str, name: str, pods: tuple[tuple[int, int], ...] = ()) -> None:
        heapq.heappush(self._events, (at, next(self._serial), kind, name, pods))

    def _advance(self, until: float) -> None:
        """Let time pass, and count what is used and lacking until then."""
        seconds = max(min(until, self._last_arrival) - self._now, 0.0)
        if seconds:
            self.totals.used += sum(self.allocated.values()) * seconds
            self._count_shares(seconds)
        self._now = max(self._now, until)

    def _count_shares(self, seconds: float) -> None:
        """Count what queues lack of their shares, and what others have above theirs: the rest of
        what is lacking is idle."""
        totals, shares = self.totals, fair_shares(self.demand, self.capacity)
        for name, share in shares.items():
            lacking = (share - self.allocated[name]) * seconds
            totals.idle += lacking
            totals.unfair += max(lacking, 0.0)
            totals.lacking[name] += max(lacking, 0.0)
            totals.exceeding[name] += max(-lacking, 0.0)

    # -- events --------------------------------------------------------------------------------

    def _arrive(self, name: str, pods: tuple[tuple[int, int], ...]) -> None:
        job = self._trace[name]
        self.jobs[name] = RunningJob(job)
        self.demand[job.queue] += job.size * job.cpu
        self.policy.submit(job)

    def _finish(self, name: str, pods: tuple[tuple[int, int], ...]) -> None:
        """End the pods that are still those that were started then."""
        running = self.jobs.get(name)
        if running is None:
            return
        ended = [
            index
            for index, generation in pods
            if index in running.started and running.generation.get(index, 0) == generation
        ]
        for index in ended:
            del running.started[index]
        job = running.job
        self.allocated[job.queue] -= len(ended) * job.cpu
        self.demand[job.queue] -= len(ended) * job.cpu
        running.done += len(ended)
        self.policy.end_pods(job, ended, finished=True)
        if running.done == job.size:
            del self.jobs[name]
            self.policy.complete(job)

    def _recreate(self, name: str, pods: tuple[tuple[int, int], ...]) -> None:
        """End evicted pods, and create them again."""
        running = self.jobs[name]
        indexes = [index for index, _ in pods]
        self.policy.end_pods(running.job, indexes, finished=False)
        for index in indexes:
            running.generation[index] = running.generation.get(index, 0) + 1
        running.pending.update(indexes)
        self.policy.create_pods(running.job, indexes)

    # -- cycles --------------------------------------------------------------------------------

    def _cycle(self) -> None:
        """Run cycles until the pods of admitted gangs exist."""
        while True:
            self.totals.cycles += 1
            actions = self.policy.cycle(self._now)
            self._start(actions.placements)
            self._evict(actions.evicted)
            if not actions.admitted:
                return
            for name in actions.admitted:
                running = self.jobs[name]
                if not running.pending and not running.started and not running.done:
                    running.pending.update(range(running.job.size))
                    self.policy.create_pods(running.job, range(running.job.size))

    def _start(self, placements: Iterable[tuple[str, int, str]]) -> None:
        by_job: dict[str, list[int]] = defaultdict(list)
        for name, index, _ in placements:
            by_job[name].append(index)
        for name, indexes in by_job.items():
            running = self.jobs[name]
            job = running.job
            for index in indexes:
                running.pending.remove(index)
                running.started[index] = self._now
            self.allocated[job.queue] += len(indexes) * job.cpu
            pods = tuple((index, running.generation.get(index, 0)) for index in indexes)
            self._add(self._now + job.duration, "finish", name, pods)
            if running.wait is None and len(running.started) >= job.minimum:
                running.wait = self._now - job.arrival
                self.totals.waits.append((job, running.wait))

    def _evict(self, evicted: Iterable[tuple[str, int]]) -> None:
        by_job: dict[str, set[int]] = defaultdict(set)
        for name, index in evicted:
            if index in self.jobs[name].started:
                by_job[name].add(index)
        for name, indexes in by_job.items():
            running = self.jobs[name]
            self.totals.victims += len(indexes)
            if len(running.started) + running.done - len(indexes) < running.job.minimum:
                indexes = set(running.started)
            for index in indexes:
                self.totals.lost += self._now - running.started.pop(index)
            self.allocated[running.job.queue] -= len(indexes) * running.job.cpu
            self.policy.release_pods(running.job, sorted(indexes))
            pods = tuple((index, 0) for index in sorted(indexes))
            self._add(self._now + GRACE, "recreate", name, pods)


def fair_shares(demand: Mapping[str, int], capacity: int) -> dict[str, float]:
    """Return the CPUs that each queue deserves: weighted water filling of what queues ask for."""
    specs = [spec for spec in QUEUES if demand.get(spec.name)]
    shares = dict.fromkeys((spec.name for spec in specs), 0.0)
    remaining, unmet = float(capacity), specs
    while unmet and remaining > 1e-6:
        weights = sum(spec.weight for spec in unmet)
        available, still = remaining, []
        for spec in unmet:
            before = shares[spec.name]
            least = min(spec.guarantee * capacity, demand[spec.name])
            wanted = max(before + available * spec.weight / weights, least)
            shares[spec.name] = min(wanted, demand[spec.name])
            remaining -= shares[spec.name] - before
            if shares[spec.name] < demand[spec.name]:
                still.append(spec)
        if len(still) == len(unmet):
            break
        unmet = still
    return shares
