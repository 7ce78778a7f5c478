"""The node lifecycle controller: marks nodes whose kubelet does not report, and taints them.

It follows kube-controller-manager: a node without a renewed Lease or a new heartbeat for the grace
period gets Unknown conditions, its pods Ready=False; conditions become NoSchedule taints at once,
and NoExecute taints at a limited rate for each zone, which the taint eviction controller executes.
While no node of the cluster is ready, no NoExecute taint is set: the cause is more probably the
network than the nodes.
"""

import msgspec

from ....model import names
from ..current_time import now
from ..http.requests import Json
from ..storage.resource_store import ResourceStore
from ..storage.slices import PARSED_SLICE_SIZE, slices
from ..storage.stored_objects import DELETED, StoredObject, WatchEvent
from ..verbs.planned_writes import WriteResult
from ..verbs.writes import UpdateFunc
from . import node_health
from .base import Controller, ControllerContext
from .events import record_event, reference
from .node_health import NodeLifecycleSettings, ZoneState, zone_state
from .pods_by_node import PodsByNode

LEASE_NAMESPACE = "kube-node-lease"
_COMPONENT = "node-controller"
_MONITOR = "|monitor"
_ZONE_PREFIX = "|zone|"
_SECONDARY_NODE_EVICTION_RATE = 0.01
"""Nodes that are tainted per second in a large zone that is partially disrupted."""

_LARGE_CLUSTER_SIZE_THRESHOLD = 50
"""Number of nodes above which a zone is large; in smaller ones no node is tainted then."""

_TAINT_DELAY = 0.1
"""Seconds over which nodes of a zone that become unready are collected, so that a disruption of the
whole cluster is recognised before the first taint."""

_LEASE_FACTOR = 1.25
"""Least grace period as a factor of the duration of the node's Lease: 50 s for a kubelet's 40 s."""


class _NodeHealth(msgspec.Struct):
    """What is known of the heartbeats of a node."""

    uid: str
    zone: str
    probed_at: float
    """When it last reported, by the monotonic clock."""

    ready: str = ""
    """Status of its Ready condition; empty without one."""

    heartbeat: str = ""
    renewed: str = ""
    lease_duration: float = 0.0
    is_excluded: bool = False
    """Whether it does not count for the state of its zone."""


class _ZoneTainter(msgspec.Struct):
    """Nodes of a zone that are to get a NoExecute taint, at a limited rate."""

    rate: float
    waiting: dict[str, None] = {}
    next_at: float = 0.0

    def delay(self, moment: float) -> float | None:
        """Return the seconds until the next taint; ``None`` for never."""
        return max(self.next_at - moment, 0.0) if self.rate > 0 and self.waiting else None

    def take(self, moment: float) -> str:
        """Return the node that is next."""
        name = next(iter(self.waiting))
        del self.waiting[name]
        self.next_at = max(self.next_at, moment) + 1 / self.rate
        return name


class NodeLifecycleController(Controller):
    """Maintains conditions and taints of nodes; the key is a node, a zone, or the monitor."""

    name = "node lifecycle"

    def __init__(
        self, context: ControllerContext, pods: PodsByNode, settings: NodeLifecycleSettings
    ) -> None:
        super().__init__(context)
        self._settings = settings
        self._pods = pods
        self._nodes = context.resource_store(names.NODES)
        self._leases = context.resource_store(names.LEASES)
        self.observed = (self._nodes, self._leases, pods.pods)
        self._health: dict[str, _NodeHealth] = {}
        self._tainters: dict[str, _ZoneTainter] = {}
        self._zone_states: dict[str, ZoneState] = {}
        self._monitored_at = self.queue.clock.monotonic()

    # -- events --------------------------------------------------------------------------------

    def on_event(self, resource_store: ResourceStore, event: WatchEvent) -> None:
        """Record heartbeats, and enqueue nodes that changed or got a pod while unready."""
        entry = event.entry
        if resource_store is self._nodes:
            if event.type == DELETED:
                self._forget(entry)
            else:
                self._observe_node(entry)
                self.queue.add(entry.name)
        elif resource_store is self._leases:
            if event.type != DELETED and entry.namespace == LEASE_NAMESPACE:
                self._observe_lease(entry)
        elif resource_store is self._pods.pods and entry.node:
            was = event.previous.node if event.previous is not None else ""
            health = self._health.get(entry.node)
            if was != entry.node and health is not None and health.ready in ("False", "Unknown"):
                self.queue.add(entry.node)

    def enqueue_all(self) -> None:
        """Start to monitor the stored nodes: each has the whole grace period from now on."""
        self._health.clear()
        for entry in self._nodes.entries():
            self._observe_node(entry)
            self.queue.add(entry.name)
        for entry in self._leases.by_namespace.get(LEASE_NAMESPACE, {}).values():
            self._observe_lease(entry)
        self._monitored_at = self.queue.clock.monotonic()
        self.queue.add(_MONITOR)

    def _observe_node(self, entry: StoredObject) -> None:
        node = entry.parse()
        condition = node_health.condition_of(node, "Ready") or {}
        heartbeat = str(condition.get("lastHeartbeatTime") or "")
        moment = self.queue.clock.monotonic()
        zone = node_health.zone_of(entry.labels)
        health = self._health.get(entry.name)
        if health is None or health.uid != entry.uid:
            health = self._health[entry.name] = _NodeHealth(entry.uid, zone, moment)
            lease = self._leases.latest(LEASE_NAMESPACE, entry.name)
            if lease is not None:
                self._observe_lease(lease)
        elif health.heartbeat != heartbeat:
            health.probed_at = moment
        if health.zone != zone:
            self._tainter(health.zone).waiting.pop(entry.name, None)
        health.zone, health.heartbeat = zone, heartbeat
        health.ready = str(condition.get("status", ""))
        health.is_excluded = node_health.EXCLUDE_DISRUPTION in entry.labels

    def _observe_lease(self, entry: StoredObject) -> None:
        health = self._health.get(entry.name)
        if health is None:
            return
        spec = entry.parse().get("spec") or {}
        renewed = str(spec.get("renewTime") or "")
        health.lease_duration = float(spec.get("leaseDurationSeconds") or 0)
        if renewed > health.renewed:
            health.renewed = renewed
            health.probed_at = self.queue.clock.monotonic()

    def _forget(self, entry: StoredObject) -> None:
        health = self._health.get(entry.name)
        if health is not None and health.uid == entry.uid:
            del self._health[entry.name]
            self._tainter(health.zone).waiting.pop(entry.name, None)

    # -- reconciles ----------------------------------------------------------------------------

    async def reconcile(self, key: str) -> float | None:
        """Monitor all nodes, taint the next node of a zone, or update one node."""
        if key == _MONITOR:
            await self._monitor()
            return self._settings.node_monitor_period
        if key.startswith(_ZONE_PREFIX):
            return await self._taint_zone(key.removeprefix(_ZONE_PREFIX))
        await self._update_node(key)
        return None

    async def _monitor(self) -> None:
        """Update the nodes that do not report, then the states of the zones."""
        moment = self.queue.clock.monotonic()
        # While this process did not run, no node could report.
        late = moment - self._monitored_at - 2 * self._settings.node_monitor_period
        self._monitored_at = moment
        if late > 0:
            for health in self._health.values():
                health.probed_at += late
        for name in [name for name, each in self._health.items() if self._is_lost(each, moment)]:
            await self._update_node(name)
        await self._update_zones(moment)

    def _is_lost(self, health: _NodeHealth, moment: float) -> bool:
        if health.ready == "Unknown":
            return False
        settings = self._settings
        grace = settings.node_monitor_grace_period if health.ready else 0.0
        grace = grace or settings.node_startup_grace_period
        return moment > health.probed_at + max(grace, health.lease_duration * _LEASE_FACTOR)

    async def _update_node(self, name: str) -> None:
        """Update conditions and NoSchedule taints of one node, and plan its NoExecute taint."""
        entry, health = self._nodes.latest("", name), self._health.get(name)
        if entry is None or health is None or health.uid != entry.uid:
            return
        before = entry.parse()
        is_lost = self._is_lost(health, self.queue.clock.monotonic())
        tainter = self._tainter(health.zone)

        def updated(node: Json) -> Json:
            if is_lost:
                node = node_health.with_unknown_conditions(node, now=now())
            node = node_health.with_no_schedule_taints(node, now=now())
            ready = node_health.ready_status(node)
            # A taint that exists follows the condition at once; a new one waits for its zone.
            if ready == "True" or (ready and node_health.has_health_taint(node)):
                node = node_health.with_no_execute_taint(node, now=now())
            return node

        after = updated(before)
        was, ready = node_health.ready_status(before), node_health.ready_status(after)
        if after != before:
            await self.context.update_unchecked(self._nodes.kind, entry.key, updated).committed()
        if ready in ("", "True") or node_health.has_health_taint(after):
            tainter.waiting.pop(name, None)
        elif name not in tainter.waiting:
            tainter.waiting[name] = None
            self.queue.add_after(_ZONE_PREFIX + health.zone, _TAINT_DELAY)
        if was == "True" and ready != "True":
            await self._record_node_event(
                after, "NodeNotReady", f"Node {name} status is now: NodeNotReady"
            )
        if ready in ("False", "Unknown") and (was == "True" or ready == "Unknown"):
            await self._mark_pods_not_ready(name)

    # -- NoExecute taints ----------------------------------------------------------------------

    def _tainter(self, zone: str) -> _ZoneTainter:
        tainter = self._tainters.get(zone)
        if tainter is None:
            rate = self._settings.node_eviction_rate
            tainter = self._tainters[zone] = _ZoneTainter(rate)
        return tainter

    async def _taint_zone(self, zone: str) -> float | None:
        """Taint the nodes that are due; returns the seconds until the next one."""
        tainter = self._tainter(zone)
        await self._update_zones(self.queue.clock.monotonic())
        while True:
            moment = self.queue.clock.monotonic()
            delay = tainter.delay(moment)
            if delay is None or delay > 0:
                return delay
            await self._change_node(tainter.take(moment), _with_no_execute_taint)

    async def _update_zones(self, moment: float) -> None:
        """Set the eviction rate of each zone by the states of all."""
        counts = self._count_nodes()
        states = {zone: zone_state(ready, unready) for zone, (ready, unready) in counts.items()}
        before = {zone: self._zone_states.get(zone, ZoneState.INITIAL) for zone in states}
        full = ZoneState.FULL_DISRUPTION
        is_full = all(state is full for state in states.values())
        was_full = all(state is full for state in before.values())
        self._zone_states = states
        if not states or (is_full and was_full):
            return
        if is_full:
            for zone in states:
                self._tainter(zone).rate = 0.0
            for name in list(self._health):
                await self._change_node(name, node_health.without_no_execute_taints)
            return
        if was_full:
            for health in self._health.values():
                health.probed_at = moment
        for zone, state in states.items():
            rate = self._eviction_rate(state, sum(counts[zone]))
            tainter = self._tainter(zone)
            if tainter.rate != rate:
                tainter.rate = rate
                self.queue.add(_ZONE_PREFIX + zone)

    def _count_nodes(self) -> dict[str, tuple[int, int]]:
        """Return for each zone how many nodes are ready, and how many are not."""
        counts: dict[str, tuple[int, int]] = {}
        for health in self._health.values():
            if not health.is_excluded:
                ready, unready = counts.get(health.zone, (0, 0))
                is_ready = health.ready == "True"
                counts[health.zone] = (ready + is_ready, unready + (not is_ready))
        return counts

    def _eviction_rate(self, state: ZoneState, size: int) -> float:
        if state is not ZoneState.PARTIAL_DISRUPTION:
            return self._settings.node_eviction_rate
        return _SECONDARY_NODE_EVICTION_RATE if size > _LARGE_CLUSTER_SIZE_THRESHOLD else 0.0

    # -- writes --------------------------------------------------------------------------------

    async def _change_node(self, name: str, change: UpdateFunc) -> None:
        entry = self._nodes.latest("", name)
        if entry is not None and change(before := entry.parse()) != before:
            await self.context.update_unchecked(self._nodes.kind, entry.key, change).committed()

    async def _mark_pods_not_ready(self, node: str) -> None:
        async for batch in slices(list(self._pods.on_node(node)), PARSED_SLICE_SIZE):
            writes: list[WriteResult | None] = []
            for pod in batch:
                latest = self._pods.pods.latest(*pod.key)
                if latest is None or latest.uid != pod.uid or not _is_ready(latest.parse()):
                    continue
                writes.append(
                    self.context.update_unchecked(self._pods.pods.kind, pod.key, _not_ready)
                )
                writes.append(
                    record_event(
                        self.context,
                        reference(names.PODS, latest.parse()),
                        kind="Warning",
                        reason="NodeNotReady",
                        message="Node is not ready",
                        component=_COMPONENT,
                    )
                )
            for written in writes:
                if written is not None:
                    await written.committed()

    async def _record_node_event(self, node: Json, reason: str, message: str) -> None:
        written = record_event(
            self.context,
            reference(names.NODES, node),
            kind="Normal",
            reason=reason,
            message=message,
            component=_COMPONENT,
        )
        if written is not None:
            await written.committed()


def _with_no_execute_taint(node: Json) -> Json:
    return node_health.with_no_execute_taint(node, now=now())


def _is_ready(pod: Json) -> bool:
    return (node_health.condition_of(pod, "Ready") or {}).get("status") == "True"


def _not_ready(pod: Json) -> Json:
    conditions = [
        {**each, "status": "False", "lastTransitionTime": now()}
        if (each.get("type"), each.get("status")) == ("Ready", "True")
        else each
        for each in pod["status"]["conditions"]
    ]
    return {**pod, "status": {**pod["status"], "conditions": conditions}}
