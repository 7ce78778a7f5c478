"""How a part lives as a process: its loop, its signals, and word of its readiness."""

import asyncio
import contextlib
import os
import signal
from collections.abc import Awaitable, Callable

import uvloop

from ..cluster.processes import die_with_parent
from ..cluster.supervisor import PARENT, READY_FD

Main = Callable[[asyncio.Event], Awaitable[None]]
"""What a part does: runs until cancelled, and sets the event when it is ready."""


def run(main: Main) -> None:
    """Run *main* until it ends, or SIGTERM or SIGINT cancels it."""
    supervisor = os.environ.get(PARENT)
    if supervisor is not None:
        die_with_parent(int(supervisor))
    uvloop.run(_until_signalled(main))


async def _until_signalled(main: Main) -> None:
    ready = asyncio.Event()
    work = asyncio.ensure_future(main(ready))
    tell = asyncio.create_task(_tell(ready))
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        if not work.cancelled():
            raise
    finally:
        tell.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await tell


async def _tell(ready: asyncio.Event) -> None:
    """Tell the supervisor, if there is one, that this part is ready."""
    descriptor = os.environ.get(READY_FD)
    if descriptor is None:
        return
    await ready.wait()
    os.write(int(descriptor), b"1")
    os.close(int(descriptor))
