"""Removal of directories that containers have filled.

Containers choose depth and modes: `shutil.rmtree` fails beyond the recursion limit and the number
of open files, and in directories that their owner cannot read.
"""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_PATH_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: Path) -> None:
    """Remove a directory and everything in it, following no links; what cannot be removed stays.

    Each directory is moved to the top before its content is read, so that neither the depth of the
    tree nor the length of its paths is limited.
    """
    with suppress(OSError), _opened(str(path), None) as top:
        blocked: set[str] = set()
        while directories := [name for name in _unlink_files(top) if name not in blocked]:
            for name in directories:
                try:
                    with _opened(name, top) as below:
                        for inner in _unlink_files(below):
                            _move_up(inner, below, top)
                    os.rmdir(name, dir_fd=top)
                except OSError:
                    blocked.add(name)
        path.rmdir()


@contextmanager
def _opened(name: str, parent: int | None) -> Iterator[int]:
    """Open a directory, and give its owner access."""
    found = os.open(name, _PATH_FLAGS, dir_fd=parent)
    try:
        with suppress(OSError):  # another user's
            os.chmod(f"/proc/self/fd/{found}", 0o700)
        descriptor = os.open(f"/proc/self/fd/{found}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        os.close(found)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _unlink_files(directory: int) -> list[str]:
    """Remove the files of a directory, and return its directories."""
    directories = []
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                directories.append(entry.name)
            else:
                with suppress(OSError):
                    os.unlink(entry.name, dir_fd=directory)
    return directories


def _move_up(name: str, parent: int, top: int) -> None:
    """Move a directory to *top*, which needs write permission on the directory itself."""
    with _opened(name, parent):
        os.rename(name, secrets.token_hex(16), src_dir_fd=parent, dst_dir_fd=top)
