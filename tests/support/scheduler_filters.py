"""Filters and scores of kube-scheduler for one pod, written out in plain Python.

Everything is computed again from the objects, for one pod at a time and without any cleverness: the
truth that the scheduler's incremental counts are compared with. `tests/realkube` compares the
scheduler with kube-scheduler itself.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from batholith.model.meta import LabelRequirement, LabelSelector
from batholith.model.node_selectors import NodeSelectorRequirement, NodeSelectorTerm
from batholith.scheduler.state.core_types import (
    Node,
    PersistentVolume,
    PersistentVolumeClaim,
    Pod,
    PodAffinity,
    PodAffinityTerm,
    Taint,
    Toleration,
    TopologySpreadConstraint,
)
from batholith.scheduler.state.resources import amounts, pod_request

Labels = Mapping[str, str]

HOSTNAME = "kubernetes.io/hostname"
_HARD = ("NoSchedule", "NoExecute")
_UNSCHEDULABLE = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")


@dataclass
class Cluster:
    """Nodes, and pods that have a node."""

    nodes: list[Node]
    pods: list[Pod] = field(default_factory=list)
    namespaces: dict[str, Labels] = field(default_factory=dict)
    """Labels of namespaces."""
    claims: dict[str, PersistentVolumeClaim] = field(default_factory=dict)
    """By ``namespace/name``."""
    volumes: dict[str, PersistentVolume] = field(default_factory=dict)

    def on(self, node: Node) -> list[Pod]:
        """The pods on *node*."""
        return [each for each in self.pods if each.spec.node_name == node.metadata.name]

    def on_nodes(self) -> Iterator[tuple[Pod, Labels]]:
        """The pods on known nodes, with the labels of the node."""
        labels = {each.metadata.name: each.metadata.labels for each in self.nodes}
        for each in self.pods:
            if each.spec.node_name in labels:
                yield each, labels[each.spec.node_name]


# -- filters -----------------------------------------------------------------------------------


def feasible(pod: Pod, cluster: Cluster) -> set[str]:
    """Names of the nodes that *pod* fits."""
    rejected = rejections(pod, cluster)
    return {
        node.metadata.name
        for node in cluster.nodes
        if node.metadata.name not in rejected and fits_resources(pod, node, cluster)
    }


def rejections(pod: Pod, cluster: Cluster) -> dict[str, str]:
    """By node: the first filter, but for resources, that rejects it."""
    filters: dict[str, Callable[[Pod, Node, Cluster], bool]] = {
        "unschedulable": allows_scheduling,
        "node affinity": matches_node_affinity,
        "taints": tolerates_taints,
        "volume zone": in_volume_zones,
        "volume node affinity": matches_volume_affinity,
        "pod affinity": has_affinity,
        "pod anti-affinity": has_no_anti_affinity,
        "existing anti-affinity": is_not_repelled,
        "topology spread": is_spread,
        "host ports": has_free_ports,
        "ReadWriteOncePod": has_exclusive_claims,
    }
    found = {}
    for node in cluster.nodes:
        for name, passes in filters.items():
            if not passes(pod, node, cluster):
                found[node.metadata.name] = name
                break
    return found


def fits_resources(pod: Pod, node: Node, cluster: Cluster) -> bool:
    """Whether the requests of *pod* are left on *node*."""
    used: Counter[str] = Counter()
    for each in cluster.on(node):
        used.update(pod_request(each.spec))
    allocatable, request = amounts(node.status.allocatable), pod_request(pod.spec)
    return all(
        used[name] + request.get(name, 0) <= allocatable.get(name, 0)
        for name in {*request, "cpu", "memory"}
    )


def allows_scheduling(pod: Pod, node: Node, cluster: Cluster | None = None) -> bool:
    """Whether *node* is schedulable, or *pod* tolerates that it is not."""
    return not node.spec.unschedulable or tolerates(pod.spec.tolerations, _UNSCHEDULABLE)


def matches_node_affinity(pod: Pod, node: Node, cluster: Cluster | None = None) -> bool:
    """Whether node selector and required node affinity match."""
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return False
    affinity = pod.spec.affinity and pod.spec.affinity.node_affinity
    required = affinity and affinity.required_during_scheduling_ignored_during_execution
    return not required or any(node_matches(term, node) for term in required.node_selector_terms)


def tolerates_taints(pod: Pod, node: Node, cluster: Cluster | None = None) -> bool:
    """Whether *pod* tolerates all hard taints."""
    return all(
        taint.effect not in _HARD or tolerates(pod.spec.tolerations, taint)
        for taint in node.spec.taints
    )


def has_affinity(pod: Pod, node: Node, cluster: Cluster) -> bool:
    """Whether each domain of *node* has a pod that matches all terms of required affinity."""
    terms, labels = _required(pod, anti=False), node.metadata.labels
    if any(term.topology_key not in labels for term in terms):
        return False

    def matches_all(other: Pod) -> bool:
        return all(_selects(term, pod, other, cluster) for term in terms)

    matching = [there for other, there in cluster.on_nodes() if matches_all(other)]
    in_domains = all(
        any(there.get(term.topology_key) == labels[term.topology_key] for there in matching)
        for term in terms
    )
    alone = not any(term.topology_key in there for there in matching for term in terms)
    return in_domains or (alone and matches_all(pod))


def has_no_anti_affinity(pod: Pod, node: Node, cluster: Cluster) -> bool:
    """Whether no domain of *node* has a pod that a term of anti-affinity selects."""
    return not any(
        _same_domain(term.topology_key, node.metadata.labels, there)
        and _selects(term, pod, other, cluster)
        for term in _required(pod, anti=True)
        for other, there in cluster.on_nodes()
    )


def is_not_repelled(pod: Pod, node: Node, cluster: Cluster) -> bool:
    """Whether no pod in a domain of *node* has anti-affinity to *pod*."""
    return not any(
        _same_domain(term.topology_key, node.metadata.labels, there)
        and _selects(term, other, pod, cluster)
        for other, there in cluster.on_nodes()
        for term in _required(other, anti=True)
    )


def is_spread(pod: Pod, node: Node, cluster: Cluster) -> bool:
    """Whether *pod* on *node* keeps the skew of all hard constraints."""
    constraints = _constraints(pod, "DoNotSchedule")
    for constraint in constraints:
        value = node.metadata.labels.get(constraint.topology_key)
        if value is None:
            return False
        counts = _domain_counts(constraint, constraints, pod, cluster)
        minimum = min(counts.values(), default=0)
        if len(counts) < (constraint.min_domains or 1):
            minimum = 0
        itself = int(_spread_selects(constraint, pod, pod.metadata.labels))
        if counts.get(value, 0) + itself - minimum > constraint.max_skew:
            return False
    return True


def has_free_ports(pod: Pod, node: Node, cluster: Cluster) -> bool:
    """Whether no pod on *node* uses a host port of *pod*."""
    used = [port for other in cluster.on(node) for port in host_ports(other)]
    return not any(
        mine[:2] == other[:2] and ("0.0.0.0" in (mine[2], other[2]) or mine[2] == other[2])
        for mine in host_ports(pod)
        for other in used
    )


def in_volume_zones(pod: Pod, node: Node, cluster: Cluster) -> bool:
    """Whether *node* is in the zones and regions that the volumes name."""
    new = {f"topology.kubernetes.io/{each}" for each in ("zone", "region")}
    old = {f"failure-domain.beta.kubernetes.io/{each}" for each in ("zone", "region")}
    labels = node.metadata.labels
    if not (new | old) & labels.keys():
        return True
    for volume in _volumes(pod, cluster):
        for key, values in volume.metadata.labels.items():
            if key in new | old:
                today = f"topology.kubernetes.io/{key.rpartition('/')[2]}"
                value = labels.get(key, labels.get(today, ""))
                if value not in values.split("__"):
                    return False
    return True


def matches_volume_affinity(pod: Pod, node: Node, cluster: Cluster) -> bool:
    """Whether all volumes can be used on *node*."""
    return all(
        volume.spec.node_affinity is None
        or volume.spec.node_affinity.required is None
        or any(
            node_matches(term, node)
            for term in volume.spec.node_affinity.required.node_selector_terms
        )
        for volume in _volumes(pod, cluster)
    )


def has_exclusive_claims(pod: Pod, node: Node, cluster: Cluster) -> bool:
    """Whether no pod uses a ReadWriteOncePod claim of *pod*."""
    used = {key for other in cluster.pods for key in _claim_keys(other)}
    return not any(
        key in used and "ReadWriteOncePod" in cluster.claims[key].spec.access_modes
        for key in _claim_keys(pod)
        if key in cluster.claims
    )


# -- scores ------------------------------------------------------------------------------------


def affinity_scores(pod: Pod, cluster: Cluster, candidates: Sequence[str]) -> dict[str, int]:
    """Score *candidates* by preferred affinity in both directions, from 0 to 100."""
    labels = {each.metadata.name: each.metadata.labels for each in cluster.nodes}
    raw = dict.fromkeys(candidates, 0)
    for other, there in cluster.on_nodes():
        for holder, target in ((pod, other), (other, pod)):
            for weight, term in _preferred(holder):
                if _selects(term, holder, target, cluster):
                    for name in candidates:
                        if _same_domain(term.topology_key, labels[name], there):
                            raw[name] += weight
    lowest, highest = min(raw.values()), max(raw.values())
    if lowest == highest:
        return dict.fromkeys(candidates, 0)
    return {name: int(100 * ((value - lowest) / (highest - lowest))) for name, value in raw.items()}


def spread_scores(pod: Pod, cluster: Cluster, candidates: Sequence[str]) -> dict[str, int]:
    """Score *candidates* by soft constraints, from 0 to 100."""
    constraints = _constraints(pod, "ScheduleAnyway")
    labels = {each.metadata.name: each.metadata.labels for each in cluster.nodes}
    keys = [each.topology_key for each in constraints]
    scored = [name for name in candidates if all(key in labels[name] for key in keys)]
    raw: dict[str, int] = {}
    for name in scored:
        total = 0.0
        for constraint in constraints:
            key = constraint.topology_key
            if key == HOSTNAME:
                size = len(scored)
                count = sum(
                    _spread_counts(constraint, pod, other)
                    for other in cluster.pods
                    if other.spec.node_name == name
                )
            else:
                size = len({labels[each][key] for each in scored})
                counts = _domain_counts(constraint, constraints, pod, cluster)
                count = counts.get(labels[name][key], 0)
            total += count * math.log(size + 2) + (constraint.max_skew - 1)
        raw[name] = math.floor(total + 0.5)
    highest, lowest = max(raw.values(), default=0), min(raw.values(), default=0)
    result = dict.fromkeys(candidates, 0)
    for name, value in raw.items():
        result[name] = 100 * (highest + lowest - value) // highest if highest else 100
    return result


# -- terms -------------------------------------------------------------------------------------


def _required(pod: Pod, *, anti: bool) -> tuple[PodAffinityTerm, ...]:
    found = _part(pod, anti=anti)
    return found.required_during_scheduling_ignored_during_execution if found else ()


def _preferred(pod: Pod) -> Iterator[tuple[int, PodAffinityTerm]]:
    for anti, sign in ((False, 1), (True, -1)):
        found = _part(pod, anti=anti)
        terms = found.preferred_during_scheduling_ignored_during_execution if found else ()
        for each in terms:
            yield sign * each.weight, each.pod_affinity_term


def _part(pod: Pod, *, anti: bool) -> PodAffinity | None:
    affinity = pod.spec.affinity
    if affinity is None:
        return None
    return affinity.pod_anti_affinity if anti else affinity.pod_affinity


def _selects(term: PodAffinityTerm, holder: Pod, other: Pod, cluster: Cluster) -> bool:
    """Whether *term* of *holder* selects *other*."""
    namespace = other.metadata.namespace
    if term.namespaces or term.namespace_selector is not None:
        labels = cluster.namespaces.get(namespace, {})
        named = namespace in term.namespaces
        if not named and not _matches(term.namespace_selector, labels):
            return False
    elif namespace != holder.metadata.namespace:
        return False
    mine, others = holder.metadata.labels, other.metadata.labels
    if not _matches(term.label_selector, others):
        return False
    return all(
        others.get(key) == mine[key] for key in term.match_label_keys if key in mine
    ) and all(others.get(key) != mine[key] for key in term.mismatch_label_keys if key in mine)


def _same_domain(key: str, labels: Labels, others: Labels) -> bool:
    return key in labels and labels[key] == others.get(key)


def _constraints(pod: Pod, action: str) -> list[TopologySpreadConstraint]:
    return [
        each for each in pod.spec.topology_spread_constraints if each.when_unsatisfiable == action
    ]


def _domain_counts(
    constraint: TopologySpreadConstraint,
    constraints: Iterable[TopologySpreadConstraint],
    pod: Pod,
    cluster: Cluster,
) -> dict[str, int]:
    """The pods that *constraint* counts, by domain."""
    counts: dict[str, int] = {}
    for node in cluster.nodes:
        labels = node.metadata.labels
        if any(each.topology_key not in labels for each in constraints):
            continue
        if constraint.node_affinity_policy != "Ignore" and not matches_node_affinity(pod, node):
            continue
        if constraint.node_taints_policy == "Honor" and not tolerates_taints(pod, node):
            continue
        value = labels[constraint.topology_key]
        counts[value] = counts.get(value, 0) + sum(
            _spread_counts(constraint, pod, other) for other in cluster.on(node)
        )
    return counts


def _spread_counts(constraint: TopologySpreadConstraint, pod: Pod, other: Pod) -> bool:
    selector = constraint.label_selector
    is_empty = selector is not None and not (
        selector.match_labels or selector.match_expressions or constraint.match_label_keys
    )
    return (
        not is_empty
        and not other.metadata.deletion_timestamp
        and other.metadata.namespace == pod.metadata.namespace
        and _spread_selects(constraint, pod, other.metadata.labels)
    )


def _spread_selects(constraint: TopologySpreadConstraint, pod: Pod, labels: Labels) -> bool:
    mine = pod.metadata.labels
    return _matches(constraint.label_selector, labels) and all(
        labels.get(key) == mine[key] for key in constraint.match_label_keys if key in mine
    )


def _matches(selector: LabelSelector | None, labels: Labels) -> bool:
    if selector is None:
        return False
    return all(labels.get(key) == value for key, value in selector.match_labels.items()) and all(
        _requirement(each, labels) for each in selector.match_expressions
    )


def _requirement(requirement: NodeSelectorRequirement | LabelRequirement, labels: Labels) -> bool:
    value = labels.get(requirement.key)
    match requirement.operator:
        case "In":
            return value in requirement.values
        case "NotIn":
            return value not in requirement.values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
    bound = int(requirement.values[0])
    if value is None or not value.lstrip("+-").isdigit():
        return False
    return int(value) > bound if requirement.operator == "Gt" else int(value) < bound


def node_matches(term: NodeSelectorTerm, node: Node) -> bool:
    """Whether *node* meets all requirements of *term*, which must have one."""
    fields = {"metadata.name": node.metadata.name}
    return bool(term.match_expressions or term.match_fields) and (
        all(_requirement(each, node.metadata.labels) for each in term.match_expressions)
        and all(_requirement(each, fields) for each in term.match_fields)
    )


def tolerates(tolerations: Iterable[Toleration], taint: Taint) -> bool:
    """Whether one of *tolerations* tolerates *taint*."""
    return any(
        each.effect in ("", taint.effect)
        and (each.key == taint.key or (not each.key and each.operator == "Exists"))
        and (each.operator == "Exists" or each.value == taint.value)
        for each in tolerations
    )


def host_ports(pod: Pod) -> Iterator[tuple[str, int, str]]:
    """Yield the protocol, number and address of each host port of *pod*."""
    sidecars = [each for each in pod.spec.init_containers if each.restart_policy == "Always"]
    for container in (*pod.spec.containers, *sidecars):
        for port in container.ports:
            if port.host_port:
                yield port.protocol or "TCP", port.host_port, port.host_ip or "0.0.0.0"


def _claim_keys(pod: Pod) -> Iterator[str]:
    for volume in pod.spec.volumes:
        if volume.persistent_volume_claim is not None:
            yield f"{pod.metadata.namespace}/{volume.persistent_volume_claim.claim_name}"


def _volumes(pod: Pod, cluster: Cluster) -> Iterator[PersistentVolume]:
    for key in _claim_keys(pod):
        claim = cluster.claims.get(key)
        volume = cluster.volumes.get(claim.spec.volume_name) if claim else None
        if volume is not None:
            yield volume
