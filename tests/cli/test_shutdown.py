"""Shutdown of components: exit codes, and requests to the API server."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.components import component, kubeconfig
from support.controller_api import ControllerApi
from support.embedded_apiserver import EmbeddedServer, embedded_server
from support.realkube import free_ports

from batholith.kube.client.config import Credentials
from batholith.model import crds
from batholith.model.names import COMMANDS, JOBS, PODGROUPS, QUEUES
from batholith.testing import RequestMatcher

pytestmark = pytest.mark.process

KINDS = (JOBS, QUEUES, PODGROUPS, COMMANDS)


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    async with embedded_server(tmp_path / "server", crds=crds.load()) as running:
        yield running


ALONE = ("--leader-elect=false", "--force-beside-volcano")
"""Flags to start work without delay."""


def arguments(name: str, config: Path, directory: Path) -> list[str]:
    access = ["--kubeconfig", str(config)]
    address = ["--listen-address", "127.0.0.1:0"]
    return {
        "apiserver": ["apiserver", "--data-dir", str(directory / "own"), *address],
        "controllers": ["controllers", *access],
        "scheduler": ["scheduler", *access],
        "simulated agent": ["agent", "--data-dir", str(directory), "--simulate", "2", *access],
        "agent": ["agent", "--data-dir", str(directory), *access],
        "ending agent": ["agent", "--data-dir", str(directory), "--end-pods", *access],
        "api": ["api", "--store", f"sqlite:///{directory}/api.db", *address, *access],
    }[name]


@pytest.mark.combinations(1)
@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("apiserver", signal.SIGTERM),
        ("controllers", signal.SIGTERM),
        ("scheduler", signal.SIGTERM),
        ("simulated agent", signal.SIGTERM),
        ("agent", signal.SIGTERM),
        ("ending agent", signal.SIGTERM),
        ("api", signal.SIGTERM),
        ("controllers", signal.SIGINT),
        ("api", signal.SIGINT),
    ],
)
async def test_every_component_stops_gracefully(
    server: EmbeddedServer, tmp_path: Path, name: str, number: int
) -> None:
    """Quirk O3: exit code 0. After the shutdown timeout of nine seconds it would be 1.

    One function handles both signals for all of them.
    """
    async with component(*arguments(name, server.kubeconfig, tmp_path)) as one:
        await one.wait_ready()
        assert await one.stop(number) == 0, one.text
    assert [entry["message"] for entry in one.log].count("stopping") == 1
    ours = [entry for entry in one.log if entry["logger"].startswith("batholith")]
    assert not [entry for entry in ours if entry["level"] == "ERROR"]


@pytest.mark.parametrize("name", ["controllers", "scheduler", "simulated agent", "api"])
async def test_a_component_without_an_api_server_stops(
    server: EmbeddedServer, tmp_path: Path, name: str
) -> None:
    nowhere = ["--kubeconfig", str(tmp_path / "nowhere")]
    given = arguments(name, server.kubeconfig, tmp_path)
    given[given.index("--kubeconfig") :] = nowhere
    kubeconfig(tmp_path / "nowhere", Credentials(server=f"http://127.0.0.1:{free_ports(1)[0]}"))
    async with component(*given) as one:
        await one.wait_line("waiting for the API server|API server unavailable|watch failed")
        assert await one.stop() == 0, one.text


@pytest.mark.parametrize("name", ["controllers", "scheduler"])
async def test_inv_lc_3_a_component_stops_while_a_sync_hangs(name: str) -> None:
    """INV-LC-1 as well: no writes after the exit."""
    async with ControllerApi(*KINDS) as api:
        api.put(JOBS, "train", spec={"tasks": []})
        api.put(QUEUES, "default", status={"state": "Open"})
        api.put(PODGROUPS, "gang", spec={"minMember": 1, "queue": "default"})
        held = api.hold_writes()
        async with component(name, *ALONE, "--kubeconfig", str(api.kubeconfig)) as one:
            await one.wait_ready()
            await held.wait_held()
            assert await one.stop() == 0, one.text
            requests = len(api.faults.requests)
        assert len(api.faults.requests) == requests


@pytest.mark.parametrize("name", ["controllers", "scheduler", "simulated agent", "agent", "api"])
async def test_a_component_stops_if_the_server_has_never_responded(
    tmp_path: Path, name: str
) -> None:
    async with ControllerApi(*KINDS) as api:
        held = api.faults.hold(RequestMatcher(count=None))
        async with component(*arguments(name, api.kubeconfig, tmp_path)) as one:
            await held.wait_held()
            assert await one.stop() == 0, one.text


async def test_a_second_signal_exits_immediately() -> None:
    async with ControllerApi(*KINDS) as api:
        held = api.hold_writes()
        async with component("controllers", *ALONE, "--kubeconfig", str(api.kubeconfig)) as one:
            await held.wait_held()
            one.process.send_signal(signal.SIGTERM)
            assert await one.stop(signal.SIGINT) == 1
            assert "exiting immediately" in one.text


async def test_a_stuck_process_exits_after_the_shutdown_timeout() -> None:
    """The timeout also applies to a stuck loop, since it runs in a thread."""
    code = (
        "import asyncio, time\n"
        "from batholith.cli import process\n"
        "async def main(ready):\n"
        "    process.on_termination(lambda: time.sleep(60), timeout=0.1)\n"
        "    print('up', flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "process.run(main)\n"
    )
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE
    )
    assert child.stdout is not None
    assert await child.stdout.readline() == b"up\n"
    child.terminate()
    assert await child.wait() == 1
