"""Directories of unpacked layers, in the format of overlayfs, read and written by descriptor.

No link is followed by the kernel: each component is opened below the one before, and links are
resolved here, as inside the image. So nothing outside of the layers is reached, although all that
they contain is hostile. A file that a layer removes is a character device 0:0; a directory that
replaces all below has the attribute `OPAQUE`.
"""

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ..runtime.removal import remove_tree
from .errors import ImageError

OPAQUE = "user.overlay.opaque"
_DIR_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_MAX_LINKS = 40
MAX_PATH = 4096
"""Bytes of a path, as in the kernel."""

Names = tuple[str, ...]
"""Components of a path, without links."""


@dataclass(frozen=True, slots=True)
class Attributes:
    """Owner, mode (with neither set-user-ID nor set-group-ID bit) and time of a file."""

    uid: int = 0
    gid: int = 0
    mode: int = 0o755
    mtime: int = 0
    """Nanoseconds."""


def is_whiteout(found: os.stat_result) -> bool:
    """Return whether a file marks another one as removed."""
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def is_opaque(directory: int) -> bool:
    """Return whether an open directory hides those below it."""
    with suppress(OSError):
        return os.getxattr(directory, OPAQUE) == b"y"
    return False


class LayerStack:
    """Layers open as directories, the uppermost first, read as one tree."""

    def __init__(self, layers: Sequence[int]) -> None:
        self._layers = layers

    def resolve(self, path: Sequence[str], *, last: bool = True) -> Names:
        """Return *path* without links; what does not exist is as it is.

        Args:
            path: its components.
            last: whether to resolve a link at the end.

        Raises:
            ImageError: too many links, or the path is too long.
        """
        pending, done, links = list(reversed(path)), list[str](), 0
        while pending:
            name = pending.pop()
            if name in ("", "."):
                continue
            if name == "..":
                del done[-1:]
                continue
            target = None if not pending and not last else self.read_link((*done, name))
            if target is None:
                done.append(name)
                continue
            links += 1
            if target.startswith("/"):
                done.clear()
            pending += reversed(target.split("/"))
            if links > _MAX_LINKS or len(pending) > MAX_PATH:
                raise ImageError(f"too many links in {'/'.join(path)[:200]!r}")
        if sum(map(len, done)) + len(done) > MAX_PATH:
            raise ImageError(f"a path is longer than {MAX_PATH} bytes: {'/'.join(path)[:200]!r}")
        return tuple(done)

    def read_link(self, names: Names) -> str | None:
        """Return the target of a link; ``None`` if there is none at *names*."""
        with self.parent(names) as found:
            if found is not None and stat.S_ISLNK(found[1].st_mode):
                return os.readlink(names[-1], dir_fd=found[0])
        return None

    def stat(self, names: Names) -> os.stat_result | None:
        """Return the status of *names*, which contain no links; ``None`` if it does not exist."""
        with self.parent(names) as found:
            return found[1] if found else None

    def read_file(self, path: str, limit: int) -> bytes:
        """Return the content of a file, at most *limit* bytes; empty if there is none."""
        try:
            names = self.resolve(path.split("/"))
        except ImageError:  # too many links
            return b""
        with self.parent(names) as found:
            if found is None or not stat.S_ISREG(found[1].st_mode):
                return b""
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(names[-1], flags, dir_fd=found[0]), "rb") as file:
                return file.read(limit)

    @contextmanager
    def parent(self, names: Names) -> Iterator[tuple[int, os.stat_result] | None]:
        """Open the directory that contains *names* in the uppermost layer that has it."""
        for layer in self._layers:
            current = os.dup(layer)
            try:
                found, hidden = None, False
                for number, name in enumerate(names, 1):
                    hidden = hidden or is_opaque(current)
                    found = _lstat(name, current)
                    if found is None or number == len(names):
                        break
                    if not stat.S_ISDIR(found.st_mode):
                        yield None
                        return
                    above, current = current, os.open(name, _DIR_FLAGS, dir_fd=current)
                    os.close(above)
                if found is not None or hidden:
                    yield None if found is None or is_whiteout(found) else (current, found)
                    return
            finally:
                os.close(current)
        yield None


def _lstat(name: str, directory: int) -> os.stat_result | None:
    with suppress(FileNotFoundError):
        return os.stat(name, dir_fd=directory, follow_symlinks=False)
    return None


class LayerWriter:
    """Fills the directory *top* with one layer, which lies above *parents*, the nearest first.

    Modes and times of directories are set by `finish`: until then their owner can write to them.
    """

    def __init__(self, top: int, parents: Sequence[int]) -> None:
        self._top = top
        self._parents = parents
        self._all = LayerStack([top, *parents])
        self._below = LayerStack(parents)
        self._dirs: dict[Names, Attributes] = {}
        self._resolved: dict[Names, Names] = {}

    def add_dir(self, path: Names, attributes: Attributes) -> None:
        """Create a directory, or change the attributes of an existing one."""
        if not path:
            self._set_dir((), attributes)
            return
        with self._parent(path) as (names, above):
            self._create_dir(names, above, attributes)

    def add_file(
        self, path: Names, attributes: Attributes, content: Callable[[IO[bytes]], None]
    ) -> None:
        """Create a file, which *content* writes."""
        with self._parent(path) as (names, above):
            self._remove(names, above)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(names[-1], flags, 0o600, dir_fd=above), "wb") as file:
                content(file)
                file.flush()
                _chown(file.fileno(), attributes)
                os.fchmod(file.fileno(), attributes.mode)
                os.utime(file.fileno(), ns=(attributes.mtime, attributes.mtime))

    def add_link(self, path: Names, target: str, attributes: Attributes) -> None:
        """Create a symbolic link."""
        with self._parent(path) as (names, above):
            self._remove(names, above)
            os.symlink(target, names[-1], dir_fd=above)
            self._set_special(names[-1], above, attributes)

    def add_fifo(self, path: Names, attributes: Attributes) -> None:
        """Create a named pipe."""
        with self._parent(path) as (names, above):
            self._remove(names, above)
            os.mkfifo(names[-1], 0o600, dir_fd=above)
            os.chmod(names[-1], attributes.mode, dir_fd=above)
            self._set_special(names[-1], above, attributes)

    def add_hard_link(self, path: Names, target: Names) -> None:
        """Create another name of a file of this layer.

        Raises:
            ImageError: there is none.
        """
        source = self._all.resolve(target, last=False)
        with self._parent(path) as (names, above):
            if names == source:
                return
            try:
                with self._open_dir(source[:-1]) as below:
                    found = _lstat(source[-1], below) if source else None
                    if found is None or stat.S_ISDIR(found.st_mode) or is_whiteout(found):
                        raise FileNotFoundError
                    self._remove(names, above)
                    os.link(
                        source[-1],
                        names[-1],
                        src_dir_fd=below,
                        dst_dir_fd=above,
                        follow_symlinks=False,
                    )
            except (FileNotFoundError, NotADirectoryError):
                raise ImageError(
                    f"{_shown(path)} is a hard link to {_shown(target)}, which is not in its layer"
                ) from None

    def add_whiteout(self, path: Names) -> None:
        """Remove what the layers below have at *path*."""
        with self._parent(path) as (names, above):
            found = _lstat(names[-1], above)
            if found is None:
                os.mknod(names[-1], stat.S_IFCHR, 0, dir_fd=above)
            elif stat.S_ISDIR(found.st_mode):
                self.add_opaque(names)

    def add_opaque(self, path: Names) -> None:
        """Remove what the layers below have in the directory *path*."""
        names = self._all.resolve(path)
        self._ensure_dir(names)
        with self._open_dir(names) as opened:
            os.setxattr(opened, OPAQUE, b"y")
        self._resolved.clear()

    def finish(self) -> None:
        """Set modes and times of the directories."""
        self._dirs.setdefault((), self._below_root())
        for names in sorted(self._dirs, key=len, reverse=True):
            attributes = self._dirs[names]
            with suppress(FileNotFoundError, NotADirectoryError), self._open_dir(names) as opened:
                os.fchmod(opened, attributes.mode)
                os.utime(opened, ns=(attributes.mtime, attributes.mtime))

    def _below_root(self) -> Attributes:
        """Return the attributes of the root directory below; `LayerStack` has names in it only."""
        return _attributes(os.fstat(self._parents[0]) if self._parents else None)

    @contextmanager
    def _parent(self, path: Names) -> Iterator[tuple[Names, int]]:
        """Open the directory of *path*, created if necessary; also yield the path without links."""
        above = path[:-1]
        if above not in self._resolved:
            if len(self._resolved) > MAX_PATH:
                self._resolved.clear()
            resolved = self._all.resolve(above)
            self._ensure_dir(resolved)
            self._resolved[above] = resolved
        resolved = self._resolved[above]
        with self._open_dir(resolved) as opened:
            yield (*resolved, path[-1]), opened

    @contextmanager
    def _open_dir(self, names: Names) -> Iterator[int]:
        current = os.dup(self._top)
        try:
            for name in names:
                above, current = current, os.open(name, _DIR_FLAGS, dir_fd=current)
                os.close(above)
            yield current
        finally:
            os.close(current)

    def _ensure_dir(self, names: Names) -> None:
        """Create a directory that the layer implies, with the attributes of the one below it."""
        for number in range(1, len(names) + 1):
            path = names[:number]
            with self._open_dir(path[:-1]) as above:
                found = _lstat(path[-1], above)
                if found is not None and stat.S_ISDIR(found.st_mode):
                    continue
                if found is not None and not is_whiteout(found):
                    raise ImageError(f"{_shown(names)}: {_shown(path)} is not a directory")
                below = self._below.stat(path) if found is None else None
                if below is not None and not stat.S_ISDIR(below.st_mode):
                    raise ImageError(f"{_shown(names)}: {_shown(path)} is not a directory")
                self._create_dir(path, above, _attributes(below))

    def _create_dir(self, names: Names, above: int, attributes: Attributes) -> None:
        found = _lstat(names[-1], above)
        if found is None or not stat.S_ISDIR(found.st_mode):
            if found is not None:
                self._remove(names, above)
            os.mkdir(names[-1], 0o700, dir_fd=above)
            if found is not None and is_whiteout(found):
                self.add_opaque(names)
        self._set_dir(names, attributes)

    def _set_dir(self, names: Names, attributes: Attributes) -> None:
        with self._open_dir(names) as opened:
            _chown(opened, attributes)
        self._dirs[names] = attributes

    @staticmethod
    def _set_special(name: str, above: int, attributes: Attributes) -> None:
        _chown(name, attributes, above)
        os.utime(name, ns=(attributes.mtime, attributes.mtime), dir_fd=above, follow_symlinks=False)

    def _remove(self, names: Names, above: int) -> None:
        """Remove what an earlier entry of this layer created at *names*, if anything."""
        found = _lstat(names[-1], above)
        if found is None:
            return
        self._resolved.clear()
        if stat.S_ISDIR(found.st_mode):
            remove_tree(Path(f"/proc/self/fd/{above}", names[-1]))
        else:
            os.unlink(names[-1], dir_fd=above)


def _attributes(found: os.stat_result | None) -> Attributes:
    if found is None:
        return Attributes()
    return Attributes(found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode), found.st_mtime_ns)


def _chown(file: int | str, attributes: Attributes, dir_fd: int | None = None) -> None:
    """Set the owner of a file; a normal user owns all files itself."""
    if os.geteuid() == 0:
        follow = isinstance(file, int)
        os.chown(file, attributes.uid, attributes.gid, dir_fd=dir_fd, follow_symlinks=follow)


def _shown(names: Names) -> str:
    return repr("/".join(names)[:200])
