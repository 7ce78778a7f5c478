"""The agent's table of nft: which packets pass between pods, and what is translated."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from itertools import groupby

from ....machinery.relay import Address
from ....model.service_network import AddressRanges
from ...network.packet_rules import LINK_PREFIX, MARK_DATAGRAM_FLOWS, NetworkNames
from ...network.resolvers import DNS_PORT
from .host_ports import HOST_PORT_PROTOCOLS, HostPort
from .policies import ANYWHERE, LAST_PORT, Addresses, Allowed, Isolation, PortRange


@dataclass(frozen=True, slots=True)
class PodRules:
    """What the table depends on."""

    isolated: Mapping[str, Isolation]
    """By the address of a pod."""
    host_ports: tuple[HostPort, ...] = ()


NO_RULES = PodRules({})


def pods_table(names: NetworkNames, ranges: AddressRanges, rules: PodRules) -> str:
    """Return the content of the agent's table.

    Pods reach each other, the machine and what the machine reaches, unless a policy forbids it;
    nothing but the machine reaches pods. What the machine itself sends is not forwarded, so that
    no policy applies to it, and likewise what it receives, except on the port of name servers: the
    cluster's own server, or another one of the machine, forwards the names that a pod asks for.
    There connections that exist are filtered, too, since one of UDP may have all queries of a pod.
    """
    own, any_pod = f'"{names.links}*"', f'"{LINK_PREFIX}*"'
    chains = dict[str, str]()
    egress = _jumps("ip saddr", "ip daddr", _of(rules, "egress"), chains)
    ingress = _jumps("ip daddr", "ip saddr", _of(rules, "ingress"), chains)
    to_itself = sorted({*rules.isolated, *(each.target[0] for each in rules.host_ports)})
    pairs = f"elements = {{ {', '.join(f'{ip} . {ip}' for ip in to_itself)} }}" * bool(to_itself)
    policies = "".join(f"    chain {name} {{\n{text}    }}\n" for name, text in chains.items())
    return f"""\
    set to_itself {{
        type ipv4_addr . ipv4_addr
        {pairs}
    }}
{policies}    chain prerouting {{
        type nat hook prerouting priority dstnat; policy accept;
{"".join(_redirections(own, ranges, rules.host_ports))}    }}
    chain input {{
        type filter hook input priority filter; policy accept;
        iifname {own} ip daddr {ranges.cluster_ips} ip daddr != {ranges.api_server_ip} \
meta l4proto tcp reject with tcp reset
        iifname {own} ip daddr {ranges.cluster_ips} meta l4proto {{ sctp, udp }} reject
{_within(f"iifname {own} meta l4proto {{ tcp, udp }} th dport {DNS_PORT} ", egress)}\
    }}
    chain forward {{
        type filter hook forward priority filter; policy accept;
        iifname {own} {MARK_DATAGRAM_FLOWS}
        ct state established,related accept
        iifname {own} ip saddr . ip daddr @to_itself accept
{_within(f"iifname {own} ", egress)}\
{_within(f"iifname {own} oifname {own} ", ingress)}\
        iifname {own} oifname {own} accept
        oifname {own} drop
        iifname {own} oifname {any_pod} drop
    }}
    chain postrouting {{
        type nat hook postrouting priority srcnat; policy accept;
        oifname {own} ip saddr . ip daddr @to_itself snat to {ranges.node_ip}
        ip saddr {ranges.pod_ips} oifname != {any_pod} masquerade
    }}
"""


def _of(rules: PodRules, direction: str) -> dict[str, frozenset[Allowed]]:
    found = {ip: getattr(each, direction) for ip, each in rules.isolated.items()}
    return {ip: allowed for ip, allowed in found.items() if allowed is not None}


def _jumps(
    pod: str, peer: str, isolated: Mapping[str, frozenset[Allowed]], chains: dict[str, str]
) -> str:
    """Return the map from pods to their chains, and add these to *chains*.

    Pods for which the same is allowed have one chain, as those of a job do.
    """
    jumps = []
    for ip, allowed in sorted(isolated.items()):
        lines = sorted({line for each in allowed for line in _lines(each, peer)})
        text = "".join(f"        {line} return\n" for line in lines)
        text += "        reject with icmp type admin-prohibited\n"
        name = f"policy-{hashlib.blake2b((peer + text).encode(), digest_size=8).hexdigest()}"
        chains[name] = text
        jumps.append(f"{ip} : jump {name}")
    return f"{pod} vmap {{ {', '.join(jumps)} }}" if jumps else ""


def _within(condition: str, jumps: str) -> str:
    return f"        {condition}{jumps}\n" if jumps else ""


def _lines(allowed: Allowed, peer: str) -> Iterator[str]:
    """Yield the conditions under which a packet is allowed."""
    source = _addresses(allowed.peers, peer)
    for ports in _ports(allowed.ports) if allowed.ports else [""]:
        yield " ".join(filter(None, (source, ports)))


def _addresses(peers: Addresses, peer: str) -> str:
    if peers.network is None:
        return f"{peer} {_elements(sorted(peers.single))}"
    conditions = [f"{peer} {peers.network}"] if peers.network != ANYWHERE else []
    if peers.excepted:
        conditions.append(f"{peer} != {_elements(list(map(str, peers.excepted)))}")
    return " ".join(conditions)


def _ports(ports: Iterable[PortRange]) -> Iterator[str]:
    """Yield a condition for each protocol."""
    for protocol, found in groupby(sorted(ports), key=lambda each: each.protocol):
        merged = list(_merged(found))
        if merged == [(1, LAST_PORT)]:
            yield f"meta l4proto {protocol.lower()}"
        else:
            texts = [f"{first}-{last}" if first < last else str(first) for first, last in merged]
            yield f"{protocol.lower()} dport {_elements(texts)}"


def _merged(ports: Iterable[PortRange]) -> Iterator[tuple[int, int]]:
    """Yield ranges that do not overlap, which nft requires; *ports* are sorted."""
    current: tuple[int, int] | None = None
    for _, first, last in ports:
        if current is not None and first <= current[1] + 1:
            current = current[0], max(current[1], last)
            continue
        if current is not None:
            yield current
        current = first, last
    if current is not None:
        yield current


def _redirections(own: str, ranges: AddressRanges, ports: Iterable[HostPort]) -> Iterator[str]:
    """Yield what lets pods reach host ports with their own address, instead of a relay's."""
    seen = set[tuple[str, Address]]()
    for port in ports:
        (host, number), (ip, target) = port.address, port.target
        key = port.protocol, port.address
        if port.protocol not in HOST_PORT_PROTOCOLS or key in seen or not _is_ipv4(host):
            continue
        seen.add(key)
        address = f"ip daddr != {ranges.cluster_ips} fib daddr type local"
        if not (found := IPv4Address(host)).is_unspecified:
            address = f"ip daddr {found}"
        matched = f"{address} {port.protocol.lower()} dport {number}"
        yield f"        iifname {own} {matched} dnat to {ip}:{target}\n"


def _is_ipv4(text: str) -> bool:
    try:
        IPv4Address(text)
    except ValueError:
        return False
    return True


def _elements(values: list[str]) -> str:
    """Return an anonymous set, or its only element."""
    return values[0] if len(values) == 1 else f"{{ {', '.join(values)} }}"
