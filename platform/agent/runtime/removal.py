"""Removal of directories that pods have filled."""

import os
import secrets
from contextlib import suppress
from pathlib import Path

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_OPEN = 64
"""Levels of directories that are open at the same time."""


def remove_tree(path: Path) -> None:
    """Delete a directory with its content, as far as the kernel permits; blocks.

    Unlike shutil.rmtree, it removes trees of any depth (a pod can create more levels than Python
    permits recursive calls, and than a process may open), and directories without permissions.
    Nothing may write to the directory at the same time.
    """
    try:
        top = os.open(path, _DIRECTORY)
    except OSError:  # it does not exist, or is a link
        return
    # Descriptor, name and remaining directories of each level.
    levels = [(top, "", _remove_files(top))]
    while levels:
        directory, name, remaining = levels[-1]
        if not remaining:
            os.close(directory)
            levels.pop()
            with suppress(OSError):  # a file in it could not be removed
                if levels:
                    os.rmdir(name, dir_fd=levels[-1][0])
                else:
                    path.rmdir()
            continue
        child = remaining.pop()
        with suppress(OSError):
            os.chmod(child, 0o700, dir_fd=directory)  # also a move writes to it
            if len(levels) < _MAX_OPEN:
                opened = os.open(child, _DIRECTORY, dir_fd=directory)
                levels.append((opened, child, _remove_files(opened)))
            else:
                moved = secrets.token_hex(16)
                os.rename(child, moved, src_dir_fd=directory, dst_dir_fd=top)
                levels[0][2].append(moved)


def _remove_files(directory: int) -> list[str]:
    """Remove the files in *directory*; return the names of the directories in it."""
    found = []
    for name in os.listdir(directory):
        try:
            os.unlink(name, dir_fd=directory)
        except IsADirectoryError:
            found.append(name)
        except OSError:
            continue  # it stays, and so do the directories above
    return found
