"""The parser of server-sent events."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from batholith.client import event_stream
from batholith.client.event_stream import EventParser, EventTooLargeError, ServerEvent

STREAM = (
    b"\xef\xbb\xbf: heartbeat\n\nretry: 1500\nid: 1\nevent: added\ndata: {}\n\n"
    b"data:a\rdata: b\r\n\r\nid\ndata:  c\r\r"
    b"id: 7\nevent: ignored without data\n\nunknown: x\ndata\n\nid: not\x00this\ndata: \xc3\xa4\n\n"
)
EVENTS = [
    ServerEvent("added", "{}", "1"),
    ServerEvent("message", "a\nb", "1"),
    ServerEvent("message", " c", ""),
    ServerEvent("message", "", "7"),
    ServerEvent("message", "ä", "7"),
]


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
@settings(max_examples=examples(200))
def test_events_do_not_depend_on_the_chunks(cuts: list[int]) -> None:
    parser = EventParser()
    bounds = [0, *sorted(cuts), len(STREAM)]
    chunks = [STREAM[start:end] for start, end in pairwise(bounds)]
    assert [event for chunk in chunks for event in parser.feed(chunk)] == EVENTS
    assert (parser.last_id, parser.retry) == ("7", 1.5)


def test_an_incomplete_event_is_not_delivered() -> None:
    parser = EventParser(last_id="5")
    assert list(parser.feed(b"id: 6\ndata: x\n")) == []
    assert parser.last_id == "5"


def test_an_endless_event_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_stream, "MAX_EVENT", 100)
    parser = EventParser()
    with pytest.raises(EventTooLargeError):
        for _ in range(100):
            list(parser.feed(b"data: " + b"x" * 10 + b"\n"))
