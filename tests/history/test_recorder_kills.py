"""The process that records the history is killed before each of its writes: none is lost or twice.

In one process, `test_random_histories` does the same with many histories.
"""

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from support.embedded_apiserver import EmbeddedServer, embedded_server
from support.polling import wait_until_true
from support.recorded_jobs import create, details, has_begun, run_pod, set_phase
from support.rest import RestClient, rest_at, sqlite

from batholith.local.agent.runtime.process_id import die_with_parent
from batholith.local.supervisor import kubeconfig
from batholith.model import crds
from batholith.model.names import JOBS
from batholith.model.recorded import RECORDED

pytestmark = pytest.mark.process

PROGRAM = """
import itertools, os, runpy, signal, sys, threading
import sqlalchemy as sa
from batholith.kube.client.client import Client

last, writes = int(sys.argv.pop(1)), itertools.count(1)

def before_write():
    if next(writes) == last:
        os.kill(os.getpid(), signal.SIGKILL)

@sa.event.listens_for(sa.Engine, "commit")
def before_commit(connection):
    if threading.current_thread().name.startswith("store-writes"):
        before_write()

patch = Client.patch

async def counted_patch(*arguments, **options):
    before_write()
    return await patch(*arguments, **options)

Client.patch = counted_patch
runpy.run_module("batholith.cli", run_name="__main__")
"""
"""Kills itself before the write of this number: a commit, or an annotation of a job."""

NEVER = 0


@dataclass(slots=True)
class RecorderProcess:
    url: str
    process: asyncio.subprocess.Process

    @property
    def is_running(self) -> bool:
        return self.process.returncode is None


@contextlib.asynccontextmanager
async def recorder(
    directory: Path, server: EmbeddedServer, *, last: int
) -> AsyncIterator[RecorderProcess]:
    """Run ``batholith api``, which is killed before write number *last*, or at the end."""
    config = directory / "kubeconfig"
    access = kubeconfig.ClusterAccess(
        server=server.url, ca=server.ca, user="api", token=server.tokens["api"]
    )
    kubeconfig.write(config, access)
    parent = os.getpid()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", PROGRAM, str(last)),
            *("api", "--kubeconfig", str(config), "--listen-fd", str(listener.fileno())),
            *("--record-history", "--no-leader-elect", "--log-level", "ERROR"),
            pass_fds=[listener.fileno()],
            env=os.environ | {"BATHOLITH_STORE": sqlite(directory)},
            preexec_fn=lambda: die_with_parent(parent),
        )
    try:
        yield RecorderProcess(url, process)
    finally:
        if process.returncode is None:
            process.kill()
        assert await process.wait() == -signal.SIGKILL


@dataclass(slots=True)
class Load:
    """Jobs that run and end, one after another."""

    rest: RestClient
    jobs: dict[str, dict[str, Any]] = field(default_factory=dict)

    async def run_job(self) -> None:
        name = f"job-{len(self.jobs)}"
        created = self.jobs[name] = await create(self.rest, name, ttlSecondsAfterFinished=3600)
        await run_pod(self.rest.client, f"{name}-t-0", created)
        await set_phase(self.rest.client, name, "Running", "2030-01-02T12:59:30Z")
        await set_phase(self.rest.client, name, "Completed", "2030-01-02T13:00:31Z")

    async def all_marked(self) -> bool:
        found = await self.rest.client.list(JOBS, view=dict)
        return all(RECORDED in job["metadata"]["annotations"] for job in found.items)


@pytest.mark.parametrize("kills", [(1, 2, 4), pytest.param(range(1, 40), marks=pytest.mark.soak)])
async def test_a_recorder_killed_between_any_two_writes_records_everything_once(
    tmp_path: Path, kills: tuple[int, ...]
) -> None:
    async with (
        embedded_server(tmp_path / "cluster", crds=crds.load()) as server,
        server.client() as client,
    ):
        async with (
            recorder(tmp_path, server, last=NEVER) as first,
            rest_at(first.url, server, client) as rest,
        ):
            await wait_until_true(lambda: has_begun(tmp_path))
            load = Load(rest)
            await load.run_job()
        for last in kills:
            async with recorder(tmp_path, server, last=last) as killed:
                while killed.is_running:
                    await load.run_job()
                    await asyncio.sleep(0.5)
        async with (
            recorder(tmp_path, server, last=NEVER) as settled,
            rest_at(settled.url, server, client) as rest,
        ):
            await wait_until_true(load.all_marked)
            for name, job in load.jobs.items():
                found = await details(rest, job["metadata"]["uid"])
                assert found["complete"], name
                assert found["resource_seconds"] == {"cpu": 30, "memory": 1024 * 60}, name
                phases = [each["phase"] for each in found["phases"]]
                assert phases[-2:] == ["Running", "Completed"], name
                assert len(set(phases)) == len(phases), name
            status, usage = await rest.call(
                "GET", "/v1/usage?by=user&from=2030-01-02T12:00:00Z&to=2030-01-02T14:00:00Z"
            )
            assert status == 200
            [series] = usage["series"]
            assert [each["resource_seconds"]["cpu"] for each in series["points"]] == [
                15 * len(load.jobs)
            ] * 2
