"""Clients that attach to the program of a container.

A container with an input or a terminal has a socket of its shim. Of any other the log is followed.
"""

import asyncio
import os
import socket
import struct
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path

from ....kube.supervision import cancel_and_wait
from ....machinery.clock import Clock
from ..runtime import attach, logs
from ..runtime.fd_streams import FdStream
from ..runtime.runs import RunDir
from ..state.core_types import Container
from ..streaming.command_streams import (
    STDERR,
    STDOUT,
    CommandStreams,
    Status,
    failure_status,
)

_SUCCESS: Status = {"metadata": {}, "status": "Success"}
_NUMBERS = {attach.STDOUT: STDOUT, attach.STDERR: STDERR}


@dataclass(frozen=True, slots=True, kw_only=True)
class Attachment:
    """What clients attach to."""

    container: Container
    run: RunDir
    log: Path
    clock: Clock

    async def serve(self, streams: CommandStreams) -> Status:
        """Copy until the container exits; its exit code is in the pod's status alone."""
        if not (self.container.stdin or self.container.tty):
            await self._follow_log(streams)
            return _SUCCESS
        try:
            shim = FdStream(connect(self.run).detach())
        except OSError as error:  # it has exited, or was started by an older version
            return failure_status(f"unable to attach: {error.strerror}")
        await self._copy_socket(shim, streams)
        return _SUCCESS

    async def _follow_log(self, streams: CommandStreams) -> None:
        streams.stdin.discard()
        wanted = {"stdout": streams.options.stdout, "stderr": streams.options.stderr}
        follows = [
            asyncio.ensure_future(self._follow(streams, number, name))
            for number, (name, is_wanted) in enumerate(wanted.items(), STDOUT)
            if is_wanted
        ]
        try:
            await asyncio.gather(*follows)
        finally:
            await cancel_and_wait(*follows)

    async def _follow(self, streams: CommandStreams, number: int, name: str) -> None:
        options = logs.LogOptions(follow=True, tail=0, stream=name)
        async with aclosing(
            logs.read(self.log, options, is_finished=lambda: self.run.is_finished, clock=self.clock)
        ) as chunks:
            async for chunk in chunks:
                await streams.write(number, chunk)

    async def _copy_socket(self, shim: FdStream, streams: CommandStreams) -> None:
        inputs = [
            asyncio.ensure_future(self._copy_input(shim, streams)),
            asyncio.ensure_future(_copy_sizes(shim, streams)),
        ]
        options = streams.options
        wanted = {STDOUT: options.stdout, STDERR: options.stderr and not self.container.tty}
        try:
            while packet := await _read(shim):
                number = _NUMBERS.get(packet[:1])
                if number is not None and wanted[number]:
                    await streams.write(number, packet[1:])
        finally:
            await cancel_and_wait(*inputs)
            shim.close()

    async def _copy_input(self, shim: FdStream, streams: CommandStreams) -> None:
        if not (streams.options.stdin and self.container.stdin):
            streams.stdin.discard()
            return
        try:
            await shim.write(attach.CLAIM_STDIN)
            while data := await streams.stdin.get():
                for start in range(0, len(data), attach.MAX_PACKET):
                    await shim.write(attach.STDIN + data[start : start + attach.MAX_PACKET])
            await shim.write(attach.STDIN)
        except OSError:  # the container has exited
            streams.stdin.discard()


async def _read(shim: FdStream) -> bytes:
    """Return the next packet of the shim; empty at the end."""
    try:
        return await shim.read()
    except ConnectionResetError:  # it has exited with unread input; what it has sent follows
        return await shim.read()


async def _copy_sizes(shim: FdStream, streams: CommandStreams) -> None:
    while True:
        await shim.write(attach.RESIZE + struct.pack("HH", *await streams.size.next()))


def connect(run: RunDir) -> socket.socket:
    """Connect to the shim of a run.

    Raises:
        OSError: it has exited, or has no socket.
    """
    directory = os.open(run.path, os.O_PATH | os.O_DIRECTORY)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        connection.setblocking(False)
        connection.connect(attach.socket_path(directory))
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(directory)
    return connection
