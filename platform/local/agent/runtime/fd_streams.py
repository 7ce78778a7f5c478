"""Reads and writes of pipes and terminals by the event loop."""

import asyncio
import errno
import os

_BLOCK = 32 * 1024


class FdStream:
    """The agent's end of a pipe or of a terminal; closes its descriptor."""

    def __init__(self, fd: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self._closed = self._ends_when_empty = False
        self._readable = asyncio.Event()

    async def read(self) -> bytes:
        """Return the next bytes; empty at the end. One task may read."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                return os.read(self.fd, _BLOCK)
            except BlockingIOError:
                if self._ends_when_empty:
                    return b""
            except OSError as error:
                if error.errno == errno.EIO:  # no process has the terminal open
                    return b""
                raise
            self._readable.clear()
            loop.add_reader(self.fd, self._readable.set)
            try:
                await self._readable.wait()
            finally:
                loop.remove_reader(self.fd)

    def end_when_empty(self) -> None:
        """Let `read` return what was written so far, and then the end."""
        self._ends_when_empty = True
        self._readable.set()

    async def write(self, data: bytes) -> None:
        """Write all of *data*.

        Raises:
            OSError: no process has the other end open any more.
        """
        loop = asyncio.get_running_loop()
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self.fd, view) :]
            except BlockingIOError:
                writable = asyncio.Event()
                loop.add_writer(self.fd, writable.set)
                try:
                    await writable.wait()
                finally:
                    loop.remove_writer(self.fd)

    def close(self) -> None:
        """Close the descriptor; nothing may wait for it."""
        if not self._closed:
            self._closed = True
            os.close(self.fd)
