"""The addresses that a host of a notification has."""

import asyncio
import socket
from collections.abc import Sequence
from ipaddress import ip_address

from ...model.notification_destinations import Address


class DestinationError(Exception):
    """A URL must not be requested; the text is for the operator."""


async def resolve(host: str, port: int) -> Sequence[Address]:
    """Return the addresses of *host*.

    Raises:
        OSError: it has none.
    """
    loop = asyncio.get_running_loop()
    try:
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:  # a label is too long
        raise OSError(f"{host!r} is no name of a host") from None
    return [ip_address(str(each[4][0]).partition("%")[0]) for each in found]
