"""Start of small jobs while many wait: ``python -m bench.queued [NAME ...] [--real]``.

Pods run, and jobs wait; then small jobs are submitted at a constant rate, run for two seconds and
end. Measured are the seconds from submission to Running, and CPU and writes of the components; and
both again while nothing happens. The names are those of what the jobs wait for:

* ``queue``: the capability of their queue; the small jobs are in another one;
* ``same-queue``: the same, and the small jobs are in that queue, which has enough left for them;
* ``resource``: a resource that no node has; the small jobs are in the same queue.

On the embedded cluster, or with ``--real`` on a real kube-apiserver. Rows are in Markdown.
"""

import argparse
import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import uvloop

from batholith.kube.client.client import Client
from batholith.kube.informer.informer import Informer
from batholith.model.base import ApiStruct
from batholith.model.job import Job
from batholith.model.meta import ObjectMeta
from batholith.model.names import EVENTS, JOBS, PODGROUPS, PODS, QUEUES, Resource
from batholith.model.podgroup import PodGroup
from bench import cluster_fill
from bench.__main__ import cluster, cpu_seconds
from bench.components import COMPONENTS
from bench.load import NAMESPACE, job, submit
from bench.realkube import install_prerequisites, platform, submitter

SCENARIOS = ("queue", "same-queue", "resource")
TIMEOUT = 3600.0
SETTLE_SECONDS = 12.0
"""Seconds without writes after which none is delayed any more."""
FULL, SMALL = "full", "small"
"""Names of queues."""
CAPABILITY = {"cpu": "8"}
"""Of the queue that is full: less than each waiting job needs."""
MISSING = "example.com/missing"
NODES = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Numbers of pods and jobs."""

    running: int
    """Pods that run."""
    queued: int
    """Jobs that wait."""
    demands: int
    """Different requests of them."""
    jobs: int
    """Small jobs."""
    rate: float
    """Small jobs per second."""
    idle_seconds: float


@dataclass(frozen=True, slots=True)
class Target:
    """A cluster whose components run."""

    client: Client
    cpu: Callable[[], Mapping[str, float]]
    """Returns the CPU seconds of each component so far."""


class _Any(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


class WriteCounter:
    """Count the writes of each kind by watching it."""

    def __init__(self, client: Client) -> None:
        self.counts: Counter[str] = Counter()
        kinds = (JOBS, PODGROUPS, QUEUES, EVENTS, PODS)
        self.informers = [self._informer(client, kind) for kind in kinds]

    def _informer(self, client: Client, kind: Resource) -> Informer[_Any]:
        cache = Informer(client, kind, _Any)
        cache.add_event_handler(lambda _old, _new: self._count(kind.kind))
        return cache

    def _count(self, kind: str) -> None:
        self.counts[kind] += 1


class PhaseTimes:
    """When jobs were Running, and which gangs were reported to wait, as observed by watches."""

    def __init__(self, client: Client) -> None:
        self.running: dict[str, float] = {}
        self.waiting: set[str] = set()
        self.ended = 0
        self.writes = WriteCounter(client)
        self.last_write = time.perf_counter()
        self._jobs = Informer(client, JOBS, Job)
        self._podgroups = Informer(client, PODGROUPS, PodGroup)
        self._jobs.add_event_handler(self._on_job)
        self._podgroups.add_event_handler(self._on_podgroup)
        self._informers: list[Informer[Any]] = [
            self._jobs,
            self._podgroups,
            *self.writes.informers,
        ]
        for informer in self.writes.informers:
            informer.add_event_handler(self._on_write)

    @contextlib.asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watch inside the block."""
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(informer.run()) for informer in self._informers]
            for informer in self._informers:
                await informer.wait_synced()
            yield
            for task in running:
                task.cancel()

    async def wait_settled(self) -> None:
        """Wait until nothing has been written for some time."""
        while (left := self.last_write + SETTLE_SECONDS - time.perf_counter()) > 0:  # noqa: ASYNC110 - extended by each write
            await asyncio.sleep(left)

    def _on_job(self, _: Job | None, new: Job | None) -> None:
        if new is None:
            return
        phase, name = new.status.state.phase, new.metadata.name
        if phase in ("Running", "Completed"):
            self.running.setdefault(name, time.perf_counter())
        if phase == "Completed":
            self.ended += 1

    def _on_podgroup(self, _: PodGroup | None, new: PodGroup | None) -> None:
        if new is not None and any(each.type == "Unschedulable" for each in new.status.conditions):
            self.waiting.add(new.metadata.uid)

    def _on_write(self, _old: object, _new: object) -> None:
        self.last_write = time.perf_counter()


@contextlib.asynccontextmanager
async def embedded(load: Load) -> AsyncIterator[Target]:
    """The embedded cluster, in which the running pods were scheduled."""
    async with cluster("--simulate", str(NODES)) as (data, client):
        size = min(load.running, 500)
        await submit(
            client, (job(f"run-{n}", size, cpu="10m") for n in range(load.running // size))
        )
        await _wait_running(client, load.running // size)
        yield Target(client, lambda: cpu_seconds(data))


async def _wait_running(client: Client, jobs: int) -> None:
    running: set[str] = set()
    async for event in client.watch(JOBS, view=Job, namespace=NAMESPACE):
        if event.object.status.state.phase == "Running":
            running.add(event.object.metadata.name)
        if len(running) == jobs:
            return
    raise ConnectionError("the watch ended")


@contextlib.asynccontextmanager
async def real(load: Load) -> AsyncIterator[Target]:
    """A real API server, into whose store the running pods were copied."""
    with platform() as target:
        async with submitter(target) as client:
            await install_prerequisites(client)
            await cluster_fill.fill(target, client, pods=load.running)
            await target.start_components(client, *COMPONENTS)
            yield Target(client, target.cpu)


def waiting_jobs(scenario: str, load: Load) -> Iterator[dict[str, Any]]:
    """Return jobs that no queue or no node has enough for."""
    for number in range(load.queued):
        body = job(f"wait-{number:05d}", 1, cpu=f"{16000 + number % load.demands}m")
        if scenario == "resource":
            container = body["spec"]["tasks"][0]["template"]["spec"]["containers"][0]
            container["resources"]["limits"] = {MISSING: "1"}
            container["resources"]["requests"][MISSING] = "1"
        body["spec"]["queue"] = SMALL if scenario == "resource" else FULL
        yield body


async def submit_small_jobs(
    target: Target, seen: PhaseTimes, scenario: str, load: Load
) -> list[float]:
    """Submit small jobs at a constant rate; return the seconds from then to Running of each."""
    began, starts = time.perf_counter(), dict[str, float]()

    async def one(number: int) -> None:
        name, at = f"small-{number}", began + number / load.rate
        await asyncio.sleep(max(at - time.perf_counter(), 0.0))
        starts[name] = at
        body = job(name, number % 4 + 1, cpu="50m", command=("sleep", "2"))
        body["spec"]["queue"] = FULL if scenario == "same-queue" else SMALL
        await target.client.create(JOBS, body, namespace=NAMESPACE)

    async with asyncio.timeout(TIMEOUT), asyncio.TaskGroup() as tasks:
        for number in range(load.jobs):
            tasks.create_task(one(number))
    async with asyncio.timeout(TIMEOUT):
        while not starts.keys() <= seen.running.keys():  # noqa: ASYNC110 - rarely polled
            await asyncio.sleep(0.5)
    return sorted(seen.running[name] - at for name, at in starts.items())


class Meter:
    """CPU and writes in an interval."""

    def __init__(self, target: Target, seen: PhaseTimes) -> None:
        self._target, self._seen = target, seen
        self._cpu, self._began = Counter(target.cpu()), time.perf_counter()
        self._writes = seen.writes.counts.copy()

    def cells(self) -> list[str]:
        """Return seconds, CPU seconds and writes since the start."""
        spent = {name: n - self._cpu[name] for name, n in self._target.cpu().items()}
        writes = self._seen.writes.counts - self._writes
        return [
            f"{time.perf_counter() - self._began:.0f} s",
            ", ".join(f"{name} {n:.1f}" for name, n in sorted(spent.items())),
            ", ".join(f"{kind} {n}" for kind, n in sorted(writes.items())) or "0",
        ]


async def measure(scenario: str, load: Load, *, on_real: bool) -> None:
    """Run one scenario, and print its rows."""
    async with (real if on_real else embedded)(load) as target:
        for name, capability in ((FULL, CAPABILITY), (SMALL, None)):
            spec = {"weight": 1} | ({"capability": capability} if capability else {})
            await target.client.create(QUEUES, {"metadata": {"name": name}, "spec": spec})
        seen = PhaseTimes(target.client)
        async with seen.watching():
            meter = Meter(target, seen)
            await submit(target.client, waiting_jobs(scenario, load))
            async with asyncio.timeout(TIMEOUT):
                while len(seen.waiting) < load.queued:  # noqa: ASYNC110 - rarely polled
                    await asyncio.sleep(0.5)
                await seen.wait_settled()
            _print_row(scenario, f"{load.queued} jobs are queued", "", meter)
            meter = Meter(target, seen)
            taken = await submit_small_jobs(target, seen, scenario, load)
            await seen.wait_settled()
            spread = ", ".join(
                f"{name} {taken[min(int(len(taken) * fraction), len(taken) - 1)]:.2f}"
                for name, fraction in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))
            )
            _print_row(scenario, f"{load.jobs} small jobs", spread, meter)
            meter = Meter(target, seen)
            await asyncio.sleep(load.idle_seconds)
            _print_row(scenario, "nothing happens", "", meter)


def _print_row(scenario: str, what: str, taken: str, meter: Meter) -> None:
    print(f"| {' | '.join([scenario, what, taken, *meter.cells()])} |", flush=True)


def main() -> None:
    """Run the named scenarios, or all."""
    parser = argparse.ArgumentParser(prog="python -m bench.queued")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(SCENARIOS))
    parser.add_argument("--real", action="store_true", help="on a real kube-apiserver")
    parser.add_argument("--running", type=int, default=10000, help="pods that run")
    parser.add_argument("--queued", type=int, default=10000, help="jobs that wait")
    parser.add_argument("--demands", type=int, default=20, help="different requests of them")
    parser.add_argument("--jobs", type=int, default=200, help="small jobs")
    parser.add_argument("--rate", type=float, default=5.0, help="small jobs per second")
    parser.add_argument("--idle", type=float, default=30.0, help="seconds without any change")
    given = parser.parse_args()
    if unknown := set(given.names) - set(SCENARIOS):
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}")
    load = Load(
        running=given.running,
        queued=given.queued,
        demands=given.demands,
        jobs=given.jobs,
        rate=given.rate,
        idle_seconds=given.idle,
    )
    print("| waits for | what | submit to Running | duration | CPU s | writes |")
    print("| --- | --- | --- | ---: | --- | --- |", flush=True)
    for scenario in given.names or SCENARIOS:
        uvloop.run(measure(scenario, load, on_real=given.real))


if __name__ == "__main__":
    main()
