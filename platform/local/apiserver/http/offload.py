"""Run work off the event loop that takes too long for it.

Python code runs in a thread: the interpreter switches threads every few milliseconds. Conversion
of YAML holds the interpreter lock, so it runs in a separate process.
"""

import asyncio
import contextlib
import contextvars
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar
from weakref import WeakKeyDictionary

from ..errors.status import bad_request, internal
from . import yaml_process

YAML_OFFLOAD_THRESHOLD = 8 * 1024
"""Bytes of YAML from which it is handled off the loop: it takes some fifty times as long."""

_MAX_PROCESSES = 2
"""Maximum processes that convert YAML concurrently."""

_CHUNK = 256 * 1024
_FAILED = "cannot convert YAML"

T = TypeVar("T")
_threads = ThreadPoolExecutor(2, thread_name_prefix="large")
_slots: "WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore]" = WeakKeyDictionary()


async def run_in_thread(work: Callable[[], T]) -> T:
    """Run *work* in a thread, with the context variables of the caller."""
    context = contextvars.copy_context()
    return await asyncio.get_running_loop().run_in_executor(_threads, context.run, work)


async def yaml_to_json(body: bytes) -> bytes:
    """Convert YAML to JSON.

    Raises:
        StatusError: 400, it cannot be decoded.
    """
    async with _yaml_process("load") as process:
        out, problem = await process.communicate(body)
        if process.returncode == 1:
            raise bad_request(f"the object provided is unrecognized: {problem.decode()}")
        if process.returncode:
            raise bad_request("the object provided is unrecognized: it takes too long to read")
        return out


async def json_to_yaml(data: bytes) -> bytes:
    """Convert JSON to YAML.

    Raises:
        StatusError: 500.
    """
    async with _yaml_process("dump") as process:
        out, _ = await process.communicate(data)
        if process.returncode:
            raise internal(_FAILED)
        return out


async def yaml_items(chunks: Iterable[bytes]) -> AsyncGenerator[bytes]:
    """Yield the items of a YAML list; *chunks* are JSON objects, one per line.

    Raises:
        StatusError: 500.
    """
    async with _yaml_process("dump-items") as process:
        input_, output = process.stdin, process.stdout
        if input_ is None or output is None:
            raise internal(_FAILED)

        async def feed() -> None:
            for chunk in chunks:
                input_.write(chunk)
                await input_.drain()
            input_.close()

        feeding = asyncio.create_task(feed())
        try:
            while piece := await output.read(_CHUNK):
                yield piece
            await feeding
        finally:
            feeding.cancel()
            with contextlib.suppress(asyncio.CancelledError, ConnectionError):
                await feeding
        if await process.wait():
            raise internal(_FAILED)


@contextlib.asynccontextmanager
async def _yaml_process(command: str) -> AsyncIterator[asyncio.subprocess.Process]:
    loop = asyncio.get_running_loop()
    async with _slots.setdefault(loop, asyncio.Semaphore(_MAX_PROCESSES)):
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", yaml_process.__name__, command),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
