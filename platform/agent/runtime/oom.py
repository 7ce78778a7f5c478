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
from .runs import RunFolder

REASON = "OOMKilled"
_MARK = "out-of-memory"
_PAGE = os.sysconf("SC_PAGE_SIZE")
_COUNTED = ("Pss_Anon:", "Pss_Shmem:")


def limit_of(container: Container) -> int | None:
    """The container's memory limit in bytes, if it has one."""
    limit = container.resources.limits.get("memory")
    return None if limit is None else parse(limit).nanos // 1_000_000_000


def exceeds(pid: int, limit: int) -> bool:
    """Whether what runs below the process *pid* uses more than *limit* bytes together.

    Shared pages count in parts: they are summed up only where their plain sum is too much.
    """
    below = list(_descendants(pid))
    if sum(map(_resident, below)) <= limit:
        return False
    return sum(map(_own_part, below)) > limit


def _descendants(pid: int) -> Iterator[int]:
    for child in shim.children(pid):
        yield child
        yield from _descendants(child)


def _resident(pid: int) -> int:
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    return 0


def _own_part(pid: int) -> int:
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(_COUNTED))
    return 0


def condemn(run: RunFolder) -> None:
    """Remember that the run is killed for its memory, whoever finds it ended."""
    with suppress(OSError):  # without the mark it is still killed, only not said why
        (run.path / _MARK).touch()


def was_condemned(run: RunFolder) -> bool:
    """Whether the run was to be killed for its memory."""
    return (run.path / _MARK).exists()
