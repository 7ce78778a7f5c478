"""Health of nodes, and the taints that follow from it. Pure functions on Node objects."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from ....model.tolerations import tolerates
from ..http.requests import Json

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
EXCLUDE_DISRUPTION = "node.kubernetes.io/exclude-disruption"
"""Label of nodes that do not count for the state of their zone."""

_TAINT_BY_CONDITION: Mapping[tuple[str, str], str] = {
    ("Ready", "False"): NOT_READY,
    ("Ready", "Unknown"): UNREACHABLE,
    ("MemoryPressure", "True"): "node.kubernetes.io/memory-pressure",
    ("DiskPressure", "True"): "node.kubernetes.io/disk-pressure",
    ("NetworkUnavailable", "True"): "node.kubernetes.io/network-unavailable",
    ("PIDPressure", "True"): "node.kubernetes.io/pid-pressure",
}
_NO_SCHEDULE_KEYS = frozenset((*_TAINT_BY_CONDITION.values(), UNSCHEDULABLE))
_NO_EXECUTE_KEY = {"False": NOT_READY, "Unknown": UNREACHABLE}
_KUBELET_CONDITIONS = ("Ready", "MemoryPressure", "DiskPressure", "PIDPressure")
_ZONE_LABELS = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone")


_UNHEALTHY_ZONE_THRESHOLD = 0.55
"""Share of nodes that are not ready from which on a zone counts as partially disrupted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLifecycleSettings:
    """Settings of node lifecycle and pod garbage collection; kube-controller-manager has flags of
    the same names, with the same defaults. Durations are in seconds."""

    node_monitor_period: float = 5.0
    node_monitor_grace_period: float = 50.0
    """At least 1.25 of the duration of the node's Lease, which is 200 s for simulated nodes."""

    node_startup_grace_period: float = 60.0
    node_eviction_rate: float = 0.1
    """Nodes of a zone that are tainted per second."""

    terminated_pod_gc_threshold: int = 12_500
    """Terminated pods above which the oldest are deleted; 0 for no limit."""

    pod_gc_period: float = 20.0
    pod_gc_quarantine: float = 40.0
    """Duration for which a node must not exist before its pods are deleted."""


class ZoneState(Enum):
    """How many nodes of a zone are ready."""

    INITIAL = auto()
    NORMAL = auto()
    PARTIAL_DISRUPTION = auto()
    FULL_DISRUPTION = auto()


def zone_state(ready: int, unready: int) -> ZoneState:
    """Return the state of a zone with these numbers of nodes."""
    if not ready and unready:
        return ZoneState.FULL_DISRUPTION
    if unready > 2 and unready / (ready + unready) >= _UNHEALTHY_ZONE_THRESHOLD:
        return ZoneState.PARTIAL_DISRUPTION
    return ZoneState.NORMAL


def zone_of(labels: Mapping[str, str]) -> str:
    """Return the zone of a node with *labels*; nodes without a zone share one."""
    return "/".join(labels.get(label, "") for label in _ZONE_LABELS)


def condition_of(obj: Json, kind: str) -> Json | None:
    """Return the condition of type *kind*, if the object has one."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return next((each for each in conditions if each.get("type") == kind), None)


def ready_status(node: Json) -> str:
    """Return the status of the Ready condition; empty without one."""
    return str((condition_of(node, "Ready") or {}).get("status", ""))


def with_unknown_conditions(node: Json, *, now: str) -> Json:
    """Return *node* with the conditions of a kubelet that does not report."""
    status = node.get("status") or {}
    conditions = {each["type"]: each for each in status.get("conditions") or ()}
    for kind in _KUBELET_CONDITIONS:
        before = conditions.get(kind)
        if before is None:
            conditions[kind] = {
                "type": kind,
                "status": "Unknown",
                "lastHeartbeatTime": node["metadata"].get("creationTimestamp"),
                "lastTransitionTime": now,
                "reason": "NodeStatusNeverUpdated",
                "message": "Kubelet never posted node status.",
            }
        elif before.get("status") != "Unknown":
            conditions[kind] = {
                **before,
                "status": "Unknown",
                "lastTransitionTime": now,
                "reason": "NodeStatusUnknown",
                "message": "Kubelet stopped posting node status.",
            }
    return {**node, "status": {**status, "conditions": list(conditions.values())}}


def with_no_schedule_taints(node: Json, *, now: str) -> Json:
    """Return *node* with the NoSchedule taints of its conditions and of ``spec.unschedulable``."""
    conditions = (node.get("status") or {}).get("conditions") or ()
    found = [(each.get("type", ""), each.get("status", "")) for each in conditions]
    keys = [_TAINT_BY_CONDITION[each] for each in found if each in _TAINT_BY_CONDITION]
    if (node.get("spec") or {}).get("unschedulable"):
        keys.append(UNSCHEDULABLE)
    return _with_taints(node, keys, _NO_SCHEDULE_KEYS, effect="NoSchedule", now=now)


def with_no_execute_taint(node: Json, *, now: str) -> Json:
    """Return *node* with the NoExecute taint of its Ready condition, or without one if it is ready.

    The two taints are mutually exclusive.
    """
    key = _NO_EXECUTE_KEY.get(ready_status(node))
    return _with_taints(
        node, [key] if key else [], _NO_EXECUTE_KEY.values(), effect="NoExecute", now=now
    )


def without_no_execute_taints(node: Json) -> Json:
    """Return *node* without the NoExecute taints of its Ready condition."""
    return _with_taints(node, [], _NO_EXECUTE_KEY.values(), effect="NoExecute", now="")


def no_execute_taints(node: Json) -> list[Json]:
    """Return the NoExecute taints of *node*, those of users included."""
    return [each for each in _taints(node) if each.get("effect") == "NoExecute"]


def has_health_taint(node: Json) -> bool:
    """Return whether *node* has a NoExecute taint because it is not ready or unreachable."""
    return any(each.get("key") in (NOT_READY, UNREACHABLE) for each in no_execute_taints(node))


def is_out_of_service(node: Json) -> bool:
    """Return whether *node* is not ready, and an administrator has marked it as shut down."""
    marked = any(each.get("key") == OUT_OF_SERVICE for each in _taints(node))
    return marked and ready_status(node) != "True"


def toleration_seconds(taints: Iterable[Json], tolerations: Iterable[Json]) -> float | None:
    """Return for how long a pod with *tolerations* tolerates *taints*: 0 for not at all, and
    ``None`` for ever."""
    tolerations = list(tolerations)
    least: float | None = None
    for taint in taints:
        matching = next((each for each in tolerations if tolerates(each, taint)), None)
        if matching is None:
            return 0.0
        if (seconds := matching.get("tolerationSeconds")) is not None:
            least = max(float(seconds), 0.0) if least is None else min(least, max(seconds, 0.0))
    return least


def _taints(node: Json) -> list[Json]:
    return list((node.get("spec") or {}).get("taints") or ())


def _with_taints(
    node: Json, keys: list[str], managed: Iterable[str], *, effect: str, now: str
) -> Json:
    """Return *node* with taints of *effect* for *keys*, and without one for the other *managed*."""
    managed = frozenset(managed)
    before = _taints(node)
    kept = [
        each
        for each in before
        if each.get("effect") != effect or each.get("key") not in managed or each["key"] in keys
    ]
    known = {each["key"] for each in kept if each.get("effect") == effect}
    added = [
        {"key": key, "effect": effect, "timeAdded": now}
        for key in dict.fromkeys(keys)
        if key not in known
    ]
    taints = [*kept, *added]
    if taints == before:
        return node
    spec = {key: value for key, value in (node.get("spec") or {}).items() if key != "taints"}
    return {**node, "spec": {**spec, "taints": taints} if taints else spec}
