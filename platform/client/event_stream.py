"""Parser of server-sent events (``text/event-stream``), fed with bytes as they are received."""

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass

_LINE_END = re.compile(r"\r\n|\n|\r")
MAX_EVENT = 16 * 1024 * 1024
"""Characters of one event; more is not the REST API's."""


@dataclass(frozen=True, slots=True)
class ServerEvent:
    """One event; *id* is the last one that the stream has sent."""

    type: str
    data: str
    id: str


class EventTooLargeError(ValueError):
    """An event exceeds :data:`MAX_EVENT`."""


class EventParser:
    """Events of one connection."""

    def __init__(self, *, last_id: str = "") -> None:
        self.last_id = last_id
        """For ``Last-Event-ID``: the id of the last complete event."""
        self.retry: float | None = None
        """Seconds before a reconnection, if the server has sent them."""
        self._decoder = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        self._text = ""
        self._type = ""
        self._data: list[str] = []
        self._size = 0
        self._id = last_id

    def feed(self, chunk: bytes) -> Iterator[ServerEvent]:
        """Yield the events that *chunk* completes.

        Raises:
            EventTooLargeError: an event is too large.
        """
        self._text += self._decoder.decode(chunk)
        start = 0
        for end in _LINE_END.finditer(self._text):
            if end[0] == "\r" and end.end() == len(self._text):
                break  # A following "\n" belongs to it.
            line, start = self._text[start : end.start()], end.end()
            if (event := self._line(line)) is not None:
                yield event
        self._text = self._text[start:]
        if self._size + len(self._text) > MAX_EVENT:
            raise EventTooLargeError("an event of the stream is too large")

    def _line(self, line: str) -> ServerEvent | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "event":
                self._type = value
            case "data":
                self._data.append(value)
                self._size += len(value)
            case "id" if "\0" not in value:
                self._id = value
            case "retry" if value.isascii() and value.isdigit():
                self.retry = int(value) / 1000
        return None

    def _dispatch(self) -> ServerEvent | None:
        self.last_id = self._id
        type_, data = self._type or "message", self._data
        self._type, self._data, self._size = "", [], 0
        return ServerEvent(type_, "\n".join(data), self._id) if data else None
