"""Computations in a copy of this process: ``fork`` copies its memory only where one side writes.

The copy sees the state at the time of the call, may change it, and ends with its result. So the
caller's state needs no lock while the copy computes, and nothing of the computation stays.
"""

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable
from contextlib import suppress

_NICE = 10
"""The copy gives way to the process that schedules."""


class CopyFailedError(RuntimeError):
    """The copy ended without a result: it failed, took too long, or could not be created."""


def start_copy(compute: Callable[[], bytes]) -> tuple[int, int]:
    """Start *compute* in a copy; return the copy's process id, and the descriptor of its result.

    No other thread may hold a lock that *compute* needs.

    Raises:
        CopyFailedError: there is no memory or process left.
    """
    read, write = os.pipe()
    try:
        pid = os.fork()
    except OSError as error:
        os.close(read)
        os.close(write)
        raise CopyFailedError(f"cannot copy the scheduler: {error.strerror}") from error
    if pid == 0:
        _run_copy(compute, write)
    os.close(write)
    return pid, read


def _run_copy(compute: Callable[[], bytes], write: int) -> None:
    """Write the result of *compute*, and end this process; its parent's connections are closed."""
    code = 1
    try:
        gc.disable()  # it would write to all objects, and so copy them
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):
            signal.signal(number, signal.SIG_DFL)
        logging.disable(logging.CRITICAL)
        os.closerange(3, write)
        os.closerange(write + 1, os.sysconf("SC_OPEN_MAX"))
        with suppress(OSError):
            os.nice(max(_NICE - os.nice(0), 0))  # a copy of a copy has it already
        result = compute()
        while result:
            result = result[os.write(write, result) :]
        code = 0
    finally:
        os._exit(code)


def compute_in_copy(compute: Callable[[], bytes]) -> bytes:
    """Return the result of *compute*, which runs in a copy; blocks until then.

    Raises:
        CopyFailedError: the copy ended without a result.
    """
    pid, read = start_copy(compute)
    with os.fdopen(read, "rb") as file:
        result = file.read()
    return _checked(result, os.waitpid(pid, 0)[1])


def end_copy(pid: int, read: int) -> None:
    """End the copy *pid*, whose result is no longer needed."""
    os.close(read)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


async def result_of(pid: int, read: int, *, timeout: float) -> bytes:
    """Return the result of the copy *pid* from the descriptor *read*.

    Raises:
        CopyFailedError: it ended without a result within *timeout* seconds.
    """
    os.set_blocking(read, False)
    loop, chunks, ended = asyncio.get_running_loop(), list[bytes](), asyncio.Event()

    def receive() -> None:
        chunk = os.read(read, 1 << 16)
        chunks.append(chunk)
        if not chunk:
            loop.remove_reader(read)
            ended.set()

    loop.add_reader(read, receive)
    try:
        async with asyncio.timeout(timeout):
            await ended.wait()
    except TimeoutError:
        raise CopyFailedError(f"it took more than {timeout:g} s") from None
    finally:
        loop.remove_reader(read)
        os.close(read)
        if not ended.is_set():
            os.kill(pid, signal.SIGKILL)
        status = (await asyncio.to_thread(os.waitpid, pid, 0))[1]
    return _checked(b"".join(chunks), status)


def _checked(result: bytes, status: int) -> bytes:
    if status:
        raise CopyFailedError(f"it ended with wait status {status}")
    return result
