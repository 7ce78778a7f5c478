"""Addresses of Services in the embedded cluster: loopback addresses of this machine.

They are apart from the addresses of pods, and from those that systems use for themselves
(``127.0.0.0/16``: the machine's name, systemd-resolved).
"""

import ipaddress

CLUSTER_IPS = ipaddress.IPv4Network("127.128.0.0/16")
"""Cluster IPs; the first and the last address are not used."""

POD_IPS = ipaddress.IPv4Network("127.64.0.0/10")
"""Addresses of pods."""

NODE_PORTS = range(30000, 32768)
"""Node ports, on 127.0.0.1: the default range of kube-apiserver."""

HEADLESS = "None"
"""``spec.clusterIP`` of a Service without address."""


def is_cluster_ip(text: str) -> bool:
    """Whether *text* is an address that a Service may have."""
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        return False
    ends = (CLUSTER_IPS.network_address, CLUSTER_IPS.broadcast_address)
    return address in CLUSTER_IPS and address not in ends


def is_permitted_endpoint(text: str) -> bool:
    """Whether a proxy may connect to an address: of loopback only to those of pods.

    Otherwise an endpoint could lead to a program that only this machine's users may reach, or
    back to the proxy, without end.
    """
    try:
        address = ipaddress.IPv4Address(text)
    except ValueError:
        return False
    if address in POD_IPS:
        return True
    return not (
        address.is_loopback
        or address.is_link_local
        or address.is_multicast
        or address.is_unspecified
    )
