"""Find the clusters of this user that are up, in any directory."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from ...kube.errors import UnsafePathError
from .datadir import LOCK_NAME, DataDir
from .supervisor import DamagedStateError, read_state


def running_clusters() -> list[DataDir]:
    """Return the data directories whose supervisor runs, sorted by path.

    A supervisor holds the lock file of its directory open, which ``/proc`` shows; a list of
    directories could be outdated.
    """
    found = {root for pid in _own_processes() for root in _locked_dirs(pid)}
    return [data for data in map(DataDir, sorted(found)) if _is_up(data)]


def _own_processes() -> Iterator[int]:
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            with suppress(OSError):
                if entry.stat().st_uid == os.geteuid():
                    yield int(entry.name)


def _locked_dirs(pid: int) -> Iterator[Path]:
    descriptors = Path(f"/proc/{pid}/fd")
    with suppress(OSError):
        for name in os.listdir(descriptors):
            with suppress(OSError):
                path = Path(os.readlink(descriptors / name))
                if path.name == LOCK_NAME:
                    yield path.parent


def _is_up(data: DataDir) -> bool:
    try:
        state = read_state(data)
    except (UnsafePathError, DamagedStateError, OSError):
        return False
    return state is not None and state.supervisor.is_alive
