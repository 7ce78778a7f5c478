"""Names and programs of the rules with which nft filters and translates packets of pods."""

import hashlib
import os
import socket
import struct
import subprocess
import sys
from pathlib import Path

from .node_namespace import find_program, passing_rights

PREFIX, LINK_PREFIX = "batholith-", "bth"
_MARKER = "pod-network"
_TIMEOUT = 30.0


class NetworkNames:
    """Names on the machine that contain a tag of a data directory.

    So what a process left that was killed is found again, and clusters on one machine do not
    disturb each other.
    """

    def __init__(self, data_dir: Path) -> None:
        self.marker = data_dir / _MARKER
        """File that exists while the network of the machine is changed."""
        tag = hashlib.blake2b(str(data_dir.resolve()).encode(), digest_size=2).hexdigest()
        self.namespaces = f"{PREFIX}{tag}-"
        """Begin of the names of pods' namespaces."""
        self.pods_table = f"{PREFIX}{tag}"
        """The agent's table of nft."""
        self.services_table = f"{PREFIX}{tag}-services"
        """The Service proxy's table of nft."""
        self.links = f"{LINK_PREFIX}{tag}"
        """Begin of the names of the devices that lead to pods."""

    def replace_table(self, table: str, content: str) -> None:
        """Replace a table of nft with one that has this *content*, at once.

        Raises:
            OSError: that is not possible.
        """
        self.marker.touch()
        run_program("nft", "-f", "-", text=f"{_deletion(table)}table ip {table} {{\n{content}}}\n")

    def delete_table(self, table: str) -> None:
        """Delete a table of nft, if it exists.

        Raises:
            OSError: that is not possible.
        """
        run_program("nft", "-f", "-", text=_deletion(table))


MARK_DATAGRAM_FLOWS = "meta l4proto udp ct status dnat ct direction original ct mark set @nh,128,32"
"""Statement of nft that marks translated connections of UDP with the address of their endpoint."""

_NETFILTER, _DELETE_CONNECTIONS = 12, (1 << 8) | 2
_REQUEST, _ACKNOWLEDGE = 1, 4
_MARK, _MARK_MASK = 8, 21


def remove_datagram_flows(ip: str) -> None:
    """Let the kernel forget the translated connections of UDP to the endpoint *ip*.

    The next datagram of a client is translated by the rules that apply then.

    Raises:
        OSError: the kernel does not permit it.
    """
    # The mark is the address as it lies in memory; messages have it in the order of the network.
    mark = int.from_bytes(socket.inet_aton(ip), sys.byteorder)
    attributes = struct.pack("=BBH", socket.AF_UNSPEC, 0, 0)
    attributes += struct.pack("=HH", 8, _MARK) + struct.pack(">I", mark)
    attributes += struct.pack("=HH", 8, _MARK_MASK) + struct.pack(">I", 0xFFFFFFFF)
    flags = _REQUEST | _ACKNOWLEDGE
    header = struct.pack("=IHHII", 16 + len(attributes), _DELETE_CONNECTIONS, flags, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETFILTER) as kernel:
        kernel.settimeout(_TIMEOUT)
        kernel.send(header + attributes)
        reply = kernel.recv(4096)
    if (number := -struct.unpack_from("=i", reply, 16)[0]) != 0:
        raise OSError(number, f"connections of UDP: {os.strerror(number)}")


def _deletion(table: str) -> str:
    """Return rules that delete a table, whether it exists or not."""
    return f"table ip {table} {{}}\ndelete table ip {table}\n"


def run_program(*argv: str, text: str = "") -> str:
    """Run a program, with *text* as its input; return its output.

    Raises:
        OSError: it does not exist or it failed; the error contains what it printed.
    """
    try:
        with passing_rights():
            ended = subprocess.run(  # noqa: S603 - programs that are named here, without a shell
                argv,
                executable=find_program(argv[0]),
                input=text,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT,
            )
    except subprocess.TimeoutExpired as error:
        raise OSError(f"{argv[0]} took longer than {_TIMEOUT:g} s") from error
    if ended.returncode != 0:
        message = " ".join((ended.stderr or ended.stdout).split())
        raise OSError(f"{' '.join(argv)}: {message or f'exit code {ended.returncode}'}")
    return ended.stdout
