"""Defaults and validation of the other built-in kinds that clients create."""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

from ....model import quantity, validation
from ..current_time import now
from ..errors.fields import (
    IMMUTABLE,
    FieldError,
    forbidden,
    invalid,
    not_supported,
    too_long,
)
from ..kinds.groups import RBAC
from . import event_conversion
from .volume_validation import claim_spec_errors

Json = dict[str, Any]

DATA_LIMIT = 1024 * 1024
"""Maximum bytes of the data of a ConfigMap or Secret."""

DEFAULT_CLASS_ANNOTATION = "storageclass.kubernetes.io/is-default-class"
BETA_CLASS_ANNOTATION = "volume.beta.kubernetes.io/storage-class"
"""Annotation that contained a claim's class before there was a field."""

ENFORCED_SECRETS_ANNOTATION = "kubernetes.io/enforce-mountable-secrets"
"""Of an account whose pods may use only the secrets that it lists."""

TOKEN_SECRET_TYPE = "kubernetes.io/service-account-token"  # noqa: S105 - a type
"""Type of Secrets into which a controller writes a token."""
ACCOUNT_NAME_ANNOTATION = "kubernetes.io/service-account.name"
ACCOUNT_UID_ANNOTATION = "kubernetes.io/service-account.uid"
"""Of these Secrets: the account of the token."""

_PREEMPTION = ("PreemptLowerPriority", "Never")
SYSTEM_PRIORITY_CLASSES = ("system-cluster-critical", "system-node-critical")
_USER_PRIORITY_LIMIT = 1_000_000_000
_TAINT_EFFECTS = ("NoExecute", "NoSchedule", "PreferNoSchedule")


def default_namespace(obj: Json) -> None:
    """Set a namespace's name label."""
    if name := obj["metadata"].get("name"):
        obj["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = name


def prepare_namespace_for_create(obj: Json) -> None:
    """Set the finalizer that keeps a namespace until its content is deleted."""
    default_namespace(obj)
    finalizers = obj.setdefault("spec", {}).setdefault("finalizers", [])
    if "kubernetes" not in finalizers:
        finalizers.append("kubernetes")
    obj["status"] = {"phase": "Active"}


def prepare_namespace_for_update(obj: Json, old: Json) -> None:
    """Keep the finalizers of the spec: they have their own subresource."""
    if "spec" in old:
        obj["spec"] = old["spec"]


def default_node(obj: Json) -> None:
    """Default a node's allocatable resources to its capacity, and its ranges to the first."""
    status = obj.get("status") or {}
    spec = obj.get("spec") or {}
    for owner, key in ((status, "config"), (spec, "configSource")):
        owner.pop(key, None)  # kubelets no longer support dynamic configuration
    if (first := spec.get("podCIDR")) and not spec.get("podCIDRs"):
        spec["podCIDRs"] = [first]
    if "capacity" in status and "allocatable" not in status:
        status["allocatable"] = dict(status["capacity"])


def validate_node(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate the taints of a node."""
    errors = []
    seen = set()
    for index, taint in enumerate(obj.get("spec", {}).get("taints", ())):
        path = f"metadata.taints[{index}]"  # sic: kube-apiserver's path
        key, effect = taint.get("key", ""), taint.get("effect", "")
        if problem := validation.qualified_name_error(key):
            errors.append(invalid(f"{path}.key", key, problem))
        if effect not in _TAINT_EFFECTS:
            errors.append(not_supported(f"{path}.effect", effect, _TAINT_EFFECTS))
        if (key, effect) in seen:
            text = "taints must be unique by key and effect pair"
            errors.append(invalid(path, key, text))
        seen.add((key, effect))
    return errors


def node_warnings(obj: Json, old: Json | None) -> list[str]:
    """Warn of fields of a node that are not used any more."""
    if not (obj.get("spec") or {}).get("externalID"):
        return []
    return ["spec.externalID: this field is deprecated, and is unused by Kubernetes"]


def validate_config_map(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate keys, size and immutability of a ConfigMap."""
    data, binary = obj.get("data", {}), obj.get("binaryData", {})
    errors = validate_keys(data, "data") + validate_keys(binary, "binaryData")
    errors += [
        invalid(f"data[{key}]", key, "duplicate of key present in binaryData")
        for key in data.keys() & binary.keys()
    ]
    size = sum(len(text.encode()) for text in data.values())
    size += sum(len(text) * 3 // 4 for text in binary.values())
    if size > DATA_LIMIT:
        errors.append(too_long("", DATA_LIMIT))
    return errors + validate_immutable(obj, old, ("data", "binaryData"))


def validate_keys(data: Json, path: str) -> list[FieldError]:
    """Validate the keys of the data of a ConfigMap or Secret."""
    return [
        invalid(f"{path}[{key}]", key, problem)
        for key in data
        if (problem := validation.config_key_error(key))
    ]


def validate_immutable(obj: Json, old: Json | None, keys: tuple[str, ...]) -> list[FieldError]:
    """Validate that an immutable ConfigMap or Secret stays as it is."""
    if old is None or not old.get("immutable"):
        return []
    text = "field is immutable when `immutable` is set"
    errors = [] if obj.get("immutable") else [forbidden("immutable", text)]
    return errors + [forbidden(key, text) for key in keys if obj.get(key) != old.get(key)]


def default_service(obj: Json) -> None:
    """Default a Service; the server assigns its cluster IP."""
    spec = obj.setdefault("spec", {})
    kind = spec.setdefault("type", "ClusterIP")
    if spec.setdefault("sessionAffinity", "None") == "ClientIP":
        config = spec.setdefault("sessionAffinityConfig", {}).setdefault("clientIP", {})
        config.setdefault("timeoutSeconds", 10800)
    elif spec["sessionAffinity"] == "None":
        spec.pop("sessionAffinityConfig", None)
    for port in spec.get("ports", ()):
        port.setdefault("protocol", "TCP")
        if port.get("targetPort") in (None, 0, ""):
            port["targetPort"] = port.get("port", 0)
    if kind != "ExternalName":
        spec.setdefault("internalTrafficPolicy", "Cluster")
    if kind in ("NodePort", "LoadBalancer") or (kind == "ClusterIP" and spec.get("externalIPs")):
        spec.setdefault("externalTrafficPolicy", "Cluster")
    if kind == "LoadBalancer":
        spec.setdefault("allocateLoadBalancerNodePorts", True)


def prepare_service_for_create(obj: Json) -> None:
    """Set the empty status of a new Service, and what the server assigns."""
    obj["status"] = {"loadBalancer": {}}
    _assign_addresses(obj["spec"])


def is_headless_without_selector(spec: Json) -> bool:
    """Whether a Service has no address, and its endpoints are written by another."""
    return spec.get("clusterIP") == "None" and not spec.get("selector")


def _assign_addresses(spec: Json) -> None:
    """Set the fields of addresses, which no field manager owns: they are no defaults."""
    if spec.get("type") == "ExternalName":
        return
    if is_headless_without_selector(spec):
        # Its endpoints are written by others, and may have addresses of both families.
        spec.setdefault("ipFamilies", ["IPv4", "IPv6"])
        spec.setdefault("ipFamilyPolicy", "RequireDualStack")
    spec.setdefault("ipFamilies", ["IPv4"])
    spec.setdefault("ipFamilyPolicy", "SingleStack")
    if address := spec.get("clusterIP"):
        spec.setdefault("clusterIPs", [address])


def prepare_service_for_update(obj: Json, old: Json) -> None:
    """Keep the assigned cluster IP if an update omits it."""
    spec, before = obj.get("spec", {}), old.get("spec", {})
    if spec.get("type") == "ExternalName":
        return
    for key in ("clusterIP", "clusterIPs", "healthCheckNodePort"):
        if key not in spec and key in before:
            spec[key] = before[key]
    _assign_addresses(spec)
    if spec.get("type") == "LoadBalancer":
        for entry in ((obj.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ():
            if entry.get("ip"):
                entry.setdefault("ipMode", "VIP")


def default_class(classes: Iterable[Json]) -> str:
    """Return the name of the newest default class, of several the first; ``""`` without one."""
    chosen = [
        (each["metadata"].get("creationTimestamp", ""), each["metadata"]["name"])
        for each in classes
        if (each["metadata"].get("annotations") or {}).get(DEFAULT_CLASS_ANNOTATION) == "true"
    ]
    newest = max((created for created, _ in chosen), default="")
    return min((name for created, name in chosen if created == newest), default="")


def needs_default_class(claim: Json) -> bool:
    """Return whether a claim names no class, not even the empty one."""
    annotations = claim["metadata"].get("annotations") or {}
    named = claim["spec"].get("storageClassName") is not None
    return not named and BETA_CLASS_ANNOTATION not in annotations


def account_warnings(obj: Json, old: Json | None) -> list[str]:
    """Warn of the deprecated annotation that limits the secrets of an account's pods."""
    now, before = (
        ENFORCED_SECRETS_ANNOTATION in ((each or {}).get("metadata", {}).get("annotations") or {})
        for each in (obj, old)
    )
    if before or not now:
        return []
    text = "deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets"
    return [f"metadata.annotations[{ENFORCED_SECRETS_ANNOTATION}]: {text}"]


def default_pvc(obj: Json) -> None:
    """Default a PersistentVolumeClaim."""
    obj.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")


def prepare_pvc_for_create(obj: Json) -> None:
    """Set the phase of a new claim to Pending."""
    obj["status"] = {"phase": "Pending"}


def prepare_volume_for_create(obj: Json) -> None:
    """Set the phase of a new volume to Pending."""
    moment = now()
    obj["status"] = {"phase": "Pending", "lastPhaseTransitionTime": moment}


def validate_pvc(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a PersistentVolumeClaim; see :func:`_mutable_fields` for what may change."""
    spec = obj.get("spec", {})
    errors = claim_spec_errors(spec, "spec")
    if old is not None:
        before = old.get("spec", {})
        fixed = (spec.keys() | before.keys()) - _mutable_fields(old)
        if any(spec.get(key) != before.get(key) for key in fixed):
            text = (
                "spec is immutable after creation except resources.requests and "
                "volumeAttributesClassName for bound claims"
            )
            errors.append(forbidden("spec", text))
        if _is_shrunk(spec, old):
            text = "field can not be less than status.capacity"
            errors.append(forbidden("spec.resources.requests.storage", text))
    return errors


def _mutable_fields(claim: Json) -> set[str]:
    """Return the fields of the spec of *claim* that an update may change: each can be set once,
    the size of a bound claim can grow.
    """
    spec = claim.get("spec", {})
    changeable = {key for key in ("volumeName", "storageClassName") if key not in spec}
    if claim.get("status", {}).get("phase") == "Bound":
        changeable |= {"resources", "volumeAttributesClassName"}
    return changeable


def _is_shrunk(spec: Json, old: Json) -> bool:
    """Return whether *spec* requests less than before, but not less than the capacity of *old*."""
    try:
        size = quantity.parse(storage_request(spec))
        capacity = quantity.parse(old.get("status", {}).get("capacity", {}).get("storage", "0"))
        return size < quantity.parse(storage_request(old.get("spec", {}))) and size <= capacity
    except quantity.QuantityError:
        return False  # reported by the validation of the field


def storage_request(spec: Json) -> str:
    """Return the storage request of a claim's *spec*."""
    return str(spec.get("resources", {}).get("requests", {}).get("storage", "0"))


def default_volume(obj: Json) -> None:
    """Default a PersistentVolume."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("persistentVolumeReclaimPolicy", "Retain")
    spec.setdefault("volumeMode", "Filesystem")
    if "hostPath" in spec:
        spec["hostPath"].setdefault("type", "")


def default_priority_class(obj: Json) -> None:
    """Default a PriorityClass."""
    obj.setdefault("preemptionPolicy", "PreemptLowerPriority")


def validate_priority_class(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a PriorityClass, which is immutable."""
    errors = []
    value = obj.get("value", 0)
    name = obj["metadata"].get("name", "")
    if value > _USER_PRIORITY_LIMIT and not name.startswith("system-"):
        text = f"maximum allowed value of a user defined priority is {_USER_PRIORITY_LIMIT}"
        errors.append(forbidden("value", text))
    if name.startswith("system-") and name not in SYSTEM_PRIORITY_CLASSES:
        text = (
            "priority class names with 'system-' prefix are reserved for system use only. error: "
            f"{name} is not a known system priority class"
        )
        errors.append(forbidden("metadata.name", text))
    policy = obj.get("preemptionPolicy")
    if policy not in _PREEMPTION:
        errors.append(not_supported("preemptionPolicy", policy, _PREEMPTION))
    if old is not None:
        if value != old.get("value", 0):
            errors.append(forbidden("value", "may not be changed in an update."))
        if policy != old.get("preemptionPolicy"):
            errors.append(invalid("preemptionPolicy", policy, IMMUTABLE))
    return errors


def validate_lease(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a Lease."""
    spec = obj.get("spec", {})
    errors = []
    if (seconds := spec.get("leaseDurationSeconds", 1)) <= 0:
        text = "must be greater than 0"
        errors.append(invalid("spec.leaseDurationSeconds", seconds, text))
    if (transitions := spec.get("leaseTransitions", 0)) < 0:
        text = "must be greater than or equal to 0"
        errors.append(invalid("spec.leaseTransitions", transitions, text))
    return errors


def validate_event(obj: Json, old: Json | None) -> list[FieldError]:
    """Check that an Event is in the namespace of its regarding object."""
    about = obj.get("involvedObject", {}).get("namespace", "")
    namespace = obj["metadata"].get("namespace", "")
    # Events regarding cluster-scoped objects are in the default namespace.
    if about != namespace and not (not about and namespace in ("default", "kube-system")):
        text = "does not match event.namespace"
        return [invalid("involvedObject.namespace", about, text)]
    if obj.get("eventTime"):
        return event_conversion.detail_errors(obj, "reportingComponent", obj.get("message"))
    return []


def default_binding(obj: Json) -> None:
    """Default a RoleBinding or ClusterRoleBinding."""
    if role := obj.get("roleRef"):
        role["apiGroup"] = role.get("apiGroup") or RBAC
    for subject in obj.get("subjects", ()):
        if subject.get("kind") in ("User", "Group"):
            subject.setdefault("apiGroup", RBAC)


def default_storage_class(obj: Json) -> None:
    """Default a StorageClass."""
    obj.setdefault("reclaimPolicy", "Delete")
    obj.setdefault("volumeBindingMode", "Immediate")


def default_endpoints(obj: Json) -> None:
    """Default Endpoints or an EndpointSlice."""
    for endpoint in obj.get("endpoints") or ():
        endpoint.pop("deprecatedTopology", None)
    groups = [obj, *obj.get("subsets", ())]
    for group in groups:
        for port in group.get("ports") or ():
            port.setdefault("protocol", "TCP")


_DOUBLE: Json = {"type": "Percent", "value": 100, "periodSeconds": 15}
_SCALING_RULES: Mapping[str, Json] = {
    "scaleUp": {
        "stabilizationWindowSeconds": 0,
        "selectPolicy": "Max",
        "policies": [{"type": "Pods", "value": 4, "periodSeconds": 15}, _DOUBLE],
    },
    "scaleDown": {"selectPolicy": "Max", "policies": [_DOUBLE]},
}


def default_autoscaler(obj: Json) -> None:
    """Default a HorizontalPodAutoscaler."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("minReplicas", 1)
    target = {"type": "Utilization", "averageUtilization": 80}
    if not spec.get("metrics"):
        spec["metrics"] = [{"type": "Resource", "resource": {"name": "cpu", "target": target}}]
    if (behavior := spec.get("behavior")) is not None:
        for direction, defaults in _SCALING_RULES.items():
            behavior[direction] = deepcopy(defaults) | (behavior.get(direction) or {})


def default_webhooks(obj: Json) -> None:
    """Default a webhook configuration."""
    for webhook in obj.get("webhooks", ()):
        webhook.setdefault("failurePolicy", "Fail")
        webhook.setdefault("matchPolicy", "Equivalent")
        webhook.setdefault("namespaceSelector", {})
        webhook.setdefault("objectSelector", {})
        webhook.setdefault("timeoutSeconds", 10)
        if obj.get("kind") == "MutatingWebhookConfiguration":
            webhook.setdefault("reinvocationPolicy", "Never")
        if service := webhook.get("clientConfig", {}).get("service"):
            service.setdefault("port", 443)
        for rule in webhook.get("rules") or ():
            rule.setdefault("scope", "*")
