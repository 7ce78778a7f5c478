"""Allocation of the cluster IPs and node ports of Services.

What is taken is what the stored Services have, and the IPAddresses of clients. The IPAddresses of
Services are written afterwards and not read here, so an address is allocated and released in the
one write that creates or deletes its Service.

Addresses and ports are chosen at random, so that those of a deleted Service are not used again at
once, but by the uid of the Service: a write that waits for webhooks is planned again with the same.
"""

import random
from collections.abc import Iterable, Sequence
from ipaddress import IPv4Network

from ....model.names import SERVICES
from ....model.service_network import HEADLESS, NODE_PORTS, is_dns_ip, is_in
from ..errors.fields import FieldError, forbidden, invalid
from ..errors.status import invalid as invalid_object
from ..http.requests import Json

_WITH_NODE_PORTS = ("NodePort", "LoadBalancer")
_WITH_ADDRESS = ("ClusterIP", *_WITH_NODE_PORTS)
_FIELDS_OF_TYPES = {
    **dict.fromkeys(("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy"), _WITH_ADDRESS),
    "internalTrafficPolicy": _WITH_ADDRESS,
    "externalTrafficPolicy": _WITH_NODE_PORTS,
    "allocateLoadBalancerNodePorts": ("LoadBalancer",),
    "loadBalancerClass": ("LoadBalancer",),
}
"""Fields that only Services of some types have."""

API_SERVER = ("default", "kubernetes")
"""Its address is fixed."""

NAME_SERVER = ("kube-system", "kube-dns")
"""Its address is that of the cluster's name server, if there is one."""

DEFAULT_SERVICE_CIDR = "kubernetes"
"""Name of the ServiceCIDR with the range of the cluster."""

_MANAGED_BY = "ipaddress.kubernetes.io/managed-by"
_ALLOCATOR = "ipallocator.k8s.io"
MANAGED_BY_SERVER = {"ipaddress.kubernetes.io/ip-family": "IPv4", _MANAGED_BY: _ALLOCATOR}
"""Labels of the IPAddresses of Services."""


def is_of_service(ip_address: Json) -> bool:
    """Whether the server maintains an IPAddress."""
    return bool((ip_address["metadata"].get("labels") or {}).get(_MANAGED_BY) == _ALLOCATOR)


def reserved_addresses(ip_addresses: Iterable[Json]) -> set[str]:
    """Return the addresses that clients have reserved by IPAddresses of their own."""
    return {each["metadata"]["name"] for each in ip_addresses if not is_of_service(each)}


def range_errors(service_cidr: Json, cluster_ips: IPv4Network) -> list[FieldError]:
    """Refuse any other range than the one that the cluster has."""
    if service_cidr["metadata"].get("name") == DEFAULT_SERVICE_CIDR and (
        service_cidr["spec"]["cidrs"] == [str(cluster_ips)]
    ):
        return []
    why = (
        f"the embedded cluster has one range of addresses for Services, {cluster_ips}, which is "
        f"that of the ServiceCIDR {DEFAULT_SERVICE_CIDR}: it has no routes to others"
    )
    return [forbidden("spec.cidrs", why)]


def allocate(
    service: Json,
    old: Json | None,
    services: Iterable[Json],
    ip_addresses: Iterable[Json] = (),
    *,
    cluster_ips: IPv4Network,
) -> None:
    """Set the addresses and node ports that a new or changed Service lacks.

    *services* and *ip_addresses* are all that are stored.

    Raises:
        StatusError: 422, a requested address or port is taken or out of range, or none is free.
    """
    meta, spec = service["metadata"], service.get("spec") or {}
    key = meta.get("namespace", ""), meta.get("name", "")
    if key == API_SERVER or (key == NAME_SERVER and is_dns_ip(spec.get("clusterIP", ""))):
        return
    others = [
        each.get("spec") or {}
        for each in services
        if (each["metadata"].get("namespace", ""), each["metadata"]["name"]) != key
    ]
    before = (old or {}).get("spec") or {}
    _release(spec, before)
    generator = random.Random(meta.get("uid"))
    errors = _allocate_address(spec, before, others, ip_addresses, cluster_ips, generator)
    errors += _allocate_ports(spec, before, others, generator)
    if errors:
        raise invalid_object(SERVICES, meta.get("name", ""), errors)


def _release(spec: Json, before: Json) -> None:
    """Drop what the Service has of its former type, unless the request changes it."""
    kind, former = spec.get("type", "ClusterIP"), before.get("type", "ClusterIP")
    for field, kinds in _FIELDS_OF_TYPES.items():
        if kind not in kinds and former in kinds and spec.get(field) == before.get(field):
            spec.pop(field, None)
    if kind not in _WITH_NODE_PORTS and former in _WITH_NODE_PORTS:
        held = _node_ports(before)
        for port in spec.get("ports") or ():
            if (port.get("nodePort"), port.get("protocol", "TCP")) in held:
                port.pop("nodePort", None)


def _allocate_address(
    spec: Json,
    before: Json,
    others: Sequence[Json],
    ip_addresses: Iterable[Json],
    cluster_ips: IPv4Network,
    generator: random.Random,
) -> list[FieldError]:
    wanted = spec.get("clusterIP", "")
    if spec.get("type") == "ExternalName" or wanted == HEADLESS:
        return []
    if wanted and before.get("clusterIP") and before.get("type") != "ExternalName":
        return []  # the validation rejects another one
    taken = {each.get("clusterIP") for each in others} | reserved_addresses(ip_addresses)
    if wanted:
        return _check_address(wanted, taken, cluster_ips)
    address = free_address(taken, cluster_ips, generator)
    if not address:
        text = f"failed to allocate a serviceIP: range is full ({cluster_ips})"
        return [invalid("spec.clusterIPs", [], text)]
    spec["clusterIP"], spec["clusterIPs"] = address, [address]
    return []


def _check_address(
    wanted: str, taken: set[str | None], cluster_ips: IPv4Network
) -> list[FieldError]:
    why = ""
    if not is_in(cluster_ips, wanted):
        why = f"the provided network does not match the current range ({cluster_ips})"
    elif wanted in taken:
        why = "provided IP is already allocated"
    if not why:
        return []
    return [invalid("spec.clusterIPs", [wanted], f"failed to allocate IP {wanted}: {why}")]


def free_address(taken: set[str | None], cluster_ips: IPv4Network, generator: random.Random) -> str:
    """Return an address that is not in *taken*, empty if there is none."""
    size = cluster_ips.num_addresses - 2
    start = generator.randrange(size)
    for step in range(size):
        address = str(cluster_ips[1 + (start + step) % size])
        if address not in taken:
            return address
    return ""


def _node_ports(spec: Json) -> set[tuple[int, str]]:
    return {
        (port["nodePort"], port.get("protocol", "TCP"))
        for port in spec.get("ports") or ()
        if port.get("nodePort")
    }


def _allocate_ports(
    spec: Json, before: Json, others: Sequence[Json], generator: random.Random
) -> list[FieldError]:
    if spec.get("type") not in _WITH_NODE_PORTS:
        return []
    if spec["type"] == "LoadBalancer" and spec.get("allocateLoadBalancerNodePorts") is False:
        return []
    errors: list[FieldError] = []
    taken = set().union(*(_node_ports(each) for each in others))
    held, kept = _node_ports(before), _kept_ports(before)
    given = [port for port in spec.get("ports") or () if port.get("nodePort")]
    seen: set[tuple[int, str]] = set()
    for index, port in enumerate(spec.get("ports") or ()):
        number, protocol = port.get("nodePort", 0), port.get("protocol", "TCP")
        repeated = (number, protocol) in seen
        seen.add((number, protocol))
        if number and (repeated or (number, protocol) in taken - held):
            errors.append(_bad_port(index, number, "provided port is already allocated"))
        elif number and number not in NODE_PORTS:
            text = (
                "provided port is not in the valid range. The range of valid ports is "
                f"{NODE_PORTS[0]}-{NODE_PORTS[-1]}"
            )
            errors.append(_bad_port(index, number, text))
    used = {*taken, *((port["nodePort"], port.get("protocol", "TCP")) for port in given)}
    for index, port in enumerate(spec.get("ports") or ()):
        if port.get("nodePort"):
            continue
        protocol = port.get("protocol", "TCP")
        first = kept.get((port.get("port"), protocol), 0)
        number = _free_port(protocol, used, generator, first=first)
        if not number:
            text = "failed to allocate a nodePort: range is full"
            errors.append(_bad_port(index, 0, text))
            continue
        port["nodePort"] = number
        used.add((number, protocol))
    return errors


def _kept_ports(before: Json) -> dict[tuple[int | None, str], int]:
    """Return the node ports of the former Service by port: an update need not repeat them."""
    return {
        (port.get("port"), port.get("protocol", "TCP")): int(port["nodePort"])
        for port in before.get("ports") or ()
        if port.get("nodePort")
    }


def _free_port(
    protocol: str, used: set[tuple[int, str]], generator: random.Random, *, first: int
) -> int:
    """Return *first* if it is free, else any free port, 0 if there is none."""
    start = generator.randrange(len(NODE_PORTS))
    number: int
    for number in (first, *NODE_PORTS[start:], *NODE_PORTS[:start]):
        if number and (number, protocol) not in used:
            return number
    return 0


def _bad_port(index: int, number: int, why: str) -> FieldError:
    return invalid(f"spec.ports[{index}].nodePort", number, why)
