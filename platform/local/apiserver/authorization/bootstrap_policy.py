"""Roles and bindings that exist from the start: those of Kubernetes, and our components'.

``make api-types`` writes both files: that of Kubernetes it reads from a real API server, that of
the components from the manifests.
"""

import functools
import importlib.resources
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from ....model import bootstrap_tokens
from ....model.names import Resource
from ....model.node_identity import NODES_GROUP
from ..http.auth import ANONYMOUS
from ..kinds.groups import RBAC
from .rules import PolicyRule, missing_rules

Json = dict[str, Any]

FILE = "bootstrap-policy.json"
COMPONENTS_FILE = "component-roles.json"
_CLUSTER = "cluster"
"""Key of the rules of all namespaces."""

AUTO_UPDATE = "rbac.authorization.kubernetes.io/autoupdate"

RESOURCES = (
    Resource(RBAC, "v1", "clusterroles", "ClusterRole", namespaced=False),
    Resource(RBAC, "v1", "clusterrolebindings", "ClusterRoleBinding", namespaced=False),
    Resource(RBAC, "v1", "roles", "Role"),
    Resource(RBAC, "v1", "rolebindings", "RoleBinding"),
)

OBSOLETE = tuple(
    (resource, name)
    for name in ("batholith:components", "batholith:rest-api")
    for resource in RESOURCES[:2]
)
"""Roles that all components shared once, and their bindings: deleted at start."""

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
    PolicyRule(
        _READ,
        ("resource.k8s.io",),
        ("devicetaintrules", "resourceclaims", "resourceclaimtemplates", "resourceslices"),
    ),
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
    "device-taint-eviction-controller": (),
    "endpoint-controller": (PolicyRule(_PATCH, ("",), ("endpoints",)),),
    "endpointslice-controller": (PolicyRule(_PATCH, ("discovery.k8s.io",), ("endpointslices",)),),
    "endpointslicemirroring-controller": (
        PolicyRule(_PATCH, ("discovery.k8s.io",), ("endpointslices",)),
    ),
    "ephemeral-volume-controller": (),
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
    "resource-claim-controller": (
        PolicyRule(
            _PATCH,
            ("resource.k8s.io",),
            ("resourceclaims", "resourceclaims/binding", "resourceclaims/status"),
        ),
        PolicyRule(_GET, ("resource.k8s.io",), ("resourceclaims",)),
        PolicyRule(_PATCH, ("",), ("pods/status",)),
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
_SLICES = ("endpointslices",)
_NODE_CERTIFICATES = "system:certificates.k8s.io:certificatesigningrequests"
_LEASES = "coordination.k8s.io"
_EMBEDDED_RULES = {
    ("controllers", ""): (
        PolicyRule(_READ, ("batch",), ("cronjobs",)),
        PolicyRule(_PATCH, ("batch",), ("cronjobs/status",)),
        PolicyRule(("create", "delete"), ("batch",), ("jobs",)),
    ),
    ("controllers", "kube-system"): (
        PolicyRule(_GET, (_LEASES,), ("leases",), ("kube-controller-manager",)),
    ),
    ("scheduler", ""): (
        PolicyRule(("list",), ("metrics.k8s.io",), ("nodes",)),
        PolicyRule(_READ, ("",), ("replicationcontrollers", "services")),
        PolicyRule(_READ, ("apps",), ("replicasets", "statefulsets")),
        PolicyRule(_READ, ("nodeinfo.volcano.sh",), ("numatopologies",)),
    ),
}
"""What components need here in addition to the manifests, by namespace: elsewhere,
kube-controller-manager runs CronJobs and deletes expired Jobs, and the chart adds the rights to
read metrics, Services, controllers of pods and Numatopologies if the configuration of the scheduler
needs them."""

_OWN_RULES = {
    "agent": (
        PolicyRule(("create", "get", "list", "patch", "watch"), ("",), ("nodes",)),
        PolicyRule(_PATCH, ("",), ("nodes/status", "pods/status")),
        PolicyRule(("delete", "get", "list", "watch"), ("",), ("pods",)),
        PolicyRule(("create", "patch"), (_LEASES,), ("leases",)),
    ),
    "node-extensions": (
        PolicyRule(("get", "list", "watch"), ("",), ("persistentvolumeclaims",)),
        PolicyRule(_GET, ("",), ("persistentvolumes",)),
        PolicyRule(_READ, ("",), ("namespaces",)),
        PolicyRule(_READ, ("networking.k8s.io",), ("networkpolicies",)),
    ),
}
"""Rights of the agent if it simulates nodes, and of the account with which the agent of a real
node does what a kubelet does not: it removes the directories of deleted claims, and enforces
NetworkPolicies."""


@functools.cache
def objects() -> tuple[tuple[Resource, Json], ...]:
    """Return the roles and bindings, which are not to be changed."""
    return tuple(_objects())


def _objects() -> Iterator[tuple[Resource, Json]]:
    packaged = _packaged(FILE)
    for resource in RESOURCES:
        for obj in packaged[resource.plural]:
            yield resource, obj
    granted = {
        (component, "" if scope == _CLUSTER else scope): map(PolicyRule.from_json, rules)
        for component, by_scope in _packaged(COMPONENTS_FILE).items()
        for scope, rules in by_scope.items()
    }
    for user, namespace in dict.fromkeys((*granted, *_EMBEDDED_RULES)):
        key = user, namespace
        rules = (*granted.get(key, ()), *_EMBEDDED_RULES.get(key, ()))
        yield from _granted(user, rules, namespace=namespace)
    yield from _workload_objects()
    for user, rules in _OWN_RULES.items():
        yield from _granted(user, rules)
    binding = _binding(f"batholith:{_PROXY}", "ClusterRole", "system:node-proxier", _user(_PROXY))
    yield RESOURCES[1], binding


_JOIN_BINDINGS = {
    "kubelet-bootstrap": ("system:node-bootstrapper", bootstrap_tokens.GROUP),
    "node-autoapprove-bootstrap": (f"{_NODE_CERTIFICATES}:nodeclient", bootstrap_tokens.GROUP),
    "node-autoapprove-certificate-rotation": (f"{_NODE_CERTIFICATES}:selfnodeclient", NODES_GROUP),
    "node-network": ("batholith:node-network", NODES_GROUP),
}
"""Roles of groups by the name of the binding: those that kubeadm binds, and the last one, with
which a node reads where the pods of Services are."""


def join_objects() -> Iterator[tuple[Resource, Json]]:
    """Yield the roles and bindings with which other machines join as nodes."""
    cluster_roles, cluster_bindings, roles, bindings = RESOURCES
    yield (
        cluster_roles,
        _role("batholith:node-network", (PolicyRule(_READ, ("discovery.k8s.io",), _SLICES),)),
    )
    for name, (role, group) in _JOIN_BINDINGS.items():
        subject = {"apiGroup": RBAC, "kind": "Group", "name": group}
        yield cluster_bindings, _binding(f"batholith:{name}", "ClusterRole", role, subject)
    name, namespace = "batholith:cluster-info", bootstrap_tokens.CLUSTER_INFO_NAMESPACE
    rule = PolicyRule(_GET, ("",), ("configmaps",), (bootstrap_tokens.CLUSTER_INFO,))
    yield roles, _role(name, (rule,), namespace=namespace)
    anonymous = _user(ANONYMOUS.name)
    yield bindings, _binding(name, "Role", name, anonymous, namespace=namespace)


def packaged_role(name: str) -> tuple[PolicyRule, ...]:
    """Return the rules of a ClusterRole of Kubernetes."""
    (role,) = (each for each in _packaged(FILE)["clusterroles"] if each["metadata"]["name"] == name)
    return tuple(map(PolicyRule.from_json, role["rules"]))


def _packaged(file: str) -> dict[str, Any]:
    content = importlib.resources.files(__package__).joinpath("data", file).read_bytes()
    packaged: dict[str, Any] = msgspec.json.decode(content)
    return packaged


def _granted(
    user: str, rules: Iterable[PolicyRule], *, namespace: str = ""
) -> Iterator[tuple[Resource, Json]]:
    """Yield the role of a component and its binding."""
    cluster_roles, cluster_bindings, roles, bindings = RESOURCES
    name = f"batholith:{user}"
    kind = "Role" if namespace else "ClusterRole"
    yield roles if namespace else cluster_roles, _role(name, rules, namespace=namespace)
    binding = _binding(name, kind, name, _user(user), namespace=namespace)
    yield bindings if namespace else cluster_bindings, binding


def _user(name: str) -> Json:
    return {"apiGroup": RBAC, "kind": "User", "name": name}


def _workload_objects() -> Iterator[tuple[Resource, Json]]:
    """Yield the rights of the controllers of workloads, and of the accounts that they write as."""
    cluster_roles, cluster_bindings = RESOURCES[:2]
    yield from _granted(_WORKLOADS, _WORKLOADS_RULES)
    accounts = tuple(_CONTROLLER_RULES)
    impersonate = PolicyRule(("impersonate",), ("",), ("serviceaccounts",), accounts)
    system = "kube-system"
    yield from _granted(_WORKLOADS, (impersonate,), namespace=system)
    for account, rules in _CONTROLLER_RULES.items():
        if not rules:
            continue
        subject = {"kind": "ServiceAccount", "name": account, "namespace": system}
        name = f"batholith:controller:{account}"
        yield cluster_roles, _role(name, rules)
        yield cluster_bindings, _binding(name, "ClusterRole", name, subject)


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
    rules = [] if wanted.get("aggregationRule") else _missing_rules(current, wanted)
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


def _missing_rules(current: Json, wanted: Json) -> list[PolicyRule]:
    """Return what the rules of *wanted* grant beyond those of *current*."""
    held, given = current.get("rules") or (), wanted.get("rules") or ()
    if held == given:
        return []
    return missing_rules(map(PolicyRule.from_json, held), map(PolicyRule.from_json, given))
