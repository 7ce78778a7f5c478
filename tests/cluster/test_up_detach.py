"""``up --detach`` and ``down``: nothing is left behind, and running clusters are named."""

import asyncio
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
from support import embedded_cluster
from support.embedded_cluster import batholith, processes_of, run
from support.polling import wait_until_true

from batholith.kube.errors import ApiError
from batholith.local.supervisor.datadir import DataDir
from batholith.model.names import CONFIGMAPS

pytestmark = pytest.mark.process

IMPATIENT = """
import sys
from batholith.cli import cluster
from batholith.cli.main import app

cluster.DETACH_TIMEOUT = 0.0
app(sys.argv[1:], prog_name="batholith")
"""
UP = ("up", "--detach", "--simulate", "1", "--port", "0", "--api-port", "0", "--data-dir")


def without_others(output: str, root: Path) -> list[str]:
    """Lines of *output* without those about clusters of other tests."""
    return [each for each in output.splitlines() if "is up in" not in each or str(root) in each]


def files_in_memory(pid: int) -> str:
    return Path(f"/proc/{pid}/maps").read_text()


@pytest.mark.combinations(1)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("started", ["up.log", "apiserver.sock", "logs/api.log"])
async def test_a_signal_during_detach_stops_all_that_was_started(
    tmp_path: Path, number: signal.Signals, started: str
) -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "batholith", *UP, str(tmp_path / "data")),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )

    async def is_there() -> bool:
        return (tmp_path / "data" / started).exists()

    await wait_until_true(is_there)
    os.killpg(process.pid, number)  # as a terminal does
    _, errors = await process.communicate()
    assert (process.returncode, errors) == (128 + number, b"stopping\n")
    assert processes_of(tmp_path) == []
    assert not (tmp_path / "data" / "up.json").exists()


async def test_a_cluster_that_is_not_ready_in_time_leaves_no_component(tmp_path: Path) -> None:
    outcome = await run(sys.executable, "-c", IMPATIENT, *UP, str(tmp_path))
    assert outcome.code == 1
    assert outcome.err.splitlines()[-1] == f"batholith up: not ready; see {tmp_path}/logs"
    assert processes_of(tmp_path) == []


async def test_down_and_status_name_the_clusters_in_other_directories(tmp_path: Path) -> None:
    other, empty = tmp_path / "an other", str(tmp_path / "empty")
    async with embedded_cluster.embedded_cluster(other, "--simulate", "1"):
        command = f"batholith down --data-dir '{other}'"
        usage = (other / "up.log").read_text()
        assert f"To stop it: {command}\n" in usage and "Ctrl-C" not in usage
        named = f"a cluster is up in {other}; to stop it: {command}"
        outcome = await batholith("down", "--data-dir", empty)
        lines = without_others(outcome.out, tmp_path)
        assert (outcome.code, lines) == (0, [f"nothing is running in {empty}", named])
        outcome = await batholith("status", "--data-dir", empty)
        lines = without_others(outcome.out, tmp_path)
        assert (outcome.code, lines) == (3, [f"not up ({empty})", named])


async def test_the_compiler_of_cel_is_not_loaded_without_rules_of_users(tmp_path: Path) -> None:
    async with embedded_cluster.embedded_cluster(tmp_path, "--simulate", "1") as cluster:
        process = cluster.state.components["apiserver"].process
        assert process is not None
        loaded = files_in_memory(process.pid)
    assert "sqlite" in loaded
    assert "cel_expr_python" not in loaded


async def test_any_free_port_is_the_same_after_a_restart(tmp_path: Path) -> None:
    ports = []
    for _ in range(2):
        async with embedded_cluster.embedded_cluster(tmp_path, "--simulate", "1") as cluster:
            ports.append(cluster.state.ports)
    assert ports[0] == ports[1]
    DataDir(tmp_path).ports.write_text("{")
    async with embedded_cluster.embedded_cluster(tmp_path, "--simulate", "1"):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system")
async def test_a_cluster_that_was_killed_on_a_full_disk_starts_again(tmp_path: Path) -> None:
    mounted = await run("mount", "-t", "tmpfs", "-o", "size=48m", "tmpfs", str(tmp_path))
    if mounted.code:
        pytest.skip(f"no small file system can be mounted: {mounted.err}")
    root = tmp_path / "data"
    try:
        await embedded_cluster.start(root, "--simulate", "1")
        async with embedded_cluster.connect(root) as cluster:
            supervisor = cluster.state.supervisor
            body = {"metadata": {"name": "a"}}
            await cluster.client.create(CONFIGMAPS, body, namespace="default")
        os.kill(supervisor.pid, signal.SIGKILL)

        async def is_stopped() -> bool:
            return processes_of(root) == []

        await wait_until_true(is_stopped)
        free = shutil.disk_usage(root).free
        (root / "logs" / "filler").write_bytes(bytes(free))
        assert shutil.disk_usage(root).free == 0
        async with embedded_cluster.embedded_cluster(root, "--simulate", "1") as cluster:
            with pytest.raises(ApiError, match="disk full"):
                other = {"metadata": {"name": "b"}}
                await cluster.client.create(CONFIGMAPS, other, namespace="default")
            await cluster.client.delete(CONFIGMAPS, "a", namespace="default")
    finally:
        await run("umount", "--lazy", str(tmp_path))
