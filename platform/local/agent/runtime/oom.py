"""Memory limits without cgroups: the agent polls memory usage and kills containers above the limit.

Pages of mapped files do not count, because a kernel that enforces the limit would reclaim them
first; those of files in a tmpfs count, mapped or not. The polling interval of a second delays the
kill, and a shorter peak is not detected.
"""

import os
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ....model.pod_resources import Resources
from ....model.quantity import parse
from . import shim, tmpfs
from .runs import RunDir

REASON = "OOMKilled"
_MARK_FILE = "out-of-memory"
_PAGE = os.sysconf("SC_PAGE_SIZE")
_SMAPS_FIELDS = ("Pss_Anon:", "Pss_Shmem:")


def limit_of(resources: Resources) -> int | None:
    """Return the memory limit of a container in bytes, if any."""
    limit = resources.limits.get("memory")
    return None if limit is None else bytes_of(limit)


def bytes_of(quantity: str | float) -> int:
    """Return a quantity of memory in bytes."""
    return parse(quantity).nanos // 1_000_000_000


def is_over_limit(pids: Sequence[int], limit: int) -> bool:
    """Return whether the descendants of *pids* and their tmpfs use more than *limit* bytes.

    Only if their resident sizes exceed it are the proportional set sizes read, which are exact, and
    only then which files of a tmpfs are also in those.
    """
    processes = descendants(pids)
    files = tmpfs.usage(processes)
    if files.size + sum(map(_resident_size, processes)) <= limit:
        return False
    size = files.size + sum(map(_proportional_size, processes))
    if size <= limit:
        return False
    return size - _counted_twice(processes, files) > limit


def memory_of(processes: Sequence[int]) -> int:
    """Return the bytes that *processes* and their tmpfs use, as the limit counts them."""
    files = tmpfs.usage(processes)
    size = files.size + sum(map(_proportional_size, processes))
    return max(size - _counted_twice(processes, files), 0)


def _counted_twice(processes: Sequence[int], files: tmpfs.TmpfsUsage) -> int:
    """Return the bytes of files in a tmpfs that are also in the sizes of processes."""
    return sum(tmpfs.mapped_size(each, files.devices) for each in processes)


def descendants(pids: Sequence[int]) -> list[int]:
    """Return the descendants of *pids*, parents first; processes may be nested to any depth."""
    found: dict[int, None] = {}
    parents = deque(pids)
    while parents:
        # A process id that is used again during the walk must not lead it in a circle.
        fresh = [child for child in shim.children(parents.popleft()) if child not in found]
        found.update(dict.fromkeys(fresh))
        parents += fresh
    return list(found)


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
