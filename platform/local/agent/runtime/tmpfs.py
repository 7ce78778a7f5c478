"""Memory of the files in a container's tmpfs, which no process's memory usage includes."""

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice

from . import mounting

_INIT_DEPTH = 2
"""Processes down to the sandbox's init: bubblewrap itself is its parent."""

_BYTES_PER_INODE = 1024
"""Kernel memory of a file or directory without content, approximately."""


@dataclass(frozen=True, slots=True)
class TmpfsUsage:
    """Usage of all tmpfs of a container."""

    size: int = 0
    """Bytes."""

    devices: frozenset[int] = frozenset()
    """Their device numbers, as of files in them."""


def usage(processes: Iterable[int]) -> TmpfsUsage:
    """Return the usage of the tmpfs of a container, of which *processes* are parents first.

    Only in the mount namespace of the sandbox's init can the pod mount nothing, for example no
    file system that blocks its readers.
    """
    init = next(filter(_is_init, islice(processes, _INIT_DEPTH)), None)
    if init is None:
        return TmpfsUsage()
    paths = dict(_mounts(str(init)))
    for device, _ in _mounts("self"):
        paths.pop(device, None)  # a directory of the host
    used = {device: _used(init, path, device) for device, path in paths.items()}
    return TmpfsUsage(sum(used.values()), frozenset(used))


def mapped_size(pid: int, devices: frozenset[int]) -> int:
    """Return the bytes of files of *devices* in the proportional set size of a process."""
    total, counts = 0, False
    with suppress(OSError), open(f"/proc/{pid}/smaps", errors="replace") as file:
        for name, *fields in map(str.split, file):
            if not name.endswith(":"):  # the first line of a mapping: its device in hexadecimal
                major, _, minor = fields[2].partition(":")
                counts = os.makedev(int(major, 16), int(minor, 16)) in devices
            elif counts and name == "Pss:":
                total += int(fields[0]) * 1024
            elif counts and name == "Anonymous:":  # changed pages of a private mapping
                total -= int(fields[0]) * 1024
    return max(total, 0)


def _is_init(pid: int) -> bool:
    """Return whether a process is the first one of its pid namespace."""
    with suppress(OSError), open(f"/proc/{pid}/status", errors="replace") as file:
        ids = next((line.split()[1:] for line in file if line.startswith("NSpid:")), [])
        return len(ids) > 1 and ids[-1] == "1"
    return False


def _mounts(pid: str) -> Iterator[tuple[int, str]]:
    """Yield device number and path of the tmpfs that a process sees."""
    with suppress(OSError), open(f"/proc/{pid}/mountinfo", errors="surrogateescape") as file:
        for line in file:
            fields = line.split()
            if fields[fields.index("-") + 1] == "tmpfs":
                major, _, minor = fields[2].partition(":")
                path = fields[4].replace(r"\040", " ")
                yield os.makedev(int(major), int(minor)), path


def _used(pid: int, path: str, device: int) -> int:
    with suppress(OSError):
        root = os.open(f"/proc/{pid}/root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            opened = mounting.open_in_root(root, path)
        finally:
            os.close(root)
        try:
            if os.fstat(opened).st_dev == device:  # else another mount covers it
                found = os.fstatvfs(opened)
                inodes = found.f_files - found.f_ffree
                return (found.f_blocks - found.f_bfree) * found.f_frsize + inodes * _BYTES_PER_INODE
        finally:
            os.close(opened)
    return 0
