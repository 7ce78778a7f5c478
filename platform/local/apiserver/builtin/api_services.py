"""APIServices: which server has a group and version, the server itself or that of a Service."""

import base64
import binascii
from typing import Any

from ....model import validation
from ....model.names import API_SERVICES, NATIVE_PODGROUPS
from ..current_time import now
from ..errors.fields import FieldError, invalid, not_supported, required
from ..kinds import groups

Json = dict[str, Any]

AUTOMANAGED = "kube-aggregator.kubernetes.io/automanaged"
"""Label of an APIService that the server maintains."""

AVAILABLE = "Available"
HTTPS_PORT = 443
_STATUSES = ("True", "False", "Unknown")
_MAX_GROUP_PRIORITY, _MAX_VERSION_PRIORITY, _MAX_PORT = 20_000, 1_000, 65_535

_CUSTOM_PRIORITIES = (1000, 100)
"""Of the group and of the version of custom kinds."""

_PRIORITIES = {
    ("", "v1"): (18_000, 1),
    ("apps", "v1"): (17_800, 15),
    ("events.k8s.io", "v1"): (17_750, 15),
    (groups.AUTHENTICATION, "v1"): (17_700, 15),
    (groups.AUTHORIZATION, "v1"): (17_600, 15),
    ("autoscaling", "v1"): (17_500, 15),
    ("autoscaling", "v2"): (17_500, 30),
    ("batch", "v1"): (17_400, 15),
    (groups.CERTIFICATES, "v1"): (17_300, 15),
    (groups.NETWORKING, "v1"): (17_200, 15),
    ("policy", "v1"): (17_100, 15),
    (groups.RBAC, "v1"): (17_000, 15),
    (groups.STORAGE, "v1"): (16_800, 15),
    (groups.ADMISSION, "v1"): (16_700, 15),
    ("apiextensions.k8s.io", "v1"): (16_700, 15),
    ("scheduling.k8s.io", "v1"): (16_600, 15),
    (NATIVE_PODGROUPS.group, NATIVE_PODGROUPS.version): (16_600, 2),
    ("coordination.k8s.io", "v1"): (16_500, 15),
    ("node.k8s.io", "v1"): (16_300, 15),
    ("discovery.k8s.io", "v1"): (16_200, 15),
    (groups.RESOURCE, "v1"): (16_200, 21),
    (groups.RESOURCE, "v1beta2"): (16_200, 15),
    (groups.FLOW_CONTROL, "v1"): (16_100, 21),
}
"""Those of the groups and versions of Kubernetes."""


def local_api_service(group: str, version: str, *, custom: bool) -> Json:
    """Return the APIService of a group and version that this server has itself."""
    group_priority, version_priority = _PRIORITIES.get((group, version), _CUSTOM_PRIORITIES)
    return {
        "kind": API_SERVICES.kind,
        "apiVersion": API_SERVICES.api_version,
        "metadata": {
            "name": f"{version}.{group}",
            "labels": {AUTOMANAGED: "true" if custom else "onstart"},
        },
        "spec": {
            **({"group": group} if group else {}),
            "version": version,
            "groupPriorityMinimum": group_priority,
            "versionPriority": version_priority,
        },
    }


def with_condition(obj: Json, status: str, reason: str, message: str) -> Json:
    """Return *obj* with this condition Available; the same object if it has it."""
    conditions = list((obj.get("status") or {}).get("conditions") or ())
    wanted = {"type": AVAILABLE, "status": status, "reason": reason, "message": message}
    found = next((each for each in conditions if each.get("type") == AVAILABLE), None)
    if found is None:
        conditions.append({**wanted, "lastTransitionTime": now()})
    elif {**found, **wanted} == found:
        return obj
    else:
        changed = found.get("status") != status
        moment = now() if changed else found.get("lastTransitionTime")
        conditions[conditions.index(found)] = {**wanted, "lastTransitionTime": moment}
    return {**obj, "status": {**(obj.get("status") or {}), "conditions": conditions}}


def with_local_condition(obj: Json) -> Json:
    """Return *obj* with the condition of an APIService without a Service."""
    return with_condition(obj, "True", "Local", "Local APIServices are always available")


def is_available(obj: Json) -> bool:
    """Return whether the condition Available is true."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return any(
        each.get("type") == AVAILABLE and each.get("status") == "True" for each in conditions
    )


def default_api_service(obj: Json) -> None:
    """Set the port of the Service."""
    service = (obj.get("spec") or {}).get("service")
    if service is not None and service.get("port") is None:
        service["port"] = HTTPS_PORT


def prepare_for_create(obj: Json) -> None:
    """Report an APIService without a Service as available."""
    if (obj.get("spec") or {}).get("service") is None:
        obj["status"] = with_local_condition(obj)["status"]


def validate_api_service(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate name and spec."""
    spec, errors = obj.get("spec") or {}, list[FieldError]()
    group, version = spec.get("group", ""), spec.get("version", "")
    for field in ("generateName", "name"):
        name = obj["metadata"].get(field, "")
        if name and not validation.path_segment_error(name) and name != f"{version}.{group}":
            text = f'must be `spec.version+"."+spec.group`: "{version}.{group}"'
            errors.append(invalid(f"metadata.{field}", name, text))
    if not group and version != "v1":
        text = "only v1 may have an empty group and it better be legacy kube"
        errors.append(required("spec.group", text))
    if group and (problem := validation.dns1123_subdomain_error(group)):
        errors.append(invalid("spec.group", group, problem))
    if problem := validation.dns1035_label_error(version):
        errors.append(invalid("spec.version", version, problem))
    for key, highest in (
        ("groupPriorityMinimum", _MAX_GROUP_PRIORITY),
        ("versionPriority", _MAX_VERSION_PRIORITY),
    ):
        if not 0 < spec.get(key, 0) <= highest:
            text = f"must be positive and less than {highest}"
            errors.append(invalid(f"spec.{key}", spec.get(key, 0), text))
    _validate_connection(spec, errors)
    return errors


def _validate_connection(spec: Json, errors: list[FieldError]) -> None:
    service, bundle = spec.get("service"), spec.get("caBundle") or ""
    insecure = spec.get("insecureSkipTLSVerify", False)
    if service is None:
        if bundle:
            size, text = (
                f"{_decoded_size(bundle)} bytes",
                "local APIServices may not have a caBundle",
            )
            errors.append(invalid("spec.caBundle", size, text))
        if insecure:
            text = "local APIServices may not have insecureSkipTLSVerify"
            errors.append(invalid("spec.insecureSkipTLSVerify", insecure, text))
        return
    errors += [
        required(f"spec.service.{key}") for key in ("namespace", "name") if not service.get(key)
    ]
    port = service.get("port", HTTPS_PORT)
    if not 1 <= port <= _MAX_PORT:
        text = f"port is not valid: must be between 1 and {_MAX_PORT}, inclusive"
        errors.append(invalid("spec.service.port", port, text))
    if insecure and bundle:
        text = "may not be true if caBundle is present"
        errors.append(invalid("spec.insecureSkipTLSVerify", insecure, text))


def _decoded_size(text: str) -> int:
    try:
        return len(base64.b64decode(text))
    except binascii.Error:
        return len(text)


def validate_status(obj: Json, old: Json) -> list[FieldError]:
    """Validate the conditions of a status."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return [
        not_supported(f"status.conditions[{index}].status", each.get("status", ""), _STATUSES)
        for index, each in enumerate(conditions)
        if each.get("status") not in _STATUSES
    ]
