"""Latency from bind to running of pods of a stored image: ``python -m bench.pod_starts``.

The node is real. First SINGLE pods are bound one after the other, then BURST pods at once. A pod is
running when a watch shows it. Needs Debian's package busybox-static.
"""

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support.images import busybox, image, pack, write_layout  # shared with the tests

from batholith.kube.client.client import Client
from batholith.kube.informer.informer import Informer
from batholith.local.agent.runtime.process_id import ProcessId
from batholith.local.supervisor.datadir import DataDir
from batholith.local.supervisor.supervisor import read_state
from batholith.model.base import ApiStruct
from batholith.model.meta import ObjectMeta
from batholith.model.names import NODES, PODS
from bench.__main__ import batholith, cluster
from bench.load import NAMESPACE, bind, in_parallel

_IMAGE = "registry.example.com/bench/busybox:1"
_TICK = os.sysconf("SC_CLK_TCK")


class _Status(ApiStruct, frozen=True):
    phase: str = ""


class _Pod(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    status: _Status = _Status()


class _Starts:
    """Starts pods, and notes when a watch shows that they run."""

    def __init__(self, client: Client, node: str) -> None:
        self._client, self._node = client, node
        self._running: dict[str, asyncio.Future[float]] = {}
        self.informer = Informer(client, PODS, _Pod)
        self.informer.add_event_handler(self._on_pod)

    def _on_pod(self, old: _Pod | None, new: _Pod | None) -> None:
        if new is not None and new.status.phase == "Running":
            future = self._running[new.metadata.name]
            if not future.done():
                future.set_result(time.perf_counter())

    async def create(self, name: str) -> None:
        """Create a pod that no scheduler binds."""
        self._running[name] = asyncio.get_running_loop().create_future()
        container = {"name": "main", "image": _IMAGE, "command": ["sleep", "1000"]}
        spec = {
            "schedulerName": "none",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "containers": [container],
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
        await self._client.post(PODS.path(NAMESPACE), pod)

    async def start(self, name: str) -> float:
        """Bind a pod; return the seconds from then until it runs."""
        bound = time.perf_counter()
        await bind(self._client, name, self._node)
        return await self._running[name] - bound


async def _measure(single: int, burst: int) -> None:
    async with cluster("--pods", "images") as (data, client):
        with tempfile.TemporaryDirectory() as directory:
            layout = write_layout(Path(directory) / "image", _IMAGE, image([busybox()]))
            await asyncio.to_thread(batholith, "image", "load", str(pack(layout)), data=data)
        node = (await client.list(NODES, view=_Pod)).items[0].metadata.name
        starts = _Starts(client, node)
        watch = asyncio.create_task(starts.informer.run())
        await starts.informer.wait_synced()
        print("| pods | min | median | max, ms | pods/s | CPU ms: API server | agent |")
        print("| --- " + "| ---: " * 6 + "|")
        names = [f"single-{number}" for number in range(single)]
        await in_parallel(names, starts.create)
        before, began = _cpu(data), time.perf_counter()
        latencies = [await starts.start(name) for name in names]
        _print("one after the other", latencies, time.perf_counter() - began, before, _cpu(data))
        names = [f"burst-{number}" for number in range(burst)]
        await in_parallel(names, starts.create)
        before, began = _cpu(data), time.perf_counter()
        latencies = await asyncio.gather(*map(starts.start, names))
        _print("at once", latencies, time.perf_counter() - began, before, _cpu(data))
        watch.cancel()
        await asyncio.gather(watch, return_exceptions=True)


def _print(
    what: str,
    latencies: list[float],
    seconds: float,
    before: dict[str, float],
    after: dict[str, float],
) -> None:
    found = sorted(1000 * each for each in latencies)
    shown = " | ".join(f"{each:.0f}" for each in (found[0], statistics.median(found), found[-1]))
    cpu = " | ".join(f"{1000 * (after[key] - before[key]) / len(found):.1f}" for key in before)
    print(f"| {len(found)} {what} | {shown} | {len(found) / seconds:.0f} | {cpu} |")


def _cpu(data: DataDir) -> dict[str, float]:
    """Return the CPU time of the API server and of the agent, without its children."""
    state = read_state(data)
    assert state is not None
    return {name: _seconds(state.components[name].process) for name in ("apiserver", "agent")}


def _seconds(process: ProcessId | None) -> float:
    assert process is not None
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICK


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--single", type=int, default=20)
    parser.add_argument("--burst", type=int, default=80)
    given = parser.parse_args()
    asyncio.run(_measure(given.single, given.burst))


if __name__ == "__main__":
    main()
