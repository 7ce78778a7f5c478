"""Validation of ServiceCIDRs and IPAddresses.

Unlike older kinds, these accept addresses and ranges only in their canonical form.
"""

import ipaddress
from ipaddress import IPv4Network, IPv6Address, IPv6Network
from typing import Any

from ....model import validation
from ..errors.fields import IMMUTABLE, FieldError, invalid, quote, required
from .addresses import address_error, parse_address, without_zeros
from .network_policies import NOT_A_CIDR

Json = dict[str, Any]

_MAX_RANGES = 2
_ONE_FAMILY = (
    "may specify no more than one IP for each IP family, i.e 192.168.0.0/24 and 2001:db8::/64"
)


def ip_address_name_error(name: str) -> str:
    """Validate the name of an IPAddress: the address."""
    if problem := address_error(name):
        return problem
    form = str(parse_address(name))
    return "" if name == form else f"must be in canonical form ({quote(form)})"


def validate_ip_address(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate an IPAddress, which always belongs to the same object."""
    parent = obj.get("spec", {}).get("parentRef")
    if old is not None:
        same = parent == old.get("spec", {}).get("parentRef")
        return [] if same else [invalid("spec.parentRef", parent, IMMUTABLE)]
    if parent is None:
        return [required("spec.parentRef")]
    errors = []
    if parent.get("group") and (why := validation.dns1123_subdomain_error(parent["group"])):
        errors.append(invalid("spec.parentRef.group", parent["group"], why))
    for field in ("resource", "name", "namespace"):
        value = parent.get(field, "")
        if not value and field != "namespace":
            errors.append(required(f"spec.parentRef.{field}"))
        elif value and (why := validation.path_segment_error(value)):
            errors.append(invalid(f"spec.parentRef.{field}", value, why))
    return errors


def validate_service_cidr(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a ServiceCIDR: a range of the second IP family may be added, nothing else."""
    ranges = obj.get("spec", {}).get("cidrs") or []
    before = (old or {}).get("spec", {}).get("cidrs") or []
    if old is None:
        return _range_errors(ranges)
    adds_family = (len(before), len(ranges)) == (1, _MAX_RANGES)
    if len(before) != len(ranges) and not adds_family:
        return [invalid("spec.cidrs", ranges, IMMUTABLE)]
    errors = [
        invalid(f"spec.cidrs[{index}]", given, IMMUTABLE)
        for index, (given, former) in enumerate(zip(ranges, before, strict=False))
        if given != former
    ]
    return errors + _range_errors(ranges) if adds_family else errors


def _range_errors(ranges: list[str]) -> list[FieldError]:
    if not ranges:
        return [required("spec.cidrs", "at least one CIDR required")]
    if len(ranges) > _MAX_RANGES:
        return [invalid("spec.cidrs", {"CIDRs": ranges}, "may only hold up to 2 values")]
    errors = [
        invalid(f"spec.cidrs[{index}]", text, why)
        for index, text in enumerate(ranges)
        if (why := _range_error(text))
    ]
    families = [network.version for text in ranges if (network := _network(text))]
    if len(families) > len(set(families)):
        errors.append(invalid("spec.cidrs", ranges, _ONE_FAMILY))
    return errors


def _range_error(text: str) -> str:
    network = _network(text)
    if network is None:
        return NOT_A_CIDR
    address, _, length = text.partition("/")
    if parse_address(address) is None or length != str(int(length)):
        return "must not have leading 0s in IP or prefix length"
    first = network.network_address
    if isinstance(first, IPv6Address) and first.ipv4_mapped is not None:
        return "must not have an IPv4-mapped IPv6 address"
    if parse_address(address) != first:
        return "must not have bits set beyond the prefix length"
    return "" if text == str(network) else f"must be in canonical form ({quote(str(network))})"


def _network(text: str) -> IPv4Network | IPv6Network | None:
    """Parse a range, also with leading zeros in the numbers of an IPv4 address."""
    address, _, length = text.partition("/")
    if not (length.isascii() and length.isdigit()) or "%" in address:
        return None
    try:
        return ipaddress.ip_network(f"{without_zeros(address)}/{int(length)}", strict=False)
    except ValueError:
        return None
