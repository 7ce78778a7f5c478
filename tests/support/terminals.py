"""Terminals of a test, for programs that want one."""

import asyncio
import os
import pty
import struct
import termios
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from fcntl import ioctl


@asynccontextmanager
async def terminal(width: int, height: int) -> AsyncIterator[tuple[int, int]]:
    """A terminal of this size: the end of the test, and that of the program."""
    master, end = pty.openpty()
    ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    try:
        yield master, end
    finally:
        os.close(end)
        os.close(master)


async def read_until(master: int, text: bytes) -> bytes:
    """Read a terminal until *text* has arrived; return all."""
    loop = asyncio.get_running_loop()
    found = b""
    while text not in found:
        found += await loop.run_in_executor(None, os.read, master, 4096)
    return found
