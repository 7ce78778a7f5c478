"""Server-sent events: ``python -m bench.rest_streams [--streams N] [--rate N] [--seconds N]``.

An embedded API server holds jobs, the REST API streams them to N clients in another process, and
this program changes the status of jobs at a constant rate, each change with its time. Printed are
the lag of each event at each client (from the time before the write is sent), the bytes, and the
CPU time of each process. All are on this machine. Nothing is asserted.
"""

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path

import uvloop

from batholith.kube.client.client import Client
from batholith.kube.client.config import load_credentials
from batholith.local.supervisor.datadir import DataDir
from batholith.local.supervisor.supervisor import READY_FD
from batholith.model.names import JOBS, QUEUES
from bench.load import NAMESPACE, in_parallel, job

JOB_COUNT = 500
BUCKETS_PER_SECOND = 1000
MARK = b'"message":"'
"""The message of a job's status holds the time of its change."""


@dataclass(slots=True)
class Seen:
    """What the clients have received."""

    events: int = 0
    size: int = 0
    lags: list[int] = field(default_factory=lambda: [0] * (60 * BUCKETS_PER_SECOND))
    """Number of events by lag in milliseconds."""

    ended: int = 0

    def quantile(self, share: float) -> float:
        """Return a quantile of the lags in seconds."""
        wanted, total = share * sum(self.lags), 0
        for bucket, number in enumerate(self.lags):
            total += number
            if total >= wanted:
                return bucket / BUCKETS_PER_SECOND
        return float("inf")


class StreamClient(asyncio.Protocol):
    """One client: finds the times in what it receives, and parses nothing else."""

    def __init__(self, request: bytes, seen: Seen, synced: "asyncio.Semaphore") -> None:
        self._request = request
        self._seen = seen
        self._synced = synced
        self._is_synced = False
        self._rest = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        transport.write(self._request)  # type: ignore[attr-defined]  # of uvloop

    def data_received(self, data: bytes) -> None:
        """Count the events."""
        now = time.monotonic()
        seen = self._seen
        seen.size += len(data)
        data = self._rest + data
        if not self._is_synced:
            if b"event: synced" in data:
                self._is_synced = True
                self._synced.release()
            self._rest = data[-40:]
            return
        at = 0
        while (found := data.find(MARK, at)) >= 0:
            end = data.find(b'"', found + len(MARK))
            if end < 0:
                break
            text = data[found + len(MARK) : end]
            if text:
                lag = int((now - float(text)) * BUCKETS_PER_SECOND)
                seen.lags[min(max(lag, 0), len(seen.lags) - 1)] += 1
                seen.events += 1
            at = end
        self._rest = data[max(at, len(data) - 60) :] if at < len(data) else b""

    def connection_lost(self, exc: Exception | None) -> None:
        """Count the end of a stream."""
        self._seen.ended += 1


def run_clients(pipe: Connection, port: int, token: str, streams: int) -> None:
    """Read *streams* streams until a message arrives; send what was seen."""
    uvloop.run(_read(pipe, port, token, streams))


async def _read(pipe: Connection, port: int, token: str, streams: int) -> None:
    request = (
        f"GET /v1/watch/namespaces/{NAMESPACE}/jobs HTTP/1.1\r\nhost: bench\r\n"
        f"authorization: Bearer {token}\r\n\r\n"
    ).encode()
    seen, synced = Seen(), asyncio.Semaphore(0)
    loop = asyncio.get_running_loop()

    async def connect(_: int) -> None:
        await loop.create_connection(lambda: StreamClient(request, seen, synced), "127.0.0.1", port)

    await in_parallel(range(streams), connect, workers=16)
    for _ in range(streams):
        await synced.acquire()
    seen.size = 0
    pipe.send("synced")
    await asyncio.to_thread(pipe.recv)
    times = os.times()
    pipe.send((seen, times.user + times.system))


@contextlib.asynccontextmanager
async def platform(streams: int) -> AsyncIterator[tuple[Client, int, str, dict[str, int]]]:
    """Start an API server and a REST API; yield a client, port and token, and their processes."""
    with tempfile.TemporaryDirectory(prefix="batholith-bench-") as directory, ExitStack() as stack:
        data = DataDir(Path(directory))
        server, _ = stack.enter_context(component("apiserver", "--data-dir", directory))
        credentials = load_credentials(str(data.kubeconfig))
        async with Client(credentials, user_agent="bench") as client:
            for name, spec in (("root", {}), ("default", {"parent": "root", "weight": 1})):
                await client.create(QUEUES, {"metadata": {"name": name}, "spec": spec})
            api, port = stack.enter_context(
                component(
                    *("api", "--kubeconfig", str(data.kubeconfig), "--caller-rate", "0"),
                    *("--max-streams", str(streams), "--max-streams-per-caller", str(streams)),
                    *("--http-limits", f"connections={2 * streams}"),
                    *("--store", f"sqlite:///{directory}/bench.db"),
                )
            )
            token = json.loads(data.tokens.read_text())["admin"]
            yield client, port, token, {"apiserver": server, "api": api, "bench": os.getpid()}


@contextlib.contextmanager
def component(*arguments: str) -> Iterator[tuple[int, int]]:
    """Run a component; yield its process id and its port once it is ready."""
    ready, notify = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        descriptor = listener.fileno()
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "batholith.cli", *arguments),
                *("--listen-fd", str(descriptor)),
            ],
            pass_fds=[descriptor, notify],
            env={**os.environ, READY_FD: str(notify)},
            stderr=subprocess.DEVNULL,
        )
    os.close(notify)
    try:
        os.read(ready, 1)
        yield process.pid, port
    finally:
        os.close(ready)
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def change(client: Client, rate: float, seconds: float) -> int:
    """Change jobs at a constant rate; return the number of changes."""
    began, sent = time.monotonic(), 0

    async def patch(number: int) -> None:
        now = time.monotonic()
        state = {"phase": "Pending", "message": f"{now:.6f}"}
        await client.patch(
            JOBS,
            f"b{number % JOB_COUNT}",
            {"status": {"state": state}},
            namespace=NAMESPACE,
            subresource="status",
        )

    async with asyncio.TaskGroup() as tasks:
        while (now := time.monotonic() - began) < seconds:
            while sent < now * rate:
                tasks.create_task(patch(sent))
                sent += 1
            await asyncio.sleep(0.01)
    return sent


async def measure(streams: int, rate: float, seconds: float) -> None:
    """Print one row."""
    async with platform(streams) as (client, port, token, pids):
        await in_parallel(
            [job(f"b{number}", 1, cpu="900") for number in range(JOB_COUNT)],
            lambda body: client.create(JOBS, body, namespace=NAMESPACE),
        )
        ours, theirs = multiprocessing.Pipe()
        clients = multiprocessing.get_context("spawn").Process(
            target=run_clients, args=(theirs, port, token, streams)
        )
        clients.start()
        assert clients.pid is not None
        pids |= {"clients": clients.pid}
        began = time.perf_counter()
        await asyncio.to_thread(ours.recv)
        listed = time.perf_counter() - began
        before = {name: cpu_seconds(pid) for name, pid in pids.items()}
        began = time.perf_counter()
        changes = await change(client, rate, seconds)
        taken = time.perf_counter() - began
        await asyncio.sleep(1)
        spent = {name: cpu_seconds(pid) - before[name] for name, pid in pids.items()}
        ours.send("stop")
        seen, _ = await asyncio.to_thread(ours.recv)
        clients.join()
    quantiles = " / ".join(f"{1000 * seen.quantile(share):.0f}" for share in (0.5, 0.99, 1.0))
    cpu = ", ".join(f"{name} {value / taken:.2f}" for name, value in spent.items())
    print(
        f"| {streams} | {changes / taken:.0f} | {seen.events / taken:.0f} "
        f"| {seen.events / changes / streams:.3f} | {quantiles} "
        f"| {seen.size / taken / 1e6:.1f} | {cpu} | {listed:.1f} | {seen.ended} |",
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, nargs="*", default=[1, 100, 1000])
    parser.add_argument("--rate", type=float, default=100)
    parser.add_argument("--seconds", type=float, default=20)
    given = parser.parse_args(arguments)
    print(
        "| streams | changes/s | events/s | received | lag ms p50 / p99 / max | MB/s "
        "| CPU by process | connected and listed (s) | ended |"
    )
    print("| ---: | ---: | ---: | ---: | ---: | ---: | --- | ---: | ---: |", flush=True)
    for streams in given.streams:
        uvloop.run(measure(streams, given.rate, given.seconds))


if __name__ == "__main__":
    main()
