"""Splitting a stream into lines, and decoding the lines of a watch."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batholith.kube.client.watch_decoder import (
    Bookmark,
    LineSplitter,
    ObjectDecodeError,
    WatchDecoder,
    WatchEvent,
)
from batholith.kube.errors import DecodeError, GoneError, ServerError
from batholith.model.base import ApiStruct
from batholith.model.meta import ObjectMeta


class Thing(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    size: int = 0


@given(
    lines=st.lists(st.binary(max_size=20).filter(lambda line: b"\n" not in line)),
    rest=st.binary(max_size=5).filter(lambda line: b"\n" not in line),
    sizes=st.lists(st.integers(1, 30)),
)
def test_line_splitter_is_independent_of_chunking(
    lines: list[bytes], rest: bytes, sizes: list[int]
) -> None:
    stream = b"".join(line + b"\n" for line in lines) + rest
    cutter, got = LineSplitter(), list[bytes]()
    for size in sizes:
        got += cutter.feed(stream[:size])
        stream = stream[size:]
    got += cutter.feed(stream)
    assert got == [line for line in lines if line]


def test_line_of_many_chunks_is_joined_once() -> None:
    cutter = LineSplitter()
    for _ in range(100_000):
        assert cutter.feed(b"x" * 10) == []
    (line,) = cutter.feed(b"\n")
    assert len(line) == 1_000_000


def test_changes_bookmarks_and_errors_are_decoded() -> None:
    reader = WatchDecoder(Thing)
    event = reader.decode(b'{"type":"ADDED","object":{"metadata":{"name":"a"},"size":3}}')
    assert event == WatchEvent("ADDED", Thing(metadata=ObjectMeta(name="a"), size=3))
    head = b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"5"'
    assert reader.decode(head + b"}}}") == Bookmark("5", ends_initial_events=False)
    end = b',"annotations":{"k8s.io/initial-events-end":"true"}}}}'
    assert reader.decode(head + end) == Bookmark("5", ends_initial_events=True)
    with pytest.raises(GoneError, match="too old"):
        reader.decode(b'{"type":"ERROR","object":{"code":410,"message":"too old"}}')
    with pytest.raises(ServerError):
        reader.decode(b'{"type":"ERROR","object":{"code":504}}')


def test_decode_error_has_the_metadata_of_the_object() -> None:
    reader = WatchDecoder(Thing)
    line = b'{"type":"MODIFIED","object":{"metadata":{"name":"a","namespace":"d"},"size":"x"}}'
    with pytest.raises(ObjectDecodeError, match="size") as caught:
        reader.decode(line)
    assert (caught.value.event_type, caught.value.metadata.key) == ("MODIFIED", "d/a")
    for text in (b"nonsense", b"[]", b'{"type":3}'):
        with pytest.raises(DecodeError):
            reader.decode(text)


def test_raw_objects_can_be_watched() -> None:
    event = WatchDecoder(msgspec.Raw).decode(b'{"type":"ADDED","object":{"x":1}}')
    assert isinstance(event, WatchEvent)
    assert bytes(event.object) == b'{"x":1}'
