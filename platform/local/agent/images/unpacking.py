"""Unpacking of one layer, a tar archive that is hostile, in a process without rights.

If the agent is root, the process enters a user namespace whose ids are `ids.IMAGES` and the
following: it owns nothing on the machine, and reaches only the directories that it has open.
"""

import ctypes
import gzip
import hashlib
import os
import resource
import signal
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import msgspec

from ..runtime import mounting
from ..runtime.ids import IMAGES
from ..runtime.mounting import ID_RANGE_SIZE
from .errors import ImageError
from .layer_tree import MAX_PATH, Attributes, LayerWriter, Names

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
_CHUNK = 1 << 20
_WHITEOUT, _WHITEOUT_META, _WHITEOUT_OPAQUE = ".wh.", ".wh..wh.", ".wh..wh..opq"
_MAX_HEADER = 256 << 10
"""Bytes of the extended header of an entry, which are read into memory."""

_NOBODY = ID_RANGE_SIZE - 2
_MAX_TIME = (1 << 33) * 10**9
_SPACE_CHECK = 64 << 20
"""Bytes between checks of the free space."""

_MEMORY = 4 << 30
"""Bytes of address space of the process that unpacks."""

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackLimits:
    """Limits of an image."""

    size: int = 64 << 30
    """Bytes of all layers, uncompressed."""

    entries: int = 2_000_000
    """Files of all layers."""

    free: int = 1 << 30
    """Bytes that must remain free on the file system."""


class Blob(msgspec.Struct, frozen=True):
    """A part of an open file."""

    descriptor: int
    offset: int
    size: int


class UnpackedLayer(msgspec.Struct, frozen=True):
    """What was unpacked."""

    digest: str
    """Of the blob."""

    diff_id: str
    """Digest of the uncompressed archive."""

    size: int
    """Bytes of the uncompressed archive."""

    entries: int = 0
    skipped_devices: int = 0
    foreign_owners: int = 0
    """Files of owners that pods cannot have, which belong to id 65534."""


class _Outcome(msgspec.Struct):
    layer: UnpackedLayer | None = None
    error: str = ""


def unpack(
    blob: Blob, directory: int, parents: Sequence[int], *, limits: UnpackLimits
) -> UnpackedLayer:
    """Unpack a layer into the open, empty *directory*; *parents* are the layers below, open.

    To be called in a process with one thread. The caller compares the digests.

    Raises:
        ImageError: the archive is invalid, or exceeds a limit; the directory then has a part of it.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        outcome = _Outcome()
        try:
            _drop_rights()
            outcome.layer = _unpack(blob, LayerWriter(directory, parents), directory, limits)
        except ImageError as error:
            outcome.error = str(error)
        except BaseException as error:
            outcome.error = f"{type(error).__name__}: {error}"
        finally:
            with os.fdopen(write, "wb") as file:
                file.write(msgspec.json.encode(outcome))
            os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        text = file.read()
    os.waitpid(child, 0)
    if not text:
        raise ImageError("the process that unpacks a layer was killed")
    outcome = msgspec.json.decode(text, type=_Outcome)
    if outcome.layer is None:
        raise ImageError(outcome.error)
    return outcome.layer


def _drop_rights() -> None:
    if os.geteuid() == 0:
        os.setgroups([])
        try:
            mounting.enter_id_range(IMAGES)
        except mounting.CannotStartError as error:
            raise ImageError(f"root needs user namespaces to store images: {error}") from error
        os.setresgid(0, 0, 0)
        os.setresuid(0, 0, 0)
    os.umask(0o077)
    resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    mounting.set_no_new_privs()
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _unpack(blob: Blob, writer: LayerWriter, directory: int, limits: UnpackLimits) -> UnpackedLayer:
    source = _BlobReader(blob)
    content = _LimitedReader(_decompressed(source), directory, limits)
    counts = {"entries": 0, "skipped_devices": 0, "foreign_owners": 0}
    try:
        for entry, archive in _entries(content, limits):
            counts["entries"] += 1
            try:
                _add(entry, archive, writer, counts)
            except OSError as error:
                name = entry.name[:200]
                raise ImageError(f"cannot unpack {name!r}: {error.strerror or error}") from error
        content.drain()
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile, ValueError) as error:
        raise ImageError(f"a layer is not a valid archive: {error}") from error
    writer.finish()
    source.drain()
    return UnpackedLayer(digest=source.digest, diff_id=content.digest, size=content.total, **counts)


def _add(
    entry: tarfile.TarInfo, archive: tarfile.TarFile, writer: LayerWriter, counts: dict[str, int]
) -> None:
    path = _names(entry.name)
    if path and path[-1].startswith(_WHITEOUT):
        _add_whiteout(path, writer)
    elif any(each.startswith(_WHITEOUT) for each in path):
        raise ImageError(f"a file is inside a whiteout: {entry.name[:200]!r}")
    elif entry.isdir():
        writer.add_dir(path, _attributes(entry, counts))
    elif not path:
        raise ImageError("the root directory is not a directory")
    elif entry.ischr() or entry.isblk():
        counts["skipped_devices"] += 1
    else:
        _add_file(entry, path, archive, writer, _attributes(entry, counts))


def _add_whiteout(path: Names, writer: LayerWriter) -> None:
    name = path[-1]
    if name == _WHITEOUT_OPAQUE:
        writer.add_opaque(path[:-1])
    elif not name.startswith(_WHITEOUT_META):
        removed = name.removeprefix(_WHITEOUT)
        if removed in ("", ".", ".."):
            raise ImageError(f"invalid whiteout {'/'.join(path)[:200]!r}")
        writer.add_whiteout((*path[:-1], removed))


def _add_file(
    entry: tarfile.TarInfo,
    path: Names,
    archive: tarfile.TarFile,
    writer: LayerWriter,
    attributes: Attributes,
) -> None:
    if entry.isreg():
        writer.add_file(path, attributes, lambda file: _copy(archive, entry, file))
    elif entry.islnk():
        writer.add_hard_link(path, _names(entry.linkname))
    elif entry.issym():
        writer.add_link(path, entry.linkname, attributes)
    elif entry.isfifo():
        writer.add_fifo(path, attributes)
    else:
        raise ImageError(f"{entry.name[:200]!r} has the unknown type {entry.type!r}")


def _copy(archive: tarfile.TarFile, entry: tarfile.TarInfo, file: IO[bytes]) -> None:
    source = archive.extractfile(entry)
    if source is None:
        raise ImageError(f"{entry.name[:200]!r} has no content")
    remaining = entry.size
    while remaining > 0:
        data = source.read(min(remaining, _CHUNK))
        if not data:
            raise ImageError(f"the archive ends in {entry.name[:200]!r}")
        file.write(data)
        remaining -= len(data)


def _names(path: str) -> Names:
    """Return the components of an entry's path, which is relative to the root."""
    names = tuple(each for each in path.split("/") if each not in ("", "."))
    if ".." in names:
        raise ImageError(f"a path with '..' in a layer: {path[:200]!r}")
    if len(path) > MAX_PATH:
        raise ImageError(f"a path is longer than {MAX_PATH} bytes: {path[:200]!r}")
    return names


def _attributes(entry: tarfile.TarInfo, counts: dict[str, int]) -> Attributes:
    uid, gid = entry.uid, entry.gid
    if not (0 <= uid < ID_RANGE_SIZE and 0 <= gid < ID_RANGE_SIZE):
        uid, gid = (each if 0 <= each < ID_RANGE_SIZE else _NOBODY for each in (uid, gid))
        counts["foreign_owners"] += 1
    mode = entry.mode & (0o1777 if entry.isdir() else 0o777)
    seconds = min(max(entry.mtime, 0), _MAX_TIME // 10**9)
    return Attributes(uid, gid, mode, int(seconds * 10**9))


class LimitedTarInfo(tarfile.TarInfo):
    """An entry whose headers are limited, and which is not sparse."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> "tarfile.TarInfo":  # type: ignore[override]
        try:
            return super().fromtarfile(archive)
        except tarfile.InvalidHeaderError as error:  # type: ignore[attr-defined]
            # The library takes it for the end of the archive.
            raise ImageError(f"a layer is not a valid archive: {error}") from error

    def _proc_member(self, archive: tarfile.TarFile) -> Any:
        if self.size < 0:
            raise ImageError("an entry of a layer has a negative size")
        extended = not (self.isreg() or self.isdir() or self.islnk() or self.issym())
        if extended and self.size > _MAX_HEADER:
            raise ImageError(f"a header of a layer is larger than {_MAX_HEADER} bytes")
        return super()._proc_member(archive)  # type: ignore[misc]

    def _reject_sparse(self, *_: object) -> None:
        raise ImageError("sparse files in layers are not supported")

    _proc_sparse = _proc_gnusparse_00 = _proc_gnusparse_01 = _proc_gnusparse_10 = _reject_sparse


def _entries(
    content: "_LimitedReader", limits: UnpackLimits
) -> Iterator[tuple[tarfile.TarInfo, tarfile.TarFile]]:
    count = 0
    with tarfile.open(fileobj=content, mode="r|", tarinfo=LimitedTarInfo) as archive:  # type: ignore[call-overload]
        while (entry := archive.next()) is not None:
            count += 1
            if count > limits.entries:
                raise ImageError("an image has more files than the limit permits")
            if entry.size < 0 or (entry.isreg() and entry.size > content.remaining):
                raise ImageError(f"{entry.name[:200]!r} exceeds the limit of {limits.size} bytes")
            yield entry, archive
            archive.members.clear()  # the library would keep them all


class _BlobReader:
    """Reads a blob, and computes its digest."""

    def __init__(self, blob: Blob) -> None:
        self._blob = blob
        self._position = 0
        self._hash = hashlib.sha256()

    def read(self, size: int = -1) -> bytes:
        blob = self._blob
        size = min(size if size >= 0 else _CHUNK, blob.size - self._position)
        data = os.pread(blob.descriptor, size, blob.offset + self._position) if size > 0 else b""
        self._position += len(data)
        self._hash.update(data)
        return data

    def peek(self, size: int) -> bytes:
        return os.pread(self._blob.descriptor, min(size, self._blob.size), self._blob.offset)

    def drain(self) -> None:
        while self.read(_CHUNK):
            continue

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


def _decompressed(source: _BlobReader) -> Any:
    magic = source.peek(4)
    if magic.startswith(_ZSTD):
        raise ImageError(
            "a layer is compressed with zstd, which is not supported; build or convert the image "
            "with gzip layers"
        )
    return gzip.GzipFile(fileobj=source, mode="rb") if magic.startswith(_GZIP) else source  # type: ignore[call-overload]


class _LimitedReader:
    """Reads an uncompressed archive up to a limit, and computes its digest."""

    def __init__(self, source: Any, directory: int, limits: UnpackLimits) -> None:
        self._source = source
        self._directory = directory
        self._limits = limits
        self._hash = hashlib.sha256()
        self._next_check = 0
        self.total = 0

    @property
    def remaining(self) -> int:
        return self._limits.size - self.total

    def read(self, size: int) -> bytes:
        data: bytes = self._source.read(size)
        self.total += len(data)
        self._hash.update(data)
        if self.total > self._limits.size:
            raise ImageError(f"an image is larger than {self._limits.size} bytes")
        if self.total >= self._next_check:
            self._next_check = self.total + _SPACE_CHECK
            found = os.fstatvfs(self._directory)
            if found.f_bavail * found.f_frsize < self._limits.free:
                raise ImageError(
                    f"less than {self._limits.free >> 20} MiB would remain free on the disk"
                )
        return data

    def drain(self) -> None:
        while self.read(_CHUNK):
            continue

    @property
    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"
