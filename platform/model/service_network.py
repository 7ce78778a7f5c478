"""Addresses of the pods and Services of an embedded cluster.

Where pods share the network of the machine, these are loopback addresses, apart from those that
systems use for themselves (``127.0.0.0/16``: the machine's name, systemd-resolved). Where each pod
has a network namespace, they are addresses of the range for benchmarks (RFC 2544), which neither
the Internet nor the networks of companies use.
"""

from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address, IPv4Network


class PodNetwork(StrEnum):
    """In which network pods run."""

    HOST = "host"
    """That of the machine, as pods with ``hostNetwork``."""

    NAMESPACES = "namespaces"
    """A network namespace for each pod."""

    @property
    def ranges(self) -> "AddressRanges":
        """The addresses of the cluster."""
        return _RANGES[self]


@dataclass(frozen=True, slots=True)
class AddressRanges:
    """Addresses of a cluster."""

    node_ip: str
    """Address of the node, at which pods reach it."""

    pod_ips: IPv4Network
    cluster_ips: IPv4Network
    """The first and the last address are not used for Services of users."""

    dns_ips: IPv4Network
    """One of them is that of the cluster's name server, another one for each cluster."""

    @property
    def api_server_ip(self) -> str:
        """Cluster IP of the API server, if it is not reached at its own address."""
        return str(self.cluster_ips[1])


HOST_RANGES = AddressRanges(
    "127.0.0.1",
    IPv4Network("127.64.0.0/10"),
    IPv4Network("127.128.0.0/16"),
    IPv4Network("127.129.0.0/24"),
)
NAMESPACE_RANGES = AddressRanges(
    "198.18.0.1",
    IPv4Network("198.18.0.0/16"),
    IPv4Network("198.19.0.0/16"),
    IPv4Network("169.254.53.0/24"),
)
_RANGES = {PodNetwork.HOST: HOST_RANGES, PodNetwork.NAMESPACES: NAMESPACE_RANGES}

API_SERVER_IPS = IPv4Network("127.129.1.0/24")
"""On the network of the machine, one of them is the cluster IP of the API server, another one for
each cluster."""

NODE_PORTS = range(30000, 32768)
"""Node ports: the default range of kube-apiserver."""

CLUSTER_DOMAIN = "cluster.local"
"""Domain of the names of Services."""

HEADLESS = "None"
"""``spec.clusterIP`` of a Service without address."""


def is_cluster_ip(text: str) -> bool:
    """Whether *text* is an address that a Service of one of the networks may have."""
    return any(is_in(each.cluster_ips, text) for each in _RANGES.values())


def is_dns_ip(text: str) -> bool:
    """Whether *text* is an address that the name server of a cluster may have."""
    return any(is_in(each.dns_ips, text) for each in _RANGES.values())


def ipv4_address(text: str) -> IPv4Address | None:
    """Parse an address of IPv4; ``None`` if it is none."""
    try:
        return IPv4Address(text)
    except ValueError:
        return None


def is_in(network: IPv4Network, text: str) -> bool:
    """Whether *text* is an address of *network* other than its ends."""
    address = ipv4_address(text)
    ends = (network.network_address, network.broadcast_address)
    return address is not None and address in network and address not in ends


def is_permitted_endpoint(text: str) -> bool:
    """Whether a proxy may connect to an address: of loopback only to those of pods.

    Otherwise an endpoint could lead to a program that only this machine's users may reach, or
    back to the proxy, without end.
    """
    address = ipv4_address(text)
    if address is None:
        return False
    if address in HOST_RANGES.pod_ips:
        return True
    return not (
        is_cluster_ip(text)
        or address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_unspecified
    )
