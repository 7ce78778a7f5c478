"""Streaming reads: bytes as they arrive, errors, back-pressure, and their end."""

import asyncio
import socket

import pytest
from support.polling import wait_for
from support.raw_http_server import RawConnection, RawHttpServer, raw_http_server

from batholith.kube.client.client import Client
from batholith.kube.client.config import Credentials
from batholith.kube.errors import BadRequestError, ConnectionLostError, RequestTimeoutError

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


def client_of(server: RawHttpServer) -> Client:
    return Client(Credentials(server=f"http://127.0.0.1:{server.port}"), user_agent="tests")


async def read_all(client: Client, *, idle_timeout: float | None = None) -> bytes:
    async with client.stream_path("/log?follow=true", idle_timeout=idle_timeout) as chunks:
        return b"".join([each async for each in chunks])


async def test_stream_yields_bytes_as_they_arrive_and_its_end_ends_the_request() -> None:
    async def follow(server: RawHttpServer, peer: RawConnection) -> None:
        server.requests.append(await peer.request())
        peer.send(HEAD + chunk(b"one\n"))
        await peer.reader.read()

    async with raw_http_server(follow) as server, client_of(server) as client:
        async with client.stream_path("/log?follow=true", idle_timeout=None) as chunks:
            assert await anext(chunks) == b"one\n"
            assert server.closed_connections == 0
        await wait_for(lambda: server.closed_connections == 1)
    assert server.requests[0].startswith(b"GET /log?follow=true HTTP/1.1\r\n")


async def test_complete_stream_returns_its_connection() -> None:
    async def respond(server: RawHttpServer, peer: RawConnection) -> None:
        while True:
            server.requests.append(await peer.request())
            peer.send(HEAD + chunk(b"a\n") + chunk(b"b\n") + chunk(b""))

    async with raw_http_server(respond) as server, client_of(server) as client:
        assert [await read_all(client) for _ in range(3)] == [b"a\nb\n"] * 3
        assert server.connections == 1


async def test_rejected_stream_raises_the_error_of_the_server() -> None:
    status = b'{"kind":"Status","reason":"BadRequest","message":"no such container"}'

    async def reject(server: RawHttpServer, peer: RawConnection) -> None:
        await peer.request()
        head = b"HTTP/1.1 400 Bad Request\r\nContent-Length: %d\r\n\r\n" % len(status)
        peer.send(head + status)

    async with raw_http_server(reject) as server, client_of(server) as client:
        with pytest.raises(BadRequestError, match="no such container"):
            await read_all(client)


async def test_truncated_stream_is_an_error() -> None:
    async def truncate(server: RawHttpServer, peer: RawConnection) -> None:
        await peer.request()
        peer.send(HEAD + chunk(b"one\n"))

    async with raw_http_server(truncate) as server, client_of(server) as client:
        with pytest.raises(ConnectionLostError):
            await read_all(client)


async def test_idle_stream_times_out() -> None:
    async def stall(server: RawHttpServer, peer: RawConnection) -> None:
        await peer.request()
        peer.send(HEAD + chunk(b"one\n"))
        await peer.reader.read()

    async with raw_http_server(stall) as server, client_of(server) as client:
        with pytest.raises(RequestTimeoutError):
            await read_all(client, idle_timeout=0.05)


async def test_server_waits_for_a_slow_reader() -> None:
    """At most the buffer of the client and those of the sockets are filled."""
    sent = 0
    piece = chunk(b"x" * 65_535)

    async def flood(server: RawHttpServer, peer: RawConnection) -> None:
        nonlocal sent
        await peer.request()
        peer.writer.transport.get_extra_info("socket").setsockopt(
            socket.SOL_SOCKET, socket.SO_SNDBUF, 65_536
        )
        peer.send(HEAD)
        while sent < 1000:
            peer.send(piece)
            await peer.writer.drain()
            sent += 1

    async with (
        raw_http_server(flood) as server,
        client_of(server) as client,
        client.stream_path("/log", idle_timeout=10) as chunks,
    ):
        await anext(chunks)
        before = -1
        while before != sent:
            before = sent
            for _ in range(1000):
                await asyncio.sleep(0)
        assert sent < 900
        async for _ in chunks:
            if sent == 1000:
                break
