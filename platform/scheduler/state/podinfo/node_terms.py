"""Node selector terms: whether a node meets them, and which nodes can meet them."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from ..core_types import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm


class LabelledNode(Protocol):
    """What terms see of a node."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def labels(self) -> Mapping[str, str]:
        """Its labels."""
        ...


def matches_any(selector: NodeSelector, node: LabelledNode) -> bool:
    """Return whether *node* meets one of the terms of *selector*."""
    return any(matches_term(term, node) for term in selector.node_selector_terms)


def matches_term(term: NodeSelectorTerm, node: LabelledNode) -> bool:
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


class LabelIndex:
    """Nodes by the values of a label, so that a selector of few nodes is not compared with all."""

    def __init__(self, nodes: Sequence[LabelledNode | None]) -> None:
        """Index *nodes*, of which those that are ``None`` do not exist."""
        self._nodes = nodes
        self._by_value: dict[str, dict[str, list[int]]] = {}

    def of(self, key: str, values: Iterable[str]) -> Iterable[int]:
        """Return the positions of the nodes whose label *key* has one of *values*."""
        known = self._by_value.get(key)
        if known is None:
            known = self._by_value[key] = {}
            for position, node in enumerate(self._nodes):
                if node is not None and key in node.labels:
                    known.setdefault(node.labels[key], []).append(position)
        return (position for value in values for position in known.get(value, ()))

    def all(self) -> Iterable[int]:
        """Return the positions of all nodes."""
        return (position for position, node in enumerate(self._nodes) if node is not None)

    def matching(self, selector: NodeSelector) -> set[int]:
        """Return the positions of the nodes that *selector* matches."""
        found: set[int] = set()
        for term in selector.node_selector_terms:
            few = next((each for each in term.match_expressions if each.operator == "In"), None)
            candidates = self.all() if few is None else self.of(few.key, few.values)
            for position in candidates:
                node = self._nodes[position]
                if node is not None and matches_term(term, node):
                    found.add(position)
        return found
