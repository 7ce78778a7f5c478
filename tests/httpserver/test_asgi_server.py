"""Applications behind the listener: complete requests only, and an orderly end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest
from support.polling import wait_for

from batholith.httpserver.asgi import Receive, Response, Scope, Send, read_body, wait_disconnected
from batholith.httpserver.asgi_server import serve_application
from batholith.httpserver.buffering import BufferingListener
from batholith.httpserver.metrics import ListenerMetrics
from batholith.httpserver.sockets import bind

BODY = b"a body"
REQUEST = b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 6\r\n\r\n" + BODY


@dataclass
class App:
    """An application that responds when a test lets it."""

    bodies: list[bytes] = field(default_factory=list)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    disconnected: bool = False
    metrics: ListenerMetrics = field(default_factory=ListenerMetrics)
    listener: BufferingListener | None = None
    port: int = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.bodies.append(await read_body(receive))
        leaving = asyncio.ensure_future(wait_disconnected(receive))
        going_on = asyncio.ensure_future(self.go_on.wait())
        await asyncio.wait((leaving, going_on), return_when=asyncio.FIRST_COMPLETED)
        self.disconnected = leaving.done()
        for task in (leaving, going_on):
            task.cancel()
        await Response.text("done").send(send)

    @asynccontextmanager
    async def served(self, *, drain_timeout: float = 60) -> AsyncIterator[None]:
        self.listener = BufferingListener(name="tests", body_limit=1024, metrics=self.metrics)
        sockets = await bind("127.0.0.1", 0)
        self.port = sockets[0].getsockname()[1]
        async with serve_application(
            self, self.listener, sockets, tls=None, drain_timeout=drain_timeout
        ):
            yield

    async def connect(self, sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        writer.write(sent)
        return reader, writer


async def test_a_request_in_flight_gets_its_response_at_the_end() -> None:
    app = App()
    async with app.served():
        reader, writer = await app.connect(REQUEST)
        await wait_for(lambda: app.bodies)
        asyncio.get_running_loop().call_soon(app.go_on.set)
    response = await reader.read()
    writer.close()
    assert response.startswith(b"HTTP/1.1 200 OK\r\ndate: ")
    assert response.endswith(b"connection: close\r\n\r\ndone")
    assert not app.disconnected


async def test_a_request_that_lasts_longer_than_the_end_is_aborted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    app = App()
    async with app.served(drain_timeout=0.01):
        reader, writer = await app.connect(REQUEST)
        await wait_for(lambda: app.bodies)
    assert app.disconnected
    assert await reader.read() == b""
    writer.close()
    [record] = [each for each in caplog.records if "aborted" in each.message]
    assert (vars(record)["serves"], vars(record)["requests"]) == ("tests", 1)


async def test_connections_without_a_request_do_not_delay_the_end() -> None:
    app = App()
    app.go_on.set()
    async with app.served():
        reader, writer = await app.connect(REQUEST)
        await reader.readuntil(b"done")
        silent, other = await app.connect(b"")
        await wait_for(lambda: app.listener is not None and len(app.listener) == 2)
    assert await reader.read() == await silent.read() == b""
    writer.close()
    other.close()


@pytest.mark.parametrize(
    "sent",
    [
        REQUEST[:-1],
        b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n6\r\na body\r\n",
        b"POST /a HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n6\r\na body\r\n0\r\n",
    ],
)
async def test_a_truncated_request_does_not_reach_the_application(sent: bytes) -> None:
    app = App()
    app.go_on.set()
    async with app.served():
        reader, writer = await app.connect(sent)
        writer.write_eof()
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
        writer.close()
        assert app.metrics.rejections["tests", "truncated"] == 1
    assert app.bodies == []
