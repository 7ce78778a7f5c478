"""Hosts file of a pod: its own names, its peers behind headless services, and services.

Every pod has its own address, so that names resolve to the right pod without a DNS server. On the
network of the machine it is a loopback address, which needs no privileges. If there are other
nodes, all pods of a node have its address instead.
"""

import hashlib
import ipaddress
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass

from ....model import validation
from ....model.service_network import CLUSTER_DOMAIN, ipv4_address
from .core_types import Pod, Service
from .endpoint_types import EndpointSlice

API_SERVER_SERVICE = "default/kubernetes"
"""All pods get its variables."""

_Names = Callable[[str, str], list[str]]
"""Returns the names by which a Service, or a pod below it, is found."""

# As a kubelet begins the file.
_HEADER = "# Kubernetes-managed hosts file.\n"
_HOST_NETWORK_HEADER = "# Kubernetes-managed hosts file (host network).\n"
_LOOPBACK_LINES = "127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n"


@dataclass(frozen=True, slots=True)
class Peer:
    """A pod that other pods may resolve."""

    pod: Pod
    ip: str
    ready: bool


@dataclass(frozen=True, slots=True)
class RemoteEndpoint:
    """A pod of another node behind a Service."""

    service: str
    ip: str
    hostname: str
    """Its name below that of the Service; empty if it has none."""


def remote_endpoints(found: EndpointSlice, own_node: str) -> Iterator[RemoteEndpoint]:
    """Yield the ready endpoints of a slice that are pods of other nodes than *own_node*."""
    for endpoint in found.endpoints or ():
        if endpoint.node_name in (None, "", own_node) or endpoint.conditions.ready is False:
            continue
        name = endpoint.hostname or ""
        for address in endpoint.addresses:
            if ipv4_address(address) is not None and not (
                name and validation.dns1123_label_error(name)
            ):
                yield RemoteEndpoint(found.service, address, name)


def allocate_address(uid: str, taken: Collection[str], network: ipaddress.IPv4Network) -> str:
    """Return a free address of *network*, always the same one for a uid unless it is taken."""
    first, count = int(network.network_address) + 1, network.num_addresses - 2  # without its ends
    start = int.from_bytes(hashlib.blake2b(uid.encode(), digest_size=8).digest(), "big")
    for step in range(count):
        address = str(ipaddress.IPv4Address(first + (start + step) % count))
        if address not in taken:
            return address
    raise RuntimeError(f"all addresses of pods are taken ({network})")


def pod_section(pod: Pod, ip: str) -> str:
    """Return the first section of a pod's hosts file, which does not depend on other pods."""
    header = _HOST_NETWORK_HEADER if pod.spec.host_network else _HEADER
    lines = [f"{header}{_LOOPBACK_LINES}", f"{ip}\t{' '.join(_own_names(pod))}\n"]
    if pod.spec.host_aliases:
        lines.append("\n# Entries added by HostAliases.\n")
    lines += ["\t".join((alias.ip, *alias.hostnames)) + "\n" for alias in pod.spec.host_aliases]
    return "".join(lines)


def namespace_section(
    peers: Iterable[Peer], services: Iterable[Service], remote: Iterable[RemoteEndpoint] = ()
) -> str:
    """Return the second section, the same for all pods of a namespace."""
    return _section(peers, services, remote=remote, names=_qualified_names)


def outside_section(
    peers: Iterable[Peer], services: Iterable[Service], remote: Iterable[RemoteEndpoint] = ()
) -> str:
    """Return what the pods of other namespaces know of a namespace: names that contain its name.

    Services of a controller, such as those of a job, are not named there: they are for its own
    pods, and there may be as many as jobs.
    """
    public = (each for each in services if each.metadata.controller is None)

    def names(name: str, namespace: str) -> list[str]:
        return _qualified_names(name, namespace)[:-1]

    return _section(peers, public, remote=remote, names=names)


def _section(
    peers: Iterable[Peer],
    services: Iterable[Service],
    *,
    remote: Iterable[RemoteEndpoint],
    names: _Names,
) -> str:
    lines: list[str] = []
    elsewhere: dict[str, list[RemoteEndpoint]] = {}
    for endpoint in remote:
        elsewhere.setdefault(endpoint.service, []).append(endpoint)
    known = sorted(peers, key=lambda peer: peer.pod.metadata.name)
    for service in sorted(services, key=lambda service: service.metadata.name):
        lines += [f"{line}\n" for line in _service_lines(service, known, names)]
        if service.is_headless:
            there = elsewhere.get(service.metadata.name, ())
            lines += [f"{line}\n" for line in _remote_lines(service, there, names)]
    return "".join(dict.fromkeys(lines))


def _own_names(pod: Pod) -> list[str]:
    short = pod.hostname
    if not pod.spec.subdomain:
        return [short]
    return [*_qualified_names(f"{short}.{pod.spec.subdomain}", pod.metadata.namespace), short]


def _qualified_names(name: str, namespace: str) -> list[str]:
    inner = f"{name}.{namespace}"
    return [f"{inner}.svc.{CLUSTER_DOMAIN}", f"{inner}.svc", inner, name]


def _service_lines(service: Service, peers: Iterable[Peer], names: _Names) -> Iterator[str]:
    name, namespace = service.metadata.name, service.metadata.namespace
    if not service.is_headless:
        if service.spec.cluster_ip:
            yield f"{service.spec.cluster_ip}\t{' '.join(names(name, namespace))}"
        return
    selected = [peer for peer in peers if _selects(service, peer)]
    for peer in selected:
        # Only pods that name the service as their subdomain have names below it.
        if peer.pod.spec.subdomain == name:
            below = names(f"{peer.pod.hostname}.{name}", namespace)
            yield f"{peer.ip}\t{' '.join(below)}"
    for peer in selected:
        yield f"{peer.ip}\t{' '.join(names(name, namespace))}"


def _remote_lines(
    service: Service, endpoints: Iterable[RemoteEndpoint], names: _Names
) -> Iterator[str]:
    name, namespace = service.metadata.name, service.metadata.namespace
    found = sorted(endpoints, key=lambda each: (each.hostname, each.ip))
    for each in found:
        if each.hostname:
            yield f"{each.ip}\t{' '.join(names(f'{each.hostname}.{name}', namespace))}"
    for each in found:
        yield f"{each.ip}\t{' '.join(names(name, namespace))}"


def _selects(service: Service, peer: Peer) -> bool:
    selector = service.spec.selector
    if not selector or not peer.ip:
        return False
    if not (peer.ready or service.spec.publish_not_ready_addresses):
        return False
    labels = peer.pod.metadata.labels
    return all(labels.get(key) == value for key, value in selector.items())


def service_variables(services: Iterable[Service]) -> dict[str, str]:
    """Return the variables of the services that have an address: ``NAME_SERVICE_HOST`` and others.

    ``NAME_PORT`` and those that begin with it are the ones of Docker's links.
    """
    env: dict[str, str] = {}
    for service in services:
        if service.is_headless or not service.spec.cluster_ip or not service.spec.ports:
            continue
        name = service.metadata.name.upper().replace("-", "_")
        env[f"{name}_SERVICE_HOST"] = service.spec.cluster_ip
        env[f"{name}_SERVICE_PORT"] = str(service.spec.ports[0].port)
        for port in service.spec.ports:
            if port.name:
                label = port.name.upper().replace("-", "_")
                env[f"{name}_SERVICE_PORT_{label}"] = str(port.port)
        env |= _link_variables(name, service)
    return env


def _link_variables(name: str, service: Service) -> Iterator[tuple[str, str]]:
    address = service.spec.cluster_ip
    for index, port in enumerate(service.spec.ports):
        protocol = port.protocol.lower()
        url = f"{protocol}://{address}:{port.port}"
        if index == 0:
            yield f"{name}_PORT", url
        prefix = f"{name}_PORT_{port.port}_{port.protocol}"
        yield prefix, url
        yield f"{prefix}_PROTO", protocol
        yield f"{prefix}_PORT", str(port.port)
        yield f"{prefix}_ADDR", address
