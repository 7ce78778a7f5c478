"""TCP ports on which the processes of a pod listen.

Pods share the machine's network, and its loopback addresses with every program of it. So a port is
forwarded only to a socket that a process of the pod has open: not to the machine's own servers.
"""

import errno
import os
import struct
from collections.abc import Iterable, Sequence
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address

from .oom import descendants

_LISTEN = "0A"


def listening_address(pids: Sequence[int], port: int, *, pod_ip: str) -> str | None:
    """Return the address at which a descendant of *pids* listens on *port*; ``None`` if none does.

    *pod_ip* is that of a socket that listens on all addresses.
    """
    sockets = _listening_sockets(port)
    if not sockets:
        return None
    for pid in descendants(pids):
        for inode in _open_sockets(pid):
            if inode in sockets:
                address = sockets[inode]
                return pod_ip if address.is_unspecified else str(_without_mapping(address))
    return None


def _without_mapping(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


def _listening_sockets(port: int) -> dict[str, IPv4Address | IPv6Address]:
    """Return the addresses of the sockets that listen on *port*, by inode."""
    found: dict[str, IPv4Address | IPv6Address] = {}
    for name in ("tcp", "tcp6"):
        with suppress(FileNotFoundError), open(f"/proc/net/{name}", encoding="ascii") as file:
            for fields in map(str.split, list(file)[1:]):
                address, _, hex_port = fields[1].partition(":")
                if fields[3] == _LISTEN and int(hex_port, 16) == port:
                    found[f"socket:[{fields[9]}]"] = _parse_address(address)
    return found


def _parse_address(text: str) -> IPv4Address | IPv6Address:
    """Return an address that the kernel prints as integers in the byte order of the machine."""
    integers = [int(text[start : start + 8], 16) for start in range(0, len(text), 8)]
    packed = struct.pack(f"={len(integers)}I", *integers)
    return IPv4Address(packed) if len(packed) == 4 else IPv6Address(packed)


def _open_sockets(pid: int) -> Iterable[str]:
    with suppress(OSError):  # it has exited
        for name in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                link = os.readlink(f"/proc/{pid}/fd/{name}")
                if link.startswith("socket:"):
                    yield link


def refused(port: int, address: str) -> ConnectionRefusedError:
    """Return the error of a port on which the pod does not listen."""
    text = f"dial tcp {address}:{port}: connect: connection refused"
    return ConnectionRefusedError(errno.ECONNREFUSED, text)
