"""How parts end, seen from outside: exit codes, and what reaches the API server."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.components import component, kubeconfig
from support.embedded_apiserver import EmbeddedServer, embedded_server
from support.fake_apiserver import FakeApi
from support.polling import wait_for
from support.realkube import free_ports

from batholith.kube.client.config import Credentials
from batholith.model import crds
from batholith.model.names import JOBS, PODGROUPS, QUEUES


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[EmbeddedServer]:
    async with embedded_server(tmp_path / "server", crds=crds.load()) as running:
        yield running


ALONE = ("--leader-elect=false", "--force-beside-volcano")
"""Work begins at once."""


def arguments(name: str, server: EmbeddedServer, folder: Path) -> list[str]:
    config = ["--kubeconfig", str(server.kubeconfig)]
    address = ["--listen-address", "127.0.0.1:0"]
    return {
        "apiserver": ["apiserver", "--data-dir", str(folder / "own"), *address],
        "controllers": ["controllers", *config],
        "scheduler": ["scheduler", *config],
        "simulated agent": ["agent", "--data-dir", str(folder), "--simulate", "2", *config],
        "agent": ["agent", "--data-dir", str(folder), *config],
        "ending agent": ["agent", "--data-dir", str(folder), "--end-pods", *config],
        "api": ["api", "--store", f"sqlite:///{folder}/api.db", *address, *config],
    }[name]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize(
    "name",
    ["apiserver", "controllers", "scheduler", "simulated agent", "agent", "ending agent", "api"],
)
async def test_every_part_stops_in_order_when_told(
    server: EmbeddedServer, tmp_path: Path, name: str, number: int
) -> None:
    """Quirk O3: a stop is no failure. After nine seconds it would end itself with 1."""
    async with component(*arguments(name, server, tmp_path)) as one:
        await one.wait_ready()
        assert await one.stop(number) == 0, one.text
    assert [entry["message"] for entry in one.log].count("stopping") == 1
    ours = [entry for entry in one.log if entry["logger"].startswith("batholith")]
    assert not [entry for entry in ours if entry["level"] == "ERROR"]


@pytest.mark.parametrize("name", ["controllers", "scheduler", "simulated agent", "api"])
async def test_a_part_that_finds_no_server_stops_too(
    server: EmbeddedServer, tmp_path: Path, name: str
) -> None:
    nowhere = ["--kubeconfig", str(tmp_path / "nowhere")]
    given = arguments(name, server, tmp_path)
    given[given.index("--kubeconfig") :] = nowhere
    kubeconfig(tmp_path / "nowhere", Credentials(server=f"http://127.0.0.1:{free_ports(1)[0]}"))
    async with component(*given) as one:
        await one.wait_line("waiting for the API server|watch broken|not there|[Cc]annot connect")
        assert await one.stop() == 0, one.text


@pytest.mark.parametrize("name", ["controllers", "scheduler"])
async def test_inv_lc_3_it_stops_though_a_sync_hangs_because_the_server_does(
    tmp_path: Path, name: str
) -> None:
    """INV-LC-1 as well: nothing is written after the end."""
    async with FakeApi() as api:
        config = kubeconfig(tmp_path / "config", api.credentials)
        api.put(JOBS, "train", spec={"tasks": []})
        api.put(QUEUES, "default", status={"state": "Open"})
        api.put(PODGROUPS, "gang", spec={"minMember": 1, "queue": "default"})
        api.inject_fault("hang", times=1000, writes=True)
        async with component(name, *ALONE, "--kubeconfig", str(config)) as one:
            await one.wait_ready()
            await wait_for(lambda: api.count("POST") + api.count("PATCH"))
            assert await one.stop() == 0, one.text
            seen = len(api.received)
        assert len(api.received) == seen


@pytest.mark.parametrize("name", ["controllers", "scheduler", "simulated agent", "agent", "api"])
async def test_it_stops_though_the_server_has_never_answered(
    server: EmbeddedServer, tmp_path: Path, name: str
) -> None:
    async with FakeApi() as api:
        api.inject_fault("hang", times=1000)
        given = arguments(name, server, tmp_path)
        kubeconfig(tmp_path / "config", api.credentials)
        given[given.index("--kubeconfig") + 1] = str(tmp_path / "config")
        async with component(*given) as one:
            await wait_for(lambda: api.received)
            assert await one.stop() == 0, one.text


async def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    async with FakeApi() as api:
        config = kubeconfig(tmp_path / "config", api.credentials)
        api.inject_fault("hang", times=1000, writes=True)
        async with component("controllers", *ALONE, "--kubeconfig", str(config)) as one:
            await wait_for(lambda: api.count("POST"))
            one.process.send_signal(signal.SIGTERM)
            assert await one.stop(signal.SIGINT) == 1
            assert "exiting immediately" in one.text


async def test_what_cannot_stop_is_ended() -> None:
    """A loop that is stuck after the signal: the clock runs beside it."""
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
