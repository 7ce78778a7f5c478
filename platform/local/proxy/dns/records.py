"""Which records a name of the cluster's domain has: Kubernetes' DNS-based service discovery 1.1."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

from ....model.service_network import CLUSTER_DOMAIN, HEADLESS, ipv4_address
from ..types import Endpoint, EndpointSlice, Service

T_co = TypeVar("T_co", covariant=True)

VERSION = "1.1.0"
"""Of the specification, as the TXT record of ``dns-version`` states it."""

A, CNAME, PTR, SRV, TXT = "A", "CNAME", "PTR", "SRV", "TXT"


class Record(NamedTuple):
    """A record of the name that was asked for, in the text form of zone files."""

    kind: str
    value: str


@dataclass(frozen=True, slots=True)
class Found:
    """What a name has; nothing of the wanted type differs from no such name."""

    records: tuple[Record, ...] = ()


class Lookup(Protocol[T_co]):
    """The objects of one kind, as an informer has them."""

    def get(self, key: str, /) -> T_co | None:
        """Return the object of a key."""
        ...

    def by_index(self, index: str, value: str, /) -> Collection[T_co]:
        """Return the objects that an index has for a value."""
        ...


class Zone:
    """The names of the Services of a cluster."""

    def __init__(self, services: Lookup[Service], slices: Lookup[EndpointSlice]) -> None:
        """*services* have the indexes ``namespace`` and ``address``, *slices* ``service``, too."""
        self._services = services
        self._slices = slices

    def find(self, labels: tuple[str, ...]) -> Found | None:
        """Return the records of a name below the domain; None if there is no such name.

        *labels* are in lower case, and without those of the domain.
        """
        match labels:
            case () | ("svc",):
                return Found()
            case ("dns-version",):
                return Found((Record(TXT, f'"{VERSION}"'),))
            case (namespace, "svc"):
                return Found() if self._services.by_index("namespace", namespace) else None
            case (*below, name, namespace, "svc") if len(below) <= 2:
                service = self._services.get(f"{namespace}/{name}")
                return None if service is None else self._of_service(service, tuple(below))
        return None

    def _of_service(self, service: Service, below: tuple[str, ...]) -> Found | None:
        spec = service.spec
        if spec.type == "ExternalName":
            alias = Record(CNAME, f"{spec.external_name.rstrip('.')}.")
            return Found((alias,)) if not below else None
        if not below:
            if spec.cluster_ip == HEADLESS:
                found = (address for _, address, _ in self._endpoints(service))
                return Found(tuple(Record(A, each) for each in dict.fromkeys(found)))
            return Found((Record(A, spec.cluster_ip),) if spec.cluster_ip else ())
        if len(below) == 1:
            return self._of_pod(service, below[0])
        return self._of_port(service, *below)

    def _of_pod(self, service: Service, name: str) -> Found | None:
        """Return the records of a pod of a headless Service, or of a protocol of a named port."""
        if name.startswith("_"):
            is_protocol = any(f"_{port.protocol.lower()}" == name for port in service.spec.ports)
            return Found() if is_protocol else None
        if service.spec.cluster_ip != HEADLESS:
            return None
        found = [address for label, address, _ in self._endpoints(service) if label == name]
        return Found(tuple(Record(A, each) for each in dict.fromkeys(found))) if found else None

    def _of_port(self, service: Service, port: str, protocol: str) -> Found | None:
        """Return the SRV records of a named port."""
        if not (port.startswith("_") and protocol.startswith("_")):
            return None
        name, meta = port[1:], service.metadata
        target = f"{meta.name}.{meta.namespace}.svc.{CLUSTER_DOMAIN}."
        records = dict[Record, None]()
        if service.spec.cluster_ip == HEADLESS:
            for label, _, found in self._endpoints(service):
                for each in found.ports or ():
                    if (each.name or "", (each.protocol or "TCP").lower()) == (name, protocol[1:]):
                        records[Record(SRV, f"0 100 {each.port or 0} {label}.{target}")] = None
        else:
            for own in service.spec.ports:
                if (own.name, own.protocol.lower()) == (name, protocol[1:]):
                    records[Record(SRV, f"0 100 {own.port} {target}")] = None
        return Found(tuple(records)) if name and records else None

    def _endpoints(self, service: Service) -> Iterator[tuple[str, str, EndpointSlice]]:
        """Yield the label and the address of each ready endpoint, and its slice."""
        for found in self._slices.by_index("service", service.metadata.key):
            for endpoint, address in _ready(found):
                yield _label(endpoint, address), address, found

    def find_reverse(self, address: str) -> Found:
        """Return the names of an address."""
        names = [
            f"{each.metadata.name}.{each.metadata.namespace}"
            for each in self._services.by_index("address", address)
        ]
        for found in self._slices.by_index("address", address):
            service = found.service
            for endpoint, each in _ready(found):
                if service and each == address:
                    names.append(f"{_label(endpoint, each)}.{service}.{found.metadata.namespace}")
        found_names = sorted(dict.fromkeys(names))
        return Found(tuple(Record(PTR, f"{each}.svc.{CLUSTER_DOMAIN}.") for each in found_names))


def _ready(found: EndpointSlice) -> Iterator[tuple[Endpoint, str]]:
    if found.address_type != "IPv4":
        return
    for endpoint in found.endpoints or ():
        if endpoint.conditions.ready is not False:
            for address in endpoint.addresses:
                if ipv4_address(address) is not None:
                    yield endpoint, address


def _label(endpoint: Endpoint, address: str) -> str:
    """Return the name of an endpoint below that of its Service."""
    return endpoint.hostname or address.replace(".", "-")


def service_addresses(service: Service) -> Iterator[str]:
    """Yield the address of a Service, for an index."""
    if service.spec.type != "ExternalName" and service.spec.cluster_ip not in ("", HEADLESS):
        yield service.spec.cluster_ip


def endpoint_addresses(found: EndpointSlice) -> Iterator[str]:
    """Yield the addresses of a slice, for an index."""
    for endpoint in found.endpoints or ():
        yield from endpoint.addresses
