"""Where the proxy listens for a Service, and to what it connects: pure functions."""

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from ...machinery.relay import Address
from ...model.service_network import (
    NODE_PORTS,
    AddressRanges,
    is_in,
    is_permitted_endpoint,
)
from .types import EndpointSlice, Service, ServicePort

LOOPBACK = "127.0.0.1"
"""Address of the node ports, with the one at which pods reach the node."""

API_SERVER = "default/kubernetes"
"""The one Service whose endpoint may be any address; the API server itself writes it."""


PROTOCOLS = ("TCP", "UDP")
"""Protocols of the ports that are served."""


class ListenAddress(NamedTuple):
    """Where a port of a Service is served."""

    host: str
    port: int
    protocol: str = "TCP"

    @property
    def address(self) -> Address:
        """Host and port."""
        return self.host, self.port


def listening_addresses(
    service: Service, ranges: AddressRanges
) -> dict[ListenAddress, ServicePort]:
    """Return the ports of a Service by the addresses at which they are served.

    Other addresses than those of Services are ignored: one could be that of a program on this
    machine.
    """
    found: dict[ListenAddress, ServicePort] = {}
    if service.spec.type == "ExternalName":
        return found
    for port in service.spec.ports:
        if port.protocol not in PROTOCOLS:
            continue
        if is_in(ranges.cluster_ips, service.spec.cluster_ip):
            found[ListenAddress(service.spec.cluster_ip, port.port, port.protocol)] = port
        if port.node_port in NODE_PORTS:
            for address in (LOOPBACK, ranges.node_ip):
                found[ListenAddress(address, port.node_port, port.protocol)] = port
    return found


def backends(
    port: ServicePort,
    slices: Iterable[EndpointSlice],
    *,
    is_permitted: Callable[[str], bool] = is_permitted_endpoint,
) -> tuple[Address, ...]:
    """Return the endpoints that take connections to *port*, sorted.

    These are the ready ones. If there is none, those that end but still serve, as kube-proxy does.
    """
    ready, ending = set[Address](), set[Address]()
    for each in slices:
        number = _port_number(port, each)
        if each.address_type != "IPv4" or not number:
            continue
        for endpoint in each.endpoints or ():
            conditions = endpoint.conditions
            serves = conditions.serving is not False and bool(conditions.terminating)
            if conditions.ready is False and not serves:
                continue
            for address in endpoint.addresses[:1]:
                if is_permitted(address):
                    (ending if conditions.ready is False else ready).add((address, number))
    return tuple(sorted(ready or ending))


def _port_number(port: ServicePort, found: EndpointSlice) -> int:
    for each in found.ports or ():
        if (each.name or "", each.protocol or "TCP") == (port.name, port.protocol):
            return each.port or 0
    return 0


def by_address(
    service: Service, slices: Collection[EndpointSlice], ranges: AddressRanges
) -> Mapping[ListenAddress, tuple[Address, ...]]:
    """Return the endpoints by listening address; an address without any is left out."""
    is_api_server = service.metadata.key == API_SERVER
    is_permitted = (lambda _: True) if is_api_server else is_permitted_endpoint
    found = {
        address: backends(port, slices, is_permitted=is_permitted)
        for address, port in listening_addresses(service, ranges).items()
    }
    return {address: targets for address, targets in found.items() if targets}
