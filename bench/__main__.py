"""Measure the embedded cluster as a whole: ``python -m bench [NAME ...]``.

Results are printed as rows of Markdown tables; bench/README.md contains the latest. Nothing is
asserted: machines differ, so compare the ratios and counts.
"""

import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import uvloop

from batholith.kube.client.client import Client
from batholith.kube.client.codec import ListScope
from batholith.kube.client.config import load_credentials
from batholith.kube.client.watch_decoder import Bookmark, WatchDecoder
from batholith.kube.informer.informer import Informer
from batholith.local.supervisor.datadir import DataDir
from batholith.local.supervisor.supervisor import UpState, read_state
from batholith.model.base import ApiStruct
from batholith.model.job import Job
from batholith.model.meta import ObjectMeta
from batholith.model.names import EVENTS, JOBS, PODGROUPS, PODS, QUEUES, Resource
from bench.load import job, submit

COMPONENTS = ("apiserver", "controllers", "scheduler", "agent", "api")


class _Status(ApiStruct, frozen=True):
    phase: str = ""


class _Pod(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    status: _Status = _Status()


class _Any(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


@contextlib.asynccontextmanager
async def cluster(*options: str) -> AsyncIterator[tuple[DataDir, Client]]:
    """Start an embedded cluster; yield it with a client of its administrator."""
    with tempfile.TemporaryDirectory(prefix="batholith-bench-") as directory:
        data = DataDir(Path(directory))
        batholith("up", "--detach", "--port", "0", "--api-port", "0", *options, data=data)
        try:
            credentials = load_credentials(str(data.kubeconfig))
            async with Client(credentials, user_agent="bench", timeout=120) as client:
                yield data, client
        finally:
            batholith("down", data=data)


def batholith(*arguments: str, data: DataDir) -> None:
    """Run the command line as users run it."""
    command = [sys.executable, "-m", "batholith.cli", *arguments, "--data-dir", str(data.root)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


class Milestones:
    """Times at which all pods were created, bound and running, as observed by a watch."""

    def __init__(self, client: Client, expected: int) -> None:
        self._expected = expected
        self._counts: Counter[str] = Counter()
        self.times: dict[str, float] = {}
        self.done = asyncio.Event()
        self.informer = Informer(client, PODS, _Pod)
        self.informer.add_event_handler(self._on_pod)

    def _on_pod(self, old: _Pod | None, new: _Pod | None) -> None:
        if new is None:
            return
        if old is None:
            self._count("created")
        if new.status.phase == "Running" and (old is None or old.status.phase != "Running"):
            self._count("running")

    def _count(self, what: str) -> None:
        self._counts[what] += 1
        if self._counts[what] == self._expected:
            self.times[what] = time.perf_counter()
            if what == "running":
                self.done.set()


async def current_version(client: Client) -> int:
    """Return the resourceVersion of the newest change."""
    return int((await client.list(QUEUES, view=_Any, limit=1)).resource_version)


async def count_writes(client: Client, *, after: int, until: int) -> dict[str, int]:
    """Count the changes of each kind after and until a version, from the server's history."""
    kinds = (JOBS, PODGROUPS, QUEUES, EVENTS, PODS)
    counts = await asyncio.gather(
        *(_count_changes(client, kind, after=after, until=until) for kind in kinds)
    )
    return {kind.kind: count for kind, count in zip(kinds, counts, strict=True)}


async def _count_changes(client: Client, kind: Resource, *, after: int, until: int) -> int:
    path = ListScope(resource=kind).path(watch=True, resourceVersion=after, timeoutSeconds=1)
    decoder = WatchDecoder(_Any)
    count = 0
    async with client.watch_lines(path) as batches:
        async for lines in batches:
            for line in lines:
                event = decoder.decode(line)
                if isinstance(event, Bookmark):
                    continue
                count += int(event.object.metadata.resource_version) <= until
    return count


def cpu_seconds(data: DataDir) -> dict[str, float]:
    """Return the CPU time of each component so far."""
    state: UpState | None = read_state(data)
    ticks = os.sysconf("SC_CLK_TCK")
    spent = {}
    for name, component in (state.components if state else {}).items():
        if component.process is not None:
            stat = (
                Path(f"/proc/{component.process.pid}/stat").read_text().rpartition(")")[2].split()
            )
            spent[name] = (int(stat[11]) + int(stat[12])) / ticks
    return spent


async def shape(jobs: int, pods: int) -> str:
    """Measure *jobs* gangs of *pods* simulated pods each, until all run."""
    async with cluster("--simulate", "100") as (data, client), asyncio.TaskGroup() as tasks:
        seen = Milestones(client, jobs * pods)
        running = tasks.create_task(seen.informer.run())
        await seen.informer.wait_synced()
        version = await current_version(client)
        before, start = cpu_seconds(data), time.perf_counter()
        await submit(client, [job(f"b{number}", pods) for number in range(jobs)])
        async with asyncio.timeout(600):
            await seen.done.wait()
        spent = {name: after - before[name] for name, after in cpu_seconds(data).items()}
        # Only now: watches of all kinds would use CPU that is measured.
        until = await current_version(client)
        writes = await count_writes(client, after=version, until=until)
        running.cancel()
    total, seconds = jobs * pods, seen.times["running"] - start
    counts = {kind: f"{count / total:.2f}" for kind, count in writes.items() if count}
    return (
        f"| {jobs}x{pods} | {seen.times['created'] - start:.2f} s | {seconds:.2f} s "
        f"| {jobs / seconds:.0f} | {total / seconds:.0f} "
        f"| {' / '.join(f'{spent[name]:.1f}' for name in COMPONENTS)} "
        f"| {', '.join(f'{kind} {count}' for kind, count in sorted(counts.items()))} |"
    )


async def throughput() -> None:
    """Jobs and pods per second through the whole cluster, and their cost."""
    print(
        "| shape | created | running | jobs/s | pods/s | CPU s: "
        + " / ".join(COMPONENTS)
        + " | writes a pod |"
    )
    print("| --- | ---: | ---: | ---: | ---: | --- | --- |")
    for jobs, pods in ((1000, 1), (10, 100)):
        print(await shape(jobs, pods), flush=True)


async def start(times: int = 5) -> None:
    """Seconds from ``up --detach`` until it returns, including the interpreter's start."""
    taken = []
    for _ in range(times):
        began = time.perf_counter()
        async with cluster():
            taken.append(time.perf_counter() - began)
    row("up until ready", taken)


async def latency(times: int = 10) -> None:
    """Seconds from the creation of a job of one real pod until its status is Running."""
    async with cluster() as (_, client), asyncio.TaskGroup() as tasks:
        phases: dict[str, asyncio.Event] = {}

        def on_job(_: Job | None, new: Job | None) -> None:
            if new is not None and new.status.state.phase == "Running":
                phases.setdefault(new.metadata.name, asyncio.Event()).set()

        cache = Informer(client, JOBS, Job)
        cache.add_event_handler(on_job)
        running = tasks.create_task(cache.run())
        await cache.wait_synced()
        taken = []
        for number in range(times):
            name = f"one{number}"
            event = phases.setdefault(name, asyncio.Event())
            began = time.perf_counter()
            await client.create(JOBS, job(name, 1), namespace="default")
            async with asyncio.timeout(60):
                await event.wait()
            taken.append(time.perf_counter() - began)
        running.cancel()
    row("apply until Running, one real pod", taken)


def row(what: str, taken: Sequence[float]) -> None:
    """Print the spread of *taken*, in seconds."""
    low, middle, high = min(taken), statistics.median(taken), max(taken)
    print(f"| {what} | {low:.2f} | {middle:.2f} | {high:.2f} |", flush=True)


BENCHES: dict[str, Callable[[], Awaitable[None]]] = {
    "start": start,
    "latency": latency,
    "throughput": throughput,
}


def main() -> None:
    """Run the named benchmarks, or all."""
    for name in sys.argv[1:] or BENCHES:
        print(f"\n{name}: {(BENCHES[name].__doc__ or '').strip()}", flush=True)
        uvloop.run(BENCHES[name]())  # type: ignore[arg-type]  # each is a coroutine function


if __name__ == "__main__":
    main()
