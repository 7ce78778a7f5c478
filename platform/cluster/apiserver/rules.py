"""The rules of the built-in kinds, put together from the parts that each kind needs."""

from typing import Any

from ...model.names import Resource
from . import syntax
from .fields import FieldError
from .objectmeta import NameRule, check_metadata

_NAME_RULES: dict[tuple[str, str], NameRule] = {
    ("", "Namespace"): syntax.label,
    ("", "Service"): syntax.label_1035,
}
_RBAC = "rbac.authorization.k8s.io"


class BuiltInRules:
    """How objects of one built-in kind are cleaned, completed and checked."""

    def __init__(self, resource: Resource) -> None:
        self._namespaced = resource.namespaced
        fallback = syntax.path_segment if resource.group == _RBAC else syntax.subdomain
        self._name_rule = _NAME_RULES.get((resource.group, resource.kind), fallback)

    def prune(self, obj: dict[str, Any]) -> list[str]:
        """Remove unknown fields and return their paths."""
        return []

    def default(self, obj: dict[str, Any]) -> None:
        """Fill in what was left out."""

    def begin(self, obj: dict[str, Any]) -> None:
        """Set the first status."""

    def keep(self, obj: dict[str, Any], old: dict[str, Any]) -> None:
        """Put back what an update never changes."""

    def validate(self, obj: dict[str, Any], old: dict[str, Any] | None) -> list[FieldError]:
        """Check the metadata."""
        return check_metadata(
            obj["metadata"],
            self._name_rule,
            namespaced=self._namespaced,
            old=old["metadata"] if old else None,
        )
