"""Memory limits without cgroups: what a container uses is looked at, and too much ends it.

Pages of mapped files do not count: a kernel that enforces the limit would drop them before it
killed anybody. Without it the end comes up to a second late, and what a container takes for
less than that goes unseen.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ...model.quantity import parse
from ..state.core_types import Container
from . import shim
from .runs import RunDir

REASON = "OOMKilled"
_MARK_FILE = "out-of-memory"
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SMAPS_FIELDS = ("Pss_Anon:", "Pss_Shmem:")


def limit_of(container: Container) -> int | None:
    """The container's memory limit in bytes, if it has one."""
    limit = container.resources.limits.get("memory")
    return None if limit is None else parse(limit).nanos // 1_000_000_000


def is_over_limit(pid: int, limit: int) -> bool:
    """Whether what runs below the process *pid* uses more than *limit* bytes together.

    Shared pages count in parts: they are summed up only where their plain sum is too much.
    """
    below = list(_descendants(pid))
    if sum(map(_memory_usage, below)) <= limit:
        return False
    return sum(map(_process_usage, below)) > limit


def _descendants(pid: int) -> Iterator[int]:
    for child in shim.children(pid):
        yield child
        yield from _descendants(child)


def _memory_usage(pid: int) -> int:
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    return 0


def _process_usage(pid: int) -> int:
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(_SMAPS_FIELDS))
    return 0


def mark_oom_killed(run: RunDir) -> None:
    """Remember that the run is killed for its memory, whoever finds it ended."""
    with suppress(OSError):  # without the mark it is still killed, only not said why
        (run.path / _MARK_FILE).touch()


def was_oom_killed(run: RunDir) -> bool:
    """Whether the run was to be killed for its memory."""
    return (run.path / _MARK_FILE).exists()
