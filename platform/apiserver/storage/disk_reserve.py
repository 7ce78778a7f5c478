"""Reserved disk space, so that deletions can be written when the disk is full."""

import contextlib
import os
from pathlib import Path

RESERVE_SIZE = 8 * 2**20
"""Bytes: some hundred deletions, and the overhead of reusing the freed pages."""

_BLOCK = 512


class DiskReserve:
    """A file that only allocates disk space."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def ensure(self) -> bool:
        """Allocate the reserve if as much again stays free; return whether it is allocated."""
        try:
            if self._path.exists() and self._path.stat().st_blocks * _BLOCK >= RESERVE_SIZE:
                return True
            disk = os.statvfs(self._path.parent)
            # Space that was just released must not count as free.
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
        """Release the reserve."""
        with contextlib.suppress(OSError):
            self._path.unlink(missing_ok=True)
