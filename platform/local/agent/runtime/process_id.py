"""Identity of processes across pid reuse and reboots; termination; death with the parent."""

import contextlib
import ctypes
import os
import signal
import sys
import time

import msgspec

from .shim import boot_id, start_time

_PR_SET_PDEATHSIG = 1


class ProcessId(msgspec.Struct, frozen=True):
    """A process, distinct from a later one with the same pid."""

    pid: int
    start_time: int
    """Clock ticks from boot to the start of the process (field 22 of ``/proc/PID/stat``)."""

    boot: str = ""
    """Boot id of the machine; empty in records of older versions."""

    @property
    def is_alive(self) -> bool:
        """Whether the process is running; a zombie is not."""
        return self.boot in ("", boot_id()) and start_time(self.pid) == self.start_time


def identify(pid: int) -> ProcessId | None:
    """Return the current process with *pid*, or ``None``."""
    started = start_time(pid)
    return None if started is None else ProcessId(pid, started, boot_id())


def terminate(process: ProcessId, *, timeout: float) -> None:
    """Send SIGTERM, and after *timeout* seconds SIGKILL. Blocks until the process has exited."""
    deadline = time.monotonic() + timeout
    number = signal.SIGTERM if timeout > 0 else signal.SIGKILL
    while process.is_alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
        while process.is_alive and (number == signal.SIGKILL or time.monotonic() < deadline):
            time.sleep(0.01)  # not a child of this process, which could be waited for
        number = signal.SIGKILL


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent *parent* dies.

    SIGKILL prevents a graceful shutdown, which would stop pods: the next supervisor decides that.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        sys.exit("the supervisor has exited")
