"""Lines of container logs: assembled from a stream, without those already read, and formatted.

The lines of a stream have timestamps: after a stream that broke, or that the server ended while the
container runs on, the next one continues there.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from ...model import times

MAX_LINE = 256 * 1024
"""Bytes of a line that are kept in memory; a longer one becomes several lines."""

MAX_BATCH = 32 * 1024
"""Bytes of formatted lines that are written at a time."""

_TIMESTAMP = re.compile(rb"[0-9TZ:.+-]{20,40}")


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line without its end."""

    timestamp: bytes
    """As in the stream; empty for the rest of a line longer than `MAX_LINE`."""

    text: bytes


class LineAssembler:
    """Assembles the lines of one stream, however it is split into chunks."""

    def __init__(self, max_line: int = MAX_LINE) -> None:
        self._max_line = max_line
        self._partial = bytearray()
        self._in_long_line = False

    def feed(self, chunk: bytes) -> Iterator[LogLine]:
        """Add a chunk; yield the lines that it completes. Exhaust it before the next call."""
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            self._partial += chunk[start:end]
            start = end + 1
            yield from self._take(ends=True)
        self._partial += chunk[start:]
        if len(self._partial) > self._max_line:
            yield from self._take(ends=False)

    def finish(self) -> Iterator[LogLine]:
        """Yield the last line if it has no line end: the container has ended within it."""
        if self._partial:
            yield from self._take(ends=True)

    def _take(self, *, ends: bool) -> Iterator[LogLine]:
        whole, self._partial = bytes(self._partial), bytearray()
        for at in range(0, max(len(whole), 1), self._max_line):
            piece = whole[at : at + self._max_line]
            if at or self._in_long_line:
                if piece:
                    yield LogLine(b"", piece)
            else:
                yield _parse(piece)
        self._in_long_line = not ends


def _parse(line: bytes) -> LogLine:
    timestamp, _, text = line.partition(b" ")
    if _TIMESTAMP.fullmatch(timestamp):
        return LogLine(timestamp, text)
    return LogLine(b"", line)


class LogPosition:
    """Up to where the log of a container was read, over several streams."""

    def __init__(self) -> None:
        self.lines = 0
        """Number of lines that were read."""
        self._last = b""
        self._lines_at_last = 0
        """Lines read that have this timestamp: a program may write many in one."""
        self._skip_to: tuple[datetime, str] | None = None
        self._skip_equal = 0

    @property
    def since_time(self) -> str:
        """Time from which to read on, in whole seconds as servers use it; empty for the start."""
        return times.format(times.parse(self._last.decode())) if self._last else ""

    def begin_stream(self) -> None:
        """Skip, in the stream that begins, the lines that were read before."""
        self._skip_to = _key(self._last) if self._last else None
        self._skip_equal = self._lines_at_last

    def advance(self, line: LogLine) -> bool:
        """Return whether *line* was not read before; then it is now."""
        if self._skip_to is not None and self._was_read(line.timestamp):
            return False
        self.lines += 1
        if line.timestamp == self._last:
            self._lines_at_last += 1
        elif line.timestamp:
            self._last, self._lines_at_last = line.timestamp, 1
        return True

    def _was_read(self, timestamp: bytes) -> bool:
        if not timestamp:
            return True  # the rest of a line that was skipped
        key = _key(timestamp)
        if self._skip_to is None or key > self._skip_to:
            self._skip_to = None
            return False
        if key < self._skip_to:
            return True
        if self._skip_equal:
            self._skip_equal -= 1
            return True
        return False


def _key(timestamp: bytes) -> tuple[datetime, str]:
    """Return what orders timestamps; those of one node may differ in their time zone."""
    text = timestamp.decode("ascii")
    fraction = re.search(r"\.(\d+)", text)
    return times.parse(text), fraction[1][6:].ljust(3, "0") if fraction else "000"


def format_lines(
    lines: Iterator[LogLine], *, prefix: bytes, timestamps: bool, size: int = MAX_BATCH
) -> Iterator[bytes]:
    """Yield *lines* in batches of about *size* bytes, each line with *prefix*."""
    batch: list[bytes] = []
    length = 0
    for line in lines:
        shown = line.timestamp + b" " if timestamps and line.timestamp else b""
        formatted = prefix + shown + line.text + b"\n"
        batch.append(formatted)
        length += len(formatted)
        if length >= size:
            yield b"".join(batch)
            batch, length = [], 0
    if batch:
        yield b"".join(batch)
