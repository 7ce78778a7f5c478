"""Validation of the addresses of load balancers, in statuses of Services and Ingresses."""

from typing import Any

from ....model import validation
from ..errors.fields import FieldError, forbidden, invalid, not_supported
from .addresses import address_error, parse_address

Json = dict[str, Any]

_MODES = ("Proxy", "VIP")


def validate_ingress_status(obj: Json, old: Json) -> list[FieldError]:
    """Validate the status of an Ingress."""
    return [
        error
        for index, entry in enumerate(_entries(obj))
        for error in _address_errors(entry, f"status.loadBalancer.ingress[{index}]")
    ]


def validate_service_status(obj: Json, old: Json) -> list[FieldError]:
    """Validate the status of a Service."""
    path, entries = "status.loadBalancer.ingress", _entries(obj)
    if obj.get("spec", {}).get("type") != "LoadBalancer":
        text = "may only be used when `spec.type` is 'LoadBalancer'"
        return [forbidden(path, text)] if entries else []
    errors = list[FieldError]()
    for index, entry in enumerate(entries):
        errors += _address_errors(entry, f"{path}[{index}]")
        errors += _mode_errors(entry, f"{path}[{index}].ipMode")
    return errors


def _entries(obj: Json) -> list[Json]:
    return ((obj.get("status") or {}).get("loadBalancer") or {}).get("ingress") or []


def _address_errors(entry: Json, path: str) -> list[FieldError]:
    errors = list[FieldError]()
    if (text := entry.get("ip")) and (problem := address_error(text)):
        errors.append(invalid(f"{path}.ip", text, problem))
    if name := entry.get("hostname"):
        if problem := validation.dns1123_subdomain_error(name):
            errors.append(invalid(f"{path}.hostname", name, problem))
        if parse_address(name):
            text = "must be a DNS name, not an IP address"
            errors.append(invalid(f"{path}.hostname", name, text))
    return errors


def _mode_errors(entry: Json, path: str) -> list[FieldError]:
    mode = entry.get("ipMode")
    if mode is None:
        return []
    if not entry.get("ip"):
        return [forbidden(path, "may not be specified when `ip` is not set")]
    return [] if mode in _MODES else [not_supported(path, mode, _MODES)]
