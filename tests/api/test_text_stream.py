"""Responses of text: back-pressure, disconnects, errors before and after the first byte."""

import asyncio
from typing import Any

import pytest
from support.polling import wait_for

from batholith.api.http import text_stream
from batholith.api.http.text_stream import SlowReaderError, TextOutput, TextStream
from batholith.api.problems import ProblemError


class Connection:
    """What an ASGI server does for one request."""

    def __init__(self, method: str = "GET") -> None:
        self.scope = {"type": "http", "method": method, "path": "/log"}
        self.sent: list[Any] = []
        self.disconnected = asyncio.Event()
        self.writable = asyncio.Event()
        self.writable.set()

    async def receive(self) -> Any:
        await self.disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.writable.wait()
        self.sent.append(message)

    async def run(self, stream: TextStream) -> None:
        await stream(self.scope, self.receive, self.send)

    @property
    def body(self) -> bytes:
        return b"".join(each.get("body", b"") for each in self.sent)

    @property
    def is_complete(self) -> bool:
        return bool(self.sent) and self.sent[-1].get("more_body") is None and len(self.sent) > 1


async def test_text_is_sent_as_it_is_written() -> None:
    connection, release = Connection(), asyncio.Event()

    async def write(output: TextOutput) -> None:
        await output.write(b"one\n")
        await release.wait()
        await output.write(b"two\n")

    running = asyncio.create_task(connection.run(TextStream(write)))
    await wait_for(lambda: connection.body == b"one\n")
    assert connection.sent[0]["status"] == 200
    release.set()
    await running
    assert (connection.body, connection.is_complete) == (b"one\ntwo\n", True)


async def test_an_empty_text_is_complete() -> None:
    connection = Connection()

    async def write(output: TextOutput) -> None:
        return

    await connection.run(TextStream(write))
    assert (connection.body, connection.is_complete) == (b"", True)


async def test_the_writer_is_cancelled_when_the_client_disconnects() -> None:
    connection, cancelled = Connection(), asyncio.Event()

    async def write(output: TextOutput) -> None:
        try:
            await output.write(b"one\n")
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    running = asyncio.create_task(connection.run(TextStream(write)))
    await wait_for(lambda: connection.body)
    connection.disconnected.set()
    await running
    assert cancelled.is_set()
    assert not connection.is_complete


async def test_an_error_before_the_first_byte_is_raised() -> None:
    async def write(output: TextOutput) -> None:
        raise ProblemError(400, "no log")

    connection = Connection()
    with pytest.raises(ProblemError, match="no log"):
        await connection.run(TextStream(write))
    assert connection.sent == []


async def test_an_error_after_the_first_byte_breaks_the_transfer() -> None:
    async def write(output: TextOutput) -> None:
        await output.write(b"one\n")
        raise ProblemError(502, "lost")

    connection = Connection()
    await connection.run(TextStream(write))
    assert (connection.body, connection.is_complete) == (b"one\n", False)


async def test_a_client_that_does_not_read_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def write(output: TextOutput) -> None:
        await output.start()
        connection.writable.clear()
        await output.write(b"one\n")

    connection = Connection()
    monkeypatch.setattr(text_stream, "SEND_TIMEOUT", 0.01)
    await connection.run(TextStream(write))
    assert not connection.is_complete
    output = TextOutput(connection.send)
    with pytest.raises(SlowReaderError):
        await output.write(b"x")


async def test_concurrent_writers_are_served_in_order() -> None:
    connection = Connection()
    output = TextOutput(connection.send)
    await asyncio.gather(*(output.write(b"%d" % number) for number in range(5)))
    assert connection.body == b"01234"


async def test_head_ends_after_the_status() -> None:
    async def write(output: TextOutput) -> None:
        await output.start()
        await asyncio.Event().wait()

    connection = Connection("HEAD")
    await connection.run(TextStream(write))
    assert connection.sent[0]["status"] == 200
    assert connection.is_complete
