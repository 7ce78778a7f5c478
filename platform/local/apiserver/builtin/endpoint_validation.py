"""Validation of Endpoints and EndpointSlices.

Addresses of loopback are accepted, unlike on kube-apiserver: those of pods of the embedded cluster
are such. The Service proxy ignores those of other programs.
"""

import ipaddress
from typing import Any

from ....model import validation
from ..errors.fields import (
    IMMUTABLE,
    FieldError,
    duplicate,
    invalid,
    not_supported,
    required,
    too_many,
)
from .addresses import NOT_AN_ADDRESS
from .enums import PROTOCOLS

Json = dict[str, Any]

_ADDRESS_TYPES = ("FQDN", "IPv4", "IPv6")
_MAX_ENDPOINTS, _MAX_ADDRESSES, _MAX_PORTS, _MAX_HINTS = 1000, 100, 20_000, 8


def validate_endpoints(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate Endpoints, whose unchanged subsets are valid."""
    subsets = obj.get("subsets") or []
    if old is not None and subsets == (old.get("subsets") or []):
        return []
    errors = []
    for index, subset in enumerate(subsets):
        path = f"subsets[{index}]"
        kinds = ("addresses", "notReadyAddresses")
        if not any(subset.get(kind) for kind in kinds):
            errors.append(required(path, "must specify `addresses` or `notReadyAddresses`"))
        for kind in kinds:
            for number, address in enumerate(subset.get(kind) or ()):
                errors += _address_errors(address, f"{path}.{kind}[{number}]")
        ports = subset.get("ports") or ()
        for number, port in enumerate(ports):
            errors += _port_errors(port, f"{path}.ports[{number}]", named=len(ports) > 1)
    return errors


def validate_endpoint_slice(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate an EndpointSlice, whose unchanged endpoints are valid."""
    kind, errors = obj.get("addressType", ""), []
    if not kind:
        errors.append(required("addressType"))
    elif kind not in _ADDRESS_TYPES:
        errors.append(not_supported("addressType", kind, _ADDRESS_TYPES))
    if old is not None and kind != old.get("addressType"):
        errors.append(invalid("addressType", kind, IMMUTABLE))
    errors += _slice_port_errors(obj.get("ports") or ())
    endpoints = obj.get("endpoints") or []
    if old is not None and endpoints == (old.get("endpoints") or []):
        return errors
    if len(endpoints) > _MAX_ENDPOINTS:
        return [*errors, too_many("endpoints", len(endpoints), _MAX_ENDPOINTS)]
    for index, endpoint in enumerate(endpoints):
        errors += _endpoint_errors(endpoint, kind, f"endpoints[{index}]")
    return errors


def endpoint_slice_warnings(obj: Json, old: Json | None) -> list[str]:
    """Return kube-apiserver's warning of an old type of addresses."""
    if obj.get("addressType") == "FQDN":
        return ["spec.addressType: FQDN endpoints are deprecated"]
    return []


def _address_errors(address: Json, path: str) -> list[FieldError]:
    errors = _ip_errors(address.get("ip", ""), f"{path}.ip")
    hostname, node = address.get("hostname"), address.get("nodeName")
    if hostname and (problem := validation.dns1123_label_error(hostname)):
        errors.append(invalid(f"{path}.hostname", hostname, problem))
    if node is not None and (problem := validation.dns1123_subdomain_error(node)):
        errors.append(invalid(f"{path}.nodeName", node, problem))
    return errors


def _ip_errors(text: str, path: str) -> list[FieldError]:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return [invalid(path, text, NOT_AN_ADDRESS)]
    if address.is_unspecified:
        return [invalid(path, text, f"may not be unspecified ({text})")]
    if address.is_link_local:
        why = "may not be in the link-local range (169.254.0.0/16, fe80::/10)"
        return [invalid(path, text, why)]
    if address in ipaddress.ip_network("224.0.0.0/24" if address.version == 4 else "ff02::/16"):
        why = "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)"
        return [invalid(path, text, why)]
    return []


def _port_errors(port: Json, path: str, *, named: bool) -> list[FieldError]:
    errors = []
    name, number = port.get("name", ""), port.get("port", 0)
    if named and not name:
        errors.append(required(f"{path}.name"))
    elif name and (problem := validation.dns1123_label_error(name)):
        errors.append(invalid(f"{path}.name", name, problem))
    if not 1 <= number <= 65535:
        errors.append(invalid(f"{path}.port", number, "must be between 1 and 65535, inclusive"))
    return errors + _protocol_errors(port, path)


def _protocol_errors(port: Json, path: str) -> list[FieldError]:
    errors = []
    if port.get("protocol") not in PROTOCOLS:
        errors.append(not_supported(f"{path}.protocol", port.get("protocol"), PROTOCOLS))
    protocol = port.get("appProtocol")
    if protocol is not None and (problem := validation.qualified_name_error(protocol)):
        errors.append(invalid(f"{path}.appProtocol", protocol, problem))
    return errors


def _slice_port_errors(ports: Any) -> list[FieldError]:
    if len(ports) > _MAX_PORTS:
        return [too_many("ports", len(ports), _MAX_PORTS)]
    errors, names = [], set[str]()
    for index, port in enumerate(ports):
        path, name = f"ports[{index}]", port.get("name") or ""
        if name and (problem := validation.dns1123_label_error(name)):
            errors.append(invalid(f"{path}.name", name, problem))
        if name in names:
            errors.append(duplicate(f"{path}.name", name))
        names.add(name)
        errors += _protocol_errors(port, path)
    return errors


def _endpoint_errors(endpoint: Json, kind: str, path: str) -> list[FieldError]:
    addresses, errors = endpoint.get("addresses") or [], []
    if not addresses:
        errors.append(required(f"{path}.addresses", "must contain at least 1 address"))
    elif len(addresses) > _MAX_ADDRESSES:
        errors.append(too_many(f"{path}.addresses", len(addresses), _MAX_ADDRESSES))
    for index, address in enumerate(addresses):
        errors += _typed_address_errors(address, kind, f"{path}.addresses", index)
    node, hostname = endpoint.get("nodeName"), endpoint.get("hostname")
    if node is not None and (problem := validation.dns1123_subdomain_error(node)):
        errors.append(invalid(f"{path}.nodeName", node, problem))
    if hostname is not None and (problem := validation.dns1123_label_error(hostname)):
        errors.append(invalid(f"{path}.hostname", hostname, problem))
    hints = endpoint.get("hints") or {}
    for key in ("forZones", "forNodes"):
        found = [each.get("name", "") for each in hints.get(key) or ()]
        if len(found) > _MAX_HINTS:
            errors.append(too_many(f"{path}.hints.{key}", len(found), _MAX_HINTS))
            continue
        errors += [
            duplicate(f"{path}.hints.{key}[{index}].name", name)
            for index, name in enumerate(found)
            if name in found[:index]
        ]
    return errors


def _typed_address_errors(text: str, kind: str, path: str, index: int) -> list[FieldError]:
    """Validate an address of a known type."""
    if kind == "FQDN":
        if "." not in text.rstrip("."):
            problem = "should be a domain with at least two segments separated by dots"
        else:
            problem = validation.dns1123_subdomain_error(text.removesuffix("."))
        return [invalid(f"{path}[{index}]", text, problem)] if problem else []
    if kind not in ("IPv4", "IPv6"):
        return []
    errors = _ip_errors(text, f"{path}[{index}]")
    if errors and errors[0].detail.endswith(NOT_AN_ADDRESS):
        return errors
    if ipaddress.ip_address(text).version != (4 if kind == "IPv4" else 6):
        errors.insert(0, invalid(path, text, f"must be an {kind} address"))
    return errors
