"""Memory limits without cgroups: the agent polls memory usage and kills containers above the limit.

Pages of mapped files do not count, because a kernel that enforces the limit would reclaim them
first. The polling interval of a second delays the kill, and a shorter peak is not detected.
"""

import os
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
    """Return the container's memory limit in bytes, if any."""
    limit = container.resources.limits.get("memory")
    return None if limit is None else parse(limit).nanos // 1_000_000_000


def is_over_limit(pid: int, limit: int) -> bool:
    """Return whether the descendants of *pid* together use more than *limit* bytes.

    Only if their resident sizes exceed it are the proportional set sizes read, which are exact.
    """
    descendants = _descendants(pid)
    if sum(map(_resident_size, descendants)) <= limit:
        return False
    return sum(map(_proportional_size, descendants)) > limit


def _descendants(pid: int) -> set[int]:
    """Return the descendants of *pid*; a container may nest its processes to any depth."""
    found: set[int] = set()
    parents = [pid]
    while parents:
        # A process id that is used again during the walk must not lead it in a circle.
        fresh = [child for child in shim.children(parents.pop()) if child not in found]
        found.update(fresh)
        parents += fresh
    return found


def _resident_size(pid: int) -> int:
    with suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE
    return 0


def _proportional_size(pid: int) -> int:
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(_SMAPS_FIELDS))
    return 0


def mark_oom_killed(run: RunDir) -> None:
    """Record on disk that the run is killed for its memory usage."""
    with suppress(OSError):  # without the mark only the reason is lost
        (run.path / _MARK_FILE).touch()


def was_oom_killed(run: RunDir) -> bool:
    """Return whether the run was killed for its memory usage."""
    return (run.path / _MARK_FILE).exists()
