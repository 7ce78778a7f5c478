"""Measure the cost of the embedded API server alone: ``python -m bench.apiserver [COUNT]``.

The server runs in a separate process; this program writes to it over TLS, COUNT objects of each
kind and 32 requests at a time, first with no watcher and then with five on each kind, and reads
the CPU time that the server's threads took. Printed are rows of a Markdown table; bench/README.md
keeps the last ones. Times are CPU, not wall, so a second busy process hardly changes them.
"""

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from batholith.kube.client.client import Client, PatchType
from batholith.kube.client.config import load_credentials
from batholith.local.supervisor.datadir import DataDir
from batholith.local.supervisor.supervisor import READY_FD
from batholith.model.names import EVENTS, JOBS, PODGROUPS, PODS, QUEUES, Resource

IN_FLIGHT = 32
"""Writes in flight."""
WATCHERS = 5
"""Watchers of each kind in the second round."""
WATCHED = (PODS, JOBS, PODGROUPS, EVENTS)

Json = dict[str, Any]
NAMESPACE = "default"
_TIME = "2026-01-01T00:00:00Z"
_GROUP = {"scheduling.k8s.io/group-name": "j0", "volcano.sh/queue-name": "default"}


@dataclass(slots=True)
class Server:
    """The process under measurement."""

    process: "subprocess.Popen[bytes]"

    def cpu(self) -> float:
        """Return the CPU microseconds of all its threads so far."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(each.read_text().split()[0]) for each in tasks) / 1000


@contextlib.asynccontextmanager
async def running_server(*command: str) -> AsyncIterator[tuple[Server, Client]]:
    """Start a server with an empty store; yield it with a client of its administrator."""
    with tempfile.TemporaryDirectory(prefix="batholith-bench-") as directory:
        data = DataDir(Path(directory))
        process, ready = _spawn(directory, *command)
        try:
            await asyncio.to_thread(ready.readline)
            async with Client(load_credentials(str(data.kubeconfig)), user_agent="bench") as client:
                await _create_queues(client)
                yield Server(process), client
        finally:
            process.terminate()
            process.wait()


async def _create_queues(client: Client) -> None:
    """Create the objects that the queue controller creates in a cluster."""
    for name, spec in (("root", {}), ("default", {"parent": "root", "weight": 1})):
        await client.create(QUEUES, {"metadata": {"name": name}, "spec": spec})


def _spawn(directory: str, *command: str) -> "tuple[subprocess.Popen[bytes], IO[bytes]]":
    """Start a server; the file gets a byte when it is ready."""
    ready, notify = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        descriptor = listener.fileno()
        arguments = ["--data-dir", directory, "--listen-fd", str(descriptor)]
        process = subprocess.Popen(
            [*command, *arguments],
            pass_fds=[descriptor, notify],
            env={**os.environ, READY_FD: str(notify)},
        )
    os.close(notify)
    return process, os.fdopen(ready, "rb")


class Watchers:
    """Watches of every measured kind that only count lines."""

    def __init__(self, client: Client, count: int) -> None:
        self._client = client
        self._count = count
        self._seen = 0
        self._expected: tuple[int, asyncio.Event] | None = None

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Watch inside the block."""
        async with asyncio.TaskGroup() as tasks:
            begun = asyncio.Barrier(len(WATCHED) * self._count + 1)
            reading = [
                tasks.create_task(self._watch(kind, begun))
                for kind in WATCHED
                for _ in range(self._count)
            ]
            await begun.wait()
            yield
            for task in reading:
                task.cancel()

    async def _watch(self, kind: Resource, begun: asyncio.Barrier) -> None:
        path = kind.path("", "") + "?watch=true&allowWatchBookmarks=true&resourceVersion=0"
        async with self._client.watch_lines(path) as batches:
            await begun.wait()
            async for lines in batches:
                self._seen += len(lines)
                if self._expected is not None and self._seen >= self._expected[0]:
                    self._expected[1].set()

    def expect(self, changes: int) -> asyncio.Event:
        """Return an event that is set after that many more *changes* in all watchers together."""
        event = asyncio.Event()
        self._expected = self._seen + self._count * changes, event
        if not self._count:
            event.set()
        return event


Write = Callable[[Client, int], Awaitable[object]]


def job(number: int) -> Json:
    """A job of one small pod."""
    container: Json = {"name": "main", "image": "busybox", "command": ["sleep", "1000"]}
    container["resources"] = {"requests": {"cpu": "100m", "memory": "64Mi"}}
    spec = {"restartPolicy": "Never", "containers": [container]}
    task = {"name": "t", "replicas": 1, "template": {"spec": spec}}
    return {
        "apiVersion": JOBS.api_version,
        "kind": JOBS.kind,
        "metadata": {"name": f"j{number}", "namespace": NAMESPACE},
        "spec": {"schedulerName": "volcano", "minAvailable": 1, "tasks": [task]},
    }


def group(number: int) -> Json:
    """The PodGroup of that job."""
    return {
        "apiVersion": PODGROUPS.api_version,
        "kind": PODGROUPS.kind,
        "metadata": {"name": f"j{number}", "namespace": NAMESPACE},
        "spec": {"minMember": 1, "queue": "default", "minResources": {"cpu": "100m"}},
    }


def pod(number: int) -> Json:
    """The pod of that job, similar to those of the job controller."""
    spec = job(number)["spec"]["tasks"][0]["template"]["spec"]
    environment = [{"name": name, "value": "0"} for name in ("VK_TASK_INDEX", "VC_TASK_INDEX")]
    spec["containers"][0]["env"] = environment
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"j{number}-t-0",
            "namespace": NAMESPACE,
            "labels": {"volcano.sh/job-name": "j0", "volcano.sh/task-spec": "t"},
            "annotations": _GROUP,
        },
        "spec": {**spec, "schedulerName": "volcano"},
    }


def running_pod() -> Json:
    """The status with which an agent reports a running pod."""
    container = {
        "name": "main",
        "image": "busybox",
        "imageID": "busybox",
        "containerID": "batholith://1",
        "ready": True,
        "started": True,
        "restartCount": 0,
        "state": {"running": {"startedAt": _TIME}},
        "lastState": {},
    }
    conditions = [
        {"type": name, "status": "True", "lastTransitionTime": _TIME}
        for name in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
    ]
    return {
        "phase": "Running",
        "conditions": conditions,
        "startTime": _TIME,
        "hostIP": "10.0.0.1",
        "podIP": "10.0.0.2",
        "podIPs": [{"ip": "10.0.0.2"}],
        "containerStatuses": [container],
    }


def event(number: int) -> Json:
    """An event about that pod."""
    involved = {"kind": "Pod", "namespace": NAMESPACE, "name": f"j{number}-t-0", "uid": "0"}
    return {
        "metadata": {"name": f"j{number}.1", "namespace": NAMESPACE},
        "involvedObject": {"apiVersion": "v1", **involved},
        "reason": "Scheduled",
        "message": "bound to a node",
        "type": "Normal",
        "count": 1,
        "firstTimestamp": _TIME,
        "lastTimestamp": _TIME,
    }


async def _bind(client: Client, number: int) -> None:
    name = f"j{number}-t-0"
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }
    await client.post(PODS.path(NAMESPACE, name, "binding"), body)


def _status(kind: Resource, name: str, body: Json, how: PatchType) -> Write:
    async def write(client: Client, number: int) -> None:
        await client.patch(
            kind,
            name.format(number),
            {"status": body},
            namespace=NAMESPACE,
            subresource="" if kind == PODGROUPS else "status",
            kind=how,
        )

    return write


def _create(kind: Resource, build: Callable[[int], Json]) -> Write:
    return lambda client, number: client.create(kind, build(number), namespace=NAMESPACE)


def _delete(kind: Resource, name: str) -> Write:
    return lambda client, number: client.delete(
        kind, name.format(number), namespace=NAMESPACE, grace_period=0
    )


_RUNNING_JOB = {"state": {"phase": "Running"}, "minAvailable": 1, "running": 1, "version": 1}
_INQUEUE = {"phase": "Inqueue", "conditions": [{"type": "Scheduled", "status": "True"}]}

WRITES: tuple[tuple[str, Write], ...] = (
    ("create a Job", _create(JOBS, job)),
    ("create a PodGroup", _create(PODGROUPS, group)),
    ("create a pod", _create(PODS, pod)),
    ("status of a PodGroup", _status(PODGROUPS, "j{}", _INQUEUE, PatchType.MERGE)),
    ("bind a pod", _bind),
    ("status of a pod", _status(PODS, "j{}-t-0", running_pod(), PatchType.STRATEGIC)),
    ("status of a Job", _status(JOBS, "j{}", _RUNNING_JOB, PatchType.MERGE)),
    ("create an event", _create(EVENTS, event)),
    ("delete a pod", _delete(PODS, "j{}-t-0")),
    ("delete a Job", _delete(JOBS, "j{}")),
)


async def all_of(client: Client, write: Write, count: int) -> None:
    """Call *write* for each number below *count*."""
    numbers = iter(range(count))

    async def worker() -> None:
        for number in numbers:
            await write(client, number)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(IN_FLIGHT):
            tasks.create_task(worker())


async def measure(count: int, watchers: int, *command: str) -> dict[str, float]:
    """Return the average CPU microseconds of the server for each kind of write."""
    spent = {}
    async with running_server(*command) as (server, client):
        watching = Watchers(client, watchers)
        async with watching.running():
            for name, write in WRITES:
                before, seen = server.cpu(), watching.expect(count)
                await all_of(client, write, count)
                await seen.wait()
                spent[name] = (server.cpu() - before) / count
    return spent


async def main(count: int) -> None:
    """Print a row for each kind of write."""
    command = (sys.executable, "-m", "batholith.cli", "apiserver")
    alone = await measure(count, 0, *command)
    watched = await measure(count, WATCHERS, *command)
    print(f"| {count} times | µs a write | µs with {WATCHERS} watchers | µs an event delivered |")
    print("| --- | ---: | ---: | ---: |")
    for name, cost in alone.items():
        event_cost = (watched[name] - cost) / WATCHERS
        print(f"| {name} | {cost:.0f} | {watched[name]:.0f} | {event_cost:.1f} |")
    print(f"| all | {sum(alone.values()):.0f} | {sum(watched.values()):.0f} | |")


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]) if sys.argv[1:] else 2000))
