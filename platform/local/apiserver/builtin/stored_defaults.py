"""Defaults of kinds that are only stored: no component acts on them."""

from typing import Any

from .pod_defaults import default_template

Json = dict[str, Any]


def default_limit_range(obj: Json) -> None:
    """Default a LimitRange: a maximum is also the default limit and request."""
    for item in obj.get("spec", {}).get("limits") or ():
        if item.get("type") != "Container":
            continue
        limits = {**item.get("max", {}), **item.get("default", {})}
        requests = {**item.get("min", {}), **limits, **item.get("defaultRequest", {})}
        item |= {"default": limits} if limits else {}
        item |= {"defaultRequest": requests} if requests else {}


def default_pod_template(obj: Json) -> None:
    """Default a PodTemplate."""
    default_template(obj.get("template", {}))


def default_service_account(obj: Json) -> None:
    """Keep only the names of a ServiceAccount's secrets."""
    if "secrets" in obj:
        obj["secrets"] = [
            {"name": each["name"]} if each.get("name") else {} for each in obj["secrets"]
        ]


def default_ingress_class(obj: Json) -> None:
    """Default an IngressClass."""
    parameters = obj.get("spec", {}).get("parameters")
    if parameters is not None and parameters.get("scope") is None:
        parameters["scope"] = "Cluster"


def default_csi_driver(obj: Json) -> None:
    """Default a CSIDriver."""
    spec = obj.setdefault("spec", {})
    spec.pop("preventPodSchedulingIfMissing", None)
    spec.setdefault("attachRequired", True)
    spec.setdefault("fsGroupPolicy", "ReadWriteOnceWithFSType")
    for flag in ("podInfoOnMount", "requiresRepublish", "seLinuxMount", "storageCapacity"):
        spec.setdefault(flag, False)
    if not spec.get("volumeLifecycleModes"):
        spec["volumeLifecycleModes"] = ["Persistent"]


def default_lease(obj: Json) -> None:
    """Remove the fields of a Lease that belong to the alpha feature CoordinatedLeaderElection."""
    for key in ("preferredHolder", "strategy"):
        obj.get("spec", {}).pop(key, None)


def default_admission_policy(obj: Json) -> None:
    """Default a ValidatingAdmissionPolicy."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("failurePolicy", "Fail")
    if constraints := spec.get("matchConstraints"):
        _default_match(constraints)


def default_admission_binding(obj: Json) -> None:
    """Default a ValidatingAdmissionPolicyBinding."""
    if resources := obj.get("spec", {}).get("matchResources"):
        _default_match(resources)


def _default_match(match: Json) -> None:
    match.setdefault("matchPolicy", "Equivalent")
    match.setdefault("namespaceSelector", {})
    match.setdefault("objectSelector", {})
    for key in ("resourceRules", "excludeResourceRules"):
        for rule in match.get(key, ()):
            rule.setdefault("scope", "*")
