"""Commands over REST: ``python -m bench.rest_commands [--rows N] [--pair PYTHON] [--rounds N]``.

An embedded cluster runs, and 64 connections send commands for jobs that wait for CPUs: suspend and
resume, alternately. Printed are the commands accepted (202) a second, the latencies, how soon all
had an outcome, and the CPU time of each component. With ``--rows 1000000`` the history holds as
many before. ``--pair`` alternates with the Batholith of another interpreter, for
a comparison on the same machine. ``--settle`` measures the write of one outcome instead, on SQLite
and, if it is installed, on PostgreSQL. Nothing is asserted.
"""

import argparse
import asyncio
import contextlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import sqlalchemy as sa
import uvloop

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support.postgres import postgres  # shared with the tests

from batholith.kube.client.client import Client
from batholith.kube.client.config import load_credentials
from batholith.local.supervisor.datadir import DataDir
from batholith.local.supervisor.supervisor import UpState, read_state
from batholith.model.names import JOBS
from batholith.store.commands import (
    CommandRecord,
    CommandStore,
    Outcome,
    timestamp,
)
from batholith.store.database import Database
from batholith.store.migrations import MIGRATIONS
from batholith.wire.commands import CommandState
from bench.load import NAMESPACE, in_parallel, job

CONNECTIONS = 64
JOB_COUNT = 256
ACTIONS = ("suspend", "resume")
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
SETTLEMENTS = 500
TOO_LARGE_CPU = "900"
"""CPUs that a job requests, so that its gang waits and has no pods."""


@dataclass(slots=True)
class Result:
    """What one round has measured."""

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    settled_after: float | None = None
    cpu: dict[str, float] = field(default_factory=dict)
    """Milliseconds of CPU time per command, by component."""

    def row(self, name: str) -> str:
        """A row of a Markdown table."""
        accepted = self.statuses[202]
        others = {status: count for status, count in self.statuses.items() if status != 202}
        ordered = sorted(self.latencies) or [0.0]
        p50, p99 = (1000 * ordered[int(len(ordered) * scope)] for scope in (0.5, 0.99))
        settled = "" if self.settled_after is None else f"{self.settled_after:.1f}"
        rate = accepted / self.seconds
        cpu = ", ".join(f"{each} {value:.1f}" for each, value in self.cpu.items())
        cells = (name, f"{rate:.0f}", f"{p50:.0f}", f"{p99:.0f}", settled, cpu, str(others or ""))
        return f"| {' | '.join(cells)} |"


_COLUMNS = {
    "id": "'row-' || i",
    "namespace": f"'{NAMESPACE}'",
    "job": f"'job-' || (i % {JOB_COUNT})",
    "job_uid": f"'uid-' || (i % {JOB_COUNT})",
    "action": "'AbortJob'",
    "who": "'bench'",
    "command": "'command-' || i",
    "command_uid": "'uid-' || i",
    "state": "'Executed'",
    "detail": "'the job entered Aborting'",
    "received_at": f"'{timestamp(NOON)}'",
    "finished_at": f"'{timestamp(NOON)}'",
}
"""A history of executed commands, in SQL."""


async def fill(url: str, number: int) -> None:
    """Migrate the database and insert the history."""
    database = Database(url)
    await database.migrate(MIGRATIONS)
    await database.close()
    engine = sa.create_engine(url)
    numbers = (
        f"WITH RECURSIVE numbers(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM numbers "
        f"WHERE i < {number})"
    )
    columns, values = ", ".join(_COLUMNS), ", ".join(_COLUMNS.values())
    with engine.begin() as db:
        db.execute(
            sa.text(f"{numbers} INSERT INTO commands ({columns}) SELECT {values} FROM numbers")
        )
    engine.dispose()


class Connection:
    """A connection that is kept alive."""

    def __init__(self, port: int, token: str) -> None:
        self._port = port
        self._head = f"host: bench\r\nauthorization: Bearer {token}\r\n"
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        """Return status and body of a response."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        head = f"{method} {path} HTTP/1.1\r\n{self._head}content-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        received = await reader.readuntil(b"\r\n\r\n")
        lowered = received.lower()
        length = int(lowered.partition(b"content-length:")[2].partition(b"\r\n")[0])
        content = await reader.readexactly(length)
        if b"connection: close" in lowered:
            writer.close()
            self._streams = None
        return int(received.split(b" ", 2)[1]), content


async def load(port: int, tokens: Sequence[str], *, seconds: float) -> tuple[Result, list[str]]:
    """Send commands from all connections; return the paths of those accepted."""
    result, paths = Result(), list[str]()
    until = time.perf_counter() + seconds

    async def connection(number: int) -> None:
        sender = Connection(port, tokens[number % len(tokens)])
        own = range(number, JOB_COUNT, CONNECTIONS)
        count = 0
        while time.perf_counter() < until:
            name = f"job-{own[count // 2 % len(own)]:04}"
            action = ACTIONS[count % 2]
            count += 1
            path = f"/v1/namespaces/{NAMESPACE}/jobs/{name}/commands"
            began = time.perf_counter()
            status, body = await sender.send("POST", path, b'{"action": "%s"}' % action.encode())
            result.latencies.append(time.perf_counter() - began)
            result.statuses[status] += 1
            if status == 202:
                paths.append(f"{path}/{json.loads(body)['id']}")

    began = time.perf_counter()
    await asyncio.gather(*(connection(number) for number in range(CONNECTIONS)))
    result.seconds = time.perf_counter() - began
    return result, paths


async def wait_settled(
    port: int, token: str, paths: Sequence[str], *, limit: float
) -> float | None:
    """Return the seconds until all commands have an outcome; ``None`` if that takes too long."""
    sender, began = Connection(port, token), time.perf_counter()
    for path in reversed(paths):
        while True:
            status, body = await sender.send("GET", path)
            if status == 200 and json.loads(body)["state"] not in ("Accepted", "Issued"):
                break
            if time.perf_counter() - began > limit:
                return None
            await asyncio.sleep(0.1)
    return time.perf_counter() - began


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def cpu_seconds(state: UpState) -> dict[str, float]:
    """CPU time of each component so far."""
    found = {}
    for name, component in state.components.items():
        if component.process is None:
            continue
        fields = Path(f"/proc/{component.process.pid}/stat").read_text().rpartition(")")[2].split()
        found[name] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return found


@contextlib.asynccontextmanager
async def cluster(python: str, number: int) -> AsyncIterator[tuple[DataDir, Client]]:
    """An embedded cluster whose history has *number* rows."""
    with tempfile.TemporaryDirectory(prefix="batholith-bench-") as directory:
        data = DataDir(Path(directory))
        run = (python, "-m", "batholith.cli")
        options = ("--detach", "--port", "0", "--api-port", "0", "--simulate", "1")
        where = ("--data-dir", str(data.root))
        up = partial(asyncio.to_thread, partial(_run, [*run, "up", *options, *where]))
        await up()
        if number:  # the data directory exists now
            await asyncio.to_thread(_run, [*run, "down", *where])
            await fill(f"sqlite:///{data.api_db}", number)
            await up()
        try:
            credentials = load_credentials(str(data.kubeconfig))
            async with Client(credentials, user_agent="bench", timeout=120) as client:
                yield data, client
        finally:
            await asyncio.to_thread(_run, [*run, "down", *where])


async def measure(python: str, number: int, *, seconds: float) -> Result:
    """Measure one round on a fresh cluster."""
    async with cluster(python, number) as (data, client):
        state = read_state(data)
        assert state is not None
        # Several callers: each may send 100 requests a second.
        tokens = list(json.loads(data.tokens.read_text()).values())

        async def create(index: int) -> None:
            body = job(f"job-{index:04}", 1, cpu=TOO_LARGE_CPU)
            await client.create(JOBS, body, namespace=NAMESPACE)

        await in_parallel(range(JOB_COUNT), create)
        await asyncio.sleep(5.0)
        await load(state.ports["rest"], tokens, seconds=2.0)
        before = cpu_seconds(state)
        result, paths = await load(state.ports["rest"], tokens, seconds=seconds)
        for name, spent in cpu_seconds(state).items():
            result.cpu[name] = 1000 * (spent - before[name]) / max(1, len(paths))
        result.settled_after = await wait_settled(
            state.ports["rest"], tokens[0], paths, limit=120.0
        )
        return result


async def settle(name: str, url: str, number: int) -> None:
    """Print how long the write of one outcome takes."""
    await fill(url, number)
    database = Database(url)
    await database.migrate(MIGRATIONS)
    store, times, statements = CommandStore(database), list[float](), list[float]()
    began = [0.0]

    def before(*_: object) -> None:
        began[0] = time.perf_counter()

    def after(*_: object) -> None:
        statements.append(time.perf_counter() - began[0])

    for index in range(SETTLEMENTS):
        id_ = f"open-{index}"
        await store.add(
            CommandRecord(
                id=id_,
                namespace=NAMESPACE,
                job="job-1",
                job_uid="uid-1",
                action="AbortJob",
                who="bench",
                command=id_,
                received_at=timestamp(NOON),
            )
        )
    sa.event.listen(sa.Engine, "before_cursor_execute", before)
    sa.event.listen(sa.Engine, "after_cursor_execute", after)
    for index in range(SETTLEMENTS):
        outcome = Outcome(
            id=f"open-{index}", state=CommandState.EXECUTED, detail="x", at=datetime.now(UTC)
        )
        started = time.perf_counter()
        await store.finish(outcome)
        times.append(time.perf_counter() - started)
    sa.event.remove(sa.Engine, "before_cursor_execute", before)
    sa.event.remove(sa.Engine, "after_cursor_execute", after)
    await database.close()
    median, statement = (1000 * statistics.median(each) for each in (times, statements))
    print(f"| {name} | {number} | {statement:.2f} | {median:.2f} |")


async def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, action="append", help="history; may be repeated")
    parser.add_argument("--pair", help="interpreter of the other Batholith")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--settle", action="store_true")
    options = parser.parse_args()
    numbers = options.rows or [0]
    if options.settle:
        print("| database | rows | statement, ms | with commit, ms |\n| --- | ---: | ---: | ---: |")
        for number in numbers:
            with tempfile.TemporaryDirectory() as directory:
                await settle("SQLite", f"sqlite:///{directory}/api.db", number)
            with postgres() as server:
                await settle("PostgreSQL", server.url, number)
        return
    print("| what | 202/s | p50, ms | p99, ms | settled after, s | CPU, ms a command | other |")
    print("| --- | ---: | ---: | ---: | ---: | --- | --- |")
    for number in numbers:
        for _ in range(options.rounds):
            pythons = {"this": sys.executable} | ({"other": options.pair} if options.pair else {})
            for name, python in pythons.items():
                result = await measure(python, number, seconds=options.seconds)
                print(result.row(f"{name}, {number} rows"), flush=True)


if __name__ == "__main__":
    uvloop.run(main())
