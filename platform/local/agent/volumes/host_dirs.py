"""Directories of the host that pods may mount by hostPath and by local volumes.

`batholith up` resolves links in them once and passes the result to the agent, so that a pod that
may write to one of them cannot redirect another one.
"""

import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..runtime.mounting import mkdir_beneath, open_within
from ..runtime.rootfs import is_below

_READ_ONLY_SUFFIX = ":ro"
_KERNEL_DIRS = ("/proc", "/sys", "/dev")
_SYSTEM_DIRS = ("/boot", "/etc", "/run", "/var/run", "/tmp", "/var/tmp")  # noqa: S108
"""Directories that are never permitted only because `up` was started in them."""
_TYPES: Mapping[str, tuple[Callable[[int], bool], str]] = {
    "DirectoryOrCreate": (stat.S_ISDIR, "is not a directory"),
    "Directory": (stat.S_ISDIR, "is not a directory"),
    "FileOrCreate": (stat.S_ISREG, "is not a file"),
    "File": (stat.S_ISREG, "is not a file"),
    "Socket": (stat.S_ISSOCK, "is not a socket file"),
    "CharDevice": (stat.S_ISCHR, "is not a character device"),
    "BlockDevice": (stat.S_ISBLK, "is not a block device"),
}
"""The types of hostPath volumes, and what is wrong with something else."""


@dataclass(frozen=True, slots=True)
class HostDir:
    """A directory that pods may mount, with everything below it."""

    path: str
    """Absolute, without links."""

    read_only: bool = False

    @classmethod
    def parse(cls, text: str) -> "HostDir":
        """Return the directory of a flag ``DIR[:ro]``."""
        path = text.removesuffix(_READ_ONLY_SUFFIX)
        return cls(os.path.abspath(path), path != text)

    def __str__(self) -> str:
        """Return the flag's value."""
        return self.path + (_READ_ONLY_SUFFIX if self.read_only else "")


def resolve(text: str, *, data_dir: Path) -> HostDir:
    """Return the directory of a flag ``DIR[:ro]``, without links.

    Raises:
        ValueError: it does not exist, or pods must not mount it.
    """
    given = HostDir.parse(os.path.expanduser(text))
    path = os.path.realpath(given.path)
    problem = _problem(path, data_dir)
    if problem:
        raise ValueError(f"--mount {text}: {problem}")
    return HostDir(path, given.read_only)


def working_directory(*, data_dir: Path) -> HostDir | None:
    """Return the current directory, read-only; ``None`` if it is nothing to share unasked.

    Read-only: with write access to a project a pod could change what its user executes there.
    """
    try:
        path = os.getcwd()
        owner = os.stat(path).st_uid
    except OSError:  # it was removed
        return None
    inside_home = os.path.relpath(path, _home())
    if (
        _problem(path, data_dir)
        or owner != os.geteuid()
        or os.path.dirname(path) == "/"
        or any(is_below(path, each) for each in _SYSTEM_DIRS[:4])
        or path in _SYSTEM_DIRS
        or (inside_home.startswith(".") and not inside_home.startswith(".."))
    ):
        return None
    return HostDir(path, read_only=True)


def _problem(path: str, data_dir: Path) -> str:
    """Return why pods must not mount *path*; empty if they may."""
    try:
        is_dir = stat.S_ISDIR(os.stat(path).st_mode)
    except OSError as error:
        return error.strerror or "cannot be read"
    if not is_dir:
        return "not a directory"
    if reason := never_permitted(path):
        return reason
    data, home = os.path.realpath(data_dir), _home()
    if is_below(data, path) or is_below(path, data):
        return f"it contains, or is part of, the data directory {data}"
    if is_below(home, path):
        return f"it contains your home {home}, and so keys; name a directory below it"
    return ""


def never_permitted(path: str) -> str:
    """Return why no cluster permits *path*, whose links are not followed; empty if one may."""
    if path == "/":
        return "the root directory cannot be shared with pods"
    if any(is_below(path, each) for each in _KERNEL_DIRS):
        return "directories of the kernel cannot be shared with pods"
    return ""


def _home() -> str:
    return os.path.realpath(os.path.expanduser("~"))


def find(directories: Iterable[HostDir], path: str) -> tuple[HostDir, str] | None:
    """Return the directory that permits *path*, and the path below it; ``None``: none does.

    Of several it is the outermost writable one: what is inside of it may be replaced by a pod, and
    is resolved from there when it is mounted.
    """
    real = os.path.realpath(path)
    found = [each for each in directories if is_below(real, each.path)]
    if not found:
        return None
    best = min(found, key=lambda each: (each.read_only, each.path.count("/")))
    inside = os.path.relpath(real, best.path)
    return best, "" if inside == "." else inside


def prepare(directory: HostDir, inside: str, kind: str, *, owner: int | None) -> str:
    """Create what a hostPath volume mounts below *directory*, if its type *kind* requires that.

    Return why that is not of the type *kind*; empty if it is. What is created belongs to *owner*.

    Raises:
        OSError: it does not exist, or is outside of the directory.
    """
    if inside and not directory.read_only:
        if kind == "DirectoryOrCreate":
            mkdir_beneath(directory.path, inside, mode=0o755, owner=owner)
        elif kind == "FileOrCreate":
            _create_file(directory.path, inside, owner=owner)
    is_of_type, problem = _TYPES.get(kind, (lambda _: True, ""))
    opened = open_within(directory.path, inside)
    try:
        return "" if is_of_type(os.fstat(opened).st_mode) else problem
    finally:
        os.close(opened)


def _create_file(directory: str, path: str, *, owner: int | None) -> None:
    """Create an empty file below *directory*, unless something exists at its path.

    Raises:
        OSError: it is outside of that, its directory does not exist, or it cannot be created.
    """
    above, name = os.path.split(path)
    parent = open_within(directory, above)
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        created = os.open(name, flags, 0o600, dir_fd=parent)
    except FileExistsError:
        return
    finally:
        os.close(parent)
    try:
        if owner is not None:
            os.fchown(created, owner, owner)
        os.fchmod(created, 0o644)
    finally:
        os.close(created)
