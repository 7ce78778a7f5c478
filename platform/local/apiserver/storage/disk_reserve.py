"""Reserved disk space, so that deletions can be written when the disk is full."""

import contextlib
import os
from pathlib import Path

RESERVE_SIZE = 10 * 2**20
"""Bytes: what a checkpoint adds to the database, or :data:`LOG_SIZE`, and :data:`KEPT_SIZE`."""

LOG_SIZE = 8 * 2**20
"""Bytes of the write-ahead log on a full disk: more than the largest group of writes needs."""

KEPT_SIZE = 2 * 2**20
"""Bytes that stay reserved on a full disk, for the pages that deletions add to the database."""

FREE_PAGES_SIZE = 7 * 2**20
"""Bytes of free pages that suffice for one more group of writes without the reserve."""

MARGIN = 6 * 2**20
"""Bytes that must be free in addition to the reserve before writes are accepted again."""

_BLOCK = 512


class DiskReserve:
    """A file that only allocates disk space."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def ensure(self) -> bool:
        """Allocate the reserve if it fits; return whether it is allocated."""
        return self._is_allocated() or (self.fits() and self.allocate(RESERVE_SIZE))

    def fits(self, *, freed: int = 0) -> bool:
        """Return whether the reserve and the margin fit once *freed* more bytes are free."""
        try:
            disk = os.statvfs(self._path.parent)
        except OSError:
            return False
        return disk.f_bavail * disk.f_frsize + freed >= RESERVE_SIZE + MARGIN

    def _is_allocated(self) -> bool:
        try:
            return self._path.stat().st_blocks * _BLOCK >= RESERVE_SIZE
        except OSError:
            return False

    def allocate(self, size: int) -> bool:
        """Allocate *size* bytes, without a margin; return whether they are allocated."""
        if not allocate(self._path, size):
            self.release()
            return False
        return True

    def release(self) -> None:
        """Release the reserve."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)


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
