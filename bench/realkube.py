"""Measure Batholith on a real kube-apiserver: ``python -m bench.realkube [NAME ...] [--pods N]``.

Names: ``shapes`` (the bare client among them), ``modes`` (each mode of each shape right after the
bare client, repeatedly), ``start``, ``storm``; none means all. Rows are in Markdown, for
bench/README.md. Nothing is asserted: machines differ, so compare ratios and counts.
"""

import argparse
import asyncio
import tempfile
import time
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import uvloop

from batholith.kube.client.client import Client
from batholith.kube.client.config import load_credentials
from batholith.kube.errors import AlreadyExistsError, ApiError, ConnectionLostError
from batholith.kube.informer.informer import Informer
from batholith.model import crds
from batholith.model.base import ApiStruct
from batholith.model.job import Job
from batholith.model.meta import ObjectMeta
from batholith.model.names import CRDS, JOBS, NAMESPACES, PODS, QUEUES
from bench import cluster_fill, same_writes
from bench.components import COMPONENTS, SIMULATED, SUBMITTER, Platform, RequestCounts, memory
from bench.load import NAMESPACE, bind, in_parallel, job, pod_spec, submit

TIMEOUT = 1200.0
"""Timeout of a run in seconds."""
ROUNDS = 3
"""Rounds in which the modes of a shape are measured against the bare client."""
SETTLE_SECONDS = 12.0
"""Seconds without writes after which none is delayed any more."""
WRITERS = ("controllers", "scheduler")
"""The users whose writes count: the agent's are those of a kubelet."""
SHAPES = ((20, 500), (500, 20), (10000, 1), (1, 10000))
"""Jobs, and pods of each."""
UNPLACED = ("--place-at-creation=false",)
GANGS_ONLY = {"controllers": ("--podgroups=gangs",)}
COLUMNS = ("kube-apiserver", "etcd", *COMPONENTS, "bench")


class _Status(ApiStruct, frozen=True):
    phase: str = ""


class _Spec(ApiStruct, frozen=True):
    node_name: str = ""


class _Pod(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: _Spec = _Spec()
    status: _Status = _Status()


class Milestones:
    """Times at which the last pod was created, bound and running, and the last job Running."""

    def __init__(self, client: Client, *, pods: int, jobs: int) -> None:
        self._expected = {"created": pods, "bound": pods, "running": pods, "jobs": jobs}
        self._counts: Counter[str] = Counter()
        self.times: dict[str, float] = {}
        self.done = asyncio.Event()
        self._pods = Informer(client, PODS, _Pod)
        self._jobs = Informer(client, JOBS, Job)
        self._pods.add_event_handler(self._on_pod)
        self._jobs.add_event_handler(self._on_job)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watch inside the block."""
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(cache.run()) for cache in (self._pods, self._jobs)]
            await self._pods.wait_synced()
            await self._jobs.wait_synced()
            yield
            for task in running:
                task.cancel()

    def _on_pod(self, old: _Pod | None, new: _Pod | None) -> None:
        if new is None:
            return
        if old is None:
            self._count("created")
        if new.spec.node_name and not (old and old.spec.node_name):
            self._count("bound")
        if new.status.phase == "Running" and not (old and old.status.phase == "Running"):
            self._count("running")

    def _on_job(self, old: Job | None, new: Job | None) -> None:
        ran = old is not None and old.status.state.phase == "Running"
        if new is not None and new.status.state.phase == "Running" and not ran:
            self._count("jobs")

    def _count(self, what: str) -> None:
        self._counts[what] += 1
        if self._counts[what] == self._expected[what]:
            self.times[what] = time.perf_counter()
        if all(self._counts[name] >= number for name, number in self._expected.items()):
            self.done.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A number of gangs with the same number of pods; ``jobs`` 0 is the bare client."""

    jobs: int
    pods: int

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """Parse ``JOBSxPODS``."""
        jobs, pods = map(int, text.split("x"))
        return cls(jobs=jobs, pods=pods)

    @property
    def total(self) -> int:
        """All pods."""
        return max(self.jobs, 1) * self.pods

    def __str__(self) -> str:
        return f"{self.jobs}x{self.pods}" if self.jobs else f"bare client, {self.pods}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mode:
    """How jobs of a shape are run."""

    title: str
    options: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Options of components in addition to the usual ones."""

    one_pod_only: bool = False
    """Whether it differs from the others in jobs of one pod only."""

    by_client: bool = False
    """Whether a client sends the writes, without controllers and scheduler."""

    def is_for(self, shape: Shape) -> bool:
        """Return whether *shape* is to be measured in this mode."""
        return shape.pods == 1 or not self.one_pod_only


MODES: Mapping[str, Mode] = {
    "normal": Mode(title="normal", options={"controllers": UNPLACED, "scheduler": UNPLACED}),
    "at-creation": Mode(title="placement at creation"),
    "gangs": Mode(title="PodGroups of gangs only", options=GANGS_ONLY, one_pod_only=True),
    "same-writes": Mode(title="the same writes by a client", by_client=True),
    "gangs-same-writes": Mode(
        title="the same writes by a client, PodGroups of gangs only",
        options=GANGS_ONLY,
        one_pod_only=True,
        by_client=True,
    ),
}
"""By name on the command line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What of a benchmark is to be run."""

    pods: int
    """Pods of each run."""
    rounds: int = ROUNDS
    shapes: Sequence[Shape] = ()
    """Instead of the usual shapes with *pods* pods."""
    modes: Sequence[Mode] = tuple(MODES.values())


@contextmanager
def platform(
    *, users: Sequence[str] = (), audit_rules: Sequence[dict[str, Any]] = ()
) -> Iterator[Platform]:
    """A server in a temporary directory; see :class:`.Platform`."""
    with (
        tempfile.TemporaryDirectory(prefix="batholith-bench-") as directory,
        Platform(Path(directory), users=users, audit_rules=audit_rules) as target,
    ):
        yield target


@asynccontextmanager
async def submitter(platform: Platform) -> AsyncIterator[Client]:
    """A client of the submitting user, on a server with the objects of a cluster."""
    credentials = load_credentials(str(platform.kube.kubeconfig_of(SUBMITTER)))
    async with Client(credentials, user_agent="bench", timeout=120) as client:
        yield client


async def install_prerequisites(client: Client) -> None:
    """Install the CRDs and the namespace of a cluster with Batholith."""
    await client.create(NAMESPACES, {"metadata": {"name": "volcano-system"}})
    for definition in crds.load():
        await client.create(CRDS, definition)
    await _retry_until_ready(lambda: client.list(QUEUES, view=dict))
    await _retry_until_ready(lambda: client.list(JOBS, view=dict))


async def _retry_until_ready(request: Callable[[], Awaitable[Any]]) -> None:
    """Repeat a request until it succeeds."""
    async with asyncio.timeout(TIMEOUT):
        while True:
            try:
                await request()
            except AlreadyExistsError:
                return  # created, and the response was lost
            except (ApiError, ConnectionLostError, ConnectionError):
                await asyncio.sleep(0.1)
            else:
                return


async def _time_of(work: Awaitable[None]) -> float:
    """Await *work*; return the time of its completion."""
    await work
    return time.perf_counter()


def stamp() -> str:
    """Return the current time in the format of the audit log."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


async def bare(client: Client, pods: int) -> None:
    """Create and bind each pod, which is the minimum for any scheduler."""

    async def one(number: int) -> None:
        name = f"p{number}"
        body = {"metadata": {"name": name}, "spec": {**pod_spec(cpu="1"), "schedulerName": "bench"}}
        await client.create(PODS, body, namespace=NAMESPACE)
        await bind(client, name, f"sim-{number % SIMULATED}")

    await in_parallel(range(pods), one)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Results of one run of a shape."""

    shape: Shape
    times: dict[str, float]
    """Seconds from the first submission to each milestone."""
    cpu_seconds: Counter[str]
    """CPU seconds of each process until all ran."""
    requests: RequestCounts
    """Until all ran."""
    delayed: RequestCounts
    """Requests from then on, until all writes have settled."""

    @property
    def costs(self) -> tuple[float, float, float]:
        """Seconds until all ran, CPU seconds of all processes, and of the API server."""
        cpu = self.cpu_seconds
        return self.times["running"], cpu.total(), cpu["kube-apiserver"]

    @property
    def costs_per_pod(self) -> tuple[float, ...]:
        """CPU ms of controllers and scheduler, and their writes until all ran, and then."""
        spent = [1000 * self.cpu_seconds[name] for name in WRITERS]
        writes = [
            requests.writes_of(*WRITERS, events=False).total()
            for requests in (self.requests, self.delayed)
        ]
        return tuple(each / self.shape.total for each in (*spent, *writes))


async def measure(
    shape: Shape, mode: Mode | None = None, *, settle_seconds: float = 0.0
) -> RunResult:
    """Run one shape on a separate server; the components are those of *mode*.

    Requests are counted until nothing has been written for *settle_seconds*.
    """
    recording = await _record(shape, mode) if mode is not None and mode.by_client else None
    with platform() as target:
        async with submitter(target) as client:
            await install_prerequisites(client)
            components = COMPONENTS if shape.jobs and not recording else ("agent",)
            options = mode.options if mode is not None else {}
            await target.start_components(client, *components, options=options)
            seen = Milestones(client, pods=shape.total, jobs=shape.jobs)
            async with seen.watching():
                since, before, start = stamp(), target.cpu(), time.perf_counter()
                if recording:
                    await same_writes.send(
                        client, recording, jobs=shape.jobs, pods=shape.pods, cpu="1"
                    )
                elif shape.jobs:
                    bodies = (job(f"b{n}", shape.pods, cpu="1") for n in range(shape.jobs))
                    await submit(client, bodies)
                else:
                    await bare(client, shape.pods)
                async with asyncio.timeout(TIMEOUT):
                    await seen.done.wait()
                spent = Counter({name: now - before[name] for name, now in target.cpu().items()})
                until = stamp()
                await target.wait_settled(*WRITERS, seconds=settle_seconds)
        log = target.audit()
        return RunResult(
            shape=shape,
            times={name: at - start for name, at in seen.times.items()},
            cpu_seconds=spent,
            requests=RequestCounts.between(log, since, until),
            delayed=RequestCounts.between(log, until, "~"),
        )


async def _record(shape: Shape, mode: Mode) -> same_writes.Recording:
    """Run one job on a separate server, and return what was written for it."""
    pods = min(shape.pods, same_writes.RECORDED_PODS)
    with platform() as target:
        async with submitter(target) as client:
            await install_prerequisites(client)
            await target.start_components(client, *COMPONENTS, options=mode.options)
            seen = Milestones(client, pods=pods, jobs=1)
            async with seen.watching(), asyncio.timeout(TIMEOUT):
                await submit(client, [job(same_writes.RECORDED_JOB, pods, cpu="1")])
                await seen.done.wait()
            return await same_writes.record(client)


def _row(shape: Shape, result: RunResult) -> str:
    times, spent = result.times, result.cpu_seconds
    cells = [str(shape), *(f"{times[name]:.1f} s" for name in ("created", "bound", "running"))]
    cells.append(f"{shape.total / times['running']:.0f}")
    cells.append(" / ".join(f"{spent[name]:.1f}" if spent[name] else "-" for name in COLUMNS))
    return f"| {' | '.join(cells)} |"


def print_requests(shape: Shape, requests: RequestCounts) -> None:
    """Print the writes of each user, and compare them with the aim."""
    counted = requests.writes_of(*WRITERS, events=False).total()
    aim = 2.05 * shape.total + 6 * shape.jobs
    if shape.jobs:
        extra = (counted - 2 * shape.total) / shape.jobs
        print(f"  * writes until all ran: {counted} (aim {aim:.0f}); ", end="")
        print(f"{counted / shape.total:.2f} a pod; except two a pod {extra:.2f} a job")
    for user in (*COMPONENTS, SUBMITTER):
        listed = [f"{number} {what}" for what, number in requests.writes_of(user).most_common()]
        if listed:
            print(f"  * {user}: {', '.join(listed)}")
    refused = [
        f"{number} {asked.user} {asked.verb} {asked.resource} ({code})"
        for (asked, code), number in requests.refused.most_common()
    ]
    if refused:
        print(f"  * refused: {', '.join(refused)}")


async def shapes(selection: Selection) -> None:
    """Jobs of several shapes, and the bare client, until all pods run."""
    print(f"| shape | created | bound | running | pods/s | CPU s: {' / '.join(COLUMNS)} |")
    print("| --- | ---: | ---: | ---: | ---: | --- |")
    for shape in (Shape(jobs=0, pods=selection.pods), *_shapes_of(selection)):
        result = await measure(shape)
        print(_row(shape, result), flush=True)
        print_requests(shape, result.requests)


async def modes(selection: Selection) -> None:
    """Each mode of each shape right after the bare client, as multiples of its cost."""
    columns = (
        "shape",
        "mode",
        "time until all ran",
        "CPU of all processes",
        "of the API server",
        *(f"CPU ms per pod: {name}" for name in WRITERS),
        "writes per pod until all ran",
        "and then",
    )
    print(f"| {' | '.join(columns)} |\n|{' --- |' * len(columns)}", flush=True)
    notes = []
    for shape in _shapes_of(selection):
        selected = [mode for mode in selection.modes if mode.is_for(shape)]
        for title, results in (await _compare(shape, selected, selection.rounds)).items():
            print(_mode_row(title, results), flush=True)
            notes += _writes_of(f"{shape}, {title}", results[-1].ours)
    print("\nWrites in the last round:\n")
    print(*notes, sep="\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Results of the bare client and of ours right after it."""

    bare: RunResult
    ours: RunResult

    def ratios(self) -> list[float]:
        """Our costs as multiples of those of the bare client."""
        return [one / least for one, least in zip(self.ours.costs, self.bare.costs, strict=True)]


async def _compare(shape: Shape, modes: Sequence[Mode], rounds: int) -> dict[str, list[Comparison]]:
    """Return the results of each round, by title of the mode."""
    results: dict[str, list[Comparison]] = {mode.title: [] for mode in modes}
    for _ in range(rounds):
        least = await measure(Shape(jobs=0, pods=shape.total))
        for mode in modes:
            ours = await measure(shape, mode, settle_seconds=SETTLE_SECONDS)
            results[mode.title].append(Comparison(bare=least, ours=ours))
    return results


def _mode_row(title: str, results: list[Comparison]) -> str:
    rounds = ([*each.ratios(), *each.ours.costs_per_pod] for each in results)
    cells = [str(results[0].ours.shape), title]
    cells += [_spread(each) for each in zip(*rounds, strict=True)]
    return f"| {' | '.join(cells)} |"


def _spread(values: Sequence[float]) -> str:
    if len(values) == 1:
        return f"{values[0]:.2f}"
    return f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def _writes_of(title: str, result: RunResult) -> list[str]:
    """Return lists of what was written until all ran, and then."""
    intervals = {"until all ran": result.requests, "then": result.delayed}
    return [
        f"* {title}, {user} {interval}: "
        + ", ".join(f"{number} {what}" for what, number in writes.most_common())
        for interval, requests in intervals.items()
        for user in WRITERS
        if (writes := requests.writes_of(user, events=False))
    ]


def _shapes_of(selection: Selection) -> Sequence[Shape]:
    return selection.shapes or [_scaled(*each, selection.pods) for each in SHAPES]


def _scaled(jobs: int, size: int, pods: int) -> Shape:
    """Return the shape for *pods* pods instead of 10,000: fewer jobs first, then smaller ones."""
    fewer = max(round(jobs * pods / 10000), 1)
    return Shape(jobs=fewer, pods=max(pods // fewer, 1))


async def start(selection: Selection) -> None:
    """Start of controllers and scheduler in a full cluster."""
    pods = selection.pods
    with platform() as target:
        async with submitter(target) as client:
            await install_prerequisites(client)
            await cluster_fill.fill(target, client, pods=pods)
        print("| component | ready | CPU s | memory | most | writes |")
        print("| --- | ---: | ---: | ---: | ---: | ---: |")
        for name in ("controllers", "scheduler"):
            since = stamp()
            component = target.start(name)
            seconds = await component.wait_ready()
            spent, (now, most) = target.cpu()[name], memory(component.process.pid)
            cells = (f"{seconds:.1f} s", f"{spent:.1f}", f"{now:.0f} MiB", f"{most:.0f} MiB")
            requests = RequestCounts.between(target.audit(), since, stamp())
            writes = requests.writes_of(name).total()
            print(f"| {name}, {pods} pods | {' | '.join(cells)} | {writes} |", flush=True)


async def storm(selection: Selection) -> None:
    """Kill and restart of the API server while all components watch."""
    pods = selection.pods
    with platform() as target:
        async with submitter(target) as client:
            await install_prerequisites(client)
            await cluster_fill.fill(target, client, pods=pods)
            await target.start_components(client, *COMPONENTS)
            since, before, killed = stamp(), target.cpu(), time.perf_counter()
            target.kube.kill_api()
            starting = asyncio.create_task(_time_of(asyncio.to_thread(target.kube.start_api)))
            await _retry_until_ready(
                lambda: client.create(JOBS, job("after", 1), namespace=NAMESPACE)
            )
            taken = time.perf_counter()
            await _retry_until_ready(lambda: cluster_fill.wait_running(client, "after"))
            runs = time.perf_counter()
            ready = await starting
            spent = target.cpu() - before
        await asyncio.to_thread(target.stop_components)  # only a watch that ended is in the log
        print(
            "| pods | a job is taken | and runs | server ready | user | lists | watches | refused |"
        )
        print("| --- | ---: | ---: | ---: | --- | ---: | ---: | ---: |")
        requests = RequestCounts.between(target.audit(), since, "~")
        for user in COMPONENTS:
            cells = [f"{moment - killed:.1f} s" for moment in (taken, runs, ready)]
            cells.append(f"{user} ({spent[user]:.1f} CPU s)")
            print(f"| {pods} | {' | '.join([*cells, *map(str, requests.reads_of(user))])} |")


BENCHES: dict[str, Callable[[Selection], Coroutine[None, None, None]]] = {
    "shapes": shapes,
    "modes": modes,
    "start": start,
    "storm": storm,
}
PODS_OF = {"shapes": 10000, "modes": 5000, "start": 50000, "storm": 50000}


def main() -> None:
    """Run the named benchmarks, or all."""
    parser = argparse.ArgumentParser(prog="python -m bench.realkube")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHES))
    parser.add_argument("--pods", type=int, help="number of pods (default: the full number)")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="rounds of modes")
    parser.add_argument(
        "--shape",
        action="append",
        type=Shape.parse,
        default=[],
        help="JOBSxPODS, instead of the usual shapes of shapes and modes; repeatable",
    )
    parser.add_argument(
        "--mode", action="append", choices=MODES, default=[], help="of modes; repeatable"
    )
    given = parser.parse_args()
    if unknown := set(given.names) - BENCHES.keys():
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    for name in given.names or BENCHES:
        print(f"\n{name}: {(BENCHES[name].__doc__ or '').strip()}\n", flush=True)
        selection = Selection(
            pods=given.pods or PODS_OF[name],
            rounds=given.rounds,
            shapes=given.shape,
            modes=[MODES[mode] for mode in given.mode or MODES],
        )
        uvloop.run(BENCHES[name](selection))


if __name__ == "__main__":
    main()
