"""Logs that are continued after broken connections."""

from dataclasses import dataclass
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.operation_script import START, Chunks, Script

from batholith.client.log_position import LineSplitter, LogLine, LogPosition, parse_line
from batholith.client.operations.logs import logs
from batholith.client.operations.scopes import Collection, Server
from batholith.client.timing import Retries


def stamp(tick: int) -> str:
    """A time of a node: four ticks a second, two of which are equal; zeros are trimmed."""
    time = START + timedelta(seconds=tick // 4)
    fraction = f"{tick % 4 // 2 * 10:09d}".rstrip("0")
    return f"{time:%Y-%m-%dT%H:%M:%S}{'.' + fraction if fraction else ''}Z"


@dataclass(frozen=True)
class Break:
    """A connection that ends after some bytes; the next one begins some ticks earlier."""

    after: int
    back: int


LINES = st.lists(
    st.tuples(st.sampled_from(["a", "b", "c/main"]), st.integers(0, 3)), min_size=1, max_size=30
)
BREAKS = st.lists(st.builds(Break, st.integers(0, 400), st.integers(0, 12)), max_size=4)


@given(LINES, BREAKS)
@settings(max_examples=examples(300))
def test_no_line_is_lost_or_repeated_over_breaks(
    steps: list[tuple[str, int]], breaks: list[Break]
) -> None:
    tick, written = 0, []
    for number, (source, step) in enumerate(steps):
        tick += step
        written.append((tick, LogLine(source, stamp(tick), f"line {number}")))
    position, read = LogPosition(), []
    start = 0
    for at in [*breaks, None]:
        position.begin_stream()
        lines = [line for tick, line in written if tick >= start]
        text = "".join(f"{line.format(prefix=True, timestamps=True)}\n" for line in lines).encode()
        splitter = LineSplitter()
        for found in splitter.feed(text if at is None else text[: at.after]):
            line = parse_line(found, has_prefix=True)
            if position.advance(line):
                read.append(line)
        if at is not None:
            # From before the oldest last line of a source, as the request asks for.
            last = [source.last for source in position.sources.values() if source.last]
            oldest = min(last)[0] if last and len(position.sources) == 3 else START
            start = max(0, int((oldest - START).total_seconds()) * 4 - at.back)
    expected = sorted((line for _, line in written), key=lambda line: line.text)
    assert sorted(read, key=lambda line: line.text) == expected
    for source in {line.source for line in read}:
        texts = [line.text for _, line in written if line.source == source]
        assert [line.text for line in read if line.source == source] == texts


def test_lines_are_split_and_formatted_as_asked_for() -> None:
    text = "[train-0] 2026-01-01T00:00:00.5Z [x] 2026 y"
    line = parse_line(text, has_prefix=True)
    assert line == LogLine("train-0", "2026-01-01T00:00:00.5Z", "[x] 2026 y")
    assert line.format(prefix=True, timestamps=True) == text
    assert line.format(prefix=False, timestamps=False) == "[x] 2026 y"
    assert parse_line("[a] b", has_prefix=False) == LogLine("", "", "[a] b")
    assert parse_line("2026-01-01T00:00:00Z", has_prefix=False).text == ""


def test_a_broken_log_is_requested_from_before_its_last_line() -> None:
    first = b"[a] 2026-01-01T00:00:00Z one\n[a] 2026-01-01T00:00:10Z two\n[a] 2026-01-0"
    rest = b"[a] 2026-01-01T00:00:10Z two\n[a] 2026-01-01T00:00:10Z three\nno line end"
    script = Script(
        [
            Chunks([first], lost=True, headers={"date": "Thu, 01 Jan 2026 00:00:20 GMT"}),
            Chunks([rest[:40], rest[40:]]),
        ]
    )
    job = Collection(Server(script.session(retries=Retries(base=0.0))), "jobs").ref("train")
    lines = list(script.items(logs(job, follow=True, tail_lines=5, task="t", prefix=False)))
    assert lines == ["one", "two", "three", "no line end"]
    urls = [request.url for request in script.requests]
    common = "https://api/v1/namespaces/default/jobs/train/logs?follow=true&timestamps=true&task=t"
    assert urls == [
        f"{common}&prefix=true&tail_lines=5",
        # 20 s by the server's clock, 10 after the last line, and the margin.
        f"{common}&prefix=true&since_seconds=70",
    ]
