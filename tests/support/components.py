"""A component in a separate process, as a Deployment runs it."""

import asyncio
import contextlib
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from batholith.kube.client.config import Credentials
from batholith.local.supervisor.supervisor import READY_FD

Json = dict[str, Any]


@dataclass(slots=True)
class ComponentProcess:
    """A running component and its log (one JSON object per line)."""

    process: asyncio.subprocess.Process
    lines: list[str] = field(default_factory=list)
    ready: asyncio.Event = field(default_factory=asyncio.Event)
    output_received: asyncio.Event = field(default_factory=asyncio.Event)
    reader_task: asyncio.Task[None] | None = None

    @property
    def log(self) -> list[Json]:
        """Its log so far."""
        return [json.loads(line) for line in self.lines if line.startswith("{")]

    @property
    def text(self) -> str:
        """Its output so far."""
        return "\n".join(self.lines)

    async def wait_line(self, pattern: str) -> re.Match[str]:
        """The first line that has *pattern*, once it is there.

        Raises:
            AssertionError: the process has ended without it.
        """
        while True:
            self.output_received.clear()
            for line in self.lines:
                if found := re.search(pattern, line):
                    return found
            assert self.reader_task is not None
            assert not self.reader_task.done(), self.text
            await self.output_received.wait()

    async def wait_ready(self) -> None:
        """Wait until it reports readiness.

        Raises:
            AssertionError: it has ended instead.
        """
        waiting = asyncio.create_task(self.ready.wait())
        ending = asyncio.create_task(self.process.wait())
        await asyncio.wait({waiting, ending}, return_when=asyncio.FIRST_COMPLETED)
        ending.cancel()
        waiting.cancel()
        assert self.ready.is_set(), self.text

    async def port(self, serves: str) -> int:
        """Where it serves ``health`` or ``metrics``."""
        found = await self.wait_line(rf'"serves": "[^"]*{serves}[^"]*", "address": "[^"]*:(\d+)"')
        return int(found[1])

    async def get(self, serves: str, path: str) -> tuple[int, str]:
        """Return the response to a GET."""
        url = f"http://127.0.0.1:{await self.port(serves)}{path}"
        async with aiohttp.ClientSession() as session, session.get(url) as response:
            return response.status, await response.text()

    async def stop(self, number: int = signal.SIGTERM) -> int:
        """Send a signal and wait for the end; the exit code."""
        self.process.send_signal(number)
        return await self.wait_exit()

    async def wait_exit(self) -> int:
        """Wait for the end; the exit code."""
        code = await self.process.wait()
        if self.reader_task is not None:
            await self.reader_task
        return code

    async def _read_output(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.lines.append(line.decode().rstrip("\n"))
            self.output_received.set()
        self.output_received.set()


@contextlib.asynccontextmanager
async def component(*arguments: str, **environment: str) -> AsyncIterator[ComponentProcess]:
    """``batholith ARGUMENTS``, killed at the end of the block if it still runs."""
    readable, writable = os.pipe()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "batholith.cli",
        *arguments,
        *("--log-format", "json"),
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **environment, READY_FD: str(writable)},
        pass_fds=(writable,),
    )
    os.close(writable)
    one = ComponentProcess(process)
    loop = asyncio.get_running_loop()

    def on_ready() -> None:
        loop.remove_reader(readable)
        if os.read(readable, 1):
            one.ready.set()

    loop.add_reader(readable, on_ready)
    one.reader_task = asyncio.create_task(one._read_output())
    try:
        yield one
    finally:
        if process.returncode is None:
            process.kill()
        await one.wait_exit()
        loop.remove_reader(readable)
        os.close(readable)


def kubeconfig(path: Path, credentials: Credentials) -> Path:
    """A kubeconfig file with *credentials*, which hold a token at most."""
    cluster: Json = {"server": credentials.server}
    entry = {"name": "only", "cluster": cluster}
    user = {"name": "only", "user": {"token": credentials.token or "none"}}
    context = {"name": "only", "context": {"cluster": "only", "user": "only"}}
    body = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "only",
        "clusters": [entry],
        "users": [user],
        "contexts": [context],
    }
    path.write_text(json.dumps(body))
    return path
