"""Bound sockets for listeners."""

import asyncio
import errno
import os
import socket


async def bind(host: str, port: int, *, reuse_port: bool = False) -> list[socket.socket]:
    """Return sockets bound to all addresses of *host* (empty: all interfaces) and one port.

    With *reuse_port*, other processes may bind the port, too.

    Raises:
        OSError: an address is in use or not local.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            # An ephemeral port is chosen once, by the first of the addresses.
            bound_port = sockets[0].getsockname()[1] if sockets else port
            sock = _bind_address(
                family, (address[0], bound_port, *address[2:]), reuse_port=reuse_port
            )
            if sock is not None:
                sockets.append(sock)
    except OSError:
        for each in sockets:
            each.close()
        raise
    if not sockets:
        raise OSError(errno.EADDRNOTAVAIL, os.strerror(errno.EADDRNOTAVAIL))
    return sockets


def _bind_address(
    family: int, address: tuple[str | int, ...], *, reuse_port: bool
) -> socket.socket | None:
    try:
        sock = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        return None  # address family not supported
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        if family == socket.AF_INET6 and error.errno == errno.EADDRNOTAVAIL:
            return None  # IPv6 is disabled
        raise
    return sock
