"""The rules of the built-in kinds: what all share, and what some have of their own."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ...model.names import Resource
from . import definitions, syntax
from .fields import FieldError
from .objectmeta import NameRule, check_metadata
from .typed import read_object

Json = dict[str, Any]

_RBAC = "rbac.authorization.k8s.io"


def _nothing(obj: Json) -> None:
    """Leave the object as it is."""


def _keep_nothing(obj: Json, old: Json) -> None:
    """Leave the object as it is."""


def _no_errors(obj: Json, old: Json | None) -> list[FieldError]:
    return []


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What one kind does beyond what all kinds do."""

    default: Callable[[Json], None] = _nothing
    begin: Callable[[Json], None] = _nothing
    keep: Callable[[Json, Json], None] = _keep_nothing
    check: Callable[[Json, Json | None], list[FieldError]] = _no_errors
    name_rule: NameRule = syntax.subdomain


def _begin_definition(crd: Json) -> None:
    crd["status"] = definitions.first_status(crd)


_PLAIN = Hooks()
_HOOKS: dict[tuple[str, str], Hooks] = {
    ("apiextensions.k8s.io", "CustomResourceDefinition"): Hooks(
        default=definitions.default_crd,
        begin=_begin_definition,
        check=definitions.check_crd,
    ),
    ("", "Namespace"): Hooks(name_rule=syntax.label),
    ("", "Service"): Hooks(name_rule=syntax.label_1035),
    (_RBAC, "Role"): Hooks(name_rule=syntax.path_segment),
    (_RBAC, "RoleBinding"): Hooks(name_rule=syntax.path_segment),
    (_RBAC, "ClusterRole"): Hooks(name_rule=syntax.path_segment),
    (_RBAC, "ClusterRoleBinding"): Hooks(name_rule=syntax.path_segment),
}


class BuiltInRules:
    """How objects of one built-in kind are cleaned, completed and checked."""

    def __init__(self, resource: Resource) -> None:
        self._resource = resource
        self._hooks = _HOOKS.get((resource.group, resource.kind), _PLAIN)
        self.default = self._hooks.default
        self.begin = self._hooks.begin
        self.keep = self._hooks.keep

    def prune(self, obj: Json) -> list[str]:
        """Remove unknown fields and return their paths.

        Raises:
            MalformedError: a field has a type that it cannot hold.
        """
        return read_object(obj, self._resource)

    def validate(self, obj: Json, old: Json | None) -> list[FieldError]:
        """Check the metadata and whatever the kind checks itself."""
        errors = check_metadata(
            obj["metadata"],
            self._hooks.name_rule,
            namespaced=self._resource.namespaced,
            old=old["metadata"] if old else None,
        )
        return errors + self._hooks.check(obj, old)
