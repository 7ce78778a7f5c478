"""Disk space that a directory takes, which containers fill and may change at the same time."""

import os
from contextlib import suppress

_MAX_DEPTH = 200
"""Directories inside one another that are read: each takes an open file."""

_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class UnmeasurableError(Exception):
    """The size of a directory cannot be determined; the text is the reason."""


def disk_usage(path: str | os.PathLike[str]) -> int:
    """Return the bytes that *path* and all in it take on the disk; 0 if it does not exist.

    Files with several names count once; links are not followed.

    Raises:
        UnmeasurableError: directories are nested too deeply, or cannot be read.
    """
    try:
        top = os.open(path, _FLAGS)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise UnmeasurableError(f"a directory cannot be read: {error.strerror}") from error
    seen: set[tuple[int, int]] = set()
    return _usage(top, seen, depth=0)


def _usage(directory: int, seen: set[tuple[int, int]], *, depth: int) -> int:
    """Return the usage of an open directory, and close it."""
    try:
        size = os.fstat(directory).st_blocks * 512
        below = []
        with os.scandir(directory) as entries:
            for entry in entries:
                with suppress(FileNotFoundError):  # removed in between
                    found = entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        below.append(entry.name)
                        continue
                    key = found.st_dev, found.st_ino
                    if found.st_nlink == 1 or key not in seen:
                        size += found.st_blocks * 512
                        seen.add(key)
        if below and depth >= _MAX_DEPTH:
            raise UnmeasurableError(f"it has directories in more than {_MAX_DEPTH} levels")
        for name in below:
            size += _usage_below(directory, name, seen, depth=depth)
        return size
    finally:
        os.close(directory)


def _usage_below(directory: int, name: str, seen: set[tuple[int, int]], *, depth: int) -> int:
    try:
        opened = os.open(name, _FLAGS, dir_fd=directory)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise UnmeasurableError(f"a directory cannot be read: {error.strerror}") from error
    return _usage(opened, seen, depth=depth + 1)
