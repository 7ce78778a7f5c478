"""Lines of logs: however a stream is split, and wherever it breaks, each is read once."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from batholith.api.logs.lines import LineAssembler, LogLine, LogPosition, format_lines

TEXTS = st.lists(st.text("ab \r", max_size=6), max_size=12)


def encode(texts: Sequence[str], seconds: Sequence[int]) -> bytes:
    """A stream whose line n has the time *seconds*[n]."""
    return b"".join(
        f"2026-01-01T00:00:{second:02d}.000000000Z {text}\n".encode()
        for text, second in zip(texts, seconds, strict=True)
    )


def assemble(chunks: Sequence[bytes], max_line: int = 1000) -> list[LogLine]:
    assembler = LineAssembler(max_line)
    lines = [line for chunk in chunks for line in assembler.feed(chunk)]
    return [*lines, *assembler.finish()]


@given(data=st.data(), texts=TEXTS)
def test_lines_do_not_depend_on_the_chunks(data: st.DataObject, texts: list[str]) -> None:
    stream = encode(texts, [0] * len(texts))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=5)))
    edges = [0, *cuts, len(stream)]
    chunks = [stream[start:end] for start, end in pairwise(edges)]
    assert [line.text.decode() for line in assemble(chunks)] == texts


@given(data=st.data(), texts=TEXTS)
def test_a_stream_that_breaks_anywhere_is_continued(data: st.DataObject, texts: list[str]) -> None:
    """The server sends all lines from the second of the last one on."""
    seconds = sorted(
        data.draw(st.lists(st.integers(0, 5), min_size=len(texts), max_size=len(texts)))
    )
    position, found = LogPosition(), []
    remaining = data.draw(st.integers(0, 3))
    while True:
        since = position.since_time
        first = 0
        if since:
            first = next(at for at, second in enumerate(seconds) if second >= int(since[17:19]))
        stream = encode(texts[first:], seconds[first:])
        is_last = remaining == 0
        end = len(stream) if is_last else data.draw(st.integers(0, len(stream)))
        position.begin_stream()
        lines = LineAssembler().feed(stream[:end])
        found += [line.text.decode() for line in lines if position.advance(line)]
        if is_last:
            break
        remaining -= 1
    assert found == texts


@given(length=st.integers(0, 100), limit=st.integers(28, 40))
def test_a_long_line_becomes_several(length: int, limit: int) -> None:
    stream = b"2026-01-01T00:00:00.000000000Z " + b"x" * length + b"\n2026-01-01T00:00:01Z y\n"
    lines = assemble([stream[:50], stream[50:]], max_line=max(limit, 32))
    assert b"".join(line.text for line in lines[:-1]) == b"x" * length
    assert lines[-1].text == b"y"
    position = LogPosition()
    assert all(position.advance(line) for line in lines)


def test_time_zones_and_fractions_are_compared_as_times() -> None:
    position = LogPosition()
    early = LogLine(b"2026-06-01T02:00:00.1+02:00", b"a")
    assert position.advance(early)
    position.begin_stream()
    assert not position.advance(LogLine(b"2026-06-01T00:00:00.100000000Z", b"a"))
    assert position.advance(LogLine(b"2026-06-01T01:00:00.100000001+01:00", b"b"))


def test_lines_are_formatted_in_batches() -> None:
    lines = [LogLine(b"t", b"one"), LogLine(b"", b"two")]
    assert list(format_lines(iter(lines), prefix=b"[p] ", timestamps=True, size=1)) == [
        b"[p] t one\n",
        b"[p] two\n",
    ]
    assert list(format_lines(iter(lines), prefix=b"", timestamps=False)) == [b"one\ntwo\n"]
    assert list(format_lines(iter(()), prefix=b"", timestamps=False)) == []
