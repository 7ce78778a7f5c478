"""Validation of Services."""

import ipaddress
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ....model import validation
from ..errors.fields import (
    FieldError,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    required,
)
from ..kinds.metadata import validate_labels
from .container_validation import port_name_errors
from .core_objects import is_headless_without_selector
from .enums import PROTOCOLS

Json = dict[str, Any]

_TYPES = ("ClusterIP", "ExternalName", "LoadBalancer", "NodePort")
_API_SERVER = ("default", "kubernetes")
"""The Service whose address is that of the server itself, of either family."""

_HEADLESS = "None"
_AFFINITIES = ("ClientIP", "None")
_POLICIES = ("Cluster", "Local")
_DISTRIBUTIONS = ("PreferClose", "PreferSameZone", "PreferSameNode")
_MAX_AFFINITY_SECONDS = 86400
_ONLY_LOAD_BALANCERS = "may only be used when `type` is 'LoadBalancer'"
_NOT_EXTERNAL = "may not be set for ExternalName services"
_PORT_RANGE = "must be between 1 and 65535, inclusive"

_HINTS_ANNOTATION = "service.kubernetes.io/topology-aware-hints"


def validate_service(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a Service."""
    spec, meta = obj.get("spec", {}), obj["metadata"]
    kind = spec.get("type", "")
    errors = []
    if kind not in _TYPES:
        errors.append(not_supported("spec.type", kind, _TYPES))
    if kind == "ExternalName":
        errors += _external_name_errors(spec)
    elif kind in ("LoadBalancer", "NodePort") and spec.get("clusterIP") == _HEADLESS:
        text = f"may not be set to 'None' for {kind} services"
        errors.append(invalid("spec.clusterIPs[0]", _HEADLESS, text))
    of_server = (meta.get("namespace"), meta.get("name")) == _API_SERVER
    if not (of_server or is_headless_without_selector(spec)):
        errors += _family_errors(spec)
    errors += _ports_errors(spec)
    errors += validate_labels(spec.get("selector"), "spec.selector")
    errors += _affinity_errors(spec)
    errors += _load_balancer_errors(spec)
    errors += _traffic_errors(spec)
    errors += _external_address_errors(spec)
    if old is not None:
        errors += _update_errors(spec, old.get("spec", {}))
    return errors


def _external_name_errors(spec: Json) -> list[FieldError]:
    errors = [
        forbidden(f"spec.{key}", _NOT_EXTERNAL)
        for key in ("clusterIPs", "ipFamilies", "ipFamilyPolicy")
        if spec.get(key)
    ]
    name = spec.get("externalName", "").removesuffix(".")
    if not name:
        errors.append(required("spec.externalName"))
    elif problem := validation.dns1123_subdomain_error(name):
        errors.append(invalid("spec.externalName", name, problem))
    return errors


def _family_errors(spec: Json) -> list[FieldError]:
    """Reject what needs addresses of IPv6, which Services do not have here."""
    errors = [
        invalid(f"spec.ipFamilies[{index}]", family, "not configured on this cluster")
        for index, family in enumerate(spec.get("ipFamilies") or ())
        if family == "IPv6"
    ]
    policy = spec.get("ipFamilyPolicy")
    if policy == "RequireDualStack":
        text = "this cluster is not configured for dual-stack services"
        errors.append(invalid("spec.ipFamilyPolicy", policy, text))
    return errors


def _ports_errors(spec: Json) -> list[FieldError]:
    ports, kind = spec.get("ports") or (), spec.get("type")
    if not ports and kind != "ExternalName" and spec.get("clusterIP") != _HEADLESS:
        return [required("spec.ports")]
    errors, names = [], set[str]()
    for index, port in enumerate(ports):
        path, name = f"spec.ports[{index}]", port.get("name", "")
        errors += _port_errors(port, path, named=len(ports) > 1)
        if name and name in names:
            errors.append(duplicate(f"{path}.name", name))
        names.add(name)
        if kind == "ClusterIP" and port.get("nodePort"):
            text = "may not be used when `type` is 'ClusterIP'"
            errors.append(forbidden(f"{path}.nodePort", text))
    for index in _repeated((each.get("protocol"), each.get("nodePort")) for each in ports):
        if number := ports[index].get("nodePort"):
            errors.append(duplicate(f"spec.ports[{index}].nodePort", number))
    for index in _repeated((each.get("protocol"), each.get("port")) for each in ports):
        shown = {key: ports[index].get(key) for key in ("protocol", "port")}
        errors.append(duplicate(f"spec.ports[{index}]", shown))
    return errors


def _repeated(keys: Iterable[tuple[Any, Any]]) -> list[int]:
    """Return the indices of keys that are not the first of their kind."""
    seen, found = set[tuple[Any, Any]](), []
    for index, key in enumerate(keys):
        if key in seen:
            found.append(index)
        seen.add(key)
    return found


def _port_errors(port: Json, path: str, *, named: bool) -> list[FieldError]:
    errors = []
    name, number, target = (port.get(key) for key in ("name", "port", "targetPort"))
    if named and not name:
        errors.append(required(f"{path}.name"))
    elif name and (problem := validation.dns1123_label_error(name)):
        errors.append(invalid(f"{path}.name", name, problem))
    if not _is_port(number):
        errors.append(invalid(f"{path}.port", number or 0, _PORT_RANGE))
    if isinstance(target, str):
        errors += [
            invalid(f"{path}.targetPort", target, problem) for problem in port_name_errors(target)
        ]
    elif not _is_port(target):
        errors.append(invalid(f"{path}.targetPort", target or 0, _PORT_RANGE))
    if port.get("protocol") not in PROTOCOLS:
        errors.append(not_supported(f"{path}.protocol", port.get("protocol"), PROTOCOLS))
    protocol = port.get("appProtocol")
    if protocol is not None and (problem := validation.qualified_name_error(protocol)):
        errors.append(invalid(f"{path}.appProtocol", protocol, problem))
    return errors


def _is_port(number: Any) -> bool:
    return isinstance(number, int) and 1 <= number <= 65535


def service_warnings(obj: Json, old: Json | None) -> list[str]:
    """Return kube-apiserver's warnings for what is deprecated in a Service."""
    spec, found = obj.get("spec") or {}, []
    if _HINTS_ANNOTATION in (obj["metadata"].get("annotations") or {}):
        text = "is deprecated, please use service.kubernetes.io/topology-mode instead"
        found.append(f"annotation {_HINTS_ANNOTATION} {text}")
    if spec.get("clusterIP") == "None":
        found += [f"spec.{each} is ignored for headless services" for each in _ignored(spec)]
    elif spec.get("externalIPs"):
        text = "is deprecated and may no longer be implemented in some clusters"
        found.append(f"spec.externalIPs {text}")
    if spec.get("trafficDistribution") == "PreferClose":
        text = '"PreferClose" is deprecated; use "PreferSameZone"'
        found.append(f"spec.trafficDistribution: {text}")
    return found


def _ignored(spec: Json) -> Iterator[str]:
    """Yield fields that have no effect without an address, as kube-apiserver names them."""
    for key in ("loadBalancerIP", "externalIPs"):
        if spec.get(key):
            yield key
    if spec.get("sessionAffinity") not in (None, "", "None"):
        yield "SessionAffinity"


def _affinity_errors(spec: Json) -> list[FieldError]:
    affinity, config = spec.get("sessionAffinity"), spec.get("sessionAffinityConfig")
    if affinity not in _AFFINITIES:
        return [not_supported("spec.sessionAffinity", affinity, _AFFINITIES)]
    if affinity == "None":
        return []
    seconds = ((config or {}).get("clientIP") or {}).get("timeoutSeconds", 0)  # has a default
    if 0 < seconds <= _MAX_AFFINITY_SECONDS:
        return []
    text = f"must be greater than 0 and less than {_MAX_AFFINITY_SECONDS}"
    return [invalid("spec.sessionAffinityConfig.clientIP.timeoutSeconds", seconds, text)]


def _load_balancer_errors(spec: Json) -> list[FieldError]:
    """Validate the fields that only Services of type LoadBalancer have."""
    is_balanced, errors = spec.get("type") == "LoadBalancer", []
    ranges, path = spec.get("loadBalancerSourceRanges") or (), "spec.LoadBalancerSourceRanges"
    if ranges and not is_balanced:
        errors.append(forbidden(path, _ONLY_LOAD_BALANCERS))
    for index, each in enumerate(ranges):
        if not _parses(ipaddress.ip_network, each.strip()):
            text = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
            errors.append(invalid(f"{path}[{index}]", each, text))
    if spec.get("allocateLoadBalancerNodePorts") is not None and not is_balanced:
        errors.append(forbidden("spec.allocateLoadBalancerNodePorts", _ONLY_LOAD_BALANCERS))
    chosen, path = spec.get("loadBalancerClass"), "spec.loadBalancerClass"
    if chosen is not None and not is_balanced:
        errors.append(forbidden(path, _ONLY_LOAD_BALANCERS))
    elif chosen is not None and (problem := validation.qualified_name_error(chosen)):
        errors.append(invalid(path, chosen, problem))
    return errors


def _traffic_errors(spec: Json) -> list[FieldError]:
    errors = []
    kind, external = spec.get("type"), spec.get("externalTrafficPolicy")
    is_external = kind in ("LoadBalancer", "NodePort") or (
        kind == "ClusterIP" and bool(spec.get("externalIPs"))
    )
    path = "spec.externalTrafficPolicy"
    if external and not is_external:
        text = "may only be set for externally-accessible services"
        errors.append(invalid(path, external, text))
    elif external and external not in _POLICIES:
        errors.append(not_supported(path, external, _POLICIES))
    port = spec.get("healthCheckNodePort")
    if port and not (kind == "LoadBalancer" and external == "Local"):
        text = (
            "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"
        )
        errors.append(invalid("spec.healthCheckNodePort", port, text))
    internal = spec.get("internalTrafficPolicy")
    if internal is not None and internal not in _POLICIES:
        errors.append(not_supported("spec.internalTrafficPolicy", internal, _POLICIES))
    distribution = spec.get("trafficDistribution")
    if distribution is not None and distribution not in _DISTRIBUTIONS:
        errors.append(not_supported("spec.trafficDistribution", distribution, _DISTRIBUTIONS))
    return errors


def _external_address_errors(spec: Json) -> list[FieldError]:
    errors = []
    for index, text in enumerate(spec.get("externalIPs") or ()):
        path = f"spec.externalIPs[{index}]"
        if not _parses(ipaddress.ip_address, text):
            why = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"
            errors.append(invalid(path, text, why))
            continue
        address = ipaddress.ip_address(text)
        errors += [
            invalid(path, text, f"may not be {what}")
            for what, holds in (
                ("unspecified", address.is_unspecified),
                ("in the loopback range (127.0.0.0/8, ::1/128)", address.is_loopback),
                ("in the link-local range (169.254.0.0/16, fe80::/10)", address.is_link_local),
                ("in the multicast range (224.0.0.0/24, ff02::/10)", address.is_multicast),
            )
            if holds
        ]
    return errors


def _parses(parse: Callable[[str], object], text: str) -> bool:
    try:
        parse(text)
    except ValueError:
        return False
    return True


def _update_errors(spec: Json, before: Json) -> list[FieldError]:
    kind, address = spec.get("type", ""), before.get("clusterIP")
    errors = []
    if kind == before.get("type") and address and spec.get("clusterIP") != address:
        path = "spec.clusterIPs[0]"
        errors.append(invalid(path, [spec.get("clusterIP", "")], "may not change once set"))
    if kind == before.get("type") == "LoadBalancer":
        chosen = spec.get("loadBalancerClass")
        if chosen != before.get("loadBalancerClass"):
            text = "may not change once set"
            errors.append(invalid("spec.loadBalancerClass", chosen, text))
    return errors
