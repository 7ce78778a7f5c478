"""Defaults and validation of NetworkPolicies."""

import ipaddress
from collections.abc import Iterator
from typing import Any

from ..errors.fields import FieldError, forbidden, invalid, not_supported, required
from .container_validation import port_name_errors
from .enums import PROTOCOLS
from .scheduling_validation import validate_selector

Json = dict[str, Any]

_RULES = (("ingress", "from"), ("egress", "to"))
_TYPES = ("Egress", "Ingress")
_LAST_PORT = 65535
HOST_BITS = "must not have bits set beyond the prefix length"
NOT_A_CIDR = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"


def default_network_policy(obj: Json) -> None:
    """Default a NetworkPolicy."""
    spec = obj.setdefault("spec", {})
    spec.setdefault("podSelector", {})
    if not spec.get("policyTypes"):
        spec["policyTypes"] = ["Ingress", "Egress"] if spec.get("egress") else ["Ingress"]
    for rule in [*spec.get("ingress", ()), *spec.get("egress", ())]:
        for port in rule.get("ports", ()):
            port.setdefault("protocol", "TCP")


def validate_network_policy(obj: Json, old: Json | None) -> list[FieldError]:
    """Validate a NetworkPolicy."""
    # What was stored before the rule existed may stay.
    known = frozenset() if old is None else frozenset(_ranges(old.get("spec", {})))
    return list(_spec_errors(obj.get("spec", {}), known))


def _ranges(spec: Json) -> Iterator[str]:
    for side, peers in _RULES:
        for rule in spec.get(side, ()):
            for peer in rule.get(peers, ()):
                block = peer.get("ipBlock") or {}
                yield from (block.get("cidr", ""), *block.get("except", ()))


def _spec_errors(spec: Json, known: frozenset[str]) -> Iterator[FieldError]:
    yield from _selector_errors(spec.get("podSelector", {}), "spec.podSelector")
    for index, kind in enumerate(spec.get("policyTypes", ())):
        if kind not in _TYPES:
            yield not_supported(f"spec.policyTypes[{index}]", kind, _TYPES)
    for side, peers in _RULES:
        for index, rule in enumerate(spec.get(side, ())):
            path = f"spec.{side}[{index}]"
            for number, port in enumerate(rule.get("ports", ())):
                yield from _port_errors(port, f"{path}.ports[{number}]")
            for number, peer in enumerate(rule.get(peers, ())):
                yield from _peer_errors(peer, f"{path}.{peers}[{number}]", known)


def _selector_errors(selector: Json, path: str) -> list[FieldError]:
    errors: list[FieldError] = []
    validate_selector(selector, path, errors)
    return errors


def _port_errors(port: Json, path: str) -> Iterator[FieldError]:
    if (protocol := port.get("protocol")) not in PROTOCOLS:
        yield not_supported(f"{path}.protocol", protocol, PROTOCOLS)
    first, last = port.get("port"), port.get("endPort")
    if first is None:
        if last is not None:
            yield invalid(f"{path}.endPort", last, "must be specified along with port")
        return
    if isinstance(first, str):
        for problem in port_name_errors(first):
            yield invalid(f"{path}.port", first, problem)
        if last is not None:
            yield invalid(f"{path}.endPort", last, "may not be specified when port is non-numeric")
        return
    yield from _number_errors(first, f"{path}.port")
    if last is not None:
        if last < first:
            yield invalid(f"{path}.endPort", last, "must be greater than or equal to `port`")
        yield from _number_errors(last, f"{path}.endPort")


def _number_errors(number: int, path: str) -> Iterator[FieldError]:
    if not 1 <= number <= _LAST_PORT:
        yield invalid(path, number, f"must be between 1 and {_LAST_PORT}, inclusive")


def _peer_errors(peer: Json, path: str, known: frozenset[str]) -> Iterator[FieldError]:
    given = [key for key in ("podSelector", "namespaceSelector", "ipBlock") if key in peer]
    for key in ("podSelector", "namespaceSelector"):
        if key in given:
            yield from _selector_errors(peer[key], f"{path}.{key}")
    if "ipBlock" in given:
        yield from _block_errors(peer["ipBlock"], f"{path}.ipBlock", known)
    if not given:
        yield required(path, "must specify a peer")
    elif "ipBlock" in given and len(given) > 1:
        yield forbidden(path, "may not specify both ipBlock and another peer")


def _block_errors(block: Json, path: str, known: frozenset[str]) -> Iterator[FieldError]:
    cidr = block.get("cidr", "")
    if not cidr:
        yield required(f"{path}.cidr")
        return
    network = _network(cidr)
    if network is None:
        yield invalid(f"{path}.cidr", cidr, NOT_A_CIDR)
        return
    if cidr not in known and _has_host_bits(cidr, network):
        yield invalid(f"{path}.cidr", cidr, HOST_BITS)
    for index, text in enumerate(block.get("except", ())):
        found = _network(text)
        if found is None:
            yield invalid(f"{path}.except[{index}]", text, NOT_A_CIDR)
            return
        if text not in known and _has_host_bits(text, found):
            yield invalid(f"{path}.except[{index}]", text, HOST_BITS)
        inside = found.version == network.version and found.network_address in network
        if not inside or found.prefixlen <= network.prefixlen:
            why = "must be a strict subset of `cidr`"
            yield invalid(f"{path}.except[{index}]", text, why)


def _has_host_bits(text: str, network: ipaddress.IPv4Network | ipaddress.IPv6Network) -> bool:
    return ipaddress.ip_address(text.partition("/")[0]) != network.network_address


def _network(text: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network | None:
    _, separator, length = text.partition("/")
    if not separator or not (length.isascii() and length.isdigit()):
        return None
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        return None
