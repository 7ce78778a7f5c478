"""Pages of jobs over REST: ``python -m bench.rest_pages [JOBS] [REQUESTS]``, 10,000 and 500.

An API server and the REST API run as processes, and a third one changes 100 jobs a second. Printed
are the latencies of a page of 100 jobs by query, one request at a time and with eight callers, and
the calls of the Kubernetes API that a page costs: those of the REST API while nothing but pages
are asked for (a token and an access are reviewed again every few seconds).
"""

import asyncio
import contextlib
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import aiohttp
import msgspec
import uvloop

from batholith.kube.client.client import Client
from batholith.kube.client.config import load_credentials
from batholith.local.supervisor.datadir import DataDir
from batholith.model import crds
from batholith.model.names import CRDS, JOBS
from bench.apiserver import Server, running_server
from bench.load import NAMESPACE, in_parallel, job

RATE = 100
"""Changes a second."""
CALLERS = 8
QUERIES = {
    "first page": "jobs?",
    "sort=-created": "jobs?sort=-created",
    "one namespace": f"namespaces/{NAMESPACE}/jobs?",
    "phase=Running": "jobs?phase=Running",
    "label_selector, a tenth": "jobs?label_selector=tier=t3",
    "label_selector=!other": "jobs?label_selector=!other",
    "created_after, all": "jobs?created_after=2020-01-01T00:00:00Z",
    "fields=phase": "jobs?fields=phase",
}


class _Page(msgspec.Struct):
    items: list[msgspec.Raw]
    next_cursor: str | None
    total: int


@dataclass(frozen=True)
class RestApi:
    """The process of the REST API."""

    url: str
    metrics: str
    """URL of its metrics."""
    pid: int


async def fill(client: Client, number: int, *, first: int = 0) -> None:
    """Create the jobs from *first* on, a tenth with each of ten labels."""

    async def create(index: int) -> None:
        body = job(f"job-{index:05}", 2)
        body["metadata"]["labels"] = {"tier": f"t{index % 10}"}
        await client.create(JOBS, body, namespace=NAMESPACE)

    await in_parallel(range(first, number), create)


async def write(kubeconfig: str, number: int) -> None:
    """Change jobs at RATE until killed; the process of ``--write``."""
    async with Client(load_credentials(kubeconfig), user_agent="bench") as client:
        began = time.perf_counter()
        for count in range(10**9):
            phase = ("Pending", "Running")[count // number % 2]
            status = {"status": {"state": {"phase": phase}, "running": count % 7}}
            name = f"job-{count * 7919 % number:05}"
            await client.patch(JOBS, name, status, namespace=NAMESPACE, subresource="status")
            await asyncio.sleep(max(0.0, began + count / RATE - time.perf_counter()))


def config_of(server: Server) -> str:
    """Return the kubeconfig of an API server's data directory."""
    arguments = [str(each) for each in server.process.args]  # type: ignore[union-attr]
    return str(DataDir(Path(arguments[arguments.index("--data-dir") + 1])).kubeconfig)


@contextlib.contextmanager
def rest_api(config: str, *switches: str) -> Iterator[RestApi]:
    """Run the REST API as a process."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        metrics = f"127.0.0.1:{free.getsockname()[1]}"
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        free.close()
        store = f"sqlite:///{Path(config).parent / 'bench-api.db'}"
        flags = {
            "--kubeconfig": config,
            "--store": store,
            "--listen-fd": str(listener.fileno()),
            "--metrics-address": metrics,
            "--log-level": "WARNING",
            "--caller-rate": "0",
        }
        arguments = chain.from_iterable(flags.items())
        command = [sys.executable, "-m", "batholith.cli", "api", *switches, *arguments]
        process = subprocess.Popen(command, pass_fds=[listener.fileno()])
    try:
        yield RestApi(url, f"http://{metrics}/metrics", process.pid)
    finally:
        process.terminate()
        process.wait()


@contextlib.contextmanager
def writer(config: str, jobs: int) -> Iterator[None]:
    """Run the process that changes jobs."""
    command = [sys.executable, "-m", "bench.rest_pages", "--write", config, str(jobs)]
    process = subprocess.Popen(command)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


async def api_calls(session: aiohttp.ClientSession, metrics: str) -> float:
    """Return the number of requests of the REST API so far."""
    async with session.get(metrics) as response:
        lines = (await response.text()).splitlines()
    return sum(
        float(line.rpartition(" ")[2]) for line in lines if line.startswith("rest_client_requests")
    )


async def latencies(session: aiohttp.ClientSession, url: str, number: int) -> list[float]:
    """Return the milliseconds of each of *number* requests, one after the other."""
    taken = []
    for _ in range(number):
        began = time.perf_counter()
        async with session.get(url) as response:
            body = await response.read()
        taken.append((time.perf_counter() - began) * 1000)
        if response.status != 200:
            raise RuntimeError(f"{url}: {response.status} {body[:200]!r}")
    return taken


def _row(name: str, taken: Sequence[float], calls: float) -> str:
    p99 = statistics.quantiles(taken, n=100)[98]
    return (
        f"| {name} | {statistics.median(taken):.1f} | {p99:.1f} | {max(taken):.1f} |"
        f" {calls / len(taken):.3f} |"
    )


async def measure(session: aiohttp.ClientSession, base: str, metrics: str, number: int) -> None:
    """Print a row per query."""
    async with session.get(f"{base}/v1/jobs?limit=100") as response:
        page = msgspec.json.decode(await response.read(), type=_Page)
    queries = {**QUERIES, "second page": f"jobs?cursor={page.next_cursor}"}
    print("| query | p50 ms | p99 ms | max ms | API calls per page |")
    print("| --- | ---: | ---: | ---: | ---: |")
    for callers in (1, CALLERS):
        for name, query in queries.items():
            before = await api_calls(session, metrics)
            url = f"{base}/v1/{query}&limit=100"
            runs = [latencies(session, url, number // callers) for _ in range(callers)]
            taken = [each for run in await asyncio.gather(*runs) for each in run]
            calls = await api_calls(session, metrics) - before
            print(_row(f"{name}, {callers} at a time", taken, calls), flush=True)


async def main(jobs: int, requests: int) -> None:
    """Fill a cluster and measure."""
    command = (sys.executable, "-m", "batholith.cli", "apiserver")
    async with running_server(*command) as (server, client):
        await install_crds(client)
        await fill(client, jobs)
        config = config_of(server)
        token = load_credentials(config).token
        headers = {"Authorization": f"Bearer {token}"}
        with rest_api(config) as api:
            async with aiohttp.ClientSession(headers=headers) as session:
                await wait_total(session, api.url, jobs)
                with writer(config, jobs):
                    await asyncio.sleep(2)
                    await measure(session, api.url, api.metrics, requests)


async def install_crds(client: Client) -> None:
    """Create the CRDs that the API server does not have."""
    served = {each.metadata.name for each in (await client.list(CRDS, view=_Named)).items}
    for definition in crds.load():
        if definition["metadata"]["name"] not in served:
            await client.create(CRDS, definition)


class _Meta(msgspec.Struct):
    name: str = ""


class _Named(msgspec.Struct):
    metadata: _Meta


async def wait_total(session: aiohttp.ClientSession, base: str, jobs: int) -> None:
    """Wait until the REST API has this number of jobs."""
    async with asyncio.timeout(120):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with session.get(f"{base}/v1/jobs?limit=1") as response:
                    body = await response.read()
                if response.status == 200 and msgspec.json.decode(body, type=_Page).total == jobs:
                    return
            await asyncio.sleep(0.1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--write"]:
        uvloop.run(write(sys.argv[2], int(sys.argv[3])))
    else:
        numbers = [int(each) for each in sys.argv[1:]]
        uvloop.run(main(*(numbers + [10_000, 500][len(numbers) :])))
