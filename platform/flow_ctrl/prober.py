"""Sends the requests of probes again and again, until they pass or no flow waits for them.

Requests go only to the addresses of pods that the Job controls, and only to those of the tasks
that the probe names. The pods are listed for each round: flows with probes are few, and an informer
would keep all pods of the cluster in memory.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import Protocol

import msgspec

from ..kube.client.client import Client
from ..kube.errors import ApiError, ConnectionLostError
from ..kube.supervision import cancel_and_wait
from ..machinery.batches import run_concurrently
from ..machinery.clock import Clock
from ..model.base import ApiStruct
from ..model.flow import HttpGetProbe
from ..model.meta import ObjectMeta
from ..model.names import JOB_NAME, JOBS, PODS, TASK_SPEC
from . import requests
from .decide import AwaitedProbe
from .requests import RequestError
from .settings import FlowSettings

log = logging.getLogger(__name__)

_TIMEOUT = 2.0
"""Seconds for one request."""

_MAX_IN_FLIGHT = 32
"""Concurrent requests to pods and lists of pods, of all flows together."""

Request = Callable[[str], Awaitable[None]]
"""Sends one request to an address; raises RequestError if it fails."""


class _PodStatus(ApiStruct, frozen=True):
    phase: str = ""
    pod_ip: str = msgspec.field(name="podIP", default="")


class Pod(ApiStruct, frozen=True):
    """The fields of a pod that are needed for requests to it."""

    metadata: ObjectMeta = ObjectMeta()
    status: _PodStatus = _PodStatus()

    @property
    def task(self) -> str:
        """Task of the Job."""
        meta = self.metadata
        return meta.annotations.get(TASK_SPEC) or meta.labels.get(TASK_SPEC, "")

    def can_respond(self, job_uid: str) -> bool:
        """Whether it is a running pod that the Job with this uid controls."""
        owner = self.metadata.controller
        return (
            owner is not None
            and (owner.kind, owner.api_version, owner.uid) == (JOBS.kind, JOBS.api_version, job_uid)
            and self.metadata.deletion_timestamp is None
            and self.status.phase == "Running"
            and bool(self.status.pod_ip)
        )


class Network(Protocol):
    """What sends the requests: the module :mod:`.requests`."""

    async def connect(self, address: str, port: int, *, timeout: float) -> None:
        """Open and close a TCP connection; raises RequestError."""
        ...

    async def http_get(self, address: str, probe: HttpGetProbe, *, timeout: float) -> None:
        """Send a GET request and read the status of the response; raises RequestError."""
        ...


class Prober:
    """The awaited probes of all flows; :meth:`close` ends it."""

    def __init__(
        self,
        client: Client,
        *,
        settings: FlowSettings,
        clock: Clock,
        on_passed: Callable[[str, AwaitedProbe], None],
        network: Network | None = None,
    ) -> None:
        """*on_passed* is called with the key of a flow and a probe that has passed."""
        self._client = client
        self._settings = settings
        self._clock = clock
        self._on_passed = on_passed
        self._network: Network = network or requests
        self._limit = asyncio.Semaphore(_MAX_IN_FLIGHT)
        self._awaited: dict[str, tuple[AwaitedProbe, ...]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._closed = False

    def set_awaited(self, key: str, probes: Sequence[AwaitedProbe]) -> None:
        """Set what a flow waits for, instead of what it waited for before."""
        if not probes or self._closed:
            self._awaited.pop(key, None)
            if (task := self._tasks.pop(key, None)) is not None:
                task.cancel()
            return
        self._awaited[key] = tuple(probes)
        if key not in self._tasks:
            self._tasks[key] = asyncio.create_task(self._run(key))

    def forget(self, key: str) -> None:
        """Send no more requests for a flow that is deleted."""
        self.set_awaited(key, ())

    async def close(self) -> None:
        """End all requests."""
        self._closed = True
        tasks = [*self._tasks.values()]
        self._tasks.clear()
        await cancel_and_wait(*tasks)

    async def _run(self, key: str) -> None:
        """Check the probes of one flow until cancelled."""
        while True:
            for result in (await run_concurrently(self._awaited[key], self._round(key))).failed:
                _log_failure(*result, key=key)
            await self._clock.sleep(self._settings.probe_interval)

    def _round(self, key: str) -> Callable[[AwaitedProbe], Awaitable[None]]:
        async def check(probe: AwaitedProbe) -> None:
            if await self._passes(probe) and probe in self._awaited.get(key, ()):
                self._on_passed(key, probe)

        return check

    async def _passes(self, probe: AwaitedProbe) -> bool:
        """Return whether enough pods of each task respond to all requests."""
        async with self._limit:
            listed = await self._client.list(
                PODS,
                namespace=probe.namespace,
                view=Pod,
                label_selector=f"{JOB_NAME}={probe.job}",
            )
        pods = [pod for pod in listed.items if pod.can_respond(probe.job_uid)]
        for task, required in probe.tasks:
            sent = [*self._requests(probe, task)]
            own = [pod.status.pod_ip for pod in pods if pod.task == task]
            if not sent:
                continue
            if len(own) < required:
                return False
            result = await run_concurrently(own, partial(self._send, sent=sent))
            if len(result.succeeded) < required:
                return False
        return True

    def _requests(self, probe: AwaitedProbe, task: str) -> Iterator[Request]:
        for http in probe.http:
            if http.task_name in ("", task):
                yield partial(self._network.http_get, probe=http, timeout=_TIMEOUT)
        for tcp in probe.tcp:
            if tcp.task_name in ("", task):
                yield partial(self._network.connect, port=tcp.port, timeout=_TIMEOUT)

    async def _send(self, address: str, sent: Sequence[Request]) -> None:
        for request in sent:
            async with self._limit:
                await request(address)


def _log_failure(probe: AwaitedProbe, error: Exception, *, key: str) -> None:
    fields = {"jobflow": key, "job": probe.job, "error": str(error)}
    if isinstance(error, ApiError | ConnectionLostError | RequestError):
        log.warning("cannot list pods of probe", extra=fields)
    else:
        log.error("probe failed unexpectedly", extra=fields, exc_info=error)
