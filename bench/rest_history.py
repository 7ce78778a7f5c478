"""The history at full size: ``python -m bench.rest_history [--jobs 1000000] [--postgres URL]``.

Fills a database with deleted jobs of half a year (three phases and two resources each), as many
commands, and the usage by hour and day; then measures queries: median and maximum of 20, each
through the store's classes, in milliseconds. Without ``--postgres`` it is SQLite in a temporary
directory. Last it measures the processor time of the recorder per job (five states of the job, four
pods with four states each), without the network.
"""

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import sqlalchemy as sa

from batholith.api.history.metrics import RecorderMetrics
from batholith.api.history.recorder import recorded_resources
from batholith.api.history.stream import RecordedStream
from batholith.kube.client.client import Client
from batholith.kube.client.codec import ListScope, ObjectList
from batholith.machinery.clock import SystemClock
from batholith.store import history_tables as tables
from batholith.store.commands import COMMANDS, CommandStore, timestamp
from batholith.store.database import Database
from batholith.store.history import HistoryStore, JobFilter
from batholith.store.migrations import MIGRATIONS
from batholith.store.recording import Recording
from batholith.store.records import SECOND, to_micros
from batholith.store.retention import Retention, RetentionSettings
from batholith.store.usage import UsageQuery, UsageStore

NOW = datetime(2026, 7, 1, tzinfo=UTC)
PERIOD = timedelta(days=180)
QUEUES, USERS, NAMESPACES = 20, 200, 50
CHUNK = 10_000
REPEATS = 20
RECORDED_JOBS = 1000
SPEC = json.dumps({"queue": "q", "tasks": [{"name": "t", "command": "x" * 900}]})

Row = dict[str, Any]


def _uid(number: int) -> str:
    return f"00000000-0000-4000-8000-{number:012}"


def _job_rows(numbers: range, total: int) -> tuple[list[Row], ...]:
    jobs: list[Row] = []
    phases: list[Row] = []
    usage: list[Row] = []
    commands: list[Row] = []
    for number in numbers:
        uid = _uid(number)
        created = NOW - PERIOD * (1 - number / total)
        ended = to_micros(created) + 600 * SECOND
        jobs.append(
            {
                "uid": uid,
                "kind": "jobs",
                "namespace": f"ns-{number % NAMESPACES}",
                "name": f"job-{number}",
                "queue": f"queue-{number % QUEUES}",
                "username": f"user-{number % USERS}",
                "phase": "Completed" if number % 100 else "Failed",
                "reason": "",
                "message": "",
                "spec": SPEC,
                "spec_bytes": len(SPEC),
                "labels": '{"app":"bench"}',
                "tasks": '[{"name":"t","replicas":4,"phases":{"Succeeded":4}}]',
                "resource_version": str(number),
                "created_at": to_micros(created),
                "started_at": to_micros(created),
                "finished_at": ended,
                "deleted_at": ended,
                "ended_at": ended,
                "incomplete": "",
            }
        )
        for index, phase in enumerate(("Pending", "Running", "Completed")):
            entry = {"number": index, "phase": phase, "entered_at": ended, "message": ""}
            phases.append({"job_uid": uid, "reason": "", **entry})
        usage += [{"job_uid": uid, "resource": name, "amount": 600.0} for name in ("cpu", "memory")]
        commands.append(
            {
                "id": uid,
                "namespace": f"ns-{number % NAMESPACES}",
                "job": f"job-{number}",
                "job_uid": uid,
                "action": "AbortJob",
                "who": "ada",
                "command": f"command-{number}",
                "command_uid": uid,
                "state": "Executed",
                "detail": "the job entered Aborting",
                "received_at": timestamp(created),
                "finished_at": timestamp(created),
            }
        )
    exits = [{"job_uid": each["uid"], "exit_code": 0, "pods": 4} for each in jobs]
    return jobs, phases, usage, exits, commands


def _usage_rows() -> Iterator[list[Row]]:
    """Usage of each user by hour and by day; a user has one queue and one namespace."""
    for step in (3600, 86400):
        last = to_micros(NOW) // SECOND // step * step
        for bucket in range(last - int(PERIOD.total_seconds()) // step * step, last, step):
            yield [
                {
                    "step": step,
                    "bucket": bucket,
                    "queue": f"queue-{user % QUEUES}",
                    "username": f"user-{user}",
                    "namespace": f"ns-{user % NAMESPACES}",
                    "resource": resource,
                    "amount": 3600.0,
                    "inexact": 0,
                }
                for user in range(USERS)
                for resource in ("cpu", "memory")
            ]


def fill(url: str, total: int) -> None:
    """Insert the rows."""
    engine = sa.create_engine(url)
    for start in range(0, total, CHUNK):
        rows = _job_rows(range(start, min(start + CHUNK, total)), total)
        targets = (tables.JOBS, tables.PHASES, tables.JOB_USAGE, tables.JOB_EXITS, COMMANDS)
        with engine.begin() as db:
            for table, some in zip(targets, rows, strict=True):
                db.execute(sa.insert(table), some)
    pending: list[Row] = []
    for some in _usage_rows():
        pending += some
        if len(pending) >= CHUNK:
            with engine.begin() as db:
                db.execute(sa.insert(tables.USAGE), pending)
            pending = []
    with engine.begin() as db:
        if pending:
            db.execute(sa.insert(tables.USAGE), pending)
        db.execute(sa.text("ANALYZE"))
    engine.dispose()


async def _measure(name: str, query: Callable[[], Awaitable[object]]) -> None:
    times = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        await query()
        times.append((time.perf_counter() - begun) * 1000)
    print(f"| {name} | {statistics.median(times):.1f} | {max(times):.1f} |")


async def queries(database: Database, total: int) -> None:
    """Measure the queries."""
    history, usage = HistoryStore(database), UsageStore(database)
    first = JobFilter()
    _, middle = await history.jobs(JobFilter(ended_to=NOW - PERIOD / 2), limit=100, now=NOW)
    assert middle is not None
    month = NOW - timedelta(days=30)

    def page(which: JobFilter) -> Callable[[], Awaitable[object]]:
        return lambda: history.jobs(which, limit=100, now=NOW)

    def series(**fields: Any) -> Callable[[], Awaitable[object]]:
        query = UsageQuery(**{"by": "queue", "start": month, "end": NOW, "step": 86400, **fields})
        return lambda: usage.series(query, now=NOW)

    print("| query | median ms | max ms |\n| --- | --- | --- |")
    await _measure("page of 100 jobs: the latest", page(first))
    await _measure(
        "the same from the middle", lambda: history.jobs(first, limit=100, now=NOW, after=middle)
    )
    await _measure("of a namespace", page(JobFilter(namespace="ns-7")))
    await _measure("of a queue", page(JobFilter(queue="queue-7")))
    await _measure("of a user", page(JobFilter(user="user-7")))
    await _measure("failed (1 of 100)", page(JobFilter(phases=("Failed",))))
    await _measure("failed, of a namespace", page(JobFilter(namespace="ns-0", phases=("Failed",))))
    await _measure(
        "none: a namespace and a phase", page(JobFilter(namespace="ns-7", phases=("Failed",)))
    )
    await _measure("by name", page(JobFilter(namespace="ns-7", name="job-7")))
    await _measure("one job with its commands", lambda: history.details(_uid(total // 2), now=NOW))
    await _measure("timeline by name", lambda: history.timeline("ns-7", "jobs", "job-7"))
    await _measure("usage by queue, 30 days by day", series())
    await _measure("usage by user, 90 days by day", series(by="user", start=NOW - PERIOD / 2))
    await _measure("usage of a queue, 30 days by hour", series(step=3600, queue="queue-7"))
    retention = Retention(database, RetentionSettings(max_rows=total, max_age=PERIOD))
    await _measure(
        "retention: one batch of 500", lambda: retention.delete_batch(NOW + timedelta(2))
    )
    commands = CommandStore(database)
    await _measure("a command by its id", lambda: commands.get(_uid(total - 1)))


class _NoObjects:
    """A client whose lists are empty."""

    async def list_pages(self, scope: ListScope, *, size: int = 500) -> Any:
        yield ObjectList((), "1")


def _line(kind: str, number: int, obj: Row) -> bytes:
    obj["metadata"]["resourceVersion"] = str(number)
    return json.dumps({"type": kind, "object": obj}).encode()


def _lives(jobs: int) -> tuple[list[bytes], list[bytes]]:
    """Changes of jobs and of their pods."""
    number, of_jobs, of_pods = 1, [], []
    at = "2026-06-01T00:00:00Z"
    for index in range(jobs):
        uid = f"recorded-{index}"
        meta = {"name": uid, "namespace": "n", "uid": uid, "creationTimestamp": at}
        owner = {"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "name": uid, "uid": uid}
        for phase in ("", "Pending", "Running", "Completing", "Completed"):
            number += 1
            state = {"phase": phase, "lastTransitionTime": at} if phase else {}
            job = {"metadata": dict(meta), "spec": json.loads(SPEC), "status": {"state": state}}
            of_jobs.append(_line("MODIFIED" if phase else "ADDED", number, job))
        for pod in range(4):
            name = f"{uid}-{pod}"
            pod_meta: Row = {"name": name, "namespace": "n", "uid": name}
            pod_meta["ownerReferences"] = [{**owner, "controller": True}]
            spec = {"containers": [{"resources": {"requests": {"cpu": "1", "memory": "1Gi"}}}]}
            ended = {"state": {"terminated": {"finishedAt": "2026-06-01T00:10:00Z"}}}
            for phase in ("Pending", "Running", "Succeeded", "Succeeded"):
                number += 1
                status: Row = {"phase": phase}
                if phase != "Pending":
                    status["startTime"] = at
                if phase == "Succeeded":
                    status["containerStatuses"] = [ended]
                obj = {"metadata": dict(pod_meta), "spec": spec, "status": status}
                of_pods.append(_line("MODIFIED", number, obj))
    return of_jobs, of_pods


async def recorder(database: Database) -> None:
    """Measure the recorder."""
    recording = Recording(database)
    await recording.begin()
    of_jobs, of_pods = _lives(RECORDED_JOBS)
    lines = {"jobs": of_jobs, "": of_pods}
    streams = []
    for each in recorded_resources():
        if each.kind in lines:
            client = cast(Client, _NoObjects())
            stream = RecordedStream(
                client, each, recording, clock=SystemClock(), metrics=RecorderMetrics()
            )
            await stream.resume()
            streams.append((stream, lines[each.kind]))
    begun, wall = time.process_time(), time.perf_counter()
    for stream, some in streams:
        for start in range(0, len(some), 200):
            await stream.write(some[start : start + 200])
    used, wall = time.process_time() - begun, time.perf_counter() - wall
    print(
        f"recorder: {used / RECORDED_JOBS * 1000:.2f} ms of processor time per job with four pods,"
        f" {RECORDED_JOBS / wall:.0f} jobs/s"
    )


async def main() -> None:
    """Fill a database and measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--jobs", type=int, default=1_000_000)
    parser.add_argument("--postgres", default="")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "history.db"
        url = options.postgres or f"sqlite:///{path}"
        database = Database(url)
        await database.migrate(MIGRATIONS)
        begun = time.perf_counter()
        await asyncio.to_thread(fill, url, options.jobs)
        print(f"{options.jobs} jobs and commands in {time.perf_counter() - begun:.0f} s")
        if path.exists():
            print(f"{path.stat().st_size / 1e9:.2f} GB")
        await queries(database, options.jobs)
        await recorder(database)
        await database.close()


if __name__ == "__main__":
    asyncio.run(main())
