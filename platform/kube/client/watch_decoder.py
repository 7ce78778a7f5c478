"""Watch streams: split the bytes into lines and decode each into an event."""

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import msgspec

from ...model.meta import ObjectMeta
from ..errors import ApiError, DecodeError, Status, from_status

T = TypeVar("T")

WatchEventType = Literal["ADDED", "MODIFIED", "DELETED"]

INITIAL_EVENTS_END = "k8s.io/initial-events-end"
"""Annotation of the bookmark that ends the initial events of a watch list."""


class WatchEvent(msgspec.Struct, Generic[T], frozen=True):
    """One change; on DELETED, *object* is its last state."""

    type: WatchEventType
    object: T


@dataclass(frozen=True, slots=True)
class Bookmark:
    """All changes up to *resource_version* have been sent."""

    resource_version: str
    ends_initial_events: bool
    """The initial events are complete."""


class ObjectDecodeError(DecodeError):
    """An object of a watch or list does not fit the view; the stream remains usable."""

    def __init__(self, message: str, *, event_type: str, metadata: ObjectMeta) -> None:
        super().__init__(message)
        self.event_type = event_type
        """ADDED, MODIFIED, DELETED; empty for a list item."""
        self.metadata = metadata


class _RawEvent(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _MetadataOnly(msgspec.Struct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


_RAW_EVENT_DECODER = msgspec.json.Decoder(_RawEvent)
_METADATA_DECODER = msgspec.json.Decoder(_MetadataOnly)
_STATUS_DECODER = msgspec.json.Decoder(Status)


def decode_metadata(raw: bytes | msgspec.Raw) -> ObjectMeta:
    """Decode the metadata of an object; empty if even they are malformed."""
    try:
        return _METADATA_DECODER.decode(raw).metadata
    except msgspec.MsgspecError:
        return ObjectMeta()


class LineSplitter:
    """Splits a stream into lines in linear time, however it is chunked."""

    def __init__(self) -> None:
        self._partial: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """Add a chunk of the stream; return the lines that it completes, without empty ones.

        An incomplete last line is buffered, and lost with the stream: a truncated event was not
        delivered.
        """
        lines = chunk.split(b"\n")
        self._partial.append(lines[0])
        if len(lines) == 1:
            return []
        lines[0] = b"".join(self._partial)
        self._partial = [lines.pop()]
        return [line for line in lines if line]


class WatchDecoder(Generic[T]):
    """Decodes the lines of a watch whose objects are of type *view*."""

    def __init__(self, view: type[T]) -> None:
        self._decode_event = msgspec.json.Decoder(WatchEvent[view]).decode  # type: ignore[valid-type]

    def decode(self, line: bytes) -> WatchEvent[T] | Bookmark:
        """Decode one line; changes, the common path, in one pass.

        Raises:
            ApiError: the line is the error by which the server ends the watch.
            ObjectDecodeError: the object does not fit the view.
            DecodeError: the line is not a watch event.
        """
        try:
            return self._decode_event(line)
        except msgspec.MsgspecError as error:
            return self._decode_unusual(line, error)

    def _decode_unusual(self, line: bytes, cause: msgspec.MsgspecError) -> Bookmark:
        try:
            raw_event = _RAW_EVENT_DECODER.decode(line)
        except msgspec.MsgspecError as error:
            raise DecodeError(f"not a watch event: {line[:200]!r}") from error
        if raw_event.type == "ERROR":
            raise _decode_status_error(raw_event.object)
        meta = decode_metadata(raw_event.object)
        if raw_event.type == "BOOKMARK":
            return Bookmark(
                meta.resource_version, meta.annotations.get(INITIAL_EVENTS_END) == "true"
            )
        problem = str(cause).replace("`$.object.", "`$.")  # a path in the object, as in a list
        raise ObjectDecodeError(problem, event_type=raw_event.type, metadata=meta) from cause


def _decode_status_error(raw: msgspec.Raw) -> ApiError:
    try:
        return from_status(_STATUS_DECODER.decode(raw))
    except msgspec.MsgspecError:
        return ApiError(bytes(raw)[:500].decode("utf-8", "replace"), status=500)
