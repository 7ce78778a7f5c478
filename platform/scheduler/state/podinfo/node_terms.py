"""Which nodes can meet node selectors."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from ....model.node_selectors import NodeSelector


class LabelledNode(Protocol):
    """What node selectors see of a node."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def labels(self) -> Mapping[str, str]:
        """Its labels."""
        ...


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
                if node is not None and term.matches(node.name, node.labels):
                    found.add(position)
        return found
