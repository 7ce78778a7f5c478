"""Sockets to listen on."""

import asyncio
import errno
import os
import socket


async def bind(host: str, port: int, *, reuse_port: bool = False) -> list[socket.socket]:
    """Bound sockets for all addresses of *host* (empty: of this machine), which share a port.

    With *shared*, other processes may listen on the port, too.

    Raises:
        OSError: an address is taken, or not one of this machine.
    """
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    sockets: list[socket.socket] = []
    try:
        for family, _, _, _, address in dict.fromkeys(found):
            # A free port is chosen once: by the first of the addresses.
            taken = sockets[0].getsockname()[1] if sockets else port
            made = _bind_address(family, (address[0], taken, *address[2:]), reuse_port=reuse_port)
            if made is not None:
                sockets.append(made)
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
        made = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        return None  # the kernel does not speak this family
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        if family == socket.AF_INET6:
            made.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        made.bind(address)
    except OSError as error:
        made.close()
        if family == socket.AF_INET6 and error.errno == errno.EADDRNOTAVAIL:
            return None  # it is switched off
        raise
    return made
