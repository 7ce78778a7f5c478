"""The taint eviction controller: deletes pods that do not tolerate the NoExecute taints of a node.

A pod that tolerates them for a time is deleted after that. As in kube-controller-manager, the time
begins when the controller observes the taint, so a restart of the server begins it again.
"""

from ....model import names
from ..current_time import now
from ..errors.status import StatusError
from ..http.requests import Json
from ..storage.resource_store import Key, ResourceStore
from ..storage.slices import PARSED_SLICE_SIZE, slices
from ..storage.stored_objects import DELETED, StoredObject, WatchEvent
from ..verbs.options import DeleteOptions
from . import node_health
from .base import Controller, ControllerContext, internal_request
from .events import record_event, reference
from .pods_by_node import PodsByNode

_COMPONENT = "taint-eviction-controller"
_NODE_PREFIX = "|node|"


class TaintEvictionController(Controller):
    """Evicts pods from tainted nodes; the key is a pod, or a node whose taints changed."""

    name = "taint eviction"

    def __init__(self, context: ControllerContext, pods: PodsByNode) -> None:
        super().__init__(context)
        self._pods = pods
        self._nodes = context.resource_store(names.NODES)
        self.observed = (self._nodes, pods.pods)
        self._taints: dict[str, list[Json]] = {}
        """NoExecute taints of the nodes that have any."""

        self._observed_at: dict[str, tuple[str, float]] = {}
        """For each pod key that waits for its eviction, the uid and since when."""

    def on_event(self, resource_store: ResourceStore, event: WatchEvent) -> None:
        """Enqueue nodes whose taints changed, and pods that are added to a tainted node."""
        entry = event.entry
        if resource_store is self._nodes:
            self._observe_node(entry, deleted=event.type == DELETED)
        elif resource_store is self._pods.pods and entry.node:
            if event.type == DELETED:
                self._observed_at.pop(_key_of(entry), None)
            elif entry.node in self._taints:
                self.queue.add(_key_of(entry))

    def enqueue_all(self) -> None:
        """Enqueue the pods of all tainted nodes."""
        self._taints.clear()
        for entry in self._nodes.entries():
            self._observe_node(entry, deleted=False)

    def _observe_node(self, entry: StoredObject, *, deleted: bool) -> None:
        before = self._taints.get(entry.name, [])
        taints = [] if deleted else node_health.no_execute_taints(entry.parse())
        if taints:
            self._taints[entry.name] = taints
        else:
            self._taints.pop(entry.name, None)
        if taints != before and not deleted:
            self.queue.add(_NODE_PREFIX + entry.name)

    async def reconcile(self, key: str) -> float | None:
        """Enqueue the pods of a node, or evict one pod when its time has passed."""
        if key.startswith(_NODE_PREFIX):
            pods = list(self._pods.on_node(key.removeprefix(_NODE_PREFIX)))
            async for batch in slices(pods, PARSED_SLICE_SIZE):
                for each in batch:
                    self.queue.add(_key_of(each))
            return None
        namespace, _, name = key.partition("/")
        entry = self._pods.pods.latest(namespace, name)
        known = self._observed_at.get(key)
        if known is not None and (entry is None or entry.uid != known[0]):
            del self._observed_at[key]
            known = None
        if entry is None or not entry.node or entry.deleting:
            self._observed_at.pop(key, None)
            return None
        taints = self._taints.get(entry.node, [])
        pod = entry.parse()
        seconds = node_health.toleration_seconds(
            taints, (pod.get("spec") or {}).get("tolerations") or ()
        )
        if not taints or seconds is None:
            if self._observed_at.pop(key, None) is not None:
                await self._record(pod, f"Cancelling deletion of Pod {key}")
            return None
        moment = self.queue.clock.monotonic()
        since = known[1] if known is not None else moment
        left = since + seconds - moment
        if left > 0:
            self._observed_at[key] = (entry.uid, since)
            return left
        self._observed_at.pop(key, None)
        await self._evict(entry.key, entry.uid, pod)
        return None

    async def _evict(self, key: Key, uid: str, pod: Json) -> None:
        await self._record(pod, f"Marking for deletion Pod {key[0]}/{key[1]}")
        kind = self._pods.pods.kind
        latest = self._pods.pods.latest(*key)
        if latest is None or latest.uid != uid:
            return
        self.context.update_unchecked(kind, key, _with_disruption_target)
        try:
            written = self.context.deleter.delete(
                internal_request(kind, key), DeleteOptions(uid=uid)
            )
        except StatusError as error:
            if error.reason not in ("NotFound", "Conflict"):
                raise
            return
        await written.committed()

    async def _record(self, pod: Json, message: str) -> None:
        written = record_event(
            self.context,
            reference(names.PODS, pod),
            kind="Normal",
            reason="TaintManagerEviction",
            message=message,
            component=_COMPONENT,
        )
        if written is not None:
            await written.committed()


def with_pod_condition(pod: Json, condition: Json) -> Json:
    """Return *pod* with *condition*, which keeps its transition time if its status is unchanged."""
    status = pod.get("status") or {}
    before = node_health.condition_of(pod, condition["type"]) or {}
    unchanged = before.get("status") == condition["status"] and "lastTransitionTime" in before
    moment = before["lastTransitionTime"] if unchanged else now()
    others = [
        each for each in status.get("conditions") or () if each.get("type") != condition["type"]
    ]
    conditions = [*others, {**condition, "lastTransitionTime": moment}]
    return {**pod, "status": {**status, "conditions": conditions}}


def _with_disruption_target(pod: Json) -> Json:
    condition = {
        "type": "DisruptionTarget",
        "status": "True",
        "reason": "DeletionByTaintManager",
        "message": "Taint manager: deleting due to NoExecute taint",
    }
    return with_pod_condition(pod, condition)


def _key_of(entry: StoredObject) -> str:
    return f"{entry.namespace}/{entry.name}"
