"""Rules of nft by which pods with network namespaces reach the endpoints of Services directly.

So NetworkPolicies see the pod that connects, where a relay would hide it. What the machine itself
sends to Services is relayed all the same.
"""

import asyncio
import hashlib
import ipaddress
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...machinery.relay import Address
from ...model.service_network import NAMESPACE_RANGES
from ..network.packet_rules import NetworkNames, remove_datagram_flows
from .backends import ListenAddress


@dataclass(frozen=True, slots=True)
class Translation:
    """Where connections to an address of a Service lead."""

    targets: tuple[Address, ...]
    by_client: bool
    """All connections of a client lead to the same endpoint."""


Translations = Mapping[ListenAddress, Translation]
Relayed = Collection[tuple[str, int]]
"""Protocols and ports of relays at the address of the node."""


def services_table(names: NetworkNames, translations: Translations, node_ports: Relayed) -> str:
    """Return the content of the proxy's table.

    Loopback addresses are left out, which pods do not reach: node ports of the machine, and the API
    server, to which the proxy relays. No pod reaches the relays of *node_ports*.
    """
    own, chains, jumps = f'"{names.links}*"', dict[str, str](), list[str]()
    endpoints = set[str]()
    for listen, found in sorted(translations.items(), key=lambda each: each[0]):
        targets = _reachable(found.targets)
        if not targets or _is_loopback(listen.host):
            continue
        protocol = listen.protocol.lower()
        endpoints |= {ip for ip, _ in targets}
        text = f"meta l4proto {protocol} dnat ip to "
        text += _destination(targets, by_client=found.by_client)
        name = f"endpoints-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"
        chains[name] = f"    chain {name} {{\n        {text}\n    }}\n"
        jumps.append(f"{listen.host} . {protocol} . {listen.port} : goto {name}")
    ports = ", ".join(f"{protocol.lower()} . {port}" for protocol, port in sorted(node_ports))
    relays = f"ip daddr {NAMESPACE_RANGES.node_ip} meta l4proto . th dport {{ {ports} }}"
    pairs = ", ".join(f"{ip} . {ip}" for ip in sorted(endpoints))
    services = f"ip daddr . meta l4proto . th dport vmap {{ {', '.join(jumps)} }}"
    return f"""\
    set to_itself {{
        type ipv4_addr . ipv4_addr
        {f"elements = {{ {pairs} }}" if pairs else ""}
    }}
{"".join(chains.values())}    chain prerouting {{
        type nat hook prerouting priority dstnat; policy accept;
        {f"iifname {own} {services}" if jumps else ""}
    }}
    chain input {{
        type filter hook input priority filter; policy accept;
        {f"iifname {own} {relays} meta l4proto tcp reject with tcp reset" if ports else ""}
        {f"iifname {own} {relays} reject" if ports else ""}
    }}
    chain postrouting {{
        type nat hook postrouting priority srcnat; policy accept;
        oifname {own} ip saddr . ip daddr @to_itself snat to {NAMESPACE_RANGES.node_ip}
    }}
"""


def _destination(targets: list[Address], *, by_client: bool) -> str:
    if len(targets) == 1:
        return ":".join(map(str, targets[0]))
    chosen = "jhash ip saddr" if by_client else "numgen random"
    found = ", ".join(f"{number} : {ip} . {port}" for number, (ip, port) in enumerate(targets))
    return f"{chosen} mod {len(targets)} map {{ {found} }}"


def _reachable(targets: Iterable[Address]) -> list[Address]:
    return [each for each in targets if not _is_loopback(each[0])]


def _is_loopback(host: str) -> bool:
    return ipaddress.IPv4Address(host).is_loopback


def _datagram_targets(translations: Translations) -> frozenset[tuple[ListenAddress, str]]:
    """Return which addresses lead datagrams to which endpoints."""
    return frozenset(
        (listen, ip)
        for listen, found in translations.items()
        if listen.protocol == "UDP"
        for ip, _ in _reachable(found.targets)
    )


class ServiceRules:
    """Writes the proxy's table."""

    def __init__(self, data_dir: Path) -> None:
        """*data_dir* is that of the agent."""
        self._names = NetworkNames(data_dir)
        self._applied: str | None = None
        self._datagram_targets: frozenset[tuple[ListenAddress, str]] = frozenset()

    async def apply(self, translations: Translations, node_ports: Relayed) -> None:
        """Replace the rules at once; connections of TCP that exist continue.

        Those of UDP have no end that a client notices: what it sends would still go to an endpoint
        that is none any more.

        No pod reaches the relays of *node_ports*.

        Raises:
            OSError: that is not possible; the earlier rules apply.
        """
        content = services_table(self._names, translations, node_ports)
        if content != self._applied:
            table = self._names.services_table
            await asyncio.to_thread(self._names.replace_table, table, content)
            self._applied = content
        targets = _datagram_targets(translations)
        for ip in sorted({ip for _, ip in self._datagram_targets - targets}):
            await asyncio.to_thread(remove_datagram_flows, ip)
        self._datagram_targets = targets

    def remove(self) -> None:
        """Remove the rules."""
        with suppress(OSError):  # then `down` does it
            self._names.delete_table(self._names.services_table)
