"""Jobs of the benchmarks, and their submission at the same rate in each of them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, TypeVar

from batholith.kube.client.client import Client
from batholith.model.names import JOBS, PODS

T = TypeVar("T")

IN_FLIGHT = 64
"""Requests that the submitting client keeps in flight."""
NAMESPACE = "default"


def pod_spec(*, cpu: str = "100m", command: Sequence[str] = ("sleep", "1000")) -> dict[str, Any]:
    """The spec of a pod of one container."""
    container = {
        "name": "main",
        "image": "busybox",
        "command": list(command),
        "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}},
    }
    return {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]}


def job(
    name: str, replicas: int, *, cpu: str = "100m", command: Sequence[str] = ("sleep", "1000")
) -> dict[str, Any]:
    """A gang of *replicas* pods."""
    template = {"spec": pod_spec(cpu=cpu, command=command)}
    task = {"name": "t", "replicas": replicas, "template": template}
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"schedulerName": "volcano", "minAvailable": replicas, "tasks": [task]},
    }


async def bind(client: Client, name: str, node: str) -> None:
    """Bind a pod."""
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    await client.post(PODS.path(NAMESPACE, name, "binding"), binding)


async def in_parallel(
    items: Iterable[T], work: Callable[[T], Awaitable[object]], *, workers: int = IN_FLIGHT
) -> None:
    """Call *work* for each of *items*, with limited concurrency."""
    left = iter(items)

    async def worker() -> None:
        for item in left:
            await work(item)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(workers):
            tasks.create_task(worker())


async def submit(client: Client, jobs: Iterable[dict[str, Any]]) -> None:
    """Create all *jobs*, with IN_FLIGHT concurrent requests."""

    async def create(body: dict[str, Any]) -> None:
        await client.create(JOBS, body, namespace=NAMESPACE)

    await in_parallel(jobs, create)
