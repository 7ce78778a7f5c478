"""Which connections NetworkPolicies allow to and from the pods of this node: pure functions."""

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, collapse_addresses
from typing import NamedTuple

from ....model.meta import LabelSelector
from ....model.selectors import NOTHING, Selector, SelectorError, from_label_selector
from ...network.resolvers import DNS_PORT
from .policy_types import EgressRule, IpBlock, NetworkPolicy, Peer, PolicyPort

ANYWHERE = IPv4Network("0.0.0.0/0")
PROTOCOLS = ("TCP", "UDP", "SCTP")
LAST_PORT = 65535

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class FilteredPod:
    """A pod that has its own address."""

    namespace: str
    ip: str
    labels: Labels
    ports: Mapping[tuple[str, str], int]
    """Numbers of ports by protocol and name."""


class PortRange(NamedTuple):
    """Ports of a protocol, from the first to the last one."""

    protocol: str
    first: int = 1
    last: int = LAST_PORT


@dataclass(frozen=True, slots=True)
class Addresses:
    """The other ends that a rule allows: single addresses, or those of a network."""

    single: frozenset[str] = frozenset()
    network: IPv4Network | None = None
    """Not set: the single ones."""
    excepted: tuple[IPv4Network, ...] = ()

    def contain(self, ip: str) -> bool:
        """Return whether *ip* is one of them."""
        if self.network is None:
            return ip in self.single
        address = IPv4Address(ip)
        return address in self.network and not any(address in each for each in self.excepted)


class Allowed(NamedTuple):
    """Connections that are allowed."""

    peers: Addresses
    ports: tuple[PortRange, ...]
    """Of the destination; empty: all, of any protocol."""


@dataclass(frozen=True, slots=True)
class Isolation:
    """What is allowed for one pod; ``None``: everything, since no policy selects it."""

    ingress: frozenset[Allowed] | None = None
    egress: frozenset[Allowed] | None = None


_ANY = Addresses(network=ANYWHERE)


def name_server(ip: str) -> FilteredPod:
    """Return the name server at *ip*, as policies that are written for Kubernetes select it."""
    ports = {("UDP", "dns"): DNS_PORT, ("TCP", "dns-tcp"): DNS_PORT}
    return FilteredPod("kube-system", ip, {"k8s-app": "kube-dns"}, ports)


def isolate(
    pods: Collection[FilteredPod],
    namespaces: Mapping[str, Labels],
    policies: Iterable[NetworkPolicy],
    servers: Collection[FilteredPod] = (),
) -> dict[str, Isolation]:
    """Return what the policies allow, by the address of each pod that one of them selects.

    Rules can select *servers* of the node as if they were pods, but no policy isolates them.
    What a policy allows is the union of what its rules do, and that of several policies likewise.
    A selector or a network that is malformed selects nothing, so that it allows nothing.
    """
    ingress: dict[str, list[Allowed]] = {}
    egress: dict[str, list[Allowed]] = {}
    cluster = _Cluster([*pods, *servers], namespaces)
    for policy in policies:
        spec, namespace = policy.spec, policy.metadata.namespace
        types = spec.policy_types or ("Ingress", *(("Egress",) if spec.egress else ()))
        selector = _selector(spec.pod_selector)
        selected = [
            pod for pod in pods if pod.namespace == namespace and selector.matches(pod.labels)
        ]
        if "Egress" in types:
            allowed = [each for rule in spec.egress for each in cluster.egress(rule, namespace)]
            for pod in selected:
                egress.setdefault(pod.ip, []).extend(allowed)
        if "Ingress" in types:
            peers = [list(cluster.peers(rule.peers, namespace)) for rule in spec.ingress]
            for pod in selected:
                found = ingress.setdefault(pod.ip, [])
                for rule, sources in zip(spec.ingress, peers, strict=True):
                    found += _to_pod(pod, rule.ports, sources)
    return {
        ip: Isolation(_unique(ingress.get(ip)), _unique(egress.get(ip)))
        for ip in sorted({*ingress, *egress})
    }


class _Cluster:
    """The pods and namespaces that rules refer to."""

    def __init__(self, pods: Collection[FilteredPod], namespaces: Mapping[str, Labels]) -> None:
        self._pods = pods
        self._namespaces = namespaces

    def peers(self, peers: Collection[Peer], namespace: str) -> Iterator[Addresses]:
        """Yield the other ends that the rule of a policy in *namespace* allows."""
        if not peers:
            yield _ANY
        for peer in peers:
            if peer.ip_block is not None:
                yield from _block(peer.ip_block)
            elif found := frozenset(pod.ip for pod in self._peer_pods(peer, namespace)):
                yield Addresses(found)

    def _peer_pods(self, peer: Peer, namespace: str) -> Iterator[FilteredPod]:
        namespaces: Container[str] = {namespace}
        if peer.namespace_selector is not None:
            wanted = _selector(peer.namespace_selector)
            namespaces = {
                name for name, labels in self._namespaces.items() if wanted.matches(labels)
            }
        selector = _selector(peer.pod_selector or LabelSelector())
        for pod in self._pods:
            if pod.namespace in namespaces and selector.matches(pod.labels):
                yield pod

    def egress(self, rule: EgressRule, namespace: str) -> Iterator[Allowed]:
        """Yield what a rule allows; the number of a named port is that of each pod."""
        numbers, names = _ports(rule.ports)
        for peers in self.peers(rule.peers, namespace):
            if numbers or not rule.ports:
                yield Allowed(peers, numbers)
            for key in names:
                pods = [pod for pod in self._pods if key in pod.ports and peers.contain(pod.ip)]
                for number in sorted({pod.ports[key] for pod in pods}):
                    single = frozenset(pod.ip for pod in pods if pod.ports[key] == number)
                    yield Allowed(Addresses(single), (PortRange(key[0], number, number),))


def _to_pod(
    pod: FilteredPod, ports: Collection[PolicyPort], sources: Iterable[Addresses]
) -> Iterator[Allowed]:
    """Yield what a rule allows to a pod."""
    numbers, names = _ports(ports)
    named = [PortRange(key[0], pod.ports[key], pod.ports[key]) for key in names if key in pod.ports]
    found = tuple(sorted({*numbers, *named}))
    if found or not ports:
        for each in sources:
            yield Allowed(each, found)


def _ports(
    ports: Iterable[PolicyPort],
) -> tuple[tuple[PortRange, ...], list[tuple[str, str]]]:
    """Return the ports that a rule has by number, and those by protocol and name."""
    numbers, names = set(), []
    for each in ports:
        protocol = each.protocol or "TCP"
        if protocol not in PROTOCOLS:
            continue
        if each.port is None:
            numbers.add(PortRange(protocol))
        elif isinstance(each.port, str):
            names.append((protocol, each.port))
        elif 0 < each.port <= (last := each.end_port or each.port) <= LAST_PORT:
            numbers.add(PortRange(protocol, each.port, last))
    return tuple(sorted(numbers)), names


def _block(block: IpBlock) -> Iterator[Addresses]:
    """Yield the addresses of a block; none if it is not one of IPv4, which all pods have."""
    try:
        excepted = (IPv4Network(each, strict=False) for each in block.excepted)
        known = tuple(collapse_addresses(excepted))
        yield Addresses(network=IPv4Network(block.cidr, strict=False), excepted=known)
    except ValueError:
        return


def _selector(selector: LabelSelector) -> Selector:
    try:
        return from_label_selector(selector)
    except SelectorError:
        return NOTHING


def _unique(allowed: Iterable[Allowed] | None) -> frozenset[Allowed] | None:
    return None if allowed is None else frozenset(allowed)
