"""The lines of a watch: cutting a byte stream at line ends and reading each line once."""

from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import msgspec

from ...model.meta import ObjectMeta
from ..errors import ApiError, DecodeError, Status, from_status

T = TypeVar("T")

WatchEventType = Literal["ADDED", "MODIFIED", "DELETED"]

INITIAL_EVENTS_END = "k8s.io/initial-events-end"
"""Annotation of the bookmark that ends the list at the head of a streaming watch."""


class WatchEvent(msgspec.Struct, Generic[T], frozen=True):
    """One change; *object* of a deletion is its last state."""

    type: WatchEventType
    object: T


@dataclass(frozen=True, slots=True)
class Bookmark:
    """The watch has seen everything up to *resource_version*."""

    resource_version: str
    ends_initial_events: bool
    """The list at the head of the stream is complete."""


class ObjectDecodeError(DecodeError):
    """An object of a watch or a list does not fit the view; the rest of it is fine."""

    def __init__(self, message: str, *, event_type: str, metadata: ObjectMeta) -> None:
        super().__init__(message)
        self.event_type = event_type
        """ADDED, MODIFIED, DELETED; empty in a list."""
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
    """The metadata of an object in JSON, empty when even they are unreadable."""
    try:
        return _METADATA_DECODER.decode(raw).metadata
    except msgspec.MsgspecError:
        return ObjectMeta()


class LineSplitter:
    """Cuts a stream into lines; its cost is linear however the stream is cut into pieces."""

    def __init__(self) -> None:
        self._partial: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        """Take the next piece of the stream; return the lines that it completes, blanks left out.

        An unfinished last line stays here, and is lost with the stream: a cut-off event was not
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
    """Reads lines of a watch whose objects are seen as *view*."""

    def __init__(self, view: type[T]) -> None:
        self._decode_event = msgspec.json.Decoder(WatchEvent[view]).decode  # type: ignore[valid-type]

    def decode(self, line: bytes) -> WatchEvent[T] | Bookmark:
        """Read one line; changes, the usual case, are decoded in one go.

        Raises:
            ApiError: the line is the server's error that ends the watch.
            UnreadableObjectError: the object does not fit the view.
            UnreadableAnswerError: the line is no event at all.
        """
        try:
            return self._decode_event(line)
        except msgspec.MsgspecError as error:
            return self._decode_unusual(line, error)

    def _decode_unusual(self, line: bytes, cause: msgspec.MsgspecError) -> Bookmark:
        try:
            bare = _RAW_EVENT_DECODER.decode(line)
        except msgspec.MsgspecError as error:
            raise DecodeError(f"not a watch event: {line[:200]!r}") from error
        if bare.type == "ERROR":
            raise _decode_status_error(bare.object)
        meta = decode_metadata(bare.object)
        if bare.type == "BOOKMARK":
            return Bookmark(
                meta.resource_version, meta.annotations.get(INITIAL_EVENTS_END) == "true"
            )
        raise ObjectDecodeError(str(cause), event_type=bare.type, metadata=meta) from cause


def _decode_status_error(raw: msgspec.Raw) -> ApiError:
    try:
        return from_status(_STATUS_DECODER.decode(raw))
    except msgspec.MsgspecError:
        return ApiError(bytes(raw)[:500].decode("utf-8", "replace"), status=500)
