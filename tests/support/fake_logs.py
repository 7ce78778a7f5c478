"""A scripted API server for logs: pods, their changes, and what each request for a log gets."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import msgspec

from batholith.api.http.text_stream import TextOutput
from batholith.api.jobs.kinds import VOLCANO
from batholith.api.jobs.pod_views import JobPod
from batholith.api.jobs.pods import JobPods
from batholith.api.jobs.views import CachedJob, CachedJobSpec, CachedTask
from batholith.api.logs.containers import LogStreams
from batholith.api.logs.merged import MergedLogs, MergeOptions
from batholith.kube.client.client import Client, WatchEvent
from batholith.kube.client.codec import ObjectList
from batholith.model.job import JobState, JobStatus
from batholith.model.meta import ObjectMeta
from batholith.model.names import PODS, TASK_INDEX, TASK_SPEC, Resource

Step = bytes | Exception | asyncio.Event
"""What a log yields next, how it breaks, or what it waits for."""


@dataclass(frozen=True, slots=True)
class LogRequest:
    """A request for a log."""

    pod: str
    query: dict[str, str]


def make_pod(
    name: str,
    *,
    restarts: int = 0,
    state: str = "running",
    phase: str = "Running",
    task: str = "w",
    containers: Sequence[str] = ("c",),
) -> JobPod:
    """A pod whose containers have a *state*: ``waiting``, ``running`` or ``terminated``."""
    statuses = [
        {"name": each, "restartCount": restarts, "state": {state: {}}} for each in containers
    ]
    pod = {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "annotations": {TASK_SPEC: task, TASK_INDEX: name.rpartition("-")[2]},
            "ownerReferences": [{"name": "train", "uid": "job", "controller": True}],
        },
        "spec": {"containers": [{"name": each} for each in containers]},
        "status": {"phase": phase, "containerStatuses": statuses},
    }
    return msgspec.convert(pod, JobPod)


@dataclass
class FakeCluster:
    """The scripted server; a `Client` for what reads logs."""

    pods: dict[str, JobPod] = field(default_factory=dict)
    logs: dict[str, list[list[Step]]] = field(default_factory=dict)
    """By pod: what each request gets, the last one also those after it."""
    finished: bool = False
    requests: list[LogRequest] = field(default_factory=list)
    open_logs: int = 0
    max_open_logs: int = 0
    watch_errors: list[Exception] = field(default_factory=list)
    _watches: list[asyncio.Queue[WatchEvent[JobPod]]] = field(default_factory=list)

    @property
    def job_pods(self) -> JobPods:
        return JobPods(cast(Client, self), VOLCANO, self._job())

    def _job(self) -> CachedJob:
        return CachedJob(
            metadata=ObjectMeta(name="train", namespace="default", uid="job"),
            spec=CachedJobSpec(tasks=(CachedTask(name="w", replicas=4),)),
            status=JobStatus(state=JobState(phase="Completed" if self.finished else "Running")),
        )

    def set_pod(self, pod: JobPod, *, deleted: bool = False) -> None:
        """Change a pod, and report it to the watches."""
        name = pod.metadata.name
        event_type: Any = "MODIFIED" if name in self.pods else "ADDED"
        if deleted:
            self.pods.pop(name, None)
            event_type = "DELETED"
        else:
            self.pods[name] = pod
        for each in self._watches:
            each.put_nowait(WatchEvent(event_type, pod))

    async def get(self, resource: Resource, name: str, **_: Any) -> CachedJob:
        return self._job()

    async def list(self, resource: Resource, **_: Any) -> ObjectList[JobPod]:
        assert resource is PODS
        return ObjectList(list(self.pods.values()), "1")

    async def watch(self, resource: Resource, **_: Any) -> AsyncIterator[WatchEvent[JobPod]]:
        changes: asyncio.Queue[WatchEvent[JobPod]] = asyncio.Queue()
        self._watches.append(changes)
        try:
            if self.watch_errors:
                raise self.watch_errors.pop(0)
            while True:
                yield await changes.get()
        finally:
            self._watches.remove(changes)

    @asynccontextmanager
    async def stream_path(self, path: str, **_: Any) -> AsyncIterator[AsyncIterator[bytes]]:
        url = urlsplit(path)
        pod = url.path.split("/")[-2]
        query = {name: value for name, (value,) in parse_qs(url.query).items()}
        self.requests.append(LogRequest(pod, query))
        attempts = self.logs[pod]
        steps = attempts.pop(0) if len(attempts) > 1 else attempts[0]
        self.open_logs += 1
        self.max_open_logs = max(self.max_open_logs, self.open_logs)
        try:
            if steps and isinstance(steps[0], Exception):
                raise steps[0]
            yield _steps(steps)
        finally:
            self.open_logs -= 1


async def _steps(steps: Sequence[Step]) -> AsyncIterator[bytes]:
    for step in steps:
        if isinstance(step, asyncio.Event):
            await step.wait()
        elif isinstance(step, Exception):
            raise step
        else:
            await asyncio.sleep(0)
            yield step


def stamped(*texts: str, second: int = 0) -> bytes:
    """Lines with times, a millisecond apart."""
    return b"".join(
        f"2026-01-01T00:00:{second:02d}.{at:03d}000000Z {text}\n".encode()
        for at, text in enumerate(texts)
    )


@dataclass
class Body:
    """The response that a test reads."""

    text: bytes = b""
    messages: list[str] = field(default_factory=list)
    on_send: Callable[[], Any] | None = None

    async def send(self, message: Any) -> None:
        self.messages.append(message["type"])
        self.text += message.get("body", b"")
        if self.on_send is not None:
            await self.on_send()

    @property
    def lines(self) -> Sequence[str]:
        return self.text.decode().splitlines()


async def merge(
    cluster: FakeCluster,
    body: Body,
    *,
    streams: LogStreams | None = None,
    **options: Any,
) -> None:
    """Read the logs of all pods into *body*."""
    merged = MergedLogs(
        cluster.job_pods, MergeOptions(**options), streams=streams or LogStreams(), user="ann"
    )
    await merged.prepare()
    await merged.run(TextOutput(body.send))
