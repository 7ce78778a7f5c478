"""What processes and the machine use, from ``/proc``."""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from . import oom

_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Reading:
    """CPU time used so far, in seconds, and memory used now, in bytes."""

    cpu_seconds: float
    memory: int


def read_processes(pids: Sequence[int]) -> Reading:
    """Return what the descendants of *pids* use; CPU time includes those that have ended.

    The CPU time of a process that was waited for is in that of its parent.
    """
    below = oom.descendants(pids)
    ended = sum(_ticks(pid, own=False) for pid in pids)
    ticks = ended + sum(_ticks(pid, own=True) for pid in below)
    return Reading(ticks / _TICKS, oom.memory_of(below))


def read_machine() -> Reading:
    """Return what the whole machine uses.

    Raises:
        OSError: ``/proc`` cannot be read.
    """
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]
    user, nice, system, _idle, _iowait, irq, softirq, steal = map(int, fields)
    memory = {}
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, amount = line.partition(":")
        memory[name] = int(amount.split()[0]) * 1024
    busy = user + nice + system + irq + softirq + steal
    return Reading(busy / _TICKS, memory["MemTotal"] - memory["MemAvailable"])


def _ticks(pid: int, *, own: bool) -> int:
    """Return the CPU time of the children that a process waited for, and with *own* its own."""
    with suppress(OSError):
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        times = [int(field) for field in stat.rpartition(b")")[2].split()[11:15]]
        return sum(times) if own else sum(times[2:])
    return 0
