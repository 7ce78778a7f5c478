"""Processes that outlive or follow others: who is alive, who dies with whom."""

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
    """A process that cannot be mistaken for a later one with the same number."""

    pid: int
    start_time: int
    """Clock ticks from boot to its start (field 22 of ``/proc/PID/stat``)."""

    boot: str = ""
    """Which boot that was; empty where an older version noted the process."""

    @property
    def is_alive(self) -> bool:
        """Whether it runs (a zombie does not)."""
        return self.boot in ("", boot_id()) and start_time(self.pid) == self.start_time


def identify(pid: int) -> ProcessId | None:
    """The process that *pid* is now, or ``None``."""
    started = start_time(pid)
    return None if started is None else ProcessId(pid, started, boot_id())


def terminate(process: ProcessId, *, timeout: float) -> None:
    """End *process*: SIGTERM, and after *grace* seconds SIGKILL. Blocks until it is gone."""
    deadline = time.monotonic() + timeout
    number = signal.SIGTERM if timeout > 0 else signal.SIGKILL
    while process.is_alive:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process.pid, number)
        while process.is_alive and (number == signal.SIGKILL or time.monotonic() < deadline):
            time.sleep(0.01)  # not our child: there is nothing to wait on
        number = signal.SIGKILL


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when *parent*, its parent, dies (Linux).

    SIGKILL, so that what the part would do at an orderly end (such as ending pods) is left to
    whoever starts next.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        sys.exit("the supervisor is gone")
