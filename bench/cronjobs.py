"""CronJobs of Volcano: ``python -m bench.cronjobs [NAME ...]``.

Names: ``minute`` (many CronJobs of one minute on the embedded cluster), ``reconcile`` (CPU of one
reconcile, in process); none means both. Rows are in Markdown, for bench/README.md.
"""

import argparse
import asyncio
import gc
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from statistics import median
from typing import Any

from batholith.kube.informer.informer import Informer
from batholith.model.base import ApiStruct
from batholith.model.meta import ObjectMeta
from batholith.model.names import CRONJOBS, JOBS
from bench import components  # puts tests/ on sys.path
from bench.__main__ import COMPONENTS, cluster, cpu_seconds
from bench.load import NAMESPACE, in_parallel, job

# isort: split

from support.cronjob_stateful import VolcanoCronJobWorld

TIMEOUT = 600
LEAD = timedelta(seconds=60)
"""From the first creation to the scheduled time, at least."""
ROUNDS = 200
"""Reconciles that are measured."""

del components


class _Job(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


class _Status(ApiStruct, frozen=True):
    last_schedule_time: str | None = None


class _CronJob(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    status: _Status = _Status()


class _Counter:
    """The time at which a number of objects has been counted."""

    def __init__(self, expected: int) -> None:
        self.missing = expected
        self.at = 0.0
        self.done = asyncio.Event()

    def count(self) -> None:
        self.missing -= 1
        if not self.missing:
            self.at = time.time()
            self.done.set()


async def _bare(number: int) -> float:
    """Return the seconds in which a bare loop creates the same Jobs, on a new cluster."""
    async with cluster("--simulate", "100") as (_, client):

        async def create(index: int) -> None:
            await client.create(JOBS, job(f"b{index}", 1), namespace=NAMESPACE)

        started = time.perf_counter()
        await in_parallel(range(number), create)
        return time.perf_counter() - started


async def _minute(number: int) -> None:
    bare = await _bare(number)
    async with cluster("--simulate", "100") as (data, client), asyncio.TaskGroup() as tasks:
        created, written = _Counter(number), _Counter(number)
        jobs, cronjobs = Informer(client, JOBS, _Job), Informer(client, CRONJOBS, _CronJob)

        def on_job(old: _Job | None, new: _Job | None) -> None:
            if old is None:
                created.count()

        def on_cronjob(old: _CronJob | None, new: _CronJob | None) -> None:
            if old and new and new.status.last_schedule_time and not old.status.last_schedule_time:
                written.count()

        jobs.add_event_handler(on_job)
        cronjobs.add_event_handler(on_cronjob)
        running = [tasks.create_task(each.run()) for each in (jobs, cronjobs)]
        due = (datetime.now(UTC) + LEAD).replace(second=0, microsecond=0) + timedelta(minutes=1)
        spec = {
            "schedule": f"{due.minute} * * * *",
            "timeZone": "UTC",
            "jobTemplate": {"spec": job("any", 1)["spec"]},
        }

        async def create(index: int) -> None:
            body = {"metadata": {"name": f"c{index}"}, "spec": spec}
            await client.create(CRONJOBS, body, namespace=NAMESPACE)

        await in_parallel(range(number), create)
        if datetime.now(UTC) >= due:
            raise RuntimeError("the CronJobs were created too late")
        before = cpu_seconds(data)
        async with asyncio.timeout(TIMEOUT):
            await created.done.wait()
            spent = {name: after - before[name] for name, after in cpu_seconds(data).items()}
            await written.done.wait()
        for task in running:
            task.cancel()
    print(
        f"| {number} | {created.at - due.timestamp():.1f} s | {written.at - due.timestamp():.1f} s "
        f"| {bare:.1f} s | {(created.at - due.timestamp()) / bare:.2f} "
        f"| {' / '.join(f'{spent[name]:.1f}' for name in COMPONENTS)} |",
        flush=True,
    )


def minute(given: argparse.Namespace) -> None:
    """Seconds from the scheduled time to the last Job, and to the last status."""
    print(
        "| CronJobs | all Jobs created | all in the status | the Jobs by a bare loop | ratio "
        f"| CPU s: {' / '.join(COMPONENTS)} |"
    )
    print("| ---: | ---: | ---: | ---: | ---: | --- |")
    asyncio.run(_minute(given.number))


class _World(VolcanoCronJobWorld):
    """CronJobs in process, whose reconciles are measured."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.names = [f"c{index}" for index in range(number)]
        for name in self.names:
            self.put_cronjob(name, schedule="* * * * *", successfulJobsHistoryLimit=3)
        self.run(self.start())
        for _ in range(4):
            self.next_minute()
            for each in [*self.api.objects(JOBS).values()]:
                if not self.is_finished(each):
                    self.finish(each)
            self.run(self.run_until_idle())

    def next_minute(self) -> None:
        """Let the next minute begin, and all of its Jobs be created."""
        self.run(self.pass_time(60 - self.clock.now().timestamp() % 60 + 0.2))

    def reconcile(self, name: str) -> float:
        """Return the CPU seconds of one reconcile with nothing to do."""
        assert self.controller is not None
        started = time.process_time()
        self.run(self.controller.reconcile(f"d/{name}"))
        return time.process_time() - started


def reconcile(given: argparse.Namespace) -> None:
    """CPU of one reconcile; that of a start includes the server in the process."""
    world = _World(ROUNDS)
    try:
        gc.disable()
        idle = median(world.reconcile(name) for name in world.names)
        started = time.process_time()
        world.next_minute()
        start = (time.process_time() - started) / len(world.names)
    finally:
        gc.enable()
        world.close()
    print("| reconcile | CPU ms |")
    print("| --- | ---: |")
    print(f"| nothing to do, three finished Jobs | {1000 * idle:.3f} |")
    print(f"| one Job created, one status written, with the server's CPU | {1000 * start:.3f} |")


BENCHES: dict[str, Callable[[argparse.Namespace], Any]] = {
    "minute": minute,
    "reconcile": reconcile,
}


def main() -> None:
    """Run the named benchmarks, or both."""
    parser = argparse.ArgumentParser(prog="python -m bench.cronjobs")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHES))
    parser.add_argument("--number", type=int, default=5000, help="CronJobs of the minute")
    given = parser.parse_args()
    if unknown := set(given.names) - BENCHES.keys():
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    for name in given.names or BENCHES:
        print(f"\n{name}: {(BENCHES[name].__doc__ or '').strip()}\n", flush=True)
        BENCHES[name](given)


if __name__ == "__main__":
    main()
