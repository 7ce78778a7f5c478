"""Validation of roles and their bindings."""

from collections.abc import Callable, Sequence
from typing import Any

from ....model import validation
from ..errors.fields import FieldError, invalid, not_supported, required
from ..kinds.groups import RBAC
from .scheduling_validation import validate_selector

Json = dict[str, Any]

_CLUSTER_ROLE = "ClusterRole"
_ACCOUNT, _USER, _GROUP = "ServiceAccount", "User", "Group"


def role_validator(*, namespaced: bool) -> Callable[[Json, Json | None], list[FieldError]]:
    """Return the validation of Roles, or of ClusterRoles if not *namespaced*."""

    def validate(obj: Json, old: Json | None) -> list[FieldError]:
        errors: list[FieldError] = []
        for index, rule in enumerate(obj.get("rules") or ()):
            errors += _rule_errors(rule, f"rules[{index}]", namespaced=namespaced)
        if (aggregation := obj.get("aggregationRule")) is not None:
            selectors, path = aggregation.get("clusterRoleSelectors"), "aggregationRule"
            path += ".clusterRoleSelectors"
            if not selectors:
                text = "at least one clusterRoleSelector required if aggregationRule is non-nil"
                errors.append(required(path, text))
            for index, selector in enumerate(selectors or ()):
                validate_selector(selector, f"{path}[{index}]", errors)
        return errors

    return validate


def _rule_errors(rule: Json, path: str, *, namespaced: bool) -> list[FieldError]:
    errors = []
    if not rule.get("verbs"):
        errors.append(required(f"{path}.verbs", "verbs must contain at least one value"))
    if urls := rule.get("nonResourceURLs"):
        where = f"{path}.nonResourceURLs"
        if namespaced:
            text = "namespaced rules cannot apply to non-resource URLs"
            errors.append(invalid(where, urls, text))
        if any(rule.get(key) for key in ("apiGroups", "resources", "resourceNames")):
            text = "rules cannot apply to both regular resources and non-resource URLs"
            errors.append(invalid(where, urls, text))
        return errors
    if not rule.get("apiGroups"):
        text = "resource rules must supply at least one api group"
        errors.append(required(f"{path}.apiGroups", text))
    if not rule.get("resources"):
        text = "resource rules must supply at least one resource"
        errors.append(required(f"{path}.resources", text))
    return errors


def binding_validator(*, namespaced: bool) -> Callable[[Json, Json | None], list[FieldError]]:
    """Return the validation of RoleBindings, or of ClusterRoleBindings if not *namespaced*."""
    kinds = ("Role", _CLUSTER_ROLE) if namespaced else (_CLUSTER_ROLE,)

    def validate(obj: Json, old: Json | None) -> list[FieldError]:
        role = obj.get("roleRef") or {}
        errors = _role_errors(role, kinds)
        for index, subject in enumerate(obj.get("subjects") or ()):
            errors += _subject_errors(subject, f"subjects[{index}]", namespaced=namespaced)
        if old is not None and role != old.get("roleRef"):
            errors.append(invalid("roleRef", role, "cannot change roleRef"))
        return errors

    return validate


def _role_errors(role: Json, kinds: Sequence[str]) -> list[FieldError]:
    group, kind, name = (role.get(key, "") for key in ("apiGroup", "kind", "name"))
    errors = [] if group == RBAC else [not_supported("roleRef.apiGroup", group, (RBAC,))]
    if kind not in kinds:
        errors.append(not_supported("roleRef.kind", kind, kinds))
    if not name:
        errors.append(required("roleRef.name"))
    elif problem := validation.path_segment_error(name):
        errors.append(invalid("roleRef.name", name, problem))
    return errors


def _subject_errors(subject: Json, path: str, *, namespaced: bool) -> list[FieldError]:
    name, kind, group = (subject.get(key, "") for key in ("name", "kind", "apiGroup"))
    errors = [] if name else [required(f"{path}.name")]
    if kind == _ACCOUNT:
        if name and (problem := validation.dns1123_subdomain_error(name)):
            errors.append(invalid(f"{path}.name", name, problem))
        if group:
            errors.append(not_supported(f"{path}.apiGroup", group, ("",)))
        if not namespaced and not subject.get("namespace"):
            errors.append(required(f"{path}.namespace"))
    elif kind in (_USER, _GROUP):
        if group != RBAC:
            errors.append(not_supported(f"{path}.apiGroup", group, (RBAC,)))
    else:
        errors.append(not_supported(f"{path}.kind", kind, (_ACCOUNT, _USER, _GROUP)))
    return errors
