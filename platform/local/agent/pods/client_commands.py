"""Commands that clients run in containers of this node (exec)."""

import asyncio
import os
from collections.abc import Sequence

from ....kube.supervision import cancel_and_wait
from ..runtime.commands import CommandNotStartedError, ContainerCommand, start_command
from ..runtime.fd_streams import FdStream
from ..runtime.runs import RUN_VARIABLE, RunDir
from ..streaming.command_streams import (
    STDERR,
    STDOUT,
    CommandStreams,
    Status,
    failure_status,
)
from .handlers import HandlerError, enter_request

MAX_COMMANDS = 100
"""Commands of clients that may run at once on a node: each takes a process of the agent's, too."""

_TERMINAL_TYPE = "xterm"
"""`TERM` of a command with a terminal, as container runtimes set it."""


class ClientCommands:
    """The running commands of clients."""

    def __init__(self) -> None:
        self._commands: dict[ContainerCommand, str] = {}
        """With the names of their runs."""

        self._number = 0

    def pids(self, run: RunDir) -> list[int]:
        """Return the processes of which the commands in *run* are descendants."""
        return [command.pid for command, name in self._commands.items() if name == run.name]

    def kill(self, run: RunDir) -> None:
        """Kill the commands in a container, which has exited."""
        for command, name in self._commands.items():
            if name == run.name:
                command.kill()

    async def execute(self, run: RunDir, argv: Sequence[str], streams: CommandStreams) -> Status:
        """Run *argv* in a container until it exits, and return its status; kill it if cancelled.

        Raises:
            ConnectionError: the client has disconnected; the command was killed.
        """
        if self._number >= MAX_COMMANDS:
            return failure_status(f"{MAX_COMMANDS} commands of clients run on this node already")
        self._number += 1
        try:
            code = await self._run(run, argv, streams)
        except ConnectionError:
            raise
        except (CommandNotStartedError, HandlerError, OSError) as error:
            return failure_status(f"error executing command in container: {error}")
        finally:
            self._number -= 1
        return _exit_status(argv, code)

    async def _run(self, run: RunDir, argv: Sequence[str], streams: CommandStreams) -> int:
        options = streams.options
        request = await enter_request(run, argv)
        if options.tty:
            request["env"] = {"TERM": _TERMINAL_TYPE, **request["env"]}
        command = await start_command(
            request,
            environment={RUN_VARIABLE: run.name, "PATH": os.defpath},
            tty=options.tty,
            stdin=options.stdin,
        )
        self._commands[command] = run.name
        try:
            return await _copy_until_exit(command, streams)
        finally:
            del self._commands[command]
            await command.end()


async def _copy_until_exit(command: ContainerCommand, streams: CommandStreams) -> int:
    """Copy between a command and its client; return the exit code once all output is sent."""
    options = streams.options
    inputs = [
        asyncio.ensure_future(_copy_input(command, streams)),
        asyncio.ensure_future(_copy_sizes(command, streams)),
    ]
    outputs = [
        asyncio.ensure_future(_copy_output(source, streams, number if wanted else None))
        for number, source, wanted in (
            (STDOUT, command.stdout, options.stdout),
            (STDERR, command.stderr, options.stderr),
        )
        if source is not None
    ]
    exited = asyncio.ensure_future(command.wait())
    try:
        running = {exited, *outputs}
        while not exited.done():
            done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        command.end_output()
        await asyncio.gather(*outputs)
        return exited.result()
    finally:
        tasks = [*inputs, *outputs, exited]
        await cancel_and_wait(*tasks)


async def _copy_input(command: ContainerCommand, streams: CommandStreams) -> None:
    if command.stdin is None or not streams.options.stdin:
        return
    try:
        while data := await streams.stdin.get():
            await command.stdin.write(data)
    except OSError:  # the command reads no more
        streams.stdin.discard()
    command.close_stdin()


async def _copy_sizes(command: ContainerCommand, streams: CommandStreams) -> None:
    while True:
        command.resize(*await streams.size.next())


async def _copy_output(source: FdStream, streams: CommandStreams, number: int | None) -> None:
    """Copy output to a stream of the client; drop it without one."""
    while data := await source.read():
        if number is not None:
            await streams.write(number, data)


def _exit_status(argv: Sequence[str], code: int) -> Status:
    if code == 0:
        return {"metadata": {}, "status": "Success"}
    problem = f"error executing command [{' '.join(argv)}], exit code {code}"
    return {
        "metadata": {},
        "status": "Failure",
        "message": f"command terminated with non-zero exit code: {problem}",
        "reason": "NonZeroExitCode",
        "details": {"causes": [{"reason": "ExitCode", "message": str(code)}]},
    }
