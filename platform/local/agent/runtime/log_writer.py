"""Writer of container logs; imported by `shim`, so it imports nothing of Batholith."""

import os
import time

MAX_LINE = 16 * 1024


class LogWriter:
    """Writes one stream to the log, line by line with time and stream."""

    def __init__(self, log: int, stream: str) -> None:
        self.log = log
        self.stream = stream
        self.partial_line = b""

    def feed(self, data: bytes) -> None:
        """Write all complete lines, and split overlong ones."""
        *lines, self.partial_line = (self.partial_line + data).split(b"\n")
        now = time.time_ns()
        written = b"".join(self._entries(now, line) for line in lines)
        while len(self.partial_line) >= MAX_LINE:
            written += self._entry(now, "P", self.partial_line[:MAX_LINE])
            self.partial_line = self.partial_line[MAX_LINE:]
        _write(self.log, written)

    def close(self) -> None:
        """Write an incomplete last line."""
        if self.partial_line:
            _write(self.log, self._entry(time.time_ns(), "P", self.partial_line))
            self.partial_line = b""

    def _entries(self, now: int, line: bytes) -> bytes:
        chunks = [line[at : at + MAX_LINE] for at in range(0, len(line), MAX_LINE)] or [b""]
        partial = b"".join(self._entry(now, "P", chunk) for chunk in chunks[:-1])
        return partial + self._entry(now, "F", chunks[-1])

    def _entry(self, now: int, tag: str, text: bytes) -> bytes:
        seconds, nanos = divmod(now, 1_000_000_000)
        when = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
        return f"{when}.{nanos:09d}Z {self.stream} {tag} ".encode() + text + b"\n"


def _write(descriptor: int, data: bytes) -> None:
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        return  # the disk is full: a gap in the log is better than a failed container
