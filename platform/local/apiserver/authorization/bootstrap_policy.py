"""Roles and bindings that exist from the start: those of Kubernetes, and our components'.

``make api-types`` writes those of Kubernetes, which it reads from a real API server.
"""

import importlib.resources
from collections.abc import Iterator
from typing import Any

import msgspec

from ....model.names import Resource
from ..http.auth import COMPONENTS_GROUP
from ..kinds.groups import RBAC
from .rules import PolicyRule, missing_rules

Json = dict[str, Any]

FILE = "bootstrap-policy.json"
AUTO_UPDATE = "rbac.authorization.kubernetes.io/autoupdate"
_REST_API_ROLE = "batholith:rest-api"

RESOURCES = (
    Resource(RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False),
    Resource(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    Resource(RBAC, "v1", "roles", "Role"),
    Resource(RBAC, "v1", "rolebindings", "RoleBinding"),
)

_VERBS = ("create", "delete", "deletecollection", "get", "list", "patch", "update", "watch")
_COMPONENT_RULES = (
    PolicyRule(_VERBS, ("*",), ("*",)),
    PolicyRule(("get",), non_resource_urls=("*",)),
)
"""Objects of all kinds. Not the verbs ``impersonate``, ``bind`` and ``escalate``: no component
creates a role with more rights than these."""

_IMPERSONATION_RULES = (
    PolicyRule(("impersonate",), ("",), ("users", "groups", "serviceaccounts")),
    PolicyRule(("impersonate",), ("authentication.k8s.io",), ("uids", "userextras/*")),
)


def objects() -> Iterator[tuple[Resource, Json]]:
    """Yield the roles, then the bindings, each a new object."""
    content = importlib.resources.files(__package__).joinpath("data", FILE).read_bytes()
    packaged: dict[str, list[Json]] = msgspec.json.decode(content)
    for resource in RESOURCES:
        for obj in packaged[resource.plural]:
            yield resource, obj
    roles, bindings = RESOURCES[:2]
    own = (
        (COMPONENTS_GROUP, _COMPONENT_RULES, {"kind": "Group", "name": COMPONENTS_GROUP}),
        (_REST_API_ROLE, _IMPERSONATION_RULES, {"kind": "User", "name": "api"}),
    )
    for name, rules, subject in own:
        yield roles, {"metadata": _metadata(name), "rules": [rule.to_json() for rule in rules]}
        role = {"apiGroup": RBAC, "kind": "ClusterRole", "name": name}
        subjects = [{"apiGroup": RBAC, **subject}]
        yield bindings, {"metadata": _metadata(name), "roleRef": role, "subjects": subjects}


def _metadata(name: str) -> Json:
    return {"name": name, "annotations": {AUTO_UPDATE: "true"}}


def completed(current: Json, wanted: Json) -> Json:
    """Return *current* with the rules and subjects of *wanted* that it lacks.

    It is returned as it is if it has all, or if its annotation forbids updates.
    """
    annotations = current["metadata"].get("annotations") or {}
    if annotations.get(AUTO_UPDATE) == "false" or current.get("roleRef") != wanted.get("roleRef"):
        return current
    held, given = (
        [PolicyRule.from_json(rule) for rule in obj.get("rules") or ()] for obj in (current, wanted)
    )
    rules = [] if wanted.get("aggregationRule") else missing_rules(held, given)
    subjects = [
        subject
        for subject in wanted.get("subjects") or ()
        if subject not in (current.get("subjects") or ())
    ]
    if rules:
        added = [rule.to_json() for rule in rules]
        current = {**current, "rules": [*(current.get("rules") or ()), *added]}
    if subjects:
        current = {**current, "subjects": [*(current.get("subjects") or ()), *subjects]}
    return current
