"""``predicates``: which nodes a pod may use, by cordon, selector, affinity and taints."""

from collections.abc import Mapping

from ..state.core_types import NodeRequirement, NodeTerm, Taint, Toleration
from ..state.equivalence import Shape
from ..state.node_matrix import NodeFacts
from .arguments import flag

CORDONED = "node(s) were unschedulable"
NOT_SELECTED = "node(s) didn't match Pod's node affinity/selector"

_CORDON = Taint(key="node.kubernetes.io/unschedulable", effect="NoSchedule")
_BARRING = ("NoSchedule", "NoExecute")


class PredicatesPlugin:
    """The filters that Kubernetes applies, for what one node says of itself."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Read which filters are on."""
        self._by_affinity = flag(arguments, "predicate.NodeAffinityEnable", default=True)
        self._by_taints = flag(arguments, "predicate.TaintTolerationEnable", default=True)

    def refuses(self, shape: Shape, node: NodeFacts) -> str | None:
        """The first filter that refuses *node*."""
        if node.unschedulable and not _tolerates(shape.tolerations, _CORDON):
            return CORDONED
        if self._by_affinity and not is_selected(shape, node):
            return NOT_SELECTED
        if self._by_taints:
            for taint in node.taints:
                if taint.effect in _BARRING and not _tolerates(shape.tolerations, taint):
                    return f"node(s) had untolerated taint {{{taint.key}: {taint.value}}}"
        return None


def is_selected(shape: Shape, node: NodeFacts) -> bool:
    """Whether *node* satisfies the selector and the required node affinity of *shape*."""
    if any(node.labels.get(key) != value for key, value in shape.node_selector.items()):
        return False
    required = shape.required
    return required is None or any(matches(term, node) for term in required.node_selector_terms)


def matches(term: NodeTerm, node: NodeFacts) -> bool:
    """Whether all requirements of *term* hold; a term without any never does."""
    if not term.match_expressions and not term.match_fields:
        return False
    fields = {"metadata.name": node.name}
    return all(_holds(each, node.labels) for each in term.match_expressions) and all(
        _holds(each, fields) for each in term.match_fields
    )


def _holds(requirement: NodeRequirement, labels: Mapping[str, str]) -> bool:
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
            return _compares(requirement, value)
    return False


def _compares(requirement: NodeRequirement, value: str | None) -> bool:
    try:
        here, bound = int(value or ""), int(requirement.values[0])
    except (ValueError, IndexError):
        return False
    return here > bound if requirement.operator == "Gt" else here < bound


def _tolerates(tolerations: tuple[Toleration, ...], taint: Taint) -> bool:
    return any(_covers(toleration, taint) for toleration in tolerations)


def _covers(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return bool(toleration.key) and toleration.value == taint.value


def untolerated(shape: Shape, node: NodeFacts, effect: str) -> int:
    """How many taints of *effect* on *node* the pods do not put up with."""
    return sum(
        taint.effect == effect and not _tolerates(shape.tolerations, taint) for taint in node.taints
    )
