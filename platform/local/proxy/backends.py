"""Where the proxy listens for a Service, and to what it connects: pure functions."""

from collections.abc import Collection, Iterable, Mapping

from ...model.service_network import NODE_PORTS, is_cluster_ip, is_permitted_endpoint
from .types import EndpointSlice, Service, ServicePort

LOOPBACK = "127.0.0.1"
"""Address of the node ports."""

Address = tuple[str, int]
"""IPv4 address and port."""


def listening_addresses(service: Service) -> dict[Address, ServicePort]:
    """Return the ports of a Service by the addresses at which they are served.

    Other addresses than those of Services are ignored: one could be that of a program on this
    machine.
    """
    found: dict[Address, ServicePort] = {}
    if service.spec.type == "ExternalName":
        return found
    for port in service.spec.ports:
        if port.protocol != "TCP":
            continue
        if is_cluster_ip(service.spec.cluster_ip):
            found[service.spec.cluster_ip, port.port] = port
        if port.node_port in NODE_PORTS:
            found[LOOPBACK, port.node_port] = port
    return found


def backends(port: ServicePort, slices: Iterable[EndpointSlice]) -> tuple[Address, ...]:
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
                if is_permitted_endpoint(address):
                    (ending if conditions.ready is False else ready).add((address, number))
    return tuple(sorted(ready or ending))


def _port_number(port: ServicePort, found: EndpointSlice) -> int:
    for each in found.ports or ():
        if (each.name or "", each.protocol or "TCP") == (port.name, port.protocol):
            return each.port or 0
    return 0


class Affinity:
    """Which endpoint a client had last, for Services that want it."""

    _PRUNE_AT = 1024

    def __init__(self) -> None:
        self._chosen: dict[str, tuple[Address, float]] = {}

    def get(self, client: str, candidates: Collection[Address], *, now: float) -> Address | None:
        """Return the endpoint of *client*, if it is still one of *candidates*."""
        address, until = self._chosen.get(client, (None, 0.0))
        return address if until > now and address in candidates else None

    def set(self, client: str, address: Address, *, until: float, now: float) -> None:
        """Keep *client* at an endpoint *until* that time."""
        if len(self._chosen) >= self._PRUNE_AT:
            self._chosen = {key: each for key, each in self._chosen.items() if each[1] > now}
        self._chosen[client] = address, until


def by_address(
    service: Service, slices: Collection[EndpointSlice]
) -> Mapping[Address, tuple[Address, ...]]:
    """Return the endpoints by listening address; an address without any is left out."""
    found = {
        address: backends(port, slices) for address, port in listening_addresses(service).items()
    }
    return {address: targets for address, targets in found.items() if targets}
