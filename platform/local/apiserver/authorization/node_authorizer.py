"""The node authorizer: a kubelet reads what its pods need, and writes what is its own.

As in Kubernetes, it decides by name and by the graph of references; what it cannot see, the content
of a write, is checked by :mod:`..admission.node_restriction`.
"""

from functools import cache

from ....model.node_identity import NODES_GROUP, USER_PREFIX
from ..http.auth import User
from .bootstrap_policy import packaged_role
from .node_graph import NodeGraph
from .rules import Attributes, Decision, PolicyRule

LEASE_NAMESPACE = "kube-node-lease"
NOT_NEEDED = "no relationship found between node"
"""Begin of the reason why a node may not read an object, for example because a pod was deleted."""

_ROLE = "system:node"
_NO_OPINION = Decision(False)
_ALLOWED = Decision(True)
_OWN_VERBS = ("get", "create", "update", "patch", "delete")
_READ_VERBS = ("get", "list", "watch")

_GOT = frozenset(
    (
        ("", "persistentvolumeclaims"),
        ("", "persistentvolumes"),
        ("resource.k8s.io", "resourceclaims"),
        ("storage.k8s.io", "volumeattachments"),
    )
)
"""Resources of which a node may get what it needs, but not list or watch."""


def node_of(user: User) -> str | None:
    """Return the node of a kubelet; ``None`` for other users."""
    if not user.name.startswith(USER_PREFIX) or NODES_GROUP not in user.groups:
        return None
    return user.name.removeprefix(USER_PREFIX)


class NodeAuthorizer:
    """Decides what kubelets may do."""

    def __init__(self, graph: NodeGraph) -> None:
        self._graph = graph

    def authorize(self, node: str, attributes: Attributes) -> Decision:
        """Return whether the kubelet of *node* may do what *attributes* describe."""
        if not node:
            return Decision(False, f'unknown node for user "{USER_PREFIX}"')
        resource = attributes.group, attributes.resource
        if resource in (("", "secrets"), ("", "configmaps")):
            return self._read(node, attributes)
        if resource in _GOT:
            return self._get(node, attributes)
        match resource:
            case ("", "serviceaccounts"):
                return self._service_account(node, attributes)
            case ("", "nodes"):
                return _own_node(node, attributes)
            case ("", "pods"):
                return self._pod(node, attributes)
            case ("coordination.k8s.io", "leases"):
                return _lease(node, attributes)
            case ("storage.k8s.io", "csinodes"):
                return _csi_node(node, attributes)
            case ("resource.k8s.io", "resourceslices"):
                return self._slice(node, attributes)
        return _ALLOWED if any(rule.allows(attributes) for rule in _rules()) else _NO_OPINION

    def _read(self, node: str, attributes: Attributes) -> Decision:
        """Allow to get, list and watch one object."""
        if attributes.verb not in _READ_VERBS:
            return Decision(False, "can only read resources of this type")
        if attributes.subresource:
            return Decision(False, "cannot read subresource")
        if not attributes.namespace:
            return Decision(False, "can only read namespaced object of this type")
        return self._needed(node, attributes)

    def _get(self, node: str, attributes: Attributes) -> Decision:
        if (attributes.resource, attributes.subresource) == ("persistentvolumeclaims", "status"):
            if attributes.verb not in ("update", "patch"):
                return Decision(False, "can only get/update/patch this type")
            return self._needed(node, attributes)
        if attributes.verb != "get":
            return Decision(False, "can only get individual resources of this type")
        if attributes.subresource:
            return Decision(False, "cannot get subresource")
        return self._needed(node, attributes)

    def _service_account(self, node: str, attributes: Attributes) -> Decision:
        if attributes.verb == "get" and not attributes.subresource:
            return self._read(node, attributes)
        if attributes.verb != "create" or not attributes.name:
            return Decision(False, "can only create tokens for individual service accounts")
        if attributes.subresource != "token":
            return Decision(False, "can only create token subresource of serviceaccount")
        return self._needed(node, attributes)

    def _pod(self, node: str, attributes: Attributes) -> Decision:
        verb = attributes.verb
        match attributes.subresource:
            case "" if verb == "get":
                return self._get(node, attributes)
            case "" if verb in ("list", "watch"):
                if attributes.node == node:
                    return _ALLOWED
                if attributes.name:
                    return self._needed(node, attributes)
                return Decision(False, "can only list/watch pods with spec.nodeName field selector")
            case "" if verb in ("create", "delete"):
                return _ALLOWED
            case "status" if verb in ("update", "patch"):
                return _ALLOWED
            case "eviction" if verb == "create":
                return _ALLOWED
        return _NO_OPINION

    def _slice(self, node: str, attributes: Attributes) -> Decision:
        if attributes.subresource:
            return Decision(False, "cannot authorize ResourceSlice subresources")
        match attributes.verb:
            case "create":
                return _ALLOWED
            case "get" | "update" | "patch" | "delete":
                return self._needed(node, attributes)
            case "watch" | "list" | "deletecollection":
                if attributes.node == node:
                    return _ALLOWED
                why = (
                    "can only list/watch/deletecollection resourceslices with nodeName field "
                    "selector"
                )
                return Decision(False, why)
        why = (
            "only the following verbs are allowed for a ResourceSlice: get, watch, list, create, "
            "update, patch, delete, deletecollection"
        )
        return Decision(False, why)

    def _needed(self, node: str, attributes: Attributes) -> Decision:
        if not attributes.name:
            return Decision(False, "No Object name found")
        resource, namespace, name = attributes.resource, attributes.namespace, attributes.name
        if self._graph.is_needed(node, resource, namespace, name):
            return _ALLOWED
        return Decision(False, f"{NOT_NEEDED} '{node}' and this object")


def _own_node(node: str, attributes: Attributes) -> Decision:
    verb, name = attributes.verb, attributes.name
    if attributes.subresource == "status":
        return _ALLOWED if verb in ("update", "patch") else _NO_OPINION
    if attributes.subresource:
        return _NO_OPINION
    if verb in ("create", "update", "patch"):
        return _ALLOWED
    if verb not in _READ_VERBS:
        return _NO_OPINION
    if name == node:
        return _ALLOWED
    what = f"'{name}'" if name else "all nodes"
    return Decision(False, f"node '{node}' cannot read {what}, only its own Node object")


def _lease(node: str, attributes: Attributes) -> Decision:
    if attributes.verb not in _OWN_VERBS:
        return Decision(False, "can only get, create, update, patch, or delete a node lease")
    if attributes.namespace != LEASE_NAMESPACE:
        why = f'can only access leases in the "{LEASE_NAMESPACE}" system namespace'
        return Decision(False, why)
    if attributes.verb != "create" and attributes.name != node:
        why = "can only access node lease with the same name as the requesting node"
        return Decision(False, why)
    return _ALLOWED


def _csi_node(node: str, attributes: Attributes) -> Decision:
    if attributes.verb not in _OWN_VERBS:
        return Decision(False, "can only get, create, update, patch, or delete a CSINode")
    if attributes.subresource:
        return Decision(False, "cannot authorize CSINode subresources")
    if attributes.verb != "create" and attributes.name != node:
        why = "can only access CSINode with the same name as the requesting node"
        return Decision(False, why)
    return _ALLOWED


@cache
def _rules() -> tuple[PolicyRule, ...]:
    """Return the rules of the role ``system:node``: what all nodes may do alike."""
    return packaged_role(_ROLE)
