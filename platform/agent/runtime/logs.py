"""Container logs, which the shim writes as lines of time, stream, tag and text.

The tag is F for a full line and P for a partial one, which has no line end.

`punch_log_head` limits a log's size: it deallocates the head, which does not affect the offsets of
the writer and of readers.
"""

import ctypes
import os
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from io import BufferedReader
from pathlib import Path

from ...machinery.clock import Clock
from ...model import times
from .mounting import open_regular

POLL_INTERVAL = 0.1
"""Seconds between reads of a followed log."""

_BLOCK_BYTES = 64 * 1024

MIN_KEPT_BYTES = 50 * 1024 * 1024
"""Minimum bytes that remain when the head of a log is deallocated."""

_LIBC = ctypes.CDLL(None, use_errno=True)
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_PAGE = 4096


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
    """Yield the log in chunks; with follow until *is_finished* returns true."""
    line_filter = _LineFilter(options)
    with os.fdopen(open_regular(str(path)), "rb") as file:
        start = _first_line(file)
        file.seek(start)
        if options.tail is not None:
            file.seek(_start_of_tail(file, options.tail, start))
        rest = b""
        while True:
            # Before the read, which then includes everything written before the end.
            last = not options.follow or is_finished()
            while data := file.read(_BLOCK_BYTES):
                *lines, rest = (rest + data).split(b"\n")
                chunk = line_filter.filter(lines)
                if chunk:
                    yield chunk
                if line_filter.is_limit_reached:
                    return
            if last:
                return
            await clock.sleep(POLL_INTERVAL)


def punch_log_head(path: Path, *, min_kept_bytes: int = MIN_KEPT_BYTES) -> bool:
    """Deallocate the head of a log above 2 * *min_kept_bytes*; return whether it did.

    Does nothing on file systems without support for holes.
    """
    try:
        with os.fdopen(open_regular(str(path), os.O_RDWR), "rb+") as file:
            found = os.fstat(file.fileno())
            if found.st_blocks * 512 <= 2 * min_kept_bytes:
                return False
            end = (found.st_size - min_kept_bytes) // _PAGE * _PAGE
            mode = _KEEP_SIZE | _PUNCH_HOLE
            length = ctypes.c_int64(end)
            return end > 0 and _LIBC.fallocate(file.fileno(), mode, ctypes.c_int64(0), length) == 0
    except OSError:  # removed, or replaced by a container
        return False


def _first_line(file: BufferedReader) -> int:
    """Return the offset of the first complete line; not 0 if the head was deallocated."""
    try:
        start = os.lseek(file.fileno(), 0, os.SEEK_DATA)
    except OSError:  # empty, or a file system without SEEK_DATA
        return 0
    if start == 0:
        return 0
    file.seek(start)
    return start + len(file.readline())


def _start_of_tail(file: BufferedReader, count: int, first: int) -> int:
    """Return the offset of the last *count* lines, in a log that starts at *first*."""
    position = file.seek(0, 2)
    if count <= 0:
        return position
    block = b""
    while position > first:
        step = min(_BLOCK_BYTES, position - first)
        position = file.seek(position - step)
        block = file.read(step) + block
        starts = list(_line_starts(block, whole=position == first))
        if len(starts) > count:
            return position + starts[-count]
    return first


def _line_starts(block: bytes, *, whole: bool) -> Iterator[int]:
    """Yield the offsets in *block* of the container's lines, which may span several entries."""
    at_line_start, at = whole, 0
    for line in block.splitlines(keepends=True):
        if at_line_start:
            yield at
        fields = line.split(b" ", 3)
        at_line_start = len(fields) > 2 and fields[2] == b"F"
        at += len(line)


class _LineFilter:
    """Filters and formats the lines of a log."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options
        self._remaining_bytes = options.limit
        self._at_line_start = True
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
        if self._options.stream and stream.decode() != self._options.stream:
            return b""
        prefix = when + b" " if self._options.timestamps and self._at_line_start else b""
        self._at_line_start = tag == b"F"
        return prefix + text + (b"\n" if self._at_line_start else b"")
