"""Jobs of batch/v1, ours and kube-controller-manager's: ``python -m bench.batch [NAME ...]``.

Names: ``shapes`` (both controllers on a real kube-apiserver, alternating), ``reconcile`` (CPU of
one sync of a Job with few pods and with many, in process); none means both. ``--full`` selects the
sizes for an idle machine, ``--shape JOBSxPODS`` others. Rows are in Markdown, for bench/README.md.
"""

import argparse
import asyncio
import gc
import time
import types
from asyncio import AbstractEventLoop, Task
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

import uvloop

from batholith.batch_ctrl.controller import BatchJobController
from batholith.batch_ctrl.core_types import OUR_CONTROLLER, Pod
from batholith.batch_ctrl.settings import ALL_JOBS, BatchJobSettings
from batholith.kube.client.client import Client
from batholith.kube.informer.informer import Informer
from batholith.machinery.result import Result
from batholith.model.base import ApiStruct
from batholith.model.meta import Condition, ObjectMeta
from batholith.model.names import BATCH_JOBS, PODS, SIMULATE_PREFIX
from bench.components import SIMULATED, Platform, RequestCounts  # puts tests/ on sys.path
from bench.load import NAMESPACE, in_parallel, pod_spec
from bench.realkube import TIMEOUT, platform, stamp, submitter

# isort: split

from support.batch_world import BatchWorld
from support.inmemory_api import InMemoryApi, InMemoryClient

OURS, THEIRS = "controllers", "kube-controller-manager"
"""Both controllers: process, and user of the server."""
SYNCS = 64
"""Concurrent syncs of each controller."""
OUR_FLAGS = (
    "--controllers=batch-job-controller",
    "--leader-elect=false",
    "--kube-api-qps=0",
    f"--concurrent-job-syncs={SYNCS}",
)
THEIR_FLAGS = (f"--concurrent-job-syncs={SYNCS}",)
"""In addition to QPS and burst of 5000, and the one controller ``job``."""
RUN_FOR = "1s"
"""Duration of each pod."""
SMALL_SHAPES, FULL_SHAPES = ("10x10", "100x1"), ("100x100", "2000x1")
SETTLE = 2.0
"""Seconds after the last completion until the writes are counted."""

SIZES = (10, 1000, 10000)
"""Pods of the Jobs whose sync is measured; the first is the base of the ratios."""
REPETITIONS = 100
"""Changes of one kind that are measured."""
RECONCILE_ROUNDS = 3
_SCATTERED = "ended, scattered"


# Shapes.


class _Status(ApiStruct, frozen=True):
    conditions: tuple[Condition, ...] = ()


class _Job(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    status: _Status = _Status()


@dataclass(frozen=True, slots=True)
class Shape:
    """A number of Jobs with the same number of pods, all of which run at the same time."""

    jobs: int
    pods: int

    @classmethod
    def parse(cls, text: str) -> "Shape":
        """Parse ``JOBSxPODS``."""
        jobs, _, pods = text.partition("x")
        return cls(int(jobs), int(pods))

    def __str__(self) -> str:
        return f"{self.jobs}x{self.pods}"

    def job(self, number: int, managed_by: str | None) -> dict[str, Any]:
        """Return a Job, whose pods are bound to a node already."""
        template = {
            "metadata": {"annotations": {SIMULATE_PREFIX + "run-for": RUN_FOR}},
            "spec": {**pod_spec(cpu="10m"), "nodeName": f"sim-{number % SIMULATED}"},
        }
        spec = {"parallelism": self.pods, "completions": self.pods, "template": template}
        if managed_by is not None:
            spec["managedBy"] = managed_by
        return {"metadata": {"name": f"b{number}"}, "spec": spec}


class Completions:
    """Waits until a number of Jobs is complete."""

    def __init__(self, client: Client, jobs: int) -> None:
        self._missing = jobs
        self._done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._jobs = Informer(client, BATCH_JOBS, _Job)
        self._jobs.add_event_handler(self._on_job)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watch inside the block."""
        watch = asyncio.create_task(self._jobs.run())
        try:
            await self._jobs.wait_synced()
            yield
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    async def wait(self) -> None:
        """Wait for all of them.

        Raises:
            RuntimeError: a Job failed.
        """
        async with asyncio.timeout(TIMEOUT):
            await self._done

    def _on_job(self, old: _Job | None, new: _Job | None) -> None:
        if new is None or self._done.done():
            return
        if _has(new, "Failed"):
            self._done.set_exception(RuntimeError(f"Job {new.metadata.name} failed"))
        elif _has(new, "Complete") and not (old and _has(old, "Complete")):
            self._missing -= 1
            if not self._missing:
                self._done.set_result(None)


def _has(job: _Job, kind: str) -> bool:
    return any(one.type == kind and one.status == "True" for one in job.status.conditions)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Result of one controller with one shape."""

    seconds: float
    """From the first submission to the last completion."""
    cpu_seconds: Counter[str]
    """CPU seconds of each process until then."""
    requests: RequestCounts


async def _measure(shape: Shape, controller: str) -> RunResult:
    """Run one shape with one controller, on a separate server."""
    unaudited = [{"level": "None", "users": ["admin", "agent"]}]
    with platform(users=(THEIRS,), audit_rules=unaudited) as target:
        async with submitter(target) as client:
            await target.start_components(client, "agent")
            await _start(target, client, controller)
            managed_by = _managed_by(controller)
            completions = Completions(client, shape.jobs)
            async with completions.watching():
                since, before, started = stamp(), target.cpu(), time.perf_counter()

                async def submit(number: int) -> None:
                    body = shape.job(number, managed_by)
                    await client.create(BATCH_JOBS, body, namespace=NAMESPACE)

                await in_parallel(range(shape.jobs), submit)
                await completions.wait()
                seconds = time.perf_counter() - started
                spent = target.cpu() - before
                await asyncio.sleep(SETTLE)
        return RunResult(
            seconds=seconds,
            cpu_seconds=spent,
            requests=RequestCounts.between(target.audit(), since, stamp()),
        )


async def _start(target: Platform, client: Client, controller: str) -> None:
    """Start *controller*, and wait until it completes a Job without pods."""
    if controller == OURS:
        await target.start(OURS, *OUR_FLAGS).wait_ready()
    else:
        target.kube.start_manager(("job",), *THEIR_FLAGS, user=THEIRS)
    empty = Shape(1, 0).job(-1, _managed_by(controller))
    await client.create(BATCH_JOBS, empty, namespace=NAMESPACE)
    async with asyncio.timeout(TIMEOUT):
        while not _has(  # noqa: ASYNC110 - nothing to wait on
            await client.get(BATCH_JOBS, "b-1", namespace=NAMESPACE, view=_Job), "Complete"
        ):
            await asyncio.sleep(0.1)
    await client.delete(BATCH_JOBS, "b-1", namespace=NAMESPACE)


def _managed_by(controller: str) -> str | None:
    return OUR_CONTROLLER if controller == OURS else None


def shapes(given: argparse.Namespace) -> None:
    """Time until all Jobs are complete, CPU and writes; the controllers alternate."""
    selected = given.shape or map(Shape.parse, FULL_SHAPES if given.full else SMALL_SHAPES)
    rounds = given.rounds or 1
    print(f"ours: {' '.join(OUR_FLAGS)}\n")
    print(f"theirs: --kube-api-qps=5000 --kube-api-burst=5000 {' '.join(THEIR_FLAGS)}\n")
    print(
        "| shape | controller | complete | pods/s | CPU s: controller / API server | writes/Job |"
    )
    print("| --- | --- | ---: | ---: | --- | ---: |")
    notes = list[str]()
    try:
        for shape in selected:
            notes += _notes(shape, _alternate(shape, rounds))
    finally:
        print("\n" + "\n".join(notes), flush=True)


def _alternate(shape: Shape, rounds: int) -> dict[str, list[RunResult]]:
    """Run one shape with both controllers; each pair starts with the other one."""
    results: dict[str, list[RunResult]] = {OURS: [], THEIRS: []}
    for number in range(rounds):
        for controller in (OURS, THEIRS) if number % 2 == 0 else (THEIRS, OURS):
            result = uvloop.run(_measure(shape, controller))
            results[controller].append(result)
            print(_row(shape, controller, result), flush=True)
    return results


def _row(shape: Shape, controller: str, result: RunResult) -> str:
    cpu = " / ".join(f"{result.cpu_seconds[name]:.1f}" for name in (controller, "kube-apiserver"))
    cells = (
        str(shape),
        "ours" if controller == OURS else "theirs",
        f"{result.seconds:.1f} s",
        f"{shape.jobs * shape.pods / result.seconds:.0f}",
        cpu,
        f"{_writes(controller, result) / shape.jobs:.2f}",
    )
    return f"| {' | '.join(cells)} |"


def _writes(controller: str, result: RunResult) -> int:
    """Writes of the controller except Events, which both combine and limit differently."""
    counted = result.requests.writes_of(controller)
    return sum(number for what, number in counted.items() if not what.endswith(" events"))


def _notes(shape: Shape, results: dict[str, list[RunResult]]) -> list[str]:
    """Return the ratios ours / theirs, and the writes of each controller."""
    pairs = list(zip(results[OURS], results[THEIRS], strict=True))
    ratios: dict[str, list[float]] = {
        "time": [ours.seconds / theirs.seconds for ours, theirs in pairs],
        "CPU of the controller": [
            ours.cpu_seconds[OURS] / theirs.cpu_seconds[THEIRS] for ours, theirs in pairs
        ],
        "CPU of the API server": [
            ours.cpu_seconds["kube-apiserver"] / theirs.cpu_seconds["kube-apiserver"]
            for ours, theirs in pairs
        ],
        "writes": [_writes(OURS, ours) / _writes(THEIRS, theirs) for ours, theirs in pairs],
    }
    listed = ", ".join(
        f"{name} {median(each):.2f} ({min(each):.2f}-{max(each):.2f})"
        for name, each in ratios.items()
    )
    notes = [f"* {shape}, ours / theirs: {listed}"]
    for controller, runs in results.items():
        requests = runs[-1].requests
        writes = requests.writes_of(controller).most_common()
        text = ", ".join(f"{number / shape.jobs:.2f} {what}" for what, number in writes)
        notes.append(f"  * {controller}, per Job: {text}")
        refused = [
            f"{number} {asked.verb} {asked.resource} ({code})"
            for (asked, code), number in requests.refused.most_common()
            if asked.user == controller
        ]
        if refused:
            notes.append(f"  * {controller}, refused: {', '.join(refused)}")
    return notes


# One reconcile.

_IN_SYNC = ContextVar("in_sync", default=False)
"""Whether the code, or the task that created this one, is part of a sync."""


class Stopwatch:
    """Sums up the CPU time of the coroutines that it runs; nothing else of the loop counts."""

    def __init__(self) -> None:
        self.seconds = 0.0

    @types.coroutine
    def run(self, work: Coroutine[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """Await *work*."""
        resume: Callable[[], Any] = lambda: work.send(None)  # noqa: E731 - replaced below
        while True:
            started = time.thread_time()
            try:
                waiting = resume()
            except StopIteration as end:
                return end.value
            finally:
                self.seconds += time.thread_time() - started
            try:
                yield waiting
            except BaseException as error:
                resume = lambda error=error: work.throw(error)  # type: ignore[misc]  # noqa: E731
            else:
                resume = lambda: work.send(None)  # noqa: E731


class _MeteredClient(InMemoryClient):
    """A client whose server's time is measured."""

    def __init__(self, api: InMemoryApi, name: str) -> None:
        super().__init__(api, name)
        self.served = Stopwatch()

    async def _send(self, *arguments: Any, **options: Any) -> bytes:
        response: bytes = await self.served.run(super()._send(*arguments, **options))
        return response


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """CPU ms of syncs and of event handlers, and number of syncs."""

    sync: float
    handler: float
    syncs: float

    @property
    def total(self) -> float:
        """CPU ms of both."""
        return self.sync + self.handler

    def __sub__(self, earlier: "Cost") -> "Cost":
        """Return the cost since *earlier*."""
        return Cost(
            sync=self.sync - earlier.sync,
            handler=self.handler - earlier.handler,
            syncs=self.syncs - earlier.syncs,
        )


class _MeteredController(BatchJobController):
    """The controller, with the CPU time of its syncs and event handlers."""

    def __init__(self, client: _MeteredClient, **options: Any) -> None:
        self._syncs, self._handler_seconds = 0, 0.0
        self._spent, self._served = Stopwatch(), client.served
        super().__init__(client, **options)

    def total(self) -> Cost:
        """Return the cost so far, without the server's."""
        return Cost(
            sync=1000 * (self._spent.seconds - self._served.seconds),
            handler=1000 * self._handler_seconds,
            syncs=self._syncs,
        )

    def create_task(self, loop: AbstractEventLoop, work: Any, **options: Any) -> Task[Any]:
        """Create a task, which is measured if a sync creates it: the task factory of the loop."""
        return Task(self._measured(work) if _IN_SYNC.get() else work, loop=loop, **options)

    async def _measured(self, work: Coroutine[Any, Any, Any]) -> Any:
        return await self._spent.run(work)

    async def reconcile(self, key: str) -> Result:
        self._syncs += 1
        token = _IN_SYNC.set(True)
        try:
            result: Result = await self._spent.run(super().reconcile(key))
        finally:
            _IN_SYNC.reset(token)
        return result

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        started = time.thread_time()
        super()._on_pod(old, new)
        self._handler_seconds += time.thread_time() - started


class _World(BatchWorld):
    """A server with one Job; all of its pods run. The changes are not audited."""

    def __init__(self, pods: int, *, indexed: bool) -> None:
        super().__init__(BatchJobSettings(managed_by=ALL_JOBS, workers=1))
        self.api.on_change = None
        mode = "Indexed" if indexed else "NonIndexed"
        self.submit(parallelism=pods, completions=pods, completionMode=mode)
        self.advance(2)
        while len(self.names) < pods:
            self.advance(1)
        for name in self.names:
            self.start_pod(name)
        self.advance(4)
        gc.collect()
        gc.freeze()  # as informers do after their first list; this includes the server's objects

    @property
    def names(self) -> list[str]:
        """The pods, in the order of creation."""
        return [key.partition("/")[2] for key in self.api.objects(PODS)]

    def make_controller(self, client: InMemoryClient) -> BatchJobController:
        """A controller whose syncs are measured."""
        self.metered = _MeteredController(
            _MeteredClient(self.api, client.name),
            settings=self.settings,
            clock=self.clock,
            recorder=self.recorder,
        )
        self.loop.set_task_factory(self.metered.create_task)
        return self.metered

    def scatter(self) -> None:
        """End every second of the pods that run, so that no two ended indexes are neighbours."""
        for name in self.names[REPETITIONS + 1 :: 2]:
            self.end_pod(name)
        self.advance(60)

    def cost_of(self, change: str) -> Cost:
        """Return the median cost per *change*; *scattered* pods end after :meth:`scatter`."""
        names, metered = self.names, self.metered
        # The last pod of a Job stays: the end of the Job costs more.
        repetitions = min(REPETITIONS, len(names) - 1) if change == "ended" else REPETITIONS
        measured = [metered.total()]
        for number in range(repetitions):
            if change == "nothing":
                self.run(metered.reconcile("d/j"))
            elif change == "ready":
                self.start_pod(names[-1], ready=number % 2 == 1)
                self.advance(3)
            else:
                at = number if change == "ended" else -2 * number - 2
                self.end_pod(names[at])
                self.advance(3)  # includes the sync after the removal of the finalizer
            measured.append(metered.total())
        costs = [later - earlier for earlier, later in pairwise(measured)]
        return Cost(
            sync=median(one.sync for one in costs),
            handler=median(one.handler for one in costs),
            syncs=median(one.syncs for one in costs),
        )


def reconcile(given: argparse.Namespace) -> None:
    """CPU of a sync of one Job, by its number of pods; the server's share is subtracted."""
    rounds = given.rounds or RECONCILE_ROUNDS
    print("| mode | pods | change | syncs | CPU ms of syncs / of the event handler | ratio |")
    print("| --- | ---: | --- | ---: | --- | --- |")
    for indexed in (False, True):
        costs: dict[tuple[str, int], list[Cost]] = {}
        for _ in range(rounds):
            for pods in SIZES:
                for change, cost in _costs(pods, indexed=indexed).items():
                    costs.setdefault((change, pods), []).append(cost)
        for (change, pods), found in sorted(costs.items()):
            base = costs["ended" if change == _SCATTERED else change, SIZES[0]]
            ratios = [one.total / other.total for one, other in zip(found, base, strict=True)]
            cells = (
                "Indexed" if indexed else "NonIndexed",
                str(pods),
                change,
                f"{median(one.syncs for one in found):.1f}",
                f"{median(one.sync for one in found):.3f} / "
                f"{median(one.handler for one in found):.3f}",
                f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})",
            )
            print(f"| {' | '.join(cells)} |", flush=True)


def _costs(pods: int, *, indexed: bool) -> dict[str, Cost]:
    """Return the cost of each kind of change in a Job of *pods* pods."""
    world = _World(pods, indexed=indexed)
    try:
        found = {change: world.cost_of(change) for change in ("nothing", "ready")}
        found["ended"] = world.cost_of("ended")
        if indexed and pods > 4 * REPETITIONS:
            world.scatter()
            found[_SCATTERED] = world.cost_of(_SCATTERED)
        return found
    finally:
        world.close()
        gc.unfreeze()


BENCHES: dict[str, Callable[[argparse.Namespace], None]] = {
    "shapes": shapes,
    "reconcile": reconcile,
}


def main() -> None:
    """Run the named benchmarks, or both."""
    parser = argparse.ArgumentParser(prog="python -m bench.batch")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHES))
    parser.add_argument("--full", action="store_true", help=f"shapes: {', '.join(FULL_SHAPES)}")
    parser.add_argument(
        "--shape", action="append", type=Shape.parse, help="JOBSxPODS instead; may be repeated"
    )
    parser.add_argument("--rounds", type=int, help="of each shape (1) or of reconcile (3)")
    given = parser.parse_args()
    if unknown := set(given.names) - BENCHES.keys():
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    for name in given.names or BENCHES:
        print(f"\n{name}: {(BENCHES[name].__doc__ or '').strip()}\n", flush=True)
        BENCHES[name](given)


if __name__ == "__main__":
    main()
