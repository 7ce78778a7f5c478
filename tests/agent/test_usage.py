"""What containers and the node use, as `kubectl top` shows it."""

import asyncio
import os
import sys
from pathlib import Path

import pytest
from support.agent import container, manifest
from support.agent_cluster import agent_cluster
from support.api_servers import EmbeddedServerFactory
from support.kubectl import Kubectl, needs_kubectl
from support.polling import wait_until_true

from batholith.local.agent.pods.usage_meter import NODE, UsageMeter
from batholith.local.agent.runtime.usage import Reading, read_machine, read_processes
from batholith.machinery.testing import FakeClock


def test_usage_is_the_cpu_time_between_two_readings() -> None:
    clock = FakeClock()
    meter = UsageMeter(clock)
    meter.record(NODE, Reading(10.0, 100))
    assert meter.get(NODE) is None
    clock.tick(20)
    meter.record(NODE, Reading(15.0, 200))
    usage = meter.get(NODE)
    assert usage is not None
    assert (usage.cpu, usage.memory, usage.window) == (0.25, 200, 20.0)
    assert usage.summary()["cpu"]["usageNanoCores"] == 250_000_000
    clock.tick(20)
    meter.record(NODE, Reading(5.0, 200))  # a process that was counted has ended
    usage = meter.get(NODE)
    assert usage is not None
    assert usage.cpu == 0.0
    meter.keep_only([])
    assert meter.get(NODE) is None


def test_the_machine_has_memory_and_cpu_time() -> None:
    reading = read_machine()
    assert 0 < reading.memory < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert reading.cpu_seconds > 0


@pytest.mark.process
async def test_the_usage_of_descendants_includes_those_that_have_ended() -> None:
    program = (
        "import subprocess, sys\n"
        "work = 'import time\\nwhile time.process_time() < 0.2: pass'\n"
        "subprocess.run([sys.executable, '-S', '-c', work])\n"
        "held = bytearray(30_000_000)\n"
        "input()\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-S", "-c", program, stdin=asyncio.subprocess.PIPE
    )
    try:
        await wait_until_true(lambda: _has_worked(process.pid))
    finally:
        process.kill()
        await process.wait()


async def _has_worked(pid: int) -> bool:
    reading = read_processes([os.getpid()])
    own = read_processes([pid])  # only its children, of which none is left
    return reading.cpu_seconds >= own.cpu_seconds >= 0.1 and reading.memory > 25_000_000


@pytest.mark.process
async def test_kubectl_top_shows_pods_and_nodes(tmp_path: Path) -> None:
    needs_kubectl()
    servers, interval = EmbeddedServerFactory(), {"usage_interval": 0.1}
    async with agent_cluster(servers, tmp_path, **interval) as cluster, cluster.agent():
        await cluster.run(manifest("busy", container("sh", "-c", "while :; do :; done")))
        await cluster.phase("busy", "Running")
        kubectl = Kubectl(cluster.server, tmp_path)
        busy: list[list[str]] = []

        async def is_measured() -> bool:
            result = await kubectl.run("top", "pods", "--containers", "--no-headers")
            busy[:] = [line.split() for line in result.out.splitlines()]
            return result.code == 0 and bool(busy)

        await wait_until_true(is_measured)
        ((pod, _, cores, memory),) = busy
        assert pod == "busy" and cores.endswith("m") and memory.endswith("Mi")
        (node,) = (await kubectl("top", "nodes", "--no-headers")).splitlines()
        assert node.split()[0] == "here"
        await cluster.delete("busy", grace=0)
        await cluster.wait_pod_deleted("busy")
