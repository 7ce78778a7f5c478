"""``predicates``: which nodes a pod may use, by cordon, selector, affinity and taints."""

from collections.abc import Mapping

from ..state.core_types import NodeSelectorRequirement, NodeSelectorTerm, Taint, Toleration
from ..state.equivalence import EquivalenceClass
from ..state.node_matrix import NodeInfo
from .arguments import boolean

NODE_UNSCHEDULABLE = "node(s) were unschedulable"
NODE_AFFINITY_MISMATCH = "node(s) didn't match Pod's node affinity/selector"

_UNSCHEDULABLE_TAINT = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
_HARD_EFFECTS = ("NoSchedule", "NoExecute")


class PredicatesPlugin:
    """The filters that Kubernetes applies, for what one node says of itself."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Read which filters are on."""
        self._node_affinity_enabled = boolean(
            arguments, "predicate.NodeAffinityEnable", default=True
        )
        self._taint_toleration_enabled = boolean(
            arguments, "predicate.TaintTolerationEnable", default=True
        )

    def filter_node(self, eq_class: EquivalenceClass, node: NodeInfo) -> str | None:
        """The first filter that refuses *node*."""
        if node.unschedulable and not _tolerates(eq_class.tolerations, _UNSCHEDULABLE_TAINT):
            return NODE_UNSCHEDULABLE
        if self._node_affinity_enabled and not matches_node_affinity(eq_class, node):
            return NODE_AFFINITY_MISMATCH
        if self._taint_toleration_enabled:
            for taint in node.taints:
                if taint.effect in _HARD_EFFECTS and not _tolerates(eq_class.tolerations, taint):
                    return f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"
        return None


def matches_node_affinity(eq_class: EquivalenceClass, node: NodeInfo) -> bool:
    """Whether *node* satisfies the selector and the required node affinity of *shape*."""
    if any(node.labels.get(key) != value for key, value in eq_class.node_selector.items()):
        return False
    required = eq_class.required
    return required is None or any(
        matches_term(term, node) for term in required.node_selector_terms
    )


def matches_term(term: NodeSelectorTerm, node: NodeInfo) -> bool:
    """Whether all requirements of *term* hold; a term without any never does."""
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
    """How many taints of *effect* on *node* the pods do not put up with."""
    return sum(
        taint.effect == effect and not _tolerates(eq_class.tolerations, taint)
        for taint in node.taints
    )
