"""How a part lives as a process: its loop, its signals, and word of its readiness."""

import asyncio
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable

import uvloop

from ..agent.runtime.process_id import die_with_parent
from ..kube.gc_tuning import raise_gc_thresholds
from ..local.supervisor import PARENT, READY_FD

log = logging.getLogger(__name__)

SHUTDOWN_TIMEOUT = 9.0
"""Seconds that a part gets to stop in order, before it is ended all the same."""

Main = Callable[[asyncio.Event], Awaitable[None]]
"""What a part does: runs until cancelled, and sets the event when it is ready."""


def run(main: Main) -> None:
    """Run *main* until it ends, or SIGTERM or SIGINT cancels it; a second signal exits with 1."""
    supervisor = os.environ.get(PARENT)
    if supervisor is not None:
        die_with_parent(int(supervisor))
    raise_gc_thresholds()
    uvloop.run(_run_until_signal(main))


def on_termination(stop: Callable[[], object], *, timeout: float | None = SHUTDOWN_TIMEOUT) -> None:
    """Have the first SIGTERM or SIGINT call *stop* on the running loop, and a second one exit.

    If the process has not ended *limit* seconds after the first, it exits with 1 as well; so it
    does when its loop is stuck.
    """
    asked = False

    def handle_signal() -> None:
        nonlocal asked
        if asked:
            exit_now("told to stop a second time")
        asked = True
        log.info("stopping")
        if timeout is not None:
            watchdog = threading.Timer(timeout, exit_now, ("did not stop in time",))
            watchdog.daemon = True
            watchdog.start()
        stop()

    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, handle_signal)


def exit_now(reason: str) -> None:
    """End the process here and now, whatever its loop and threads do."""
    log.error("ended at once", extra={"why": reason})
    os._exit(1)


async def _run_until_signal(main: Main) -> None:
    ready = asyncio.Event()
    work = asyncio.ensure_future(main(ready))
    tell = asyncio.create_task(_notify_ready(ready))
    on_termination(work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        if not work.cancelled():
            raise
    finally:
        tell.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await tell


async def _notify_ready(ready: asyncio.Event) -> None:
    """Tell the supervisor, if there is one, that this part is ready."""
    descriptor = os.environ.get(READY_FD)
    if descriptor is None:
        return
    await ready.wait()
    os.write(int(descriptor), b"1")
    os.close(int(descriptor))
