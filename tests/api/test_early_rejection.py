"""Requests without valid credentials are rejected before their bodies are read."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import msgspec
import pytest
from support.rest import RestClient
from support.rest_jobs import volcano_job

pytestmark = pytest.mark.asyncio(loop_scope="module")

JOBS = "/v1/namespaces/default/jobs"
SIZE = 3 * 1024 * 1024
CREDENTIALS = ["", "authorization: Basic YTpi\r\n", "authorization: Bearer wrong\r\n"]


@pytest.fixture
def rest(module_rest: RestClient) -> RestClient:
    return module_rest


@contextlib.asynccontextmanager
async def connection(
    rest: RestClient,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    address = urlsplit(rest.url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


def head(
    credentials: str, *, method: str = "POST", path: str = JOBS, length: int = SIZE, more: str = ""
) -> bytes:
    lines = f"{method} {path} HTTP/1.1\r\nhost: a\r\n{credentials}content-length: {length}\r\n"
    return f"{lines}{more}\r\n".encode()


async def response(reader: asyncio.StreamReader) -> tuple[int, bytes, bytes]:
    """Status, header lines and body of a response."""
    lines = (await reader.readuntil(b"\r\n\r\n")).lower()
    [length] = [
        int(line.partition(b":")[2])
        for line in lines.split(b"\r\n")
        if line.startswith(b"content-length:")
    ]
    return int(lines.split()[1]), lines, await reader.readexactly(length)


@pytest.mark.parametrize("credentials", CREDENTIALS)
@pytest.mark.parametrize(
    ("method", "path", "length"),
    [("POST", JOBS, SIZE), ("POST", f"{JOBS}/a/commands", 60_000), ("PATCH", "/v1/queues/a", 9)],
)
async def test_no_byte_of_the_body_is_awaited(
    rest: RestClient, credentials: str, method: str, path: str, length: int
) -> None:
    async with connection(rest) as (reader, writer):
        writer.write(head(credentials, method=method, path=path, length=length))
        status, lines, body = await response(reader)
        assert status == 401
        assert b"www-authenticate: bearer" in lines
        assert b"connection: close" in lines
        assert msgspec.json.decode(body)["status"] == 401
        assert await reader.read() == b"", "the connection is closed"


@pytest.mark.parametrize("credentials", CREDENTIALS)
async def test_a_client_that_sends_on_can_read_the_rejection(
    rest: RestClient, credentials: str
) -> None:
    async with connection(rest) as (reader, writer):
        writer.write(head(credentials))
        for _ in range(16):
            writer.write(b" " * 65536)
            await asyncio.sleep(0)
        assert (await response(reader))[0] == 401


@pytest.mark.parametrize("credentials", CREDENTIALS)
async def test_a_chunked_body_is_not_awaited_either(rest: RestClient, credentials: str) -> None:
    async with connection(rest) as (reader, writer):
        lines = f"POST {JOBS} HTTP/1.1\r\nhost: a\r\n{credentials}transfer-encoding: chunked"
        writer.write(lines.encode() + b"\r\n\r\n3\r\nabc\r\n")
        assert (await response(reader))[0] == 401


async def test_only_an_authenticated_client_is_told_to_continue(rest: RestClient) -> None:
    expect = "expect: 100-continue\r\n"
    async with connection(rest) as (reader, writer):
        writer.write(head(CREDENTIALS[-1], more=expect))
        assert (await response(reader))[0] == 401
    body = msgspec.json.encode(volcano_job("awaited"))
    async with connection(rest) as (reader, writer):
        token = f"authorization: Bearer {rest.token}\r\n"
        writer.write(head(token, length=len(body), more=expect))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(body)
        assert (await response(reader))[0] == 201


async def test_requests_before_it_on_the_connection_are_answered_first(rest: RestClient) -> None:
    token = f"authorization: Bearer {rest.token}\r\n"
    body = msgspec.json.encode(volcano_job("first"))
    async with connection(rest) as (reader, writer):
        writer.write(head(token, length=len(body)) + body + head(CREDENTIALS[-1]))
        assert [(await response(reader))[0], (await response(reader))[0]] == [201, 401]
        assert await reader.read() == b""


async def test_a_body_in_pieces_of_an_authenticated_client_is_read(rest: RestClient) -> None:
    token = f"authorization: Bearer {rest.token}\r\n"
    body = msgspec.json.encode(volcano_job("pieces"))
    async with connection(rest) as (reader, writer):
        for _ in range(2):
            writer.write(head(token, length=len(body)))
            for byte in body:
                writer.write(bytes((byte,)))
                await writer.drain()
            status = (await response(reader))[0]
            assert status in (201, 409)
    assert status == 409, "the connection stays open"


async def test_the_rejection_is_in_the_audit_log(
    rest: RestClient, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="batholith.api.identity.audit"):
        async with connection(rest) as (reader, writer):
            writer.write(head("", path="/v1/namespaces/audited/jobs"))
            await response(reader)
    audited = [vars(each) for each in caplog.records if "audited" in vars(each).get("path", "")]
    assert [each["status"] for each in audited] == [401]
