"""A cluster that is started and stopped as a user does it, by the command line."""

import asyncio
import contextlib
import os
import ssl
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import aiohttp

from batholith.kube.client.client import Client
from batholith.kube.client.config import load_credentials
from batholith.local.apiserver.app import COMPONENT_DENIED
from batholith.local.supervisor.datadir import DataDir
from batholith.local.supervisor.supervisor import UpState, read_state


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessResult:
    """Exit code and output of a program."""

    code: int
    out: str
    err: str


async def run(*command: str) -> ProcessResult:
    """Run a program to its end."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await process.communicate()
    return ProcessResult(code=process.returncode or 0, out=out.decode(), err=err.decode())


async def batholith(*arguments: str) -> ProcessResult:
    """Run ``batholith``."""
    return await run(sys.executable, "-m", "batholith", *arguments)


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedCluster:
    """A cluster that is up."""

    data_dir: DataDir
    client: Client
    token: str

    @property
    def state(self) -> UpState:
        """Content of ``up.json``."""
        found = read_state(self.data_dir)
        assert found is not None
        return found

    @property
    def rest(self) -> str:
        """Address of the REST API."""
        return f"http://127.0.0.1:{self.state.ports['rest']}"

    async def log(self, pod: str, *, namespace: str = "default") -> str:
        """What the container of a pod has printed."""
        credentials = load_credentials(str(self.data_dir.kubeconfig))
        trust = ssl.create_default_context(cadata=credentials.ca_data.decode())
        url = f"{credentials.server}/api/v1/namespaces/{namespace}/pods/{pod}/log"
        headers = {"Authorization": f"Bearer {self.token}"}
        async with (
            aiohttp.ClientSession(headers=headers) as session,
            session.get(url, ssl=trust) as response,
        ):
            return await response.text()

    def kill(self, component: str) -> None:
        """``kill -9`` a component if it is running."""
        process = self.state.components[component].process
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, 9)


async def start(root: Path, *options: str) -> None:
    """``batholith up --detach`` on free ports."""
    ports = ("--port", "0", "--api-port", "0")
    outcome = await batholith("up", "--detach", "--data-dir", str(root), *ports, *options)
    assert outcome.code == 0, outcome.err
    started = read_state(DataDir(root))
    assert started is not None
    assert {name: each.restarts for name, each in started.components.items() if each.restarts} == {}


@contextlib.asynccontextmanager
async def connect(root: Path) -> AsyncIterator[EmbeddedCluster]:
    """The cluster that runs in a directory."""
    data = DataDir(root)
    credentials = load_credentials(str(data.kubeconfig))
    async with Client(credentials, user_agent="tests") as client:
        yield EmbeddedCluster(data_dir=data, client=client, token=credentials.token)


@contextlib.asynccontextmanager
async def embedded_cluster(root: Path, *options: str) -> AsyncIterator[EmbeddedCluster]:
    """A cluster for the length of the block; it must leave no process behind."""
    await start(root, *options)
    try:
        async with connect(root) as cluster:
            yield cluster
    finally:
        outcome = await batholith("down", "--data-dir", str(root))
    assert outcome.code == 0, outcome.err
    assert processes_of(root) == []
    assert denied_requests(root) == []


def denied_requests(root: Path) -> list[str]:
    """Log lines of requests for which a component lacked the right."""
    log = (DataDir(root).logs / "apiserver.log").read_text().splitlines()
    return [line for line in log if COMPONENT_DENIED in line]


def processes_of(root: Path) -> list[str]:
    """Command lines of processes that use a data directory."""
    found = []
    for directory in Path("/proc").iterdir():
        if not directory.name.isdigit() or int(directory.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            data = (directory / "cmdline").read_bytes() + (directory / "environ").read_bytes()
            if str(root).encode() in data:
                found.append(data[:200].decode(errors="replace"))
    return found
