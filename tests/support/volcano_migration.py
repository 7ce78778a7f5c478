"""Restores the objects that Volcano left at one moment of a recording, then starts our components.

`tests/data/volcano-objects.jsonl` holds one moment per line: the objects that Volcano's controllers
had created, with their status, taken from recordings of Volcano on a real API server.
``<uid N>`` means the uid of an object; ``<ns>`` and ``<time>`` differ in each run.
"""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from support.api_servers import ServerFactory, add_namespace, add_node
from support.embedded_apiserver import Server
from support.embedded_apiserver import pod as plain_pod
from support.polling import wait_for
from support.running_controller import FakeRecorder, running

from batholith.job_ctrl.controller import JobController
from batholith.kube.client.client import Client
from batholith.kube.errors import ConflictError, NotFoundError
from batholith.kube.informer.informer import Informer
from batholith.model import crds
from batholith.model.base import ApiStruct
from batholith.model.meta import ObjectMeta
from batholith.model.names import COMMANDS, JOBS, PODGROUPS, PODS, QUEUES, Resource
from batholith.podgroup_ctrl.controller import PodGroupController
from batholith.queue_ctrl.controller import QueueController
from batholith.scheduler.scheduler import Scheduler

Json = dict[str, Any]

NODE, NAMESPACE, OTHER_NAMESPACE = "node-0", "default", "elsewhere"
SNAPSHOTS = {
    moment["name"]: moment
    for moment in map(
        json.loads,
        (Path(__file__).parents[1] / "data/volcano-objects.jsonl").read_text().splitlines(),
    )
}
_UID = re.compile(r"<uid \d+>")
_RESOURCES = {each.kind: each for each in (QUEUES, JOBS, PODGROUPS, PODS)}


class AnyObject(ApiStruct, frozen=True):
    """Any object."""

    metadata: ObjectMeta = ObjectMeta()
    spec: msgspec.Raw = msgspec.Raw(b"{}")
    status: msgspec.Raw = msgspec.Raw(b"{}")

    @property
    def status_fields(self) -> Json:
        result: Json = msgspec.json.decode(self.status)
        return result

    @property
    def phase(self) -> str:
        """Of a job, a PodGroup, a pod; the state of a queue."""
        result = self.status_fields
        state = result.get("state") or {}
        found = result.get("phase") or (state if isinstance(state, str) else state.get("phase"))
        return str(found or "")


@dataclass
class VolcanoMigration:
    """A cluster in which Volcano has just been stopped. The test is its kubelet."""

    server: Server
    client: Client
    controllers_stack: AsyncExitStack
    created_uids: dict[str, str] = field(default_factory=dict)
    """Uid of each object that Volcano left, by kind and name."""
    deleted_uids: set[str] = field(default_factory=set)
    """Uids of objects deleted after the migration."""
    phases: dict[str, list[str]] = field(default_factory=dict)
    """Phases of objects after the migration, by kind and name."""
    migrated: bool = False
    """Whether we have taken over."""
    started_pods: set[str] = field(default_factory=set)
    """Uids of pods that the kubelet has started."""
    pods_terminate: bool = True
    """Whether the kubelet terminates deleted pods."""

    def __post_init__(self) -> None:
        self.informers = {
            kind: Informer(self.client, each, AnyObject) for kind, each in _RESOURCES.items()
        }
        self.kubelet_tasks: set[asyncio.Task[None]] = set()
        self.informers["Pod"].add_event_handler(self._run_pod)
        for kind, cache in self.informers.items():
            cache.add_event_handler(partial(self._record_change, kind))

    def get(self, kind: str, name: str) -> AnyObject | None:
        """An object as it is now."""
        return self.informers[kind].get(name if kind == "Queue" else f"{NAMESPACE}/{name}")

    def pods(self, phase: str = "") -> dict[str, str]:
        """Uids of pods, perhaps only those in a phase, by name."""
        return {
            pod.metadata.name: pod.metadata.uid
            for pod in self.informers["Pod"]
            if pod.metadata.namespace == NAMESPACE and phase in ("", pod.phase)
        }

    def podgroups(self) -> dict[str, str]:
        """Uids of PodGroups, by name."""
        return {
            group.metadata.name: group.metadata.uid
            for group in self.informers["PodGroup"]
            if group.metadata.namespace == NAMESPACE
        }

    def volcano_objects(self, kind: str) -> dict[str, str]:
        """Uids of what Volcano left of a kind, by name."""
        return {
            name.split("/", 1)[1]: uid
            for name, uid in self.created_uids.items()
            if name.startswith(f"{kind}/")
        }

    def phase(self, kind: str, name: str) -> str:
        """Its phase now; empty if it is not there."""
        found = self.get(kind, name)
        return found.phase if found else ""

    async def finish_pods(self, phase: str = "Succeeded") -> None:
        """All running pods end."""
        for name in self.pods("Running"):
            await self._report(name, phase)

    async def command(self, action: str, resource: Resource, name: str) -> None:
        """What a user does with Volcano's command line."""
        namespace = NAMESPACE if resource.namespaced else "default"
        body = {
            "metadata": {"generateName": f"{name}-"},
            "action": action,
            "target": {
                "apiVersion": resource.api_version,
                "kind": resource.kind,
                "name": name,
                "uid": self.created_uids[f"{resource.kind}/{name}"],
                "controller": True,
            },
        }
        await self.client.create(COMMANDS, body, namespace=namespace)

    async def start_controllers(self) -> None:
        """Start our controllers and our scheduler, and wait until they have reconciled
        everything."""
        self.migrated = True
        self.phases.clear()
        for component in (
            QueueController(self.client),
            PodGroupController(self.client),
            JobController(self.client),
            Scheduler(self.client, recorder=FakeRecorder()),
        ):
            await self.controllers_stack.enter_async_context(running(component))
        await self._run_probe_job()

    async def _run_probe_job(self) -> None:
        """A job of another namespace starts and ends: so all that was there before was seen."""
        task = {"name": "t", "replicas": 1, "template": {"spec": plain_pod("x")["spec"]}}
        spec = {"schedulerName": "volcano", "minAvailable": 1, "queue": "default", "tasks": [task]}
        await add_namespace(self.server, OTHER_NAMESPACE)
        await self.client.create(
            JOBS, {"metadata": {"name": "probe"}, "spec": spec}, namespace=OTHER_NAMESPACE
        )
        jobs, pods = self.informers["Job"], self.informers["Pod"]
        await wait_for(lambda: _phase(jobs.get(f"{OTHER_NAMESPACE}/probe")) == "Running")
        await self._report("probe-t-0", "Succeeded", OTHER_NAMESPACE)
        await wait_for(lambda: _phase(jobs.get(f"{OTHER_NAMESPACE}/probe")) == "Completed")
        await wait_for(lambda: _phase(pods.get(f"{OTHER_NAMESPACE}/probe-t-0")) == "Succeeded")

    async def restore_snapshot(self, snapshot: Json) -> None:
        """Create what Volcano left; owners first."""
        waiting: list[Json] = list(snapshot["objects"])
        uids: dict[str, str] = {}
        while waiting:
            for each in list(waiting):
                if _required_uids(each) <= set(uids):
                    waiting.remove(each)
                    uids[each["metadata"]["uid"]] = await self._create(each, uids)
        for each in snapshot["objects"]:
            if each["kind"] == "Pod":
                await self._set_podgroup_name(each, uids)

    async def _create(self, recorded: Json, uids: dict[str, str]) -> str:
        kind, resource = recorded["kind"], _RESOURCES[recorded["kind"]]
        body = _with_uids(recorded, uids)
        name, status = body["metadata"]["name"], body.pop("status", {})
        space = NAMESPACE if resource.namespaced else ""
        terminating = body.pop("terminating", False)
        if kind == "PodGroup":
            body["status"] = status
        body["metadata"] = {
            key: value for key, value in body["metadata"].items() if key not in ("uid", "namespace")
        }
        created = await self.client.create(resource, body, namespace=space, view=AnyObject)
        self.created_uids[f"{kind}/{name}"] = created.metadata.uid
        if kind in ("Job", "Queue"):
            body = {"status": status}
            await self.client.patch(resource, name, body, namespace=space, subresource="status")
        if kind == "Pod" and (terminating or status["phase"] != "Pending"):
            await self._bind(name, status["phase"])
        if terminating:
            await self.client.delete(PODS, name, namespace=NAMESPACE, uid=created.metadata.uid)
        return created.metadata.uid

    async def _bind(self, name: str, phase: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
        body = {"metadata": {"name": name, "namespace": NAMESPACE}, "target": target}
        await self.client.post(PODS.path(NAMESPACE, name, "binding"), body, view=msgspec.Raw)
        await self._report(name, phase)

    async def _set_podgroup_name(self, recorded: Json, uids: dict[str, str]) -> None:
        """The PodGroup of a pod without a job is named after the pod, so it was created later."""
        body = _with_uids(recorded, uids)
        name, annotations = body["metadata"]["name"], body["metadata"].get("annotations", {})
        patch = {"metadata": {"annotations": annotations}}
        await self.client.patch(PODS, name, patch, namespace=NAMESPACE)

    # The kubelet, and what is seen.

    def _run_pod(self, old: AnyObject | None, new: AnyObject | None) -> None:
        if new is None or not self.migrated:
            return
        bound = msgspec.json.decode(new.spec).get("nodeName")
        if new.metadata.deletion_timestamp is not None:
            self.kubelet_tasks.add(asyncio.create_task(self._finish_deletion(new)))
        elif bound and new.phase == "Pending" and new.metadata.uid not in self.started_pods:
            meta = new.metadata
            self.started_pods.add(meta.uid)
            running = self._report(meta.name, "Running", meta.namespace, uid=meta.uid)
            self.kubelet_tasks.add(asyncio.create_task(running))

    async def _report(
        self, name: str, phase: str, namespace: str = NAMESPACE, *, uid: str = ""
    ) -> None:
        body: Json = {"status": {"phase": phase}}
        if uid:
            body["metadata"] = {"uid": uid}
        try:
            await self.client.patch(PODS, name, body, namespace=namespace, subresource="status")
        except (ConflictError, NotFoundError):
            return  # it is deleted; another object may have its name

    async def _finish_deletion(self, pod: AnyObject) -> None:
        meta = pod.metadata
        if self.pods_terminate:
            try:
                await self.client.delete(
                    PODS, meta.name, namespace=NAMESPACE, uid=meta.uid, grace_period=0
                )
            except (ConflictError, NotFoundError):
                return  # it is deleted; another object may have its name

    async def finish_terminating_pods(self) -> None:
        """Terminate deleted pods from now on, earlier deletions included."""
        self.pods_terminate = True
        for pod in list(self.informers["Pod"]):
            if pod.metadata.deletion_timestamp is not None:
                await self._finish_deletion(pod)

    def _record_change(self, kind: str, old: AnyObject | None, new: AnyObject | None) -> None:
        about = new or old
        assert about is not None
        name = f"{kind}/{about.metadata.name}"
        if new is None:
            if about.metadata.namespace != OTHER_NAMESPACE:
                self.deleted_uids.add(about.metadata.uid)
            return
        seen = self.phases.setdefault(name, [])
        if new.phase and seen[-1:] != [new.phase]:
            seen.append(new.phase)


def _phase(seen: AnyObject | None) -> str:
    return seen.phase if seen else ""


def _required_uids(recorded: Json) -> set[str]:
    """Objects whose uids the object refers to."""
    meta = recorded["metadata"]
    text = json.dumps([meta["name"], meta.get("ownerReferences", [])])
    return set(_UID.findall(text)) - {meta["uid"]}


def _with_uids(recorded: Json, uids: dict[str, str]) -> Json:
    """The object for this cluster; uids that are not known yet stay as they are."""
    text = json.dumps(recorded).replace("<ns>", NAMESPACE).replace("<time>", "2026-05-04T11:00:00Z")
    body: Json = json.loads(_UID.sub(lambda found: uids.get(found[0], found[0]), text))
    return body


@asynccontextmanager
async def volcano_cluster(
    servers: ServerFactory, directory: Path, snapshot: str, *, pods_terminate: bool = True
) -> AsyncIterator[VolcanoMigration]:
    """A cluster as Volcano left it at a *moment*, without controllers so far."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(servers.start(directory, crds=crds.load()))
        client = await stack.enter_async_context(server.client("admin"))
        tasks = await stack.enter_async_context(asyncio.TaskGroup())
        components_stack = await stack.enter_async_context(AsyncExitStack())
        it = VolcanoMigration(server, client, components_stack, pods_terminate=pods_terminate)
        caches = [tasks.create_task(cache.run()) for cache in it.informers.values()]
        for number in range(4):
            await add_node(server, f"node-{number}", cpu="32", memory="128Gi")
        await it.restore_snapshot(SNAPSHOTS[snapshot])
        try:
            yield it
        finally:
            await components_stack.aclose()
            await asyncio.gather(*it.kubelet_tasks)
            for cache in caches:
                cache.cancel()
