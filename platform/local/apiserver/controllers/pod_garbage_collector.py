"""The pod garbage collector: deletes pods that no kubelet will end, and old terminated pods.

It follows kube-controller-manager. Every period it deletes, without a grace period,

* the oldest terminated pods above a threshold, evicted ones first;
* terminating pods on nodes that an administrator has tainted as out of service;
* pods of nodes that no longer exist, after a quarantine;
* terminating pods without a node.

A pod that has not ended is marked as failed before.
"""

from collections.abc import Callable, Iterable
from functools import partial

from ....model import names
from ....model.pod import FINISHED
from ..errors.status import StatusError
from ..http.requests import Json
from ..storage.resource_store import ResourceStore
from ..storage.slices import PARSED_SLICE_SIZE, slices
from ..storage.stored_objects import DELETED, StoredObject, WatchEvent
from ..verbs.options import DeleteOptions
from ..verbs.planned_writes import WriteResult
from . import node_health
from .base import Controller, ControllerContext, internal_request
from .node_health import NodeLifecycleSettings
from .pods_by_node import PodsByNode
from .taint_eviction import with_pod_condition

_KEY = "pods"
_ORPHANED: Json = {
    "type": "DisruptionTarget",
    "status": "True",
    "reason": "DeletionByPodGC",
    "message": "PodGC: node no longer exists",
}


class PodGarbageCollector(Controller):
    """Deletes pods in each period; has a single key."""

    name = "pod garbage"

    def __init__(
        self, context: ControllerContext, pods: PodsByNode, settings: NodeLifecycleSettings
    ) -> None:
        super().__init__(context)
        self._settings = settings
        self._pods = pods
        self.observed = (pods.pods,)
        self._nodes = context.resource_store(names.NODES)
        self._missing_since: dict[str, float] = {}
        """Nodes that have pods and do not exist, by when that was first observed."""

        self._terminated: dict[tuple[str, str], None] = {}

    def on_event(self, resource_store: ResourceStore, event: WatchEvent) -> None:
        """Record which pods are terminated."""
        if event.type == DELETED:
            self._terminated.pop(event.entry.key, None)
        elif event.entry.key not in self._terminated:
            self._observe(event.entry)

    def enqueue_all(self) -> None:
        """Begin the first period."""
        self._terminated.clear()
        for entry in self._pods.pods.entries():
            self._observe(entry)
        self.queue.add(_KEY)

    def _observe(self, entry: StoredObject) -> None:
        if _may_be_terminated(entry) and entry.field("status.phase") in FINISHED:
            self._terminated[entry.key] = None

    async def reconcile(self, key: str) -> float | None:
        """Delete what is garbage now."""
        await self._delete_terminated()
        await self._delete_from_nodes(self._nodes_out_of_service(), only_terminating=True)
        await self._delete_from_nodes(self._deleted_nodes(), condition=_ORPHANED)
        await self._delete(list(self._pods.unassigned_terminating()))
        return self._settings.pod_gc_period

    async def _delete_terminated(self) -> None:
        threshold = self._settings.terminated_pod_gc_threshold
        excess = len(self._terminated) - threshold
        if threshold <= 0 or excess <= 0:
            return
        latest = (self._pods.pods.latest(*key) for key in list(self._terminated))
        found = sorted((entry for entry in latest if entry is not None), key=_deletion_order)
        await self._delete(found[:excess])

    async def _delete_from_nodes(
        self,
        nodes: Iterable[str],
        *,
        only_terminating: bool = False,
        condition: Json | None = None,
    ) -> None:
        for name in nodes:
            pods = self._pods.on_node(name)
            found = [pod for pod in pods if pod.deleting or not only_terminating]
            await self._delete(found, condition)

    def _nodes_out_of_service(self) -> list[str]:
        marker = node_health.OUT_OF_SERVICE.encode()
        return [
            entry.name
            for entry in self._nodes.latest_entries()
            if marker in entry.data and node_health.is_out_of_service(entry.parse())
        ]

    def _deleted_nodes(self) -> list[str]:
        """Return the nodes that have not existed for the quarantine, and have pods."""
        moment = self.queue.clock.monotonic()
        missing = [name for name in self._pods.nodes() if self._nodes.latest("", name) is None]
        self._missing_since = {name: self._missing_since.get(name, moment) for name in missing}
        limit = moment - self._settings.pod_gc_quarantine
        return [name for name, since in self._missing_since.items() if since <= limit]

    async def _delete(self, pods: list[StoredObject], condition: Json | None = None) -> None:
        """Mark *pods* as failed unless they have ended, and delete them without a grace period."""
        kind = self._pods.pods.kind
        change: Callable[[Json], Json] = partial(_failed, condition=condition)
        async for batch in slices(pods, PARSED_SLICE_SIZE):
            writes: list[WriteResult] = []
            for pod in batch:
                latest = self._pods.pods.latest(*pod.key)
                if latest is None or latest.uid != pod.uid:
                    continue
                try:
                    self.context.update_unchecked(kind, pod.key, change)
                    request = internal_request(kind, pod.key)
                    options = DeleteOptions(uid=pod.uid, grace_period=0)
                    writes.append(self.context.deleter.delete(request, options))
                except StatusError as error:
                    if error.reason not in ("NotFound", "Conflict"):
                        raise
            for written in writes:
                await written.committed()


def _may_be_terminated(entry: StoredObject) -> bool:
    """Return whether *entry* may be terminated, by a search that is cheaper than parsing."""
    return b'"phase":"Succeeded"' in entry.data or b'"phase":"Failed"' in entry.data


def _deletion_order(entry: StoredObject) -> tuple[bool, str, str]:
    pod = entry.parse()
    is_evicted = (pod.get("status") or {}).get("reason") == "Evicted"
    return not is_evicted, pod["metadata"].get("creationTimestamp") or "", entry.name


def _failed(pod: Json, *, condition: Json | None) -> Json:
    status = pod.get("status") or {}
    if status.get("phase") in FINISHED:
        return pod
    pod = {**pod, "status": {**status, "phase": "Failed"}}
    return with_pod_condition(pod, condition) if condition is not None else pod
