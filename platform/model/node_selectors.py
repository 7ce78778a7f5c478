"""Node selectors: which nodes meet the terms of an affinity, a volume or a device."""

from collections.abc import Mapping

from .base import ApiStruct


class NodeSelectorRequirement(ApiStruct, frozen=True):
    """A requirement on a label or field of a node."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Return whether *labels*, or fields, meet the requirement."""
        value = labels.get(self.key)
        match self.operator:
            case "In":
                return value in self.values
            case "NotIn":
                return value not in self.values
            case "Exists":
                return value is not None
            case "DoesNotExist":
                return value is None
            case "Gt" | "Lt":
                return self._compare(value)
        return False

    def _compare(self, value: str | None) -> bool:
        try:
            actual, bound = int(value or ""), int(self.values[0])
        except (ValueError, IndexError):
            return False
        return actual > bound if self.operator == "Gt" else actual < bound


class NodeSelectorTerm(ApiStruct, frozen=True):
    """Requirements that are ANDed; a term without any matches no node."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return whether the node with this name and these labels meets all requirements."""
        if not self.match_expressions and not self.match_fields:
            return False
        fields = {"metadata.name": name}
        return all(each.matches(labels) for each in self.match_expressions) and all(
            each.matches(fields) for each in self.match_fields
        )


class NodeSelector(ApiStruct, frozen=True):
    """Terms that are ORed."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Return whether the node with this name and these labels meets one of the terms."""
        return any(each.matches(name, labels) for each in self.node_selector_terms)
