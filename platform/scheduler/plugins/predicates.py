"""``predicates``: filters by cordon, node selector, node affinity, taints and host ports."""

from collections.abc import Iterable, Mapping

import numpy as np

from ..state.core_types import NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration
from ..state.equivalence import EquivalenceClass
from ..state.node_matrix import NodeInfo, NodeMatrix
from ..state.resources import IntVector
from .arguments import boolean

NODE_UNSCHEDULABLE = "node(s) were unschedulable"
NODE_AFFINITY_MISMATCH = "node(s) didn't match Pod's node affinity/selector"
NO_FREE_PORTS = "node(s) didn't have free ports for the requested pod ports"

_UNSCHEDULABLE_TAINT = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
_HARD_EFFECTS = ("NoSchedule", "NoExecute")


class PredicatesPlugin:
    """The filters of kube-scheduler that depend on one node only."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Parse which filters are enabled."""
        self._node_affinity_enabled = boolean(
            arguments, "predicate.NodeAffinityEnable", default=True
        )
        self._taint_toleration_enabled = boolean(
            arguments, "predicate.TaintTolerationEnable", default=True
        )

        self._node_ports_enabled = boolean(arguments, "predicate.NodePortsEnable", default=True)

    def filter_node(self, eq_class: EquivalenceClass, node: NodeInfo) -> str | None:
        """Return the reason of the first filter that rejects *node*."""
        if node.unschedulable and not _tolerates(eq_class.tolerations, _UNSCHEDULABLE_TAINT):
            return NODE_UNSCHEDULABLE
        if self._node_affinity_enabled and not matches_node_affinity(eq_class, node):
            return NODE_AFFINITY_MISMATCH
        if self._taint_toleration_enabled:
            for taint in node.taints:
                if taint.effect in _HARD_EFFECTS and not _tolerates(eq_class.tolerations, taint):
                    return f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"
        return None

    def node_limit(
        self, eq_class: EquivalenceClass, nodes: NodeMatrix, node_indexes: IntVector | None
    ) -> IntVector | None:
        """Accept one pod with host ports on a node where none of them is in use."""
        if not eq_class.host_ports or not self._node_ports_enabled:
            return None
        free = ~nodes.host_ports.conflicts(eq_class.host_ports, node_indexes)
        return free.astype(np.int64)

    def node_limit_reason(self, eq_class: EquivalenceClass) -> str:
        """Return the reason of kube-scheduler."""
        return NO_FREE_PORTS


def matches_node_affinity(eq_class: EquivalenceClass, node: NodeInfo) -> bool:
    """Return whether *node* matches the selector and required node affinity of *eq_class*."""
    if any(node.labels.get(key) != value for key, value in eq_class.node_selector.items()):
        return False
    required = eq_class.required
    return required is None or any(
        matches_term(term, node) for term in required.node_selector_terms
    )


def matches_term(term: NodeSelectorTerm, node: NodeInfo) -> bool:
    """Return whether *node* meets all requirements of *term*; ``False`` if it has none."""
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": node.name}
    return all(_matches(each, node.labels) for each in term.match_expressions) and all(
        _matches(each, fields) for each in term.match_fields
    )


def _matches(requirement: NodeSelectorRequirement, labels: Mapping[str, str]) -> bool:
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
        case "Gt" | "Lt":
            return _compare(requirement, value)
    return False


def _compare(requirement: NodeSelectorRequirement, value: str | None) -> bool:
    try:
        actual, bound = int(value or ""), int(requirement.values[0])
    except (ValueError, IndexError):
        return False
    return actual > bound if requirement.operator == "Gt" else actual < bound


def _tolerates(tolerations: tuple[Toleration, ...], taint: Taint) -> bool:
    return any(_tolerates_taint(toleration, taint) for toleration in tolerations)


def _tolerates_taint(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.value == taint.value


def count_untolerated(eq_class: EquivalenceClass, node: NodeInfo, effect: str) -> int:
    """Return how many taints of *effect* on *node* the pods do not tolerate."""
    return sum(
        taint.effect == effect and not _tolerates(eq_class.tolerations, taint)
        for taint in node.taints
    )


def tolerates_cordon(tolerations: tuple[Toleration, ...]) -> bool:
    """Return whether pods with *tolerations* may be bound to a node that is cordoned."""
    return _tolerates(tolerations, _UNSCHEDULABLE_TAINT)


def untolerated(tolerations: tuple[Toleration, ...], taints: Iterable[Taint]) -> Taint | None:
    """Return the first of *taints* that keeps pods with *tolerations* away, if any."""
    hard = (taint for taint in taints if taint.effect in _HARD_EFFECTS)
    return next((taint for taint in hard if not _tolerates(tolerations, taint)), None)
