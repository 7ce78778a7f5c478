"""Run a component as a process: event loop, signals, and ready notification."""

import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import threading
from collections.abc import Awaitable, Callable
from weakref import WeakKeyDictionary

import uvloop

from ..local.agent.runtime.process_id import die_with_parent
from ..local.network.node_namespace import HOLDER, enter
from ..local.supervisor.supervisor import PARENT, READY_FD

log = logging.getLogger(__name__)

SHUTDOWN_TIMEOUT = 9.0
"""Timeout of a graceful shutdown in seconds, after which the process exits."""

Main = Callable[[asyncio.Event], Awaitable[None]]
"""Main function of a component: runs until cancelled, and sets the event once ready."""


_M_ARENA_MAX = -8
"""Parameter of glibc's mallopt."""


def run(main: Main) -> None:
    """Run *main* until it returns or a signal cancels it; a second signal exits with 1."""
    # Only the thread with the interpreter's lock allocates, so a heap for each one is a waste.
    if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:  # musl has none
        mallopt(_M_ARENA_MAX, 1)
    if holder := os.environ.get(HOLDER):
        enter(int(holder))
    supervisor = os.environ.get(PARENT)
    if supervisor is not None:
        die_with_parent(int(supervisor))
    uvloop.run(_run_until_signal(main))


def on_termination(stop: Callable[[], object], *, timeout: float | None = SHUTDOWN_TIMEOUT) -> None:
    """Call *stop* on the first SIGTERM or SIGINT, and exit with 1 on the second.

    The process also exits with 1 if it is still running *timeout* seconds after the first signal,
    even if its loop is stuck.
    """
    stopping = False

    def handle_signal() -> None:
        nonlocal stopping
        if stopping:
            exit_now("second termination signal")
        stopping = True
        log.info("stopping")
        if timeout is not None:
            watchdog = threading.Timer(timeout, exit_now, ("shutdown timeout",))
            watchdog.daemon = True
            watchdog.start()
        stop()

    _handlers[asyncio.get_running_loop()] = handle_signal
    restore_termination_handlers()


_handlers: WeakKeyDictionary[asyncio.AbstractEventLoop, Callable[[], None]] = WeakKeyDictionary()


def restore_termination_handlers() -> None:
    """Set the signal handlers of :func:`on_termination` again, after a library has replaced them;
    without any, remove those of the library."""
    loop = asyncio.get_running_loop()
    handler = _handlers.get(loop)
    for number in (signal.SIGTERM, signal.SIGINT):
        if handler is None:
            loop.remove_signal_handler(number)
        else:
            loop.add_signal_handler(number, handler)


def exit_now(reason: str) -> None:
    """Exit with 1 immediately, without waiting for the loop and threads."""
    log.error("exiting immediately", extra={"reason": reason})
    os._exit(1)


async def _run_until_signal(main: Main) -> None:
    ready = asyncio.Event()
    work = asyncio.ensure_future(main(ready))
    notifier = asyncio.create_task(_notify_ready(ready))
    on_termination(work.cancel)
    try:
        await work
    except asyncio.CancelledError:
        if not work.cancelled():
            raise
    finally:
        notifier.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await notifier


async def _notify_ready(ready: asyncio.Event) -> None:
    """Notify the supervisor, if any, that this component is ready."""
    descriptor = os.environ.get(READY_FD)
    if descriptor is None:
        return
    await ready.wait()
    os.write(int(descriptor), b"1")
    os.close(int(descriptor))
