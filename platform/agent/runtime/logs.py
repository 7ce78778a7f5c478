"""Reading what containers wrote: `shim` writes lines of time, stream, tag and text.

The tag is F for a full line and P for a part of one, which gets no line end.

A log that grows too long loses its head: `trim` makes a hole of it, so that neither the writer nor
those who are reading have to know.
"""

import ctypes
import os
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from io import BufferedReader
from pathlib import Path

from ...machinery.clock import Clock
from ...model import times
from .mounting import open_regular

POLL_INTERVAL = 0.1
"""Seconds between looks at a log that is followed."""

_BLOCK_BYTES = 64 * 1024

MIN_KEPT_BYTES = 50 * 1024 * 1024
"""Bytes of a run's log that stay at least, when its head goes."""

_LIBC = ctypes.CDLL(None, use_errno=True)
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_PAGE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """What part of a log is wanted, and how."""

    follow: bool = False
    tail: int | None = None
    timestamps: bool = False
    since: datetime | None = None
    limit: int | None = None
    """Bytes, after which the answer is cut."""

    stream: str = ""
    """``stdout`` or ``stderr``; empty for both."""


async def read(
    path: Path, options: LogOptions, *, is_finished: Callable[[], bool], clock: Clock
) -> AsyncIterator[bytes]:
    """Yield the log in pieces; with follow until *over* says that nothing more will come."""
    writer = _LineFilter(options)
    with os.fdopen(open_regular(str(path)), "rb") as file:
        start = _first_line(file)
        file.seek(start)
        if options.tail is not None:
            file.seek(_start_of_tail(file, options.tail, start))
        rest = b""
        while True:
            # Asked before the read: what was written before the end is still seen.
            last = not options.follow or is_finished()
            while data := file.read(_BLOCK_BYTES):
                *lines, rest = (rest + data).split(b"\n")
                piece = writer.filter(lines)
                if piece:
                    yield piece
                if writer.is_limit_reached:
                    return
            if last:
                return
            await clock.sleep(POLL_INTERVAL)


def punch_log_head(path: Path, *, min_kept_bytes: int = MIN_KEPT_BYTES) -> bool:
    """Drop the head of a log of more than twice *keep* bytes; whether there was one to drop.

    File systems that cannot do so keep all of it.
    """
    try:
        with os.fdopen(open_regular(str(path), os.O_RDWR), "rb+") as file:
            held = os.fstat(file.fileno())
            if held.st_blocks * 512 <= 2 * min_kept_bytes:
                return False
            end = (held.st_size - min_kept_bytes) // _PAGE * _PAGE
            mode = _KEEP_SIZE | _PUNCH_HOLE
            length = ctypes.c_int64(end)
            return end > 0 and _LIBC.fallocate(file.fileno(), mode, ctypes.c_int64(0), length) == 0
    except OSError:  # it went, or something else is there by now
        return False


def _first_line(file: BufferedReader) -> int:
    """Where the first whole line starts; not at 0 if the head was dropped."""
    try:
        start = os.lseek(file.fileno(), 0, os.SEEK_DATA)
    except OSError:  # it is empty, or such a file system
        return 0
    if start == 0:
        return 0
    file.seek(start)
    return start + len(file.readline())


def _start_of_tail(file: BufferedReader, count: int, first: int) -> int:
    """Where the last *count* full lines start, in a log that starts at *first*."""
    position = file.seek(0, 2)
    if count <= 0:
        return position
    held = b""
    while position > first:
        step = min(_BLOCK_BYTES, position - first)
        position = file.seek(position - step)
        held = file.read(step) + held
        starts = list(_line_starts(held, whole=position == first))
        if len(starts) > count:
            return position + starts[-count]
    return first


def _line_starts(block: bytes, *, whole: bool) -> Iterator[int]:
    """Offsets in *held* where what the container called a line starts."""
    fresh, at = whole, 0
    for line in block.splitlines(keepends=True):
        if fresh:
            yield at
        parts = line.split(b" ", 3)
        fresh = len(parts) > 2 and parts[2] == b"F"
        at += len(line)


class _LineFilter:
    """Turns lines of the file into what was asked for."""

    def __init__(self, options: LogOptions) -> None:
        self._options = options
        self._remaining_bytes = options.limit
        self._at_line_start = True
        self._since = times.format_micros(options.since).encode() if options.since else b""

    @property
    def is_limit_reached(self) -> bool:
        """The limit is reached."""
        return self._remaining_bytes is not None and self._remaining_bytes <= 0

    def filter(self, lines: list[bytes]) -> bytes:
        """What of *lines* is wanted, as it is to be sent."""
        piece = b"".join(filter(None, map(self._filter_line, lines)))
        if self._remaining_bytes is not None:
            piece = piece[: max(self._remaining_bytes, 0)]
            self._remaining_bytes -= len(piece)
        return piece

    def _filter_line(self, line: bytes) -> bytes:
        parts = line.split(b" ", 3)
        if len(parts) != 4:
            return b""
        when, stream, tag, text = parts
        # Equal to the microsecond, times compare as text.
        if self._since and when[: len(self._since) - 1] < self._since[:-1]:
            return b""
        if self._options.stream and stream.decode() != self._options.stream:
            return b""
        head = when + b" " if self._options.timestamps and self._at_line_start else b""
        self._at_line_start = tag == b"F"
        return head + text + (b"\n" if self._at_line_start else b"")
