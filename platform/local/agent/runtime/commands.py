"""Commands that clients run in a container: processes with pipes or a terminal."""

import asyncio
import fcntl
import json
import os
import signal
import struct
import sys
import termios
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ...network.node_namespace import passing_rights
from . import nsenter
from .fd_streams import FdStream

PROGRAM = Path(nsenter.__file__)
_KILL_TIMEOUT = 5.0
"""Seconds after which `nsenter` itself is killed, not only its command."""


class CommandNotStartedError(Exception):
    """The command cannot be executed; the text is the reason."""


class ContainerCommand:
    """A running command; `stdin`, `stdout` and `stderr` are the agent's ends of its streams."""

    def __init__(self, process: asyncio.subprocess.Process, streams: "_Streams") -> None:
        self._process = process
        self._terminal = streams.terminal
        self._streams = streams
        self.stdin, self.stdout, self.stderr = streams.stdin, streams.stdout, streams.stderr
        self.pid = process.pid

    async def wait(self) -> int:
        """Return the exit code.

        Raises:
            CommandNotStartedError: the command cannot be executed.
        """
        assert self._process.stdout is not None  # noqa: S101 - a pipe
        error = await self._process.stdout.read()
        code = await self._process.wait()
        if error:
            lines = error.decode(errors="replace").strip().splitlines()
            raise CommandNotStartedError(lines[-1])
        return code if code >= 0 else 128 - code

    def end_output(self) -> None:
        """After the exit: let the output end, though descendants of the command may hold it open.

        All of the command's own can be read already; of a terminal, the read itself waits for what
        the kernel has not moved to its buffer yet.
        """
        for stream in filter(None, (self.stdout, self.stderr)):
            stream.end_when_empty()

    def resize(self, width: int, height: int) -> None:
        """Change the size of the terminal, if there is one."""
        if self._terminal and self.stdout is not None:
            size = struct.pack("HHHH", height, width, 0, 0)
            with suppress(OSError):
                fcntl.ioctl(self.stdout.fd, termios.TIOCSWINSZ, size)

    def close_stdin(self) -> None:
        """End the command's input; that of a terminal has no end."""
        if self.stdin is not None and not self._terminal:
            self.stdin.close()

    def kill(self) -> None:
        """Kill the command, if it runs."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGTERM)

    async def end(self) -> None:
        """Kill the command if it runs, and close its streams; nothing may use them any more."""
        self._streams.close_agent_ends()
        for number, timeout in ((signal.SIGTERM, _KILL_TIMEOUT), (signal.SIGKILL, None)):
            if self._process.returncode is not None:
                return
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._process.wait()


class _Streams:
    """Descriptors of a command, and the agent's ends of them."""

    def __init__(self, *, tty: bool, stdin: bool, owner: int | None) -> None:
        self.terminal = tty
        self.stdin: FdStream | None = None
        self.stdout: FdStream | None = None
        self.stderr: FdStream | None = None
        self.command_ends: list[int] = []
        try:
            self._open(tty=tty, stdin=stdin)
            if owner is not None:
                for end in self.command_ends:
                    os.fchown(end, owner, owner)  # else the command could not open /dev/stdout
        except BaseException:
            self.close_command_ends()
            self.close_agent_ends()
            raise

    def _open(self, *, tty: bool, stdin: bool) -> None:
        if tty:
            master, end = os.openpty()
            self.command_ends = [end] * 3
            self.stdin = self.stdout = FdStream(master)
            return
        read, write = os.pipe()
        self.command_ends.append(read)
        self.stdin = FdStream(write)
        self.stdout, self.stderr = self._open_output(), self._open_output()
        if not stdin:
            self.stdin.close()

    def _open_output(self) -> FdStream:
        read, write = os.pipe()
        self.command_ends.append(write)
        return FdStream(read)

    def close_command_ends(self) -> None:
        for end in set(self.command_ends):
            os.close(end)

    def close_agent_ends(self) -> None:
        for stream in filter(None, (self.stdin, self.stdout, self.stderr)):
            stream.close()


async def start_command(
    request: Mapping[str, Any], *, environment: Mapping[str, str], tty: bool, stdin: bool
) -> ContainerCommand:
    """Start a command; *request* is that of `nsenter` without streams.

    *environment* is that of `nsenter` itself. Without *stdin* the command reads no input.

    Raises:
        OSError: there are too many processes or open files.
    """
    ids = request["ids"]
    owner = None if ids["base"] is None else ids["base"] + ids["user"][0]
    streams = _Streams(tty=tty, stdin=stdin, owner=owner)
    ends = streams.command_ends
    try:
        with passing_rights():
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-I", "-S", str(PROGRAM),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                env=dict(environment),
                pass_fds=sorted(set(ends)),
            )  # fmt: skip
    except BaseException:
        streams.close_agent_ends()
        raise
    finally:
        streams.close_command_ends()
    command = ContainerCommand(process, streams)
    try:
        assert process.stdin is not None  # noqa: S101 - a pipe
        process.stdin.write(json.dumps({**request, "stdio": ends, "tty": tty}).encode())
        with suppress(ConnectionError):
            await process.stdin.drain()
        process.stdin.close()
    except BaseException:
        await command.end()
        raise
    return command
