"""Up to where the logs of pods were read, to continue after a broken connection. Pure.

Lines are requested with their timestamps and, of several pods, with the name of the pod; both are
removed again unless the caller asked for them.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from ..model import times

MARGIN = 60
"""Seconds before the last line from which lines are read again: clocks of nodes differ."""

_PREFIX = re.compile(r"\[([^\]\s]+)\] ")
_TIMESTAMP = re.compile(
    r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.(\d{1,9}))?(?:Z|[+-]\d\d:\d\d))(?: |$)"
)


@dataclass(frozen=True, slots=True)
class LogLine:
    """A line of a log."""

    source: str
    """Its pod, and container if several are read; empty for the log of one pod."""
    timestamp: str
    """RFC 3339; empty for a line of the server, and for the rest of a long line."""
    text: str

    def format(self, *, prefix: bool, timestamps: bool) -> str:
        """Return the line as the REST API formats it."""
        source = f"[{self.source}] " if prefix and self.source else ""
        time = f"{self.timestamp} " if timestamps and self.timestamp else ""
        return f"{source}{time}{self.text}"


def parse_line(line: str, *, has_prefix: bool) -> LogLine:
    """Split a line into its source, timestamp and text."""
    source = ""
    if has_prefix and (match := _PREFIX.match(line)):
        source, line = match[1], line[match.end() :]
    if match := _TIMESTAMP.match(line):
        return LogLine(source, match[1], line[match.end() :])
    return LogLine(source, "", line)


@dataclass(slots=True)
class _Source:
    """The lines read of one container."""

    last: tuple[datetime, int] | None = None
    at_last: int = 0
    """Number of lines read with the last timestamp: a program may write several at one time."""
    skip_to: tuple[datetime, int] | None = None
    """The last line before the connection broke, while the lines up to it are read again."""
    skip_equal: int = 0

    def begin(self) -> None:
        self.skip_to, self.skip_equal = self.last, self.at_last

    def advance(self, key: tuple[datetime, int] | None) -> bool:
        """Note that a line is read; return False if it was read on an earlier connection."""
        if self.skip_to is not None and self._was_read(key):
            return False
        if key is not None and key == self.last:
            self.at_last += 1
        elif key is not None:
            self.last, self.at_last = key, 1
        return True

    def _was_read(self, key: tuple[datetime, int] | None) -> bool:
        if key is None or self.skip_to is None:
            return True  # The rest of a line that is skipped.
        if key == self.skip_to and self.skip_equal:
            self.skip_equal -= 1
            return True
        if key < self.skip_to:
            return True
        self.skip_to = None
        return False


@dataclass(slots=True)
class LogPosition:
    """The lines read of all sources."""

    sources: dict[str, _Source] = field(default_factory=dict)

    def begin_stream(self) -> None:
        """Skip, in the stream that begins, the lines that were read before."""
        for source in self.sources.values():
            source.begin()

    def advance(self, line: LogLine) -> bool:
        """Note that *line* is read; return False if it was read on an earlier connection.

        A line without a timestamp counts as the continuation of the line before it.
        """
        return self.sources.setdefault(line.source, _Source()).advance(_key(line.timestamp))

    def since_seconds(self, now: datetime) -> int | None:
        """Return how many seconds before *now* to read on; ``None`` before the first line."""
        last = [source.last[0] for source in self.sources.values() if source.last is not None]
        if not last:
            return None
        return max(1, math.ceil((now - min(last)).total_seconds()) + MARGIN)


class LineSplitter:
    """Lines of a text that is received in chunks."""

    def __init__(self) -> None:
        self._partial = bytearray()

    def feed(self, chunk: bytes) -> Iterator[str]:
        """Yield the lines that *chunk* completes, without line ends."""
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            self._partial += chunk[start:end]
            start = end + 1
            line, self._partial = self._partial, bytearray()
            yield line.decode(errors="replace")
        self._partial += chunk[start:]

    def finish(self) -> Iterator[str]:
        """Yield the rest, if the text does not end with a line end."""
        if self._partial:
            line, self._partial = self._partial, bytearray()
            yield line.decode(errors="replace")


def _key(timestamp: str) -> tuple[datetime, int] | None:
    """Return what orders timestamps, which have up to nanoseconds."""
    match = _TIMESTAMP.match(timestamp)
    if match is None:
        return None
    try:
        second = times.parse(match[1]).replace(microsecond=0)
    except times.TimeError:
        return None
    return second, int((match[2] or "").ljust(9, "0"))
