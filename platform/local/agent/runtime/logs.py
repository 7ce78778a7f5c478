"""Container logs, which the shim writes as lines of time, stream, tag and text.

The tag is F for a full line and P for a partial one, which has no line end.

`punch_log_head` limits a log's size: it deallocates the head, which does not affect the offsets of
the writer and of readers.
"""

import asyncio
import ctypes
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from io import BufferedReader
from pathlib import Path
from typing import Self

from ....machinery.clock import Clock
from ....model import quantity, times
from .mounting import open_regular

POLL_INTERVAL = 0.1
"""Seconds between reads of a followed log."""

BLOCK_BYTES = 64 * 1024
_MAX_ENTRY_BYTES = 64 * 1024
"""Maximum bytes of an entry; the shim writes shorter ones, but a plain container can write here."""

_HEADER_BYTES = 64
"""At least the bytes of an entry's time, stream and tag."""

_LIBC = ctypes.CDLL(None, use_errno=True)
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class LogRotation:
    """How much of a container's log is kept, with a kubelet's limits.

    A kubelet rotates files; here one file replaces all of them, so that a request for
    the log, and one that follows it, read everything that is kept.
    """

    max_size: int = 10 * 1024 * 1024
    """Bytes of one of a kubelet's files."""

    max_files: int = 5
    """Number of a kubelet's files."""

    @classmethod
    def parse(cls, size: str, files: int) -> Self:
        """Return the limits of the two options.

        Raises:
            ValueError: *size* is not a positive number of bytes, or there are less than two files.
        """
        try:
            found, rest = divmod(quantity.parse(size).nanos, 1_000_000_000)
        except quantity.QuantityError:
            found, rest = 0, 0
        if found <= 0 or rest:
            raise ValueError(f"--container-log-max-size {size!r} is not a positive number of bytes")
        if files < 2:
            raise ValueError(f"--container-log-max-files {files}: must be greater than 1")
        return cls(found, files)

    @property
    def max_bytes(self) -> int:
        """Bytes of a log beyond which its head is deallocated."""
        return self.max_size * self.max_files

    @property
    def min_kept_bytes(self) -> int:
        """Minimum bytes that remain when the head of a log is deallocated."""
        return self.max_size * (self.max_files - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """Options of a request for a log."""

    follow: bool = False
    tail: int | None = None
    timestamps: bool = False
    since: datetime | None = None
    limit: int | None = None
    """Maximum bytes of the response."""

    stream: str = ""
    """``stdout`` or ``stderr``; empty for both."""


async def read(
    path: Path, options: LogOptions, *, is_finished: Callable[[], bool], clock: Clock
) -> AsyncGenerator[bytes, None]:
    """Yield the log in chunks; with follow until *is_finished* returns true.

    Without follow it ends with what was written before the call. Other tasks run between blocks,
    also while no line is selected.
    """
    line_filter = _LineFilter(options)
    with os.fdopen(open_regular(str(path)), "rb") as file:
        end = None if options.follow else os.fstat(file.fileno()).st_size
        position = _first_line(file)
        if options.tail is not None:
            position = await _start_of_tail(file, options.tail, position)
        file.seek(position)
        rest = b""
        while True:
            # Before the read, which then includes everything written before the end.
            last = not options.follow or is_finished()
            while data := file.read(_block_size(position, end)):
                if _data_start(file) > position:  # what was not read yet has been deallocated
                    position, rest = _first_line(file), b""
                    file.seek(position)
                    continue
                position += len(data)
                *lines, rest = (rest + data).split(b"\n")
                rest = rest[:_MAX_ENTRY_BYTES]
                chunk = line_filter.filter(lines)
                if chunk:
                    yield chunk
                if line_filter.is_limit_reached:
                    return
                await asyncio.sleep(0)
            if last:
                return
            await clock.sleep(POLL_INTERVAL)


def _block_size(position: int, end: int | None) -> int:
    """Return how many bytes to read next from *position*, at most up to *end*."""
    return BLOCK_BYTES if end is None else min(BLOCK_BYTES, max(end - position, 0))


def punch_log_head(path: Path, rotation: LogRotation) -> bool:
    """Deallocate the head of a log that exceeds its limit; return whether it did.

    Does nothing on file systems without support for holes.
    """
    try:
        with os.fdopen(open_regular(str(path), os.O_RDWR), "rb+") as file:
            found = os.fstat(file.fileno())
            if found.st_blocks * 512 <= rotation.max_bytes:
                return False
            end = (found.st_size - rotation.min_kept_bytes) // _PAGE * _PAGE
            mode = _KEEP_SIZE | _PUNCH_HOLE
            length = ctypes.c_int64(end)
            return end > 0 and _LIBC.fallocate(file.fileno(), mode, ctypes.c_int64(0), length) == 0
    except OSError:  # removed, or replaced by a container
        return False


def _data_start(file: BufferedReader) -> int:
    """Return the end of what was deallocated; the position of *file* stays."""
    descriptor = file.fileno()
    position = os.lseek(descriptor, 0, os.SEEK_CUR)
    try:
        return os.lseek(descriptor, 0, os.SEEK_DATA)
    except OSError:  # empty, or a file system without SEEK_DATA
        return 0
    finally:
        os.lseek(descriptor, position, os.SEEK_SET)


def _first_line(file: BufferedReader) -> int:
    """Return the offset of the first complete line; not 0 if the head was deallocated."""
    start = _data_start(file)
    if start == 0:
        return 0
    file.seek(start)
    return start + len(file.readline(_MAX_ENTRY_BYTES))


async def _start_of_tail(file: BufferedReader, count: int, first: int) -> int:
    """Return the offset of the last *count* lines, in a log that starts at *first*.

    Reads each block once, from the end, and counts the entries that follow the end of a line.
    """
    size = position = following = file.seek(0, os.SEEK_END)
    if count <= 0:
        return size
    header = b""
    while position > first:
        step = min(BLOCK_BYTES, position - first)
        position = file.seek(position - step)
        block = file.read(step) + header
        for at in _entry_offsets(block[:step], whole=position == first):
            start = position + at
            if following < size and _tag(block[at : at + _HEADER_BYTES]) == b"F":
                count -= 1
                if count == 0:
                    return following
            following = start
        header = block[:_HEADER_BYTES]
        await asyncio.sleep(0)
    return first


def _entry_offsets(block: bytes, *, whole: bool) -> Iterator[int]:
    """Yield where entries start in *block*, the last one first; *whole*: also at its start."""
    at = len(block)
    while (at := block.rfind(b"\n", 0, at)) >= 0:
        yield at + 1
    if whole:
        yield 0


def _tag(header: bytes) -> bytes:
    """Return the tag of an entry; empty if it is malformed."""
    fields = header.split(b" ", 3)
    return fields[2] if len(fields) > 3 else b""


class _LineFilter:
    """Filters and formats the lines of a log."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options
        self._remaining_bytes = options.limit
        self._at_line_start = True
        self._stream = options.stream.encode()
        self._since = times.format_micros(options.since).encode() if options.since else b""

    @property
    def is_limit_reached(self) -> bool:
        """Whether the response has its maximum size."""
        return self._remaining_bytes is not None and self._remaining_bytes <= 0

    def filter(self, lines: list[bytes]) -> bytes:
        """Return the selected *lines* in the format of the response."""
        chunk = b"".join(filter(None, map(self._filter_line, lines)))
        if self._remaining_bytes is not None:
            chunk = chunk[: max(self._remaining_bytes, 0)]
            self._remaining_bytes -= len(chunk)
        return chunk

    def _filter_line(self, line: bytes) -> bytes:
        fields = line.split(b" ", 3)
        if len(fields) != 4:
            return b""
        when, stream, tag, text = fields
        # Timestamps have the same format up to the microsecond, and so compare as text.
        if self._since and when[: len(self._since) - 1] < self._since[:-1]:
            return b""
        if self._stream and stream != self._stream:
            return b""
        prefix = when + b" " if self._options.timestamps and self._at_line_start else b""
        self._at_line_start = tag == b"F"
        return prefix + text + (b"\n" if self._at_line_start else b"")
