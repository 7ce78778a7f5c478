"""Disk space that a start of the cluster may use when the disk is full."""

import os
from pathlib import Path

RESERVE_SIZE = 2 * 2**20
"""Bytes: some times what the files of a start need."""

MARGIN = 6 * 2**20
"""Bytes that must be free in addition before a database grows again."""


class DiskReserve:
    """A file that only allocates disk space."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def ensure(self) -> bool:
        """Allocate the reserve if the margin is free; return whether both are there."""
        try:
            disk = os.statvfs(self._path.parent)
        except OSError:
            return False
        return disk.f_bavail * disk.f_frsize >= MARGIN and allocate(self._path, RESERVE_SIZE)


def allocate(path: Path, size: int) -> bool:
    """Allocate the first *size* bytes of a file, without changing them; return whether it did."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError:
        return False
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True
