"""Two replicas on PostgreSQL: one is killed, then PostgreSQL is restarted, under load.

The job controller is the real one, and a watch of the jobs is independent of the replicas. Each
restart of a job increments its version, so the version counts the restarts that were executed.
"""

import asyncio
import contextlib
import itertools
import os
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from support.embedded_apiserver import EmbeddedServer
from support.polling import wait_until_true
from support.postgres import Postgres, postgres
from support.rest import JOB, cluster

from batholith.job_ctrl.controller import JobController
from batholith.kube.informer.informer import Informer
from batholith.local.supervisor import kubeconfig
from batholith.model.controlled_resources import operation_results
from batholith.model.job import Job
from batholith.model.names import JOBS

pytestmark = pytest.mark.process

JOB_COUNT = 6
CLIENTS = 12
BUSY = (409, 429)
RETRY_DELAY = 0.1
OPEN = ("Accepted", "Issued")


@dataclass(slots=True)
class Replica:
    """A REST API server as a process."""

    url: str
    process: subprocess.Popen[bytes]

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@dataclass(slots=True)
class Load:
    """Clients that repeat each request with its key until it is accepted."""

    session: aiohttp.ClientSession
    token: str
    urls: list[str]
    accepted: dict[str, str] = field(default_factory=dict)
    """Ids of commands by key."""
    retries: Counter[str] = field(default_factory=Counter)
    stopped: bool = False

    async def client(self, number: int) -> None:
        for count in itertools.count():
            if self.stopped:
                return
            key = f"{number}-{count}"
            path = f"/v1/namespaces/default/jobs/job-{(number + count) % JOB_COUNT}/commands"
            self.accepted[key] = (await self.send(path, key))["id"]

    async def send(self, path: str, key: str) -> Any:
        """Send a request with its key until it is accepted, to one replica and to the other."""
        headers = {"Authorization": f"Bearer {self.token}", "Idempotency-Key": key}
        for attempt in itertools.count(hash(key)):
            url = self.urls[attempt % len(self.urls)] + path
            try:
                async with self.session.post(
                    url, json={"action": "restart"}, headers=headers
                ) as response:
                    body = await response.json(content_type=None)
                    if response.status == 202:
                        return body
                    assert response.status in BUSY or response.status >= 500, body
                    self.retries[str(response.status)] += 1
            except (aiohttp.ClientError, TimeoutError) as error:
                self.retries[type(error).__name__] += 1
            await asyncio.sleep(RETRY_DELAY)
        raise AssertionError("unreachable")

    async def outcome(self, key: str) -> str:
        """The outcome that the API reports."""
        number, count = key.split("-")
        job = (int(number) + int(count)) % JOB_COUNT
        path = f"/v1/namespaces/default/jobs/job-{job}/commands/{self.accepted[key]}"
        headers = {"Authorization": f"Bearer {self.token}"}
        while True:
            async with self.session.get(self.urls[-1] + path, headers=headers) as response:
                body = await response.json(content_type=None)
                if response.status == 200 and body["state"] not in OPEN:
                    return f"{body['state']}"
            await asyncio.sleep(RETRY_DELAY)


@contextlib.contextmanager
def replica(directory: Path, server: EmbeddedServer, store: str) -> Any:
    config = directory / "kubeconfig"
    kubeconfig.write(
        config,
        kubeconfig.ClusterAccess(
            server=server.url, ca=server.ca, user="api", token=server.tokens["api"]
        ),
    )
    listener = socket.create_server(("127.0.0.1", 0))
    arguments = ["api", "--kubeconfig", str(config), "--listen-fd", str(listener.fileno())]
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "batholith.cli",
            *arguments,
            "--log-level",
            "ERROR",
            "--caller-rate",
            "0",
        ],
        pass_fds=[listener.fileno()],
        env=os.environ | {"BATHOLITH_STORE": store},
    )
    started = Replica(f"http://127.0.0.1:{listener.getsockname()[1]}", process)
    listener.close()
    try:
        yield started
    finally:
        started.kill()


@pytest.fixture
def database() -> Any:
    with postgres() as started:
        yield started


@contextlib.asynccontextmanager
async def observed_cluster(
    directory: Path,
) -> AsyncIterator[tuple[EmbeddedServer, dict[str, int], dict[str, bool]]]:
    """A cluster with its job controller; versions by job, and results by operation, as watched."""
    versions: dict[str, int] = {}
    results: dict[str, bool] = {}

    def on_job(old: Job | None, new: Job | None) -> None:
        if new is not None:
            versions[new.metadata.name] = new.status.version
            for each in operation_results(new.status):
                assert results.setdefault(each.operation, each.executed) == each.executed

    async with cluster(directory) as (server, client):
        spec = JOB["spec"] | {"maxRetry": 1_000_000}  # type: ignore[operator]  # a dict
        for number in range(JOB_COUNT):
            body = JOB | {"metadata": {"name": f"job-{number}"}, "spec": spec}
            await client.create(JOBS, body, namespace="default")
        informer = Informer(client, JOBS, Job)
        informer.add_event_handler(on_job)
        controller = JobController(client)
        running = [asyncio.create_task(each.run()) for each in (informer, controller)]
        try:
            yield server, versions, results
        finally:
            for task in running:
                task.cancel()
            await asyncio.wait(running)


async def run_load(load: Load, first: Replica, database: Postgres, *, seconds: float) -> None:
    """Send commands; kill a replica after a third of the time, and restart the database then."""
    clients = [asyncio.create_task(load.client(number)) for number in range(CLIENTS)]
    began = time.monotonic()
    await asyncio.sleep(seconds / 3)
    first.kill()
    await asyncio.sleep(seconds / 3)
    await asyncio.to_thread(database.stop)
    await asyncio.to_thread(database.start)
    await asyncio.sleep(max(0.0, began + seconds - time.monotonic()))
    load.stopped = True
    await asyncio.gather(*clients)


@pytest.mark.parametrize("seconds", [3.0, pytest.param(60.0, marks=pytest.mark.soak)])
async def test_no_command_is_lost_or_executed_twice(
    database: Postgres, tmp_path: Path, seconds: float
) -> None:
    timeout = aiohttp.ClientTimeout(total=10)
    async with (
        observed_cluster(tmp_path) as (server, versions, results),
        aiohttp.ClientSession(timeout=timeout) as session,
    ):
        with (
            replica(tmp_path, server, database.url) as first,
            replica(tmp_path, server, database.url) as second,
        ):
            for each in (first, second):
                await wait_until_true(partial(is_ready, session, each.url))
            load = Load(session, server.tokens["admin"], [first.url, second.url])
            await run_load(load, first, database, seconds=seconds)
            outcomes = {key: await load.outcome(key) for key in load.accepted}
    assert len({*load.accepted.values()}) == len(load.accepted) > CLIENTS
    assert load.retries, "nothing was interrupted"
    assert Counter(outcomes.values()) == {"Executed": len(outcomes)}
    assert {load.accepted[key] for key in outcomes} == {
        operation for operation, executed in results.items() if executed
    }
    assert sum(versions.values()) == len(load.accepted), "each was executed once"


async def is_ready(session: aiohttp.ClientSession, url: str) -> bool:
    try:
        async with session.get(f"{url}/readyz") as response:
            return response.status == 200
    except (aiohttp.ClientError, TimeoutError):
        return False
