"""The admission plugin NodeRestriction: a kubelet writes only its own Node, pods and other objects.

It checks the content of writes, which the node authorizer does not know. The rules and messages are
those of Kubernetes.
"""

from collections.abc import Callable
from typing import Any

from ....model import names
from ....model.names import Resource
from ..authorization.authorizer import Authorizer
from ..authorization.node_authorizer import LEASE_NAMESPACE, node_of
from ..authorization.rules import Attributes
from ..builtin.pod_references import MIRROR_POD, referenced_kind
from ..errors.status import StatusError, forbidden, not_found
from ..http.auth import User
from .attributes import AdmissionAttributes

Json = dict[str, Any]
Lookup = Callable[[Resource, str, str], Json | None]
"""Returns an object by resource, namespace and name."""

_RESTRICTED = "node-restriction.kubernetes.io"
_KUBERNETES_LABELS = ("kubernetes.io", "k8s.io")
_KUBELET_LABELS = frozenset(
    {
        "kubernetes.io/hostname", "topology.kubernetes.io/zone", "topology.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/region",
        "beta.kubernetes.io/instance-type", "node.kubernetes.io/instance-type",
        "kubernetes.io/os", "kubernetes.io/arch", "beta.kubernetes.io/os",
        "beta.kubernetes.io/arch",
    }
)  # fmt: skip
_KUBELET_LABEL_NAMESPACES = ("kubelet.kubernetes.io", "node.kubernetes.io")
_CLAIM_STATUS = ("capacity", "conditions", "allocatedResourceStatuses", "allocatedResources")
"""What a node may change in a claim."""

_POD = names.PODS._replace(plural="pod")
_NODE = names.NODES._replace(plural="node")
_CLAIMS = names.PERSISTENTVOLUMECLAIMS._replace(plural="persistentvolumeclaim")
_VOLUMES = names.PERSISTENTVOLUMES._replace(plural="persistentvolume")
_CSI_DRIVERS = Resource("storage.k8s.io", "v1", "csidriver", "CSIDriver", namespaced=False)
"""Named in the singular, as the errors of kube-apiserver's listers do."""


class NodeRestriction:
    """Checks the writes of kubelets; those of other users pass."""

    def __init__(self, authorizer: Authorizer, lookup: Lookup) -> None:
        self._authorizer = authorizer
        self._lookup = lookup

    def check(self, attributes: AdmissionAttributes, obj: Json | None) -> None:
        """Check a write of an object or of a subresource that replaces it.

        Raises:
            StatusError: 403.
        """
        node = node_of(attributes.user)
        if node is None:
            return
        resource = attributes.kind.resource
        why = self._why_not(node, attributes, obj)
        if why:
            raise forbidden(resource, attributes.name, why)

    def check_eviction(self, user: User, pod: str, node: str) -> None:
        """Raise StatusError 403 if a kubelet evicts a pod of another *node*."""
        own = node_of(user)
        if own is not None and own != node:
            why = f"node {own} can only evict pods with spec.nodeName set to itself"
            raise forbidden(names.PODS, pod, why)

    def check_binding(self, user: User, pod: str) -> None:
        """Raise StatusError 403 if a kubelet binds a pod."""
        if node_of(user) is not None:
            raise forbidden(names.PODS, pod, _unexpected_subresource("binding"))

    def check_token(self, user: User, namespace: str, account: str, spec: Json) -> None:
        """Check the spec of a TokenRequest: a kubelet gets tokens of its pods only.

        Raises:
            StatusError: 403, or 404 if the pod does not exist.
        """
        node = node_of(user)
        if node is None:
            return
        bound = spec.get("boundObjectRef") or {}
        given = bound.get("apiVersion"), bound.get("kind")
        why = ""
        if given != ("v1", "Pod") or not bound.get("name"):
            why = "node requested token not bound to a pod"
        elif not bound.get("uid"):
            why = "node requested token with a pod binding without a uid"
        else:
            pod = self._lookup(names.PODS, namespace, bound["name"])
            if pod is None:
                raise not_found(_POD, bound["name"])
            why = self._why_no_token(user, account, pod, spec)
        if why:
            raise forbidden(names.SERVICEACCOUNTS, account, why)

    def _why_no_token(self, user: User, account: str, pod: Json, spec: Json) -> str:
        uid = spec["boundObjectRef"]["uid"]
        if uid != pod["metadata"]["uid"]:
            return (
                f"the UID in the bound object reference ({uid}) does not match the UID in record. "
                "The object might have been deleted and then recreated"
            )
        if pod["spec"].get("nodeName") != node_of(user):
            return "node requested token bound to a pod scheduled on a different node"
        audiences = spec.get("audiences") or [""]
        if len(audiences) > 1:
            return "node may only request 0 or 1 audiences"
        audience = audiences[0]
        has_audience, errors = self._find_audience(pod, audience)
        if has_audience:
            return ""
        if errors:
            text = errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]"
            return f'error validating audience "{audience}": {text}'
        attributes = Attributes(
            "request-serviceaccounts-token-audience",
            resource=audience,
            name=account,
            namespace=pod["metadata"]["namespace"],
        )
        if self._authorizer.authorize(user, attributes).allowed:
            return ""
        return (
            f'audience "{audience}" not found in pod spec volume, {user.name} is not authorized to '
            "request tokens for this audience"
        )

    def _find_audience(self, pod: Json, audience: str) -> tuple[bool, list[str]]:
        """Return whether a volume of a pod has a token for *audience*, and failed look-ups."""
        errors: list[str] = []
        for volume in pod["spec"].get("volumes") or ():
            for source in (volume.get("projected") or {}).get("sources") or ():
                token = source.get("serviceAccountToken")
                if token is not None and token.get("audience", "") == audience:
                    return True, []
            try:
                if audience in self._driver_audiences(pod, volume):
                    return True, []
            except StatusError as error:
                errors.append(error.message)
        return False, list(dict.fromkeys(errors))

    def _driver_audiences(self, pod: Json, volume: Json) -> list[str]:
        """Return the audiences of the tokens that the CSI driver of a volume needs, if any.

        Raises:
            StatusError: 404, the claim, its volume or the driver does not exist.
        """
        source, metadata = volume.get("csi") or {}, pod["metadata"]
        claim = (volume.get("persistentVolumeClaim") or {}).get("claimName", "")
        if volume.get("ephemeral"):
            claim = f"{metadata['name']}-{volume['name']}"
        if claim:
            found = self._require(_CLAIMS, metadata["namespace"], claim)
            name = (found.get("spec") or {}).get("volumeName", "")
            source = self._require(_VOLUMES, "", name)["spec"].get("csi") or {}
        driver = source.get("driver", "")
        if not driver:
            return []
        spec = self._require(_CSI_DRIVERS, "", driver).get("spec") or {}
        return [each.get("audience", "") for each in spec.get("tokenRequests") or ()]

    def _require(self, resource: Resource, namespace: str, name: str) -> Json:
        stored = resource._replace(plural=f"{resource.plural}s")
        found = self._lookup(stored, namespace, name)
        if found is None:
            raise not_found(resource, name)
        return found

    def _why_not(self, node: str, attributes: AdmissionAttributes, obj: Json | None) -> str:
        """Return why a write is forbidden; empty if it is not."""
        if not node:
            return f'could not determine node from user "{attributes.user.name}"'
        resource = attributes.kind.resource
        match resource.group, resource.plural:
            case "", "pods":
                return self._pod_error(node, attributes, obj)
            case "", "nodes":
                return _node_error(node, attributes, obj)
            case "", "persistentvolumeclaims":
                return _claim_error(node, attributes, obj)
            case "coordination.k8s.io", "leases":
                return _lease_error(node, attributes)
            case "storage.k8s.io", "csinodes" if attributes.name != node:
                return "can only access CSINode with the same name as the requesting node"
            case "resource.k8s.io", "resourceslices":
                return _slice_error(node, attributes, obj)
        return ""

    def _pod_error(self, node: str, attributes: AdmissionAttributes, obj: Json | None) -> str:
        subresource, old = attributes.object_path.subresource, attributes.old_object
        if subresource == "status" and old and obj:
            return _pod_status_error(node, old, obj)
        if subresource:
            return _unexpected_subresource(subresource)
        if attributes.operation == "CREATE" and obj:
            return self._mirror_pod_error(node, obj)
        if attributes.operation == "DELETE" and old:
            if old["spec"].get("nodeName") == node:
                return ""
            return f'node "{node}" can only delete pods with spec.nodeName set to itself'
        return (
            f'unexpected operation "{attributes.operation}", node "{node}" can only create and '
            "delete mirror pods"
        )

    def _mirror_pod_error(self, node: str, pod: Json) -> str:
        metadata, spec = pod["metadata"], pod.get("spec") or {}
        subject = f'node "{node}" can only create pods with'
        if MIRROR_POD not in (metadata.get("annotations") or {}):
            return (
                f'pod does not have "{MIRROR_POD}" annotation, node "{node}" can only create '
                "mirror pods"
            )
        if spec.get("nodeName") != node:
            return f"{subject} spec.nodeName set to itself"
        owners = metadata.get("ownerReferences") or []
        if len(owners) > 1:
            return f"{subject} a single owner reference set to itself"
        kind = ("v1", "Node", node)
        if not owners or tuple(owners[0].get(k) for k in ("apiVersion", "kind", "name")) != kind:
            return f"{subject} an owner reference set to itself"
        owner = owners[0]
        if not owner.get("controller"):
            return f"{subject} a controller owner reference set to itself"
        if owner.get("blockOwnerDeletion"):
            return f'node "{node}" must not set blockOwnerDeletion on an owner reference'
        found = self._lookup(names.NODES, "", node)
        if found is None:
            raise not_found(_NODE, node)
        uid = found["metadata"]["uid"]
        if owner.get("uid") != uid:
            return f"node {node} UID mismatch: expected {owner.get('uid', '')} got {uid}"
        if kind_of := referenced_kind(spec):
            return f'node "{node}" can not create pods that reference {kind_of}'
        return ""


def _unexpected_subresource(name: str) -> str:
    return f"unexpected pod subresource \"{name}\", only 'status' and 'eviction' are allowed"


def _pod_status_error(node: str, old: Json, new: Json) -> str:
    if old["spec"].get("nodeName") != node:
        what = "pod status for pods with spec.nodeName set to itself"
        return f'node "{node}" can only update {what}'
    if (old["metadata"].get("labels") or {}) != (new["metadata"].get("labels") or {}):
        return f'node "{node}" cannot update labels through pod status'
    before, after = old.get("status") or {}, new.get("status") or {}
    if (before.get("resourceClaimStatuses") or []) != (after.get("resourceClaimStatuses") or []):
        return f'node "{node}" cannot update resource claim statues'
    extended = "extendedResourceClaimStatus"
    if (before.get(extended) or {}) != (after.get(extended) or {}):
        return f'node "{node}" cannot update extended resource claim status'
    return ""


def _node_error(node: str, attributes: AdmissionAttributes, obj: Json | None) -> str:
    if attributes.name != node:
        return f'node "{node}" is not allowed to modify node "{attributes.name}"'
    if obj is None:
        return ""
    old = attributes.old_object or {"metadata": {}}
    source = (obj.get("spec") or {}).get("configSource")
    if attributes.operation == "CREATE" and source:
        return f'node "{node}" is not allowed to create pods with a non-nil configSource'
    if attributes.operation == "UPDATE":
        before, after = old.get("spec") or {}, obj.get("spec") or {}
        if source and source != before.get("configSource"):
            return (
                f'node "{node}" is not allowed to update configSource to a new non-nil configSource'
            )
        if (before.get("taints") or []) != (after.get("taints") or []):
            return f'node "{node}" is not allowed to modify taints'
        owners = [each["metadata"].get("ownerReferences") or [] for each in (old, obj)]
        if owners[0] != owners[1]:
            return f'node "{node}" is not allowed to modify ownerReferences'
    labels, others = (each["metadata"].get("labels") or {} for each in (obj, old))
    changed = {key for key, _ in labels.items() ^ others.items()}
    wrong = ", ".join(sorted(filter(_is_forbidden_label, changed)))
    if not wrong:
        return ""
    if attributes.operation == "CREATE":
        return f'node "{node}" is not allowed to set the following labels: {wrong}'
    return f"is not allowed to modify labels: {wrong}"


def _is_forbidden_label(key: str) -> bool:
    namespace, slash, _ = key.partition("/")
    if not slash:
        return False
    if _is_within(namespace, (_RESTRICTED,)):
        return True
    if not _is_within(namespace, _KUBERNETES_LABELS):
        return False
    return key not in _KUBELET_LABELS and not _is_within(namespace, _KUBELET_LABEL_NAMESPACES)


def _is_within(namespace: str, domains: tuple[str, ...]) -> bool:
    return any(namespace == each or namespace.endswith(f".{each}") for each in domains)


def _claim_error(node: str, attributes: AdmissionAttributes, obj: Json | None) -> str:
    old = attributes.old_object
    if attributes.object_path.subresource != "status" or obj is None or old is None:
        return "may only update PVC status"
    if _without_claim_status(old) == _without_claim_status(obj):
        return ""
    return (
        f'node "{node}" is not allowed to update fields other than status.quantity and '
        "status.conditions"
    )


def _without_claim_status(claim: Json) -> Json:
    metadata = {**claim["metadata"], "resourceVersion": "", "managedFields": []}
    status = {
        key: value for key, value in (claim.get("status") or {}).items() if key not in _CLAIM_STATUS
    }
    return {**claim, "metadata": metadata, "status": status}


def _lease_error(node: str, attributes: AdmissionAttributes) -> str:
    if attributes.namespace != LEASE_NAMESPACE:
        return f'can only access leases in the "{LEASE_NAMESPACE}" system namespace'
    if attributes.name != node:
        return "can only access node lease with the same name as the requesting node"
    return ""


def _slice_error(node: str, attributes: AdmissionAttributes, obj: Json | None) -> str:
    content = {"CREATE": obj, "DELETE": attributes.old_object}.get(attributes.operation)
    if content is None or (content.get("spec") or {}).get("nodeName") == node:
        return ""
    verb = attributes.operation.lower()
    return f"can only {verb} ResourceSlice with the same NodeName as the requesting node"
