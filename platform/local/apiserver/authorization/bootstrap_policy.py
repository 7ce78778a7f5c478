"""Roles and bindings that exist from the start: those of Kubernetes, and our components'.

``make api-types`` writes those of Kubernetes, which it reads from a real API server.
"""

import importlib.resources
from collections.abc import Iterable, Iterator
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

_WORKLOADS = "workloads"
"""User that runs the controllers of workloads; it writes as their service accounts only."""

_READ = ("list", "watch")
_PATCH = ("patch",)
_GET = ("get",)
_WORKLOADS_RULES = (
    PolicyRule(
        _READ,
        ("",),
        ("endpoints", "nodes", "persistentvolumeclaims", "pods", "replicationcontrollers",
         "services"),
    ),
    PolicyRule(
        _READ,
        ("apps",),
        ("controllerrevisions", "daemonsets", "deployments", "replicasets", "statefulsets"),
    ),
    PolicyRule(_READ, ("discovery.k8s.io",), ("endpointslices",)),
    PolicyRule(_READ, ("autoscaling",), ("horizontalpodautoscalers",)),
    PolicyRule(("create", "patch", "update"), ("", "events.k8s.io"), ("events",)),
)  # fmt: skip

_CONTROLLER_RULES: dict[str, tuple[PolicyRule, ...]] = {
    "daemon-set-controller": (
        PolicyRule(_PATCH, ("apps",), ("daemonsets/status",)),
        PolicyRule(_GET, ("",), ("pods",)),
    ),
    "deployment-controller": (
        PolicyRule(_PATCH, ("apps",), ("deployments", "deployments/status")),
    ),
    "endpoint-controller": (PolicyRule(_PATCH, ("",), ("endpoints",)),),
    "endpointslice-controller": (PolicyRule(_PATCH, ("discovery.k8s.io",), ("endpointslices",)),),
    "horizontal-pod-autoscaler": (
        PolicyRule(_PATCH, ("autoscaling",), ("horizontalpodautoscalers/status",)),
    ),
    "replicaset-controller": (
        PolicyRule(_PATCH, ("apps",), ("replicasets/status",)),
        PolicyRule(_GET, ("",), ("pods",)),
    ),
    "replication-controller": (
        PolicyRule(_PATCH, ("",), ("replicationcontrollers/status",)),
        PolicyRule(_GET, ("",), ("pods",)),
    ),
    "statefulset-controller": (
        PolicyRule(_PATCH, ("apps",), ("statefulsets/status",)),
        PolicyRule(_PATCH, ("",), ("persistentvolumeclaims",)),
    ),
}
"""What the service account of a controller may in addition to the role that Kubernetes has for it:
patch what kube-controller-manager replaces, and read the pod of a creation without a response."""

_PROXY = "proxy"


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
        yield roles, _role(name, rules)
        yield bindings, _binding(name, "ClusterRole", name, {"apiGroup": RBAC, **subject})
    yield from _workload_objects()


def _workload_objects() -> Iterator[tuple[Resource, Json]]:
    """Yield the rights of the controllers of workloads and of the service proxy."""
    cluster_roles, cluster_bindings, roles, bindings = RESOURCES
    user = {"apiGroup": RBAC, "kind": "User", "name": _WORKLOADS}
    name = f"batholith:{_WORKLOADS}"
    yield cluster_roles, _role(name, _WORKLOADS_RULES)
    yield cluster_bindings, _binding(name, "ClusterRole", name, user)
    accounts = tuple(_CONTROLLER_RULES)
    impersonate = PolicyRule(("impersonate",), ("",), ("serviceaccounts",), accounts)
    system = "kube-system"
    yield roles, _role(name, (impersonate,), namespace=system)
    yield bindings, _binding(name, "Role", name, user, namespace=system)
    for account, rules in _CONTROLLER_RULES.items():
        subject = {"kind": "ServiceAccount", "name": account, "namespace": system}
        name = f"batholith:controller:{account}"
        yield cluster_roles, _role(name, rules)
        yield cluster_bindings, _binding(name, "ClusterRole", name, subject)
    proxy = {"apiGroup": RBAC, "kind": "User", "name": _PROXY}
    name = f"batholith:{_PROXY}"
    yield cluster_bindings, _binding(name, "ClusterRole", "system:node-proxier", proxy)


def _role(name: str, rules: Iterable[PolicyRule], *, namespace: str = "") -> Json:
    metadata = _metadata(name, namespace)
    return {"metadata": metadata, "rules": [rule.to_json() for rule in rules]}


def _binding(name: str, kind: str, role: str, subject: Json, *, namespace: str = "") -> Json:
    return {
        "metadata": _metadata(name, namespace),
        "roleRef": {"apiGroup": RBAC, "kind": kind, "name": role},
        "subjects": [subject],
    }


def _metadata(name: str, namespace: str = "") -> Json:
    metadata: Json = {"name": name, "annotations": {AUTO_UPDATE: "true"}}
    return {**metadata, "namespace": namespace} if namespace else metadata


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
