"""Rules of nft by which pods with network namespaces reach the endpoints of Services directly.

So NetworkPolicies see the pod that connects, where a relay would hide it. What the machine itself
sends to Services is relayed all the same.
"""

import asyncio
import hashlib
import ipaddress
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ...machinery.relay import Address
from ...model.service_network import NAMESPACE_RANGES
from ..network.packet_rules import NetworkNames


@dataclass(frozen=True, slots=True)
class Translation:
    """Where connections to an address of a Service lead."""

    targets: tuple[Address, ...]
    by_client: bool
    """All connections of a client lead to the same endpoint."""


Translations = Mapping[Address, Translation]


def services_table(
    names: NetworkNames, translations: Translations, node_ports: Collection[int]
) -> str:
    """Return the content of the proxy's table.

    Loopback addresses are left out, which pods do not reach: node ports of the machine, and the API
    server, to which the proxy relays. No pod reaches the relays of *node_ports*.
    """
    own, chains, jumps = f'"{names.links}*"', dict[str, str](), list[str]()
    endpoints = set[str]()
    for (host, port), found in sorted(translations.items(), key=lambda each: each[0]):
        targets = [each for each in found.targets if not _is_loopback(each)]
        if not targets or _is_loopback((host, port)):
            continue
        endpoints |= {ip for ip, _ in targets}
        text = _destination(targets, by_client=found.by_client)
        name = f"endpoints-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}"
        chains[name] = f"    chain {name} {{\n        meta l4proto tcp dnat ip to {text}\n    }}\n"
        jumps.append(f"{host} . tcp . {port} : goto {name}")
    ports = ", ".join(map(str, sorted(node_ports)))
    relays = f"ip daddr {NAMESPACE_RANGES.node_ip} tcp dport {{ {ports} }}"
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
        {f"iifname {own} {relays} reject with tcp reset" if ports else ""}
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


def _is_loopback(address: Address) -> bool:
    return ipaddress.IPv4Address(address[0]).is_loopback


class ServiceRules:
    """Writes the proxy's table."""

    def __init__(self, data_dir: Path) -> None:
        """*data_dir* is that of the agent."""
        self._names = NetworkNames(data_dir)
        self._applied: str | None = None

    async def apply(self, translations: Translations, node_ports: Collection[int]) -> None:
        """Replace the rules at once; connections that exist continue.

        No pod reaches the relays of *node_ports*.

        Raises:
            OSError: that is not possible; the earlier rules apply.
        """
        content = services_table(self._names, translations, node_ports)
        if content != self._applied:
            table = self._names.services_table
            await asyncio.to_thread(self._names.replace_table, table, content)
            self._applied = content

    def remove(self) -> None:
        """Remove the rules."""
        with suppress(OSError):  # then `down` does it
            self._names.delete_table(self._names.services_table)
