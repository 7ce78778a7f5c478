"""Volumes in memory: a tmpfs in the agent's own mount namespace, which only root can mount.

It outlives the agent, and is unmounted when the pod's files are deleted.
"""

import ctypes
import os
from contextlib import suppress
from pathlib import Path

from .mounting import CannotStartError, check_syscall, mount_tmpfs

_MODE = "777"
_DETACH, _NOFOLLOW = 2, 8
_LIBC = ctypes.CDLL(None, use_errno=True)


def mount_volume(directory: Path, *, size: int, owner: int | None) -> bool:
    """Mount a tmpfs of *size* bytes on an empty directory, unless there is one; return whether.

    A normal user, or root in another sandbox, cannot: the directory stays on the disk then.
    """
    if is_in_memory(directory):
        return True
    if os.geteuid() != 0 or any(directory.iterdir()):
        return False
    try:
        mount_tmpfs(str(directory), mode=_MODE, size=size, owner=owner)
    except CannotStartError:
        return False
    return True


def is_in_memory(directory: Path) -> bool:
    """Return whether a volume is mounted on *directory*."""
    return os.path.ismount(directory)


def unmount_volumes(parent: Path) -> None:
    """Unmount all volumes in *parent*; their content is lost once no container uses it."""
    with suppress(FileNotFoundError):
        for directory in parent.iterdir():
            if is_in_memory(directory):
                flags = _DETACH | _NOFOLLOW
                with suppress(CannotStartError):  # the removal of the directory reports it
                    check_syscall(_LIBC.umount2(os.fsencode(directory), flags), "umount")
