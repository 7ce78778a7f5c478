"""Reads of container logs, and access to the log server."""

import asyncio
import ssl
import tracemalloc
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.polling import DEFAULT_TIMEOUT

from batholith.local.agent.runtime import logs
from batholith.local.agent.runtime.logs import LogOptions, LogRotation, punch_log_head, read
from batholith.local.agent.server import AgentServer, LogUnavailableError
from batholith.local.agent.settings import ServingFiles
from batholith.local.supervisor import pki
from batholith.machinery.clock import SystemClock
from batholith.machinery.serving_certificate import KeyPairFiles
from batholith.machinery.testing import FakeClock, run_ready_tasks

LINES = (
    "2026-01-01T00:00:01.000000001Z stdout F one\n"
    "2026-01-01T00:00:02.000000001Z stderr F two\n"
    "2026-01-01T00:00:03.000000001Z stdout P thr\n"
    "2026-01-01T00:00:03.500000001Z stdout F ee\n"
    "2026-01-01T00:00:04.000000001Z stdout F \n"
)


async def text(path: Path, options: LogOptions) -> str:
    chunks = read(path, options, is_finished=lambda: True, clock=SystemClock())
    return b"".join([chunk async for chunk in chunks]).decode()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (LogOptions(), "one\ntwo\nthree\n\n"),
        (LogOptions(tail=2), "three\n\n"),
        (LogOptions(tail=0), ""),
        (LogOptions(tail=99), "one\ntwo\nthree\n\n"),
        (LogOptions(stream="stderr"), "two\n"),
        (LogOptions(limit=6), "one\ntw"),
        (LogOptions(since=datetime(2026, 1, 1, 0, 0, 3, tzinfo=UTC)), "three\n\n"),
        (
            LogOptions(timestamps=True, tail=2),
            "2026-01-01T00:00:03.000000001Z three\n2026-01-01T00:00:04.000000001Z \n",
        ),
    ],
)
async def test_log_options_select_lines(tmp_path: Path, options: LogOptions, expected: str) -> None:
    path = tmp_path / "0.log"
    path.write_text(LINES)
    assert await text(path, options) == expected


@given(
    lines=st.lists(st.text(st.characters(codec="ascii", exclude_characters="\n\r"), max_size=9)),
    count=st.integers(0, 12),
)
def test_tail_returns_the_last_lines(
    tmp_path_factory: pytest.TempPathFactory, lines: Sequence[str], count: int
) -> None:
    path = tmp_path_factory.mktemp("log") / "0.log"
    entries = "".join(f"2026-01-01T00:00:01.000000001Z stdout F {line}\n" for line in lines)
    path.write_bytes(entries.encode())
    whole = asyncio.run(text(path, LogOptions()))
    tail = asyncio.run(text(path, LogOptions(tail=count)))
    assert whole == "".join(f"{line}\n" for line in lines)
    assert tail == "".join(f"{line}\n" for line in (lines[-count:] if count else []))


async def test_a_carriage_return_ends_no_line(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    path.write_bytes(b"2026-01-01T00:00:01.000000001Z stdout F 10 %\r20 %\n" * 3)
    assert await text(path, LogOptions(tail=2)) == "10 %\r20 %\n" * 2


@given(
    entries=st.lists(
        st.tuples(st.sampled_from("FP"), st.sampled_from([0, 1, 40, 300, 16_384])), max_size=25
    ),
    block=st.integers(1, 400),
    count=st.integers(0, 30),
)
def test_tail_does_not_depend_on_where_blocks_begin(
    tmp_path_factory: pytest.TempPathFactory,
    entries: Sequence[tuple[str, int]],
    block: int,
    count: int,
) -> None:
    path = tmp_path_factory.mktemp("log") / "0.log"
    stamp = "2026-01-01T00:00:01.000000001Z stdout"
    path.write_text("".join(f"{stamp} {tag} {'x' * size}\n" for tag, size in entries))
    expected = "".join("x" * size + ("\n" if tag == "F" else "") for tag, size in entries)
    lines = expected.splitlines(keepends=True)
    if entries and entries[-1] == ("P", 0) and (len(entries) == 1 or entries[-2][0] == "F"):
        lines.append("")  # a line that has begun, without text so far
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logs, "BLOCK_BYTES", block)
        tail = asyncio.run(text(path, LogOptions(tail=count)))
    assert tail == "".join(lines[-count:] if count else [])


def write_large_log(path: Path) -> int:
    """Write a log of many blocks, and return its number of lines."""
    lines = 60_000
    path.write_bytes(b"2026-01-01T00:00:01.000000001Z stdout F text\n" * lines)
    return lines


UNBOUNDED = [
    LogOptions(tail=100_000_000),
    LogOptions(since=datetime(2030, 1, 1, tzinfo=UTC)),
    LogOptions(stream="stderr"),
    LogOptions(tail=100_000_000, limit=10),
    LogOptions(follow=True, since=datetime(2030, 1, 1, tzinfo=UTC)),
]


@pytest.mark.parametrize("options", UNBOUNDED)
async def test_a_large_log_is_read_in_bounded_memory_while_other_tasks_run(
    tmp_path: Path, options: LogOptions
) -> None:
    path, iterations, reading = tmp_path / "0.log", 0, True
    write_large_log(path)

    async def run_alongside() -> None:
        nonlocal iterations
        while reading:
            iterations += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(run_alongside())
    tracemalloc.start()
    try:
        chunks = read(path, options, is_finished=lambda: True, clock=SystemClock())
        async for chunk in chunks:
            assert len(chunk) <= 2 * 64 * 1024
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        reading = False
    await other
    assert iterations > path.stat().st_size / (64 * 1024)
    assert peak < 2**20


async def test_overlong_entry_of_a_container_that_writes_its_log_is_not_kept_in_memory(
    tmp_path: Path,
) -> None:
    path = tmp_path / "0.log"
    with path.open("wb") as file:
        file.truncate(8 * 2**20)
        file.seek(0)
        file.write(b"x")  # else the log would start after the hole
        file.seek(0, 2)
        file.write(b"\n\xff \xff \xff \xff\n" + LINES.encode())
    tracemalloc.start()
    try:
        whole = await text(path, LogOptions(stream="stdout"))
        assert await text(path, LogOptions(tail=2)) == "three\n\n"
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert whole.endswith("one\nthree\n\n")
    assert peak < 2**20


async def test_a_log_that_is_not_followed_ends_although_its_container_writes_on(
    tmp_path: Path,
) -> None:
    path, read_lines = tmp_path / "0.log", 0
    path.write_text(LINES)
    chunks = read(path, LogOptions(), is_finished=lambda: False, clock=SystemClock())
    async for chunk in chunks:
        read_lines += chunk.count(b"\n")
        with path.open("a") as file:
            file.write(LINES)
    assert read_lines == LINES.count("F")


async def test_head_of_a_large_log_is_deallocated(tmp_path: Path) -> None:
    path, page = tmp_path / "0.log", 4096
    lines = [f"2026-01-01T00:00:01.000000001Z stdout F line {n}\n" for n in range(20_000)]
    path.write_text("".join(lines))
    size = path.stat().st_size
    assert not punch_log_head(path, LogRotation(size, 2))
    with path.open("rb") as reader:
        reader.seek(size - 1)
        if not punch_log_head(path, LogRotation(64 * page, 2)):
            pytest.skip("this file system does not support holes")
        assert reader.read() == b"\n", "open readers are not affected"
    assert path.stat().st_size == size
    assert path.stat().st_blocks * 512 < 70 * page
    kept = (await text(path, LogOptions())).splitlines()
    assert 64 * page * 0.9 < len("".join(lines[-len(kept) :])) < 66 * page
    assert kept == [f"line {n}" for n in range(20_000 - len(kept), 20_000)]
    assert (await text(path, LogOptions(tail=3))).splitlines() == kept[-3:]
    assert (await text(path, LogOptions(tail=30_000))).splitlines() == kept
    assert not punch_log_head(path, LogRotation(64 * page, 2))
    assert not punch_log_head(tmp_path / "none.log", LogRotation())


async def test_reader_that_is_overtaken_by_the_removal_continues_with_whole_lines(
    tmp_path: Path,
) -> None:
    path, page = tmp_path / "0.log", 4096
    every = [f"line {n} {'x' * 200}" for n in range(20_000)]
    path.write_text("".join(f"2026-01-01T00:00:01.000000001Z stdout F {each}\n" for each in every))
    options = LogOptions(follow=True)
    chunks = read(path, options, is_finished=lambda: True, clock=SystemClock())
    got = (await anext(chunks)).splitlines()
    if not punch_log_head(path, LogRotation(32 * page, 2)):
        pytest.skip("this file system does not support holes")
    before = len(got)
    got += [line async for chunk in chunks for line in chunk.splitlines()]
    assert before < len(got) < 20_000
    assert [line.decode() for line in got] == every[:before] + every[before - len(got) :]


async def test_number_of_files_determines_how_much_of_a_log_is_kept(tmp_path: Path) -> None:
    path, page = tmp_path / "0.log", 4096
    line = "2026-01-01T00:00:01.000000001Z stdout F " + "x" * 23 + "\n"
    path.write_text(line * (100 * page // len(line)))
    assert not punch_log_head(path, LogRotation(20 * page, 5)), "not above the limit"
    with path.open("a") as file:
        file.write(line * (page // len(line)))
    if not punch_log_head(path, LogRotation(20 * page, 5)):
        pytest.skip("this file system does not support holes")
    assert path.stat().st_blocks * 512 == 80 * page


@pytest.mark.parametrize(
    ("size", "files", "message"),
    [
        ("0", 5, "not a positive number of bytes"),
        ("-1Mi", 5, "not a positive number of bytes"),
        ("100m", 5, "not a positive number of bytes"),
        ("ten", 5, "not a positive number of bytes"),
        ("10Mi", 1, "must be greater than 1"),
    ],
)
def test_invalid_limits_of_logs_are_rejected(size: str, files: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        LogRotation.parse(size, files)


async def test_followed_log_ends_when_its_run_is_finished(tmp_path: Path) -> None:
    path, clock, over = tmp_path / "0.log", FakeClock(), False
    path.write_text(LINES)
    got: list[bytes] = []

    async def follow() -> None:
        options = LogOptions(follow=True, tail=1)
        async for chunk in read(path, options, is_finished=lambda: over, clock=clock):
            got.append(chunk)  # noqa: PERF401 - read during the loop

    following = asyncio.create_task(follow())
    await run_ready_tasks()
    with path.open("a") as file:
        file.write("2026-01-01T00:00:05.000000001Z stdout F new\n")
        file.flush()
        await clock.advance(1)
        assert b"".join(got) == b"\nnew\n"
        over = True
        file.write("2026-01-01T00:00:06.000000001Z stdout F last\n")
        file.flush()
    await clock.advance(1)
    await following
    assert b"".join(got) == b"\nnew\nlast\n"


@dataclass
class SingleLogSource:
    """A source with one log."""

    path: Path

    def is_finished(self) -> bool:
        return True

    def find_log(self, pod: str, container: str, *, previous: bool) -> "SingleLogSource":
        if (pod, container) != ("default/p", "c"):
            raise LogUnavailableError(404, f"no container {container} in {pod}")
        return self


async def test_log_server_accepts_only_certificates_of_its_ca(tmp_path: Path) -> None:
    own = pki.ensure(tmp_path / "pki")
    other = pki.ensure(tmp_path / "other")
    (tmp_path / "0.log").write_text(LINES)
    server = AgentServer(SingleLogSource(tmp_path / "0.log"), SystemClock())
    files = ServingFiles(certificate=own.agent.certificate, key=own.agent.key, client_ca=own.ca)
    async with server.running(files) as port:
        url = f"https://127.0.0.1:{port}/containerLogs/default/p"
        assert await request_log(f"{url}/c?tailLines=2", own, own.client) == (200, "three\n\n")
        assert (await request_log(f"{url}/d", own, own.client))[0] == 404
        assert (await request_log(f"{url}/c?tailLines=x", own, own.client))[0] == 400
        for pair in (None, other.client):
            with pytest.raises((aiohttp.ClientError, OSError)):
                await request_log(f"{url}/c", own, pair)


class OpenLogSource(SingleLogSource):
    """A log that never ends, and gets no more lines."""

    def is_finished(self) -> bool:
        return False


@asynccontextmanager
async def followed(directory: Path) -> AsyncIterator[aiohttp.ClientResponse]:
    """Follow ``0.log`` of *directory*, whose first line is ``one``, over the agent's server."""
    own = pki.ensure(directory / "pki")
    server = AgentServer(OpenLogSource(directory / "0.log"), SystemClock())
    files = ServingFiles(certificate=own.agent.certificate, key=own.agent.key, client_ca=own.ca)
    context = ssl.create_default_context(cafile=str(own.ca))
    context.load_cert_chain(own.client.certificate, own.client.key)
    async with server.running(files) as port, aiohttp.ClientSession() as session:
        url = f"https://127.0.0.1:{port}/containerLogs/default/p/c?follow=true"
        response = await session.get(url, ssl=context)
        assert await response.content.readline() == b"one\n"
        yield response


async def test_following_stops_when_the_client_disconnects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pki.ensure(tmp_path / "pki")
    (tmp_path / "0.log").write_text(LINES)
    ended, read_on = asyncio.Event(), logs.read

    async def read(*arguments: Any, **more: Any) -> AsyncIterator[bytes]:
        async for chunk in read_on(*arguments, **more):
            yield chunk
        ended.set()

    monkeypatch.setattr(logs, "read", read)
    async with followed(tmp_path) as response:
        response.close()
        async with asyncio.timeout(DEFAULT_TIMEOUT):
            await ended.wait()


async def test_disconnection_during_a_write_is_no_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    pki.ensure(tmp_path / "pki")
    path = tmp_path / "0.log"
    path.write_text(LINES)
    ended, read_on = asyncio.Event(), logs.read

    async def read(*arguments: Any, **more: Any) -> AsyncIterator[bytes]:
        try:
            async for chunk in read_on(*arguments, **more):
                yield chunk
        finally:
            ended.set()

    async def write_on() -> None:
        with path.open("a") as file:
            while not ended.is_set():
                file.write(LINES * 1000)
                file.flush()
                await asyncio.sleep(0)

    monkeypatch.setattr(logs, "read", read)
    async with followed(tmp_path) as response:
        writing = asyncio.create_task(write_on())
        response.close()
        async with asyncio.timeout(DEFAULT_TIMEOUT):
            await writing
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


async def request_log(url: str, own: pki.Pki, pair: KeyPairFiles | None) -> tuple[int, str]:
    context = ssl.create_default_context(cafile=str(own.ca))
    if pair:
        context.load_cert_chain(pair.certificate, pair.key)
    async with aiohttp.ClientSession() as session, session.get(url, ssl=context) as response:
        return response.status, await response.text()
