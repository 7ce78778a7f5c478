"""On which nodes the pods of a DaemonSet run: a pure function of its template and a node."""

from typing import NamedTuple

import msgspec

from ...model.base import ApiStruct
from ...model.meta import ObjectMeta
from ...model.node_selectors import NodeSelector
from ...model.tolerations import tolerates
from .types import Json

_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
_TOLERATED = (
    ("node.kubernetes.io/not-ready", "NoExecute"),
    ("node.kubernetes.io/unreachable", "NoExecute"),
    ("node.kubernetes.io/disk-pressure", "NoSchedule"),
    ("node.kubernetes.io/memory-pressure", "NoSchedule"),
    ("node.kubernetes.io/pid-pressure", "NoSchedule"),
    (_UNSCHEDULABLE, "NoSchedule"),
)
"""Taints that the pods of all DaemonSets tolerate."""

_NETWORK = ("node.kubernetes.io/network-unavailable", "NoSchedule")
"""Tolerated by pods that use the network of their node."""


class NodeSpec(ApiStruct, frozen=True):
    """``spec`` of a node."""

    taints: tuple[Json, ...] = ()


class Node(ApiStruct, frozen=True):
    """A node."""

    metadata: ObjectMeta = ObjectMeta()
    spec: NodeSpec = NodeSpec()


class Fit(NamedTuple):
    """Whether a node gets a pod, and whether one that it has stays there."""

    runs: bool
    stays: bool


def tolerations(spec: Json) -> list[Json]:
    """Return the tolerations of a pod template, and those that every pod of a DaemonSet has."""
    found = list(spec.get("tolerations") or ())
    added = [*_TOLERATED, *([_NETWORK] if spec.get("hostNetwork") else [])]
    for key, effect in added:
        wanted = {"key": key, "operator": "Exists", "effect": effect}
        if wanted not in found:
            found.append(wanted)
    return found


def fit(spec: Json, node: Node) -> Fit:
    """Return whether the pods of a template's *spec* run on *node*."""
    name = spec.get("nodeName", "")
    if name not in ("", node.metadata.name) or not _matches_affinity(spec, node):
        return Fit(False, False)
    tolerated = tolerations(spec)
    untolerated = {
        taint.get("effect")
        for taint in node.spec.taints
        if not any(tolerates(each, taint) for each in tolerated)
    }
    stays = "NoExecute" not in untolerated
    return Fit(stays and "NoSchedule" not in untolerated, stays)


def _matches_affinity(spec: Json, node: Node) -> bool:
    labels = node.metadata.labels
    selector = spec.get("nodeSelector") or {}
    if any(labels.get(key) != value for key, value in selector.items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is None:
        return True
    return msgspec.convert(required, NodeSelector).matches(node.metadata.name, labels)


def pinned_affinity(affinity: Json | None, node: str) -> Json:
    """Return *affinity* with the node of a pod, to which the scheduler binds it."""
    found = dict(affinity or {})
    own = dict(found.get("nodeAffinity") or {})
    required = own.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    fields = [{"key": "metadata.name", "operator": "In", "values": [node]}]
    given: list[Json] = required.get("nodeSelectorTerms") or [{}]
    terms = [{**term, "matchFields": fields} for term in given]
    own["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": terms}
    found["nodeAffinity"] = own
    return found


def pinned_node(affinity: Json | None) -> str:
    """Return the node of :func:`pinned_affinity`, empty if there is none."""
    required = ((affinity or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    ) or {}
    for term in required.get("nodeSelectorTerms") or ():
        for field in term.get("matchFields") or ():
            values = field.get("values") or ()
            if field.get("key") == "metadata.name" and field.get("operator") == "In" and values:
                return str(values[0])
    return ""
