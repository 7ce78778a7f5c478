"""Memory and CPU of the components by size of the cluster.

``python -m bench.sizing [--nodes N ...] [--pods N] [--jobs N]``

On a real kube-apiserver whose store has N nodes with the fields that a kubelet reports, ten running
pods for each, and their jobs. All components start, run jobs of 20 pods, and list everything again
after the API server was killed. No webhook is registered, so ``admission`` only has its informers.
This process marks bound pods as running, as kubelets would. Memory is the resident set; CPU is in
seconds, which, unlike durations, depend little on what else the machine does. Rows are in Markdown.
"""

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import uvloop

from batholith.kube.client.client import Client
from batholith.kube.informer.informer import Informer
from batholith.model.base import ApiStruct
from batholith.model.job import Job
from batholith.model.meta import ObjectMeta
from batholith.model.names import JOBS, NODES, PODS
from bench import cluster_fill
from bench.components import Platform, memory
from bench.load import IN_FLIGHT, NAMESPACE, in_parallel, job, submit
from bench.realkube import install_prerequisites, platform, submitter

NODE_COUNTS = (1000, 5000)
PODS_PER_NODE = 10
MEASURED = ("controllers", "scheduler", "admission", "api")
JOB_SIZE = 20
IDLE_SECONDS = 60.0
SETTLE_SECONDS = 12.0
"""Seconds without writes after which none is delayed any more."""
TIMEOUT = 3600.0
_IMAGES, _ADDRESSES = 30, ("InternalIP", "Hostname")
_POD_PATCH = {
    "status": {
        "phase": "Running",
        "podIP": "10.0.0.1",
        "conditions": [{"type": "Ready", "status": "True"}],
    }
}


class _Spec(ApiStruct, frozen=True):
    node_name: str = ""


class _Status(ApiStruct, frozen=True):
    phase: str = ""


class _Pod(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: _Spec = _Spec()
    status: _Status = _Status()


def node(name: str) -> dict[str, Any]:
    """A node as large as one of a cloud: images, conditions, addresses, labels."""
    labels = {
        "kubernetes.io/hostname": name,
        "topology.kubernetes.io/zone": f"zone-{name[-1]}",
        **{f"cloud.example.com/label-{number}": f"value-{number}" for number in range(10)},
    }
    amounts = {"cpu": "64", "memory": "256Gi", "ephemeral-storage": "900Gi", "pods": "110"}
    images = [
        {
            "names": [
                f"registry.example.com/team/image-{number}@sha256:{number:064d}",
                f"registry.example.com/team/image-{number}:v1.{number}",
            ],
            "sizeBytes": 100_000_000 + number,
        }
        for number in range(_IMAGES)
    ]
    conditions = [
        {"type": kind, "status": "True" if kind == "Ready" else "False", "reason": "Kubelet"}
        for kind in ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
    ]
    status = {
        "capacity": amounts,
        "allocatable": amounts,
        "conditions": conditions,
        "addresses": [{"type": kind, "address": name} for kind in _ADDRESSES],
        "images": images,
    }
    return {"metadata": {"name": name, "labels": labels}, "status": status}


class Kubelets:
    """Marks pods that are bound as running, on all nodes; counts jobs that run."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._bound: asyncio.Queue[str] = asyncio.Queue()
        self._pods = Informer(client, PODS, _Pod)
        self._jobs = Informer(client, JOBS, Job)
        self._pods.add_event_handler(self._on_pod)
        self._jobs.add_event_handler(self._on_job)
        self.running_jobs: set[str] = set()

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run inside the block."""
        async with asyncio.TaskGroup() as tasks:
            started = [tasks.create_task(each.run()) for each in (self._pods, self._jobs)]
            started += [tasks.create_task(self._mark_running()) for _ in range(IN_FLIGHT)]
            await self._pods.wait_synced()
            await self._jobs.wait_synced()
            yield
            for task in started:
                task.cancel()

    def _on_pod(self, _: _Pod | None, new: _Pod | None) -> None:
        if new is not None and new.spec.node_name and new.status.phase == "Pending":
            self._bound.put_nowait(new.metadata.name)

    def _on_job(self, _: Job | None, new: Job | None) -> None:
        if new is not None and new.status.state.phase == "Running":
            self.running_jobs.add(new.metadata.name)

    async def _mark_running(self) -> None:
        while True:
            name = await self._bound.get()
            await self._client.patch(
                PODS, name, _POD_PATCH, namespace=NAMESPACE, subresource="status"
            )


class Meter:
    """Prints memory and CPU of each component for one step after the other."""

    def __init__(self, target: Platform, prefix: Sequence[str]) -> None:
        self._target, self._prefix = target, prefix
        self._cpu = dict.fromkeys(MEASURED, 0.0)

    def print_rows(self, step: str) -> None:
        """Print the row of each component, with its CPU since the row before."""
        for name in MEASURED:
            spent = self._target.cpu_of(name)
            now, most = memory(self._target.components[name].process.pid)
            cells = (f"{now:.0f} MiB", f"{most:.0f} MiB", f"{spent - self._cpu[name]:.1f}")
            print(f"| {' | '.join([*self._prefix, step, name, *cells])} |", flush=True)
            self._cpu[name] = spent


async def measure(nodes: int, pods: int, jobs: int) -> None:
    """Run all steps with *nodes* and *pods* running pods; *jobs* are submitted."""
    with platform(users=("admission", "api")) as target:
        async with submitter(target) as client:
            await install_prerequisites(client)
            await cluster_fill.fill(target, client, pods=pods)
            names = (f"node-{number:05d}" for number in range(nodes))
            await in_parallel(names, lambda name: _create_node(client, name))
            meter = Meter(target, (str(nodes), str(pods)))
            await _start(target)
            meter.print_rows("start")
            kubelets = Kubelets(client)
            async with kubelets.running(), asyncio.timeout(TIMEOUT):
                before = len(kubelets.running_jobs)
                await submit(client, (job(f"b{n}", JOB_SIZE, cpu="1") for n in range(jobs)))
                while len(kubelets.running_jobs) < before + jobs:  # noqa: ASYNC110 - rarely polled
                    await asyncio.sleep(0.5)
                await target.wait_settled("controllers", "scheduler", seconds=SETTLE_SECONDS)
                meter.print_rows(f"{jobs} jobs of {JOB_SIZE} pods")
                await asyncio.sleep(IDLE_SECONDS)
                meter.print_rows(f"{IDLE_SECONDS:.0f} s without changes")
            await _restart_server(target, client)
            meter.print_rows("everything listed again")


async def _create_node(client: Client, name: str) -> None:
    await client.create(NODES, node(name))
    # A new node has a taint that the node controller removes; none runs here.
    await client.patch(NODES, name, {"spec": {"taints": None}})


async def _start(target: Platform) -> None:
    options = {
        "controllers": ("--leader-elect=false",),
        "scheduler": ("--leader-elect=false",),
        "admission": (
            "--leader-elect=false",
            "--port=0",
            "--webhook-namespace=volcano-system",
            "--webhook-service-name=batholith-admission",
        ),
        "api": (
            f"--store=sqlite:///{target.kube.directory / 'api.db'}",
            "--listen-address=127.0.0.1:0",
            "--record-history",
            "--no-leader-elect",
        ),
    }
    started = [target.start(name, *options[name]) for name in MEASURED]
    for component in started:
        await component.wait_ready()


async def _restart_server(target: Platform, client: Client) -> None:
    """Kill the API server, which then has no history of changes, and wait until a new job runs."""
    target.kube.kill_api()
    await asyncio.to_thread(target.kube.start_api)
    kubelets = Kubelets(client)
    async with kubelets.running(), asyncio.timeout(TIMEOUT):
        await submit(client, [job("after", JOB_SIZE, cpu="1")])
        while "after" not in kubelets.running_jobs:  # noqa: ASYNC110 - rarely polled
            await asyncio.sleep(0.5)
        await target.wait_settled("controllers", "scheduler", seconds=SETTLE_SECONDS)


def main() -> None:
    """Measure each number of nodes."""
    parser = argparse.ArgumentParser(prog="python -m bench.sizing")
    parser.add_argument("--nodes", type=int, nargs="+", default=NODE_COUNTS, metavar="N")
    parser.add_argument("--pods", type=int, default=0, help="running pods; default: ten per node")
    parser.add_argument("--jobs", type=int, default=100, help="jobs to be submitted")
    given = parser.parse_args()
    print("| nodes | running pods | step | component | memory | at most | CPU s |")
    print("| ---: | ---: | --- | --- | ---: | ---: | ---: |", flush=True)
    for nodes in given.nodes:
        uvloop.run(measure(nodes, given.pods or nodes * PODS_PER_NODE, given.jobs))


if __name__ == "__main__":
    main()
