"""Table cells of certificate requests, Ingresses, storage, policies and devices."""

from collections.abc import Callable, Mapping
from datetime import datetime
from functools import partial
from typing import Any

from ....model import durations
from ..kinds.groups import (
    ADMISSION,
    CERTIFICATES,
    NETWORKING,
    REGISTRATION,
    RESOURCE,
    STORAGE,
)
from .ages import age
from .printers import NONE, Printer, age_of, name_of, or_none, pairs, selector_text

Json = dict[str, Any]

_UNSET = "<unset>"
_MAX_HOSTS = 3
_MAX_ADDRESS = 16
_DEFAULT_CLASS = "ingressclass.kubernetes.io/is-default-class"


def _pod_template(obj: Json, _: datetime) -> list[Any]:
    template = obj.get("template", {})
    containers = template.get("spec", {}).get("containers") or ()
    return [
        name_of(obj),
        *(",".join(each.get(key, "") for each in containers) for key in ("name", "image")),
        pairs(template.get("metadata", {}).get("labels")),
    ]


def _certificate_request(obj: Json, now: datetime) -> list[Any]:
    spec, status = obj.get("spec", {}), obj.get("status", {})
    seconds = spec.get("expirationSeconds")
    found = {each.get("type") for each in status.get("conditions") or ()}
    condition = "Denied" if "Denied" in found else "Approved" if "Approved" in found else "Pending"
    condition += ",Failed" if "Failed" in found else ""
    return [
        name_of(obj),
        age_of(obj, now),
        spec.get("signerName") or NONE,
        spec.get("username", ""),
        NONE if seconds is None else durations.human(seconds),
        condition + (",Issued" if status.get("certificate") else ""),
    ]


def _ingress_class(obj: Json, now: datetime) -> list[Any]:
    spec, annotations = obj.get("spec", {}), obj["metadata"].get("annotations") or {}
    shown, given = NONE, spec.get("parameters")
    if given is not None:
        kind = ".".join(filter(None, (given.get("kind", ""), given.get("apiGroup"))))
        shown = f"{kind}/{given.get('name', '')}"
    suffix = " (default)" if annotations.get(_DEFAULT_CLASS) == "true" else ""
    return [f"{name_of(obj)}{suffix}", spec.get("controller", ""), shown, age_of(obj, now)]


def _api_service(obj: Json, now: datetime) -> list[Any]:
    service, available = obj.get("spec", {}).get("service"), "Unknown"
    shown = "Local" if service is None else f"{service['namespace']}/{service['name']}"
    for each in obj.get("status", {}).get("conditions") or ():
        if each.get("type") == "Available":
            available = each.get("status", "")
            if available != "True":
                available += f" ({each.get('reason', '')})"
    return [name_of(obj), shown, available, age_of(obj, now)]


def _ip_address(obj: Json, _: datetime) -> list[Any]:
    shown, parent = NONE, obj.get("spec", {}).get("parentRef")
    if parent is not None:
        resource = ".".join(filter(None, (parent.get("resource", ""), parent.get("group")))).lower()
        shown = "/".join(filter(None, (resource, parent.get("namespace"), parent.get("name", ""))))
    return [name_of(obj), shown]


def _service_cidr(obj: Json, now: datetime) -> list[Any]:
    return [name_of(obj), ",".join(obj.get("spec", {}).get("cidrs") or ()), age_of(obj, now)]


def _ingress(obj: Json, now: datetime) -> list[Any]:
    spec = obj.get("spec", {})
    rules = spec.get("rules") or ()
    hosts = [each["host"] for each in rules if each.get("host")]
    shown = ",".join(hosts[:_MAX_HOSTS]) or "*"
    if len(hosts) > _MAX_HOSTS:
        shown += f" + {len(rules) - _MAX_HOSTS} more..."
    listed = obj.get("status", {}).get("loadBalancer", {}).get("ingress") or ()
    addresses = {each.get("ip") or each.get("hostname") or "" for each in listed}
    address = ",".join(sorted(addresses - {""}))
    if len(address) > _MAX_ADDRESS:
        address = f"{address[: _MAX_ADDRESS - 3]}..."
    ports = "80, 443" if spec.get("tls") else "80"
    return [
        name_of(obj), spec.get("ingressClassName", NONE), shown, address, ports, age_of(obj, now),
    ]  # fmt: skip


def _csi_driver(obj: Json, now: datetime) -> list[Any]:
    spec = obj.get("spec", {})
    tokens = spec.get("tokenRequests")
    return [
        name_of(obj),
        spec.get("attachRequired", True),
        spec.get("podInfoOnMount", False),
        spec.get("storageCapacity", False),
        _UNSET if tokens is None else ",".join(each.get("audience", "") for each in tokens),
        spec.get("requiresRepublish", False),
        or_none(spec.get("volumeLifecycleModes") or []),
        age_of(obj, now),
    ]


def _volume_attachment(obj: Json, now: datetime) -> list[Any]:
    spec = obj.get("spec", {})
    return [
        name_of(obj),
        spec.get("attacher", ""),
        spec.get("source", {}).get("persistentVolumeName", ""),
        spec.get("nodeName", ""),
        obj.get("status", {}).get("attached", False),
        age_of(obj, now),
    ]


def _policy(obj: Json, now: datetime, *, counted: str) -> list[Any]:
    spec = obj.get("spec", {})
    kind = spec.get("paramKind")
    shown = _UNSET if kind is None else f"{kind.get('apiVersion', '')}/{kind.get('kind', '')}"
    return [name_of(obj), len(spec.get(counted) or ()), shown, age_of(obj, now)]


def _policy_binding(obj: Json, now: datetime) -> list[Any]:
    spec = obj.get("spec", {})
    reference = spec.get("paramRef") or {}
    shown = _UNSET
    if reference.get("name"):
        shown = f"{reference.get('namespace') or '*'}/{reference['name']}"
    elif reference.get("selector") is not None:
        shown = selector_text(reference["selector"])
    return [name_of(obj), spec.get("policyName", ""), shown, age_of(obj, now)]


def _resource_claim(obj: Json, now: datetime) -> list[Any]:
    status, deleted = obj.get("status", {}), "deletionTimestamp" in obj["metadata"]
    states = ["deleted"] if deleted else []
    if status.get("allocation") is not None:
        states += ["allocated", *(["reserved"] if status.get("reservedFor") else [])]
    elif not deleted:
        states.append("pending")
    return [name_of(obj), ",".join(states), age_of(obj, now)]


def _resource_slice(obj: Json, now: datetime) -> list[Any]:
    spec = obj.get("spec", {})
    pool = spec.get("pool", {}).get("name", "")
    return [name_of(obj), spec.get("nodeName", ""), spec.get("driver", ""), pool, age_of(obj, now)]


def _device_taint_rule(obj: Json, now: datetime) -> list[Any]:
    taint = obj.get("spec", {}).get("taint", {})
    fields = (taint.get(each, "") for each in ("key", "value", "effect"))
    return [name_of(obj), *fields, age(taint.get("timeAdded"), now), age_of(obj, now)]


def _with_age(*fields: str) -> Callable[[Json, datetime], list[Any]]:
    return lambda obj, now: [name_of(obj), *(obj.get(e, "") for e in fields), age_of(obj, now)]


_PLAIN = Printer("Name, Age", _with_age())

CLUSTER_PRINTERS: Mapping[tuple[str, str], Printer] = {
    ("", "PodTemplate"): Printer("Name, Containers, Images, Pod Labels", _pod_template),
    (ADMISSION, "MutatingAdmissionPolicy"): Printer(
        "Name, #Mutations, ParamKind, Age", partial(_policy, counted="mutations")
    ),
    (ADMISSION, "MutatingAdmissionPolicyBinding"): Printer(
        "Name, PolicyName, ParamRef, Age", _policy_binding
    ),
    (ADMISSION, "ValidatingAdmissionPolicy"): Printer(
        "Name, #Validations, ParamKind, Age", partial(_policy, counted="validations")
    ),
    (ADMISSION, "ValidatingAdmissionPolicyBinding"): Printer(
        "Name, PolicyName, ParamRef, Age", _policy_binding
    ),
    (CERTIFICATES, "CertificateSigningRequest"): Printer(
        "Name, Age, SignerName, Requestor, RequestedDuration, Condition", _certificate_request
    ),
    (NETWORKING, "Ingress"): Printer("Name, Class, Hosts, Address, Ports, Age", _ingress),
    (REGISTRATION, "APIService"): Printer("Name, Service, Available, Age", _api_service),
    (NETWORKING, "IngressClass"): Printer("Name, Controller, Parameters, Age", _ingress_class),
    (NETWORKING, "IPAddress"): Printer("Name, ParentRef", _ip_address),
    (NETWORKING, "ServiceCIDR"): Printer("Name, CIDRs, Age", _service_cidr),
    (RESOURCE, "DeviceClass"): _PLAIN,
    (RESOURCE, "DeviceTaintRule"): Printer(
        "Name, Key, Value, Effect, TimeAdded, Age", _device_taint_rule
    ),
    (RESOURCE, "ResourceClaim"): Printer("Name, State, Age", _resource_claim),
    (RESOURCE, "ResourceClaimTemplate"): _PLAIN,
    ("scheduling.k8s.io", "Workload"): _PLAIN,
    (RESOURCE, "ResourceSlice"): Printer("Name, Node, Driver, Pool, Age", _resource_slice),
    (STORAGE, "CSIDriver"): Printer(
        "Name, ?AttachRequired, ?PodInfoOnMount, ?StorageCapacity, TokenRequests, "
        "?RequiresRepublish, Modes, Age",
        _csi_driver,
    ),
    (STORAGE, "VolumeAttachment"): Printer(
        "Name, Attacher, PV, Node, ?Attached, Age", _volume_attachment
    ),
    (STORAGE, "VolumeAttributesClass"): Printer("Name, DriverName, Age", _with_age("driverName")),
}
"""Printers of these kinds by group and kind."""
