"""The name servers of the machine, and the address of the cluster's own one."""

import errno
import hashlib
import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

from ...model.service_network import AddressRanges

RESOLVER = "/etc/resolv.conf"
_UPSTREAM_RESOLVERS = "/run/systemd/resolve/resolv.conf"
DNS_PORT = 53

_IP_FREEBIND = 15
"""Permits an address that is added to the network only later."""


@dataclass(frozen=True, slots=True)
class ResolverConfig:
    """Content of a ``resolv.conf``."""

    nameservers: tuple[str, ...] = ()
    searches: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


def parse_resolver_config(text: str) -> ResolverConfig:
    """Return what the resolver of the C library reads; the last ``search`` or ``domain`` counts."""
    servers, options, searches = list[str](), list[str](), tuple[str, ...]()
    for line in text.splitlines():
        match line.split():
            case ["nameserver", address, *_]:
                servers.append(address)
            case ["search" | "domain", *domains]:
                searches = tuple(domains)
            case ["options", *found]:
                options += found
    return ResolverConfig(tuple(servers), searches, tuple(dict.fromkeys(options)))


def read_resolver_config(file: str) -> ResolverConfig:
    """Return the content of *file*; of a missing one, nothing."""
    try:
        return parse_resolver_config(Path(file).read_text("utf-8", "replace"))
    except OSError:
        return ResolverConfig()


def resolver_file(*, own_network: bool) -> str:
    """Return the file with the machine's name servers.

    With its own network namespace a process cannot reach a server on the machine's loopback:
    systemd-resolved has another file, with the servers that it asks.
    """
    file = os.path.realpath(RESOLVER)
    if not own_network or not os.path.exists(_UPSTREAM_RESOLVERS):
        return file
    servers = read_resolver_config(file).nameservers
    local = all(server.startswith("127.") or server == "::1" for server in servers)
    return _UPSTREAM_RESOLVERS if local else file


def dns_sockets(address: str, port: int = DNS_PORT) -> tuple[socket.socket, socket.socket]:
    """Return a UDP socket, and a TCP socket that listens, both at *address*.

    Raises:
        OSError: another program uses the address, or the port is privileged.
    """
    sockets = []
    try:
        for kind in (socket.SOCK_DGRAM, socket.SOCK_STREAM):
            created = socket.socket(socket.AF_INET, kind | socket.SOCK_NONBLOCK)
            sockets.append(created)
            created.setsockopt(socket.SOL_IP, _IP_FREEBIND, 1)
            if kind is socket.SOCK_STREAM:
                created.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            created.bind((address, port))
            port = created.getsockname()[1]
        sockets[1].listen(128)
    except OSError:
        for each in sockets:
            each.close()
        raise
    return sockets[0], sockets[1]


def choose_dns_address(ranges: AddressRanges, data_dir: Path, *, own_network: bool = False) -> str:
    """Return an address at which names can be served; empty if there is none.

    It is the same for the same data directory, as long as no other cluster of the machine has it;
    with *own_network*, that of the node, none can.
    Port 53 is the only one that the resolver of the C library can ask; it is privileged.
    """
    for address in addresses_of_cluster(ranges.dns_ips, data_dir):
        if own_network:
            return address
        try:
            for each in dns_sockets(address):
                each.close()
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                continue
            return ""
        return address
    return ""


def addresses_of_cluster(network: IPv4Network, data_dir: Path) -> Iterator[str]:
    """Yield the addresses of *network*, always in the same order for a data directory."""
    count = network.num_addresses - 2  # without its ends
    digest = hashlib.blake2b(os.fsencode(data_dir.resolve()), digest_size=8).digest()
    start = int.from_bytes(digest, "big")
    for step in range(count):
        yield str(network[1 + (start + step) % count])
