"""An API server with the controllers of workloads: ours, or kube-controller-manager's.

Nothing schedules or runs pods: a test does what a kubelet would do.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from support.api_servers import add_node
from support.embedded_apiserver import MERGE, RawResponse, Server, embedded_server
from support.polling import wait_until_true

from batholith.kube.client.events import EventRecorder
from batholith.local.workloads.service import workload_controllers
from batholith.model import times
from batholith.model.names import EVENTS, PODS, Resource

Json = dict[str, Any]

REAL_CONTROLLERS = (
    "garbagecollector",
    "namespace",
    "serviceaccount",
    "serviceaccount-token",
    "root-ca-cert-publisher",
    "endpoint",
    "endpointslice",
    "endpointslicemirroring",
    "replicaset",
    "replicationcontroller",
    "deployment",
    "statefulset",
    "daemonset",
    "resourceclaim-controller",
    "ephemeral-volume-controller",
    "persistentvolumeclaim-protection-controller",
    "device-taint-eviction-controller",
)
"""Those of kube-controller-manager."""

TIMEOUT = 60.0
"""Seconds after which a test that waits is taken for broken."""

NODE = "node-1"
"""A node of every cluster, at which nothing runs."""

READY_SINCE = "2026-01-01T00:00:00Z"


def template(labels: Json | None = None, **spec: Any) -> Json:
    """A pod template."""
    container = {"name": "c", "image": "i", **spec.pop("container", {})}
    return {
        "metadata": {"labels": {"app": "web"} if labels is None else labels},
        "spec": {"terminationGracePeriodSeconds": 0, "containers": [container], **spec},
    }


@dataclass(slots=True)
class WorkloadCluster:
    """What a test does with the objects of one namespace."""

    server: Server
    embedded: bool
    namespace: str = "default"
    addresses: dict[str, str] = field(default_factory=dict)

    def path(self, resource: Resource, name: str = "", subresource: str = "") -> str:
        return resource.path(self.namespace, name, subresource)

    async def create(self, resource: Resource, name: str, spec: Json, **metadata: Any) -> Json:
        body = {"metadata": {"name": name, **metadata}, "spec": spec}
        return await self.server.create(self.path(resource), body)

    async def get(self, resource: Resource, name: str) -> Json:
        found: Json = await self.server.get(self.path(resource, name))
        return found

    async def find(self, resource: Resource, name: str) -> Json | None:
        response = await self.server.request("GET", self.path(resource, name))
        return response.body if response.status == 200 else None

    async def list_all(self, resource: Resource, selector: str = "") -> list[Json]:
        query = f"?labelSelector={selector}" if selector else ""
        found: list[Json] = (await self.server.get(self.path(resource) + query))["items"]
        return found

    async def patch(self, resource: Resource, name: str, body: Json, subresource: str = "") -> Json:
        path = self.path(resource, name, subresource)
        response = await self.server.request("PATCH", path, body, content_type=MERGE)
        assert response.status == 200, response.body
        changed: Json = response.body
        return changed

    async def delete(self, resource: Resource, name: str, query: str = "") -> RawResponse:
        response = await self.server.request("DELETE", self.path(resource, name) + query)
        assert response.status in (200, 404), response.body
        return response

    async def wait(self, resource: Resource, name: str, holds: Callable[[Json], object]) -> Json:
        """Wait until an object exists for which *holds* is true; return it."""
        last: list[Json] = []

        async def found() -> bool:
            obj = await self.find(resource, name)
            last[:] = [obj] if obj is not None else []
            return obj is not None and bool(holds(obj))

        try:
            await wait_until_true(found, seconds=TIMEOUT)
        except TimeoutError:
            raise AssertionError(f"{resource.kind} {name} stays {last}") from None
        return last[0]

    async def wait_list(
        self, resource: Resource, holds: Callable[[list[Json]], object], selector: str = ""
    ) -> list[Json]:
        """Wait until *holds* is true of the objects; return them."""
        last: list[Json] = []

        async def found() -> bool:
            last[:] = await self.list_all(resource, selector)
            return bool(holds(last))

        try:
            await wait_until_true(found, seconds=TIMEOUT)
        except TimeoutError:
            raise AssertionError(f"{resource.plural} stay {last}") from None
        return last

    async def wait_deleted(self, resource: Resource, name: str) -> None:
        async def is_deleted() -> bool:
            return await self.find(resource, name) is None

        await wait_until_true(is_deleted, seconds=TIMEOUT)

    # Pods.

    async def pods(self, selector: str = "") -> list[Json]:
        """The pods that are not being deleted, by name."""
        found = await self.list_all(PODS, selector)
        return [each for each in found if "deletionTimestamp" not in each["metadata"]]

    async def wait_pods(self, count: int, selector: str = "") -> list[Json]:
        """Wait until there are exactly *count* pods."""
        return await self.wait_list(PODS, lambda found: len(found) == count, selector)

    async def make_pod(self, name: str, labels: Json, **spec: Any) -> Json:
        body = template(labels, **{"nodeName": NODE, **spec})
        body["metadata"]["name"] = name
        return await self.server.create(self.path(PODS), body)

    async def set_ready(self, name: str, *, ready: bool = True, since: str = READY_SINCE) -> None:
        """The status of a pod that runs, as a kubelet writes it."""
        address = self.addresses.setdefault(name, f"10.1.0.{len(self.addresses) + 1}")
        condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": since}
        status = {
            "phase": "Running",
            "podIP": address,
            "podIPs": [{"ip": address}],
            "conditions": [condition],
        }
        await self.patch(PODS, name, {"status": status}, "status")

    def now(self) -> str:
        return times.format(datetime.now(UTC))

    async def set_phase(self, name: str, phase: str) -> None:
        await self.patch(PODS, name, {"status": {"phase": phase, "conditions": []}}, "status")

    @asynccontextmanager
    async def kubelet(self, *, accepts: Callable[[Json], bool] = bool) -> AsyncIterator[None]:
        """Every pod that *accepts* becomes ready at once, for the length of the block."""
        ended = asyncio.Event()
        task = asyncio.create_task(self._run_pods(accepts, ended))
        try:
            yield
        finally:
            # Not cancelled: asyncio leaves the socket of a TLS connection open that is just opened.
            ended.set()
            await task

    async def _run_pods(self, accepts: Callable[[Json], bool], ended: asyncio.Event) -> None:
        while not ended.is_set():
            for pod in await self.list_all(PODS):
                is_new = not pod.get("status", {}).get("podIP")
                if is_new and "deletionTimestamp" not in pod["metadata"] and accepts(pod):
                    with suppress(AssertionError):  # deleted since
                        await self.set_ready(pod["metadata"]["name"])
            await asyncio.sleep(0.02)

    async def events(self, name: str) -> set[tuple[str, str]]:
        """Reasons and messages of the events on an object."""
        found = await self.list_all(EVENTS)
        return {
            (each["reason"], each["message"])
            for each in found
            if each["involvedObject"]["name"] == name
        }

    async def wait_event(self, name: str, reason: str, message: str) -> None:
        async def recorded() -> bool:
            return (reason, message) in await self.events(name)

        try:
            await wait_until_true(recorded, seconds=TIMEOUT)
        except TimeoutError:
            raise AssertionError(f"events: {await self.events(name)}") from None


@asynccontextmanager
async def embedded_workloads(
    directory: Path, *, only: Sequence[str] = ()
) -> AsyncIterator[WorkloadCluster]:
    """An embedded server on which our controllers run, with their own rights."""
    async with (
        embedded_server(directory, node_lifecycle=False) as server,
        running_workloads(server, only=only),
    ):
        await add_node(server, NODE)
        yield WorkloadCluster(server, embedded=True)


@asynccontextmanager
async def running_workloads(server: Server, *, only: Sequence[str] = ()) -> AsyncIterator[None]:
    """Our controllers for the length of the block, all or *only* some."""
    async with server.client("workloads") as client:
        recorder = EventRecorder(client, component="workloads")
        created = workload_controllers(client, recorder)
        chosen = [each for name, each in created.items() if not only or name in only]
        ready = [asyncio.Event() for _ in chosen]
        tasks = [
            asyncio.create_task(each.run(ready=done))
            for each, done in zip(chosen, ready, strict=True)
        ]
        recording = asyncio.create_task(recorder.run())
        try:
            for done in ready:
                await done.wait()
            yield
        finally:
            for task in (*tasks, recording):
                task.cancel()
            results = await asyncio.gather(*tasks, recording, return_exceptions=True)
        errors = [
            each
            for each in results
            if isinstance(each, Exception) and not isinstance(each, asyncio.CancelledError)
        ]
        assert not errors, errors


def counted(**wanted: int) -> Callable[[Json], bool]:
    """Whether a status has these counts, for the current generation."""

    def holds(obj: Json) -> bool:
        status = obj.get("status") or {}
        return status.get("observedGeneration") == obj["metadata"]["generation"] and all(
            status.get(key, 0) == value for key, value in wanted.items()
        )

    return holds
