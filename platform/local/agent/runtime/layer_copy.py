"""Copies of the layers of an image, for machines on which overlayfs cannot stack them.

Imported by `image_root`, so of Batholith it imports only `removal`. The layers are hostile: no link
in them is followed.
"""

import os
import stat
from collections.abc import Iterable
from pathlib import Path

if __package__:
    from .removal import remove_tree
else:
    from removal import remove_tree  # type: ignore[import-not-found, no-redef]

_DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPAQUE = "user.overlay.opaque"


def copy_layers(directories: Iterable[str], to: int, shift: int) -> None:
    """Copy layers, the lowest first, to the open directory *to*, with all ids plus *shift*.

    Not linked: a container may write to its files.
    """
    for directory in directories:
        layer = os.open(directory, _DIR_FLAGS)
        links: dict[tuple[int, int], str] = {}
        waiting = [""]
        while waiting:
            waiting += _copy_entries(layer, to, waiting.pop(), shift, links)
        os.close(layer)


def _copy_entries(
    layer: int, to: int, path: str, shift: int, links: dict[tuple[int, int], str]
) -> list[str]:
    """Copy what a layer has in the directory *path*; return its directories."""
    below = []
    source, target = (_open_names(top, path) for top in (layer, to))
    try:
        if _is_opaque(source):
            _clear(target)
        for name in os.listdir(source):
            found = os.stat(name, dir_fd=source, follow_symlinks=False)
            there = _lstat(name, target)
            is_dir = stat.S_ISDIR(found.st_mode)
            if there is not None and not (is_dir and stat.S_ISDIR(there.st_mode)):
                _remove(name, target)
                there = None
            inner = f"{path}/{name}" if path else name
            if is_dir:
                if there is None:
                    os.mkdir(name, 0o700, dir_fd=target)
                below.append(inner)
            elif not _is_whiteout(found):
                _copy_file(name, found, source, (to, target), inner, links)
            else:
                continue
            _copy_attributes(name, found, target, shift)
    finally:
        os.close(source)
        os.close(target)
    return below


def _copy_file(
    name: str,
    found: os.stat_result,
    source: int,
    targets: tuple[int, int],
    path: str,
    links: dict[tuple[int, int], str],
) -> None:
    """Copy a file to the second of *targets*; *links* are files with several names."""
    top, target = targets
    key = (found.st_dev, found.st_ino)
    if key in links:
        above, _, last = links[key].rpartition("/")
        directory = _open_names(top, above)
        os.link(last, name, src_dir_fd=directory, dst_dir_fd=target, follow_symlinks=False)
        os.close(directory)
        return
    if stat.S_ISLNK(found.st_mode):
        os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
    elif stat.S_ISFIFO(found.st_mode):
        os.mkfifo(name, 0o600, dir_fd=target)
    elif stat.S_ISREG(found.st_mode):
        _copy_content(name, found.st_size, source, target)
    if found.st_nlink > 1:
        links[key] = path


def _copy_content(name: str, size: int, source: int, target: int) -> None:
    read = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    write = os.open(name, flags, 0o600, dir_fd=target)
    try:
        while size > 0 and (copied := os.copy_file_range(read, write, size)):  # shares blocks
            size -= copied
    finally:
        os.close(read)
        os.close(write)


def _copy_attributes(name: str, found: os.stat_result, target: int, shift: int) -> None:
    if shift:
        ids = (found.st_uid + shift, found.st_gid + shift)
        os.chown(name, *ids, dir_fd=target, follow_symlinks=False)
    if not stat.S_ISLNK(found.st_mode):
        mode = stat.S_IMODE(found.st_mode) & 0o1777
        # Its entries follow; a normal user needs access to it until then, and keeps it.
        access = stat.S_IRWXU if stat.S_ISDIR(found.st_mode) and not shift else 0
        os.chmod(name, mode | access, dir_fd=target)
    times = (found.st_mtime_ns, found.st_mtime_ns)
    os.utime(name, ns=times, dir_fd=target, follow_symlinks=False)


def _open_names(top: int, path: str) -> int:
    """Open a directory below *top* without following links."""
    current = os.dup(top)
    for name in filter(None, path.split("/")):
        above, current = current, os.open(name, _DIR_FLAGS, dir_fd=current)
        os.close(above)
    return current


def _lstat(name: str, directory: int) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return None


def _is_whiteout(found: os.stat_result) -> bool:
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def _is_opaque(directory: int) -> bool:
    try:
        return os.getxattr(directory, _OPAQUE) == b"y"
    except OSError:
        return False


def _clear(directory: int) -> None:
    for name in os.listdir(directory):
        _remove(name, directory)


def _remove(name: str, directory: int) -> None:
    """Remove a file, or a directory with everything in it."""
    if stat.S_ISDIR(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode):
        remove_tree(Path(f"/proc/self/fd/{directory}", name))
    else:
        os.unlink(name, dir_fd=directory)
