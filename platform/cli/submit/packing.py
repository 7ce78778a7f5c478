"""The working directory as a compressed archive."""

import fnmatch
import gzip
import io
import os
import stat
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from ...model.workdirs import MAX_ARCHIVE
from .errors import SubmitError

IGNORE_FILE = ".batholithignore"


@dataclass(frozen=True, slots=True)
class Limits:
    """How large a working directory may be."""

    packed: int
    """Bytes of the archive."""
    unpacked: int
    """Bytes of all files together."""


IN_CONFIGMAPS = Limits(packed=MAX_ARCHIVE, unpacked=64 << 20)
IN_CLAIM = Limits(packed=256 << 20, unpacked=1 << 30)
_ALWAYS_IGNORED = (".git",)
_LARGEST = 3
"""Files that an error names."""


def pack(directory: Path, limits: Limits = IN_CONFIGMAPS) -> bytes:
    """Return the files of *directory*, but those that its ignore file names, as a compressed tar.

    Links are packed as links.

    Raises:
        SubmitError: they are too large, or one is neither a file nor a directory nor a link, or
            cannot be read.
    """
    patterns = _patterns(directory)
    sizes: list[tuple[int, str]] = []
    buffer = io.BytesIO()
    try:
        with (
            gzip.GzipFile(fileobj=buffer, mode="wb", mtime=0) as compressed,
            tarfile.open(fileobj=compressed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for path in _files(directory, PurePosixPath(), patterns):
                sizes.append((_size(directory / path), str(path)))
                if sum(size for size, _ in sizes) > limits.unpacked:
                    raise _too_large(sizes, limits)
                archive.add(directory / path, arcname=str(path), recursive=False, filter=_plain)
    except OSError as error:
        raise SubmitError([f"cannot pack the working directory: {error}"]) from None
    if len(buffer.getbuffer()) > limits.packed:
        raise _too_large(sizes, limits)
    return buffer.getvalue()


def _patterns(directory: Path) -> Sequence[str]:
    """Return the patterns of the ignore file.

    Raises:
        SubmitError: it cannot be read, or has a line that is not supported.
    """
    try:
        text = (directory / IGNORE_FILE).read_text()
    except FileNotFoundError:
        return _ALWAYS_IGNORED
    except (OSError, UnicodeDecodeError) as error:
        raise SubmitError([f"cannot read {IGNORE_FILE}: {error}"]) from None
    found = [*_ALWAYS_IGNORED]
    for number, line in enumerate(text.splitlines(), start=1):
        pattern = line.strip()
        if pattern.startswith("!"):
            raise SubmitError(
                [f"{IGNORE_FILE}, line {number}: exceptions with ! are not supported"]
            )
        if pattern and not pattern.startswith("#"):
            found.append(pattern)
    return found


def _files(
    directory: Path, below: PurePosixPath, patterns: Sequence[str]
) -> Iterator[PurePosixPath]:
    for entry in sorted(os.scandir(directory / below), key=lambda each: each.name):
        path = below / entry.name
        is_directory = entry.is_dir(follow_symlinks=False)
        if any(_matches(path, pattern, is_directory=is_directory) for pattern in patterns):
            continue
        yield path
        if is_directory:
            yield from _files(directory, path, patterns)


def _matches(path: PurePosixPath, pattern: str, *, is_directory: bool) -> bool:
    """Return whether *pattern* names *path*: by its name or, with a slash, by its whole path."""
    if pattern.endswith("/"):
        if not is_directory:
            return False
        pattern = pattern.rstrip("/")
    if "/" in pattern:
        return fnmatch.fnmatchcase(str(path), pattern.lstrip("/"))
    return fnmatch.fnmatchcase(path.name, pattern)


def _size(path: Path) -> int:
    """Return the bytes of a file; 0 for a directory or link.

    Raises:
        SubmitError: it is none of them.
    """
    found = path.lstat()
    if stat.S_ISREG(found.st_mode):
        return found.st_size
    if stat.S_ISDIR(found.st_mode) or stat.S_ISLNK(found.st_mode):
        return 0
    raise SubmitError([f"{path} is neither a file nor a directory: name it in {IGNORE_FILE}"])


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """Leave out whose the file is here: it belongs to the user of the container."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _too_large(sizes: Sequence[tuple[int, str]], limits: Limits) -> SubmitError:
    largest = ", ".join(name for _, name in sorted(sizes, reverse=True)[:_LARGEST])
    packed, unpacked = limits.packed >> 20, limits.unpacked >> 20
    return SubmitError(
        [
            f"the working directory has more than {packed} MiB compressed, or more than {unpacked}"
            f" MiB (largest: {largest}): name files in {IGNORE_FILE}, or use --no-workdir"
        ]
    )
