"""Servers and clients of UDP."""

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import cast

ECHO = """
import socket, sys
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("0.0.0.0", 53))
while True:
    client = server.recvfrom(2048)[1]
    server.sendto(sys.argv[1].encode(), client)
"""
"""A program that responds to each datagram at port 53 with its argument."""

Address = tuple[str, int]
_TRY = 1.0
"""Seconds until a response counts as lost, and the caller tries again."""


class _Echo(asyncio.DatagramProtocol):
    def __init__(self, name: str) -> None:
        self._name = name
        self.clients: list[Address] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.DatagramTransport, transport)

    def datagram_received(self, data: bytes, addr: Address) -> None:
        self.clients.append(addr)
        if data != b"silent":
            self._transport.sendto(f"{self._name}:".encode() + data, addr)


@asynccontextmanager
async def echo(address: str, port: int = 0) -> AsyncIterator[tuple[int, list[Address]]]:
    """A server that sends its address and what it receives, unless that is ``silent``.

    Yields its port, and whose datagrams it has received.
    """
    transport, protocol = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: _Echo(address), local_addr=(address, port)
    )
    try:
        yield transport.get_extra_info("sockname")[1], protocol.clients
    finally:
        transport.close()


@contextmanager
def client_of(address: Address) -> Iterator[socket.socket]:
    """A socket that exchanges datagrams with *address* only."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
        client.setblocking(False)
        client.connect(address)
        yield client


async def ask(client: socket.socket, data: bytes = b"x") -> bytes:
    """Send a datagram; return the response."""
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(client, data)
    return await loop.sock_recv(client, 65535)


async def response_of(address: Address) -> bytes:
    """The response to a new client; empty if it is refused, or lost."""
    with client_of(address) as client:
        try:
            async with asyncio.timeout(_TRY):
                return await ask(client)
        except (OSError, TimeoutError):
            return b""
