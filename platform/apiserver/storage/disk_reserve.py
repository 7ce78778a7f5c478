"""Space kept back on the disk, so that deletions can be written when it is full."""

import contextlib
import os
from pathlib import Path

RESERVE_SIZE = 8 * 2**20
"""Bytes: some hundred deletions, and what it takes to make the freed pages usable."""

_BLOCK = 512


class DiskReserve:
    """A file that holds nothing but its place."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def ensure(self) -> bool:
        """Take the place if as much again stays free; whether it is held now."""
        try:
            if self._path.exists() and self._path.stat().st_blocks * _BLOCK >= RESERVE_SIZE:
                return True
            disk = os.statvfs(self._path.parent)
            # What was just given up must not count as new space.
            return disk.f_bavail * disk.f_frsize >= 2 * RESERVE_SIZE and self._allocate()
        except OSError:
            return False

    def _allocate(self) -> bool:
        descriptor = os.open(
            self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600
        )
        try:
            os.posix_fallocate(descriptor, 0, RESERVE_SIZE)
        except OSError:
            self.release()
            return False
        finally:
            os.close(descriptor)
        return True

    def release(self) -> None:
        """Give the place back to the disk."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
