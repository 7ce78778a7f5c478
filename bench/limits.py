"""Effect of hostile clients on the embedded API server and others: ``python -m bench.limits``.

Each load runs against a separate server on loopback: requests whose header does not end (1,000, and
more than the server has descriptors), TLS handshakes that stop after their first bytes, and 100
bodies of 3 MiB that lack their last byte, with a token and without. Concurrently another client
requests ``/version`` on new connections. Printed are the server's memory and that client's latency
(median and maximum).

BATHOLITH_BENCH_PATH may name a directory whose ``src`` is measured instead of this one.
"""

import asyncio
import contextlib
import os
import ssl
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import uvloop

from batholith.kube.client.config import Credentials, load_credentials
from batholith.local.supervisor.datadir import DataDir
from bench.apiserver import Server, running_server

LIMITED = ("sh", "-c", 'ulimit -Sn 1024; exec "$0" "$@"')
"""The usual limit of descriptors."""

REQUESTS, MORE, BODIES, BODY = 1000, 1200, 100, 3 * 1024 * 1024
TRIES = 20
TIMEOUT = 5.0
"""Timeout of a response in seconds."""

_CHUNK_SIZE = 64 * 1024

Address = tuple[str, int]
HoldFunction = Callable[[Address, ssl.SSLContext | None, str], Awaitable[asyncio.StreamWriter]]


async def _connect(address: Address, tls: ssl.SSLContext | None) -> asyncio.StreamWriter:
    async with asyncio.timeout(TIMEOUT):
        _, writer = await asyncio.open_connection(*address, ssl=tls)
    return writer


async def half_open(
    address: Address, tls: ssl.SSLContext | None, token: str
) -> asyncio.StreamWriter:
    """A request whose header does not end."""
    writer = await _connect(address, tls)
    writer.write(b"GET /version HTTP/1.1\r\nhost: x\r\n")
    return writer


async def handshake(
    address: Address, tls: ssl.SSLContext | None, token: str
) -> asyncio.StreamWriter:
    """A TLS handshake that stops after its first bytes."""
    writer = await _connect(address, None)
    writer.write(b"\x16\x03\x01")
    return writer


async def body(address: Address, tls: ssl.SSLContext | None, token: str) -> asyncio.StreamWriter:
    """A body that lacks its last byte."""
    writer = await _connect(address, tls)
    head = f"POST /api/v1/namespaces/default/configmaps HTTP/1.1\r\ncontent-length: {BODY}\r\n"
    who = f"authorization: Bearer {token}\r\n" if token else ""
    writer.write(f"{head}{who}\r\n".encode())
    for _ in range(BODY // _CHUNK_SIZE - 1):
        writer.write(b" " * _CHUNK_SIZE)
        async with asyncio.timeout(TIMEOUT):
            await writer.drain()
    writer.write(b" " * (_CHUNK_SIZE - 1))
    return writer


def memory(server: Server) -> float:
    """Return the memory of the server in MiB."""
    status = Path(f"/proc/{server.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


def admin(server: Server) -> Credentials:
    """The administrator's credentials."""
    arguments = [str(each) for each in server.process.args]  # type: ignore[union-attr]
    directory = arguments[arguments.index("--data-dir") + 1]
    return load_credentials(str(DataDir(Path(directory)).kubeconfig))


async def request_latency(address: Address, tls: ssl.SSLContext) -> float:
    """Milliseconds of a request on a new connection."""
    began = time.perf_counter()
    async with asyncio.timeout(TIMEOUT):
        reader, writer = await asyncio.open_connection(*address, ssl=tls)
        try:
            writer.write(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n")
            if not (await reader.readline()).startswith(b"HTTP/1.1 200 "):
                raise ConnectionError("the server hung up")
        finally:
            writer.transport.abort()
    return (time.perf_counter() - began) * 1000


async def wait_times(address: Address, tls: ssl.SSLContext) -> str:
    """Return the latencies of another client, each on a new connection."""
    taken, failed = [], 0
    for _ in range(TRIES):
        try:
            taken.append(await request_latency(address, tls))
        except (OSError, TimeoutError):
            failed += 1
    times = f"{statistics.median(taken):.0f} / {max(taken):.0f} ms" if taken else "none"
    return f"{times} | {failed}"


@contextlib.asynccontextmanager
async def hostile_clients(
    number: int, hold: Callable[[], Awaitable[asyncio.StreamWriter]]
) -> AsyncIterator[int]:
    """Run that many hostile clients during the block; yield the number that connected."""
    writers: list[asyncio.StreamWriter] = []
    gate = asyncio.Semaphore(20)

    async def one() -> None:
        async with gate:
            with contextlib.suppress(OSError, TimeoutError):
                writers.append(await hold())

    await asyncio.gather(*(one() for _ in range(number)))
    try:
        yield len(writers)
    finally:
        for writer in writers:
            writer.transport.abort()


async def measure(what: str, number: int, hold: HoldFunction, *, known: bool = False) -> None:
    """Print a row."""
    source = os.environ.get("BATHOLITH_BENCH_PATH")
    if source:
        os.environ["PYTHONPATH"] = str(Path(source) / "src")
    async with running_server(*LIMITED, sys.executable, "-m", "batholith.cli", "apiserver") as (
        server,
        _,
    ):
        credentials = admin(server)
        host, _, port = credentials.server.rpartition("//")[2].rpartition(":")
        tls = ssl.create_default_context(cadata=(credentials.ca_data or b"").decode())
        token = (credentials.token or "") if known else ""
        address, before = (host, int(port)), memory(server)
        alone = await wait_times(address, tls)
        async with hostile_clients(number, lambda: hold(address, tls, token)) as connected:
            await asyncio.sleep(1)
            more = memory(server) - before
            among = await wait_times(address, tls)
        print(
            f"| {what} | {connected} | {before:.0f} | {more:+.0f} | {alone} | {among} |", flush=True
        )


async def main() -> None:
    """Print a table."""
    print(
        "| held | connected | MiB before | more | wait alone | failed | wait among them | failed |"
    )
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    await measure(f"{REQUESTS} half-open requests", REQUESTS, half_open)
    await measure(f"{MORE} half-open requests", MORE, half_open)
    await measure(f"{MORE} half-open handshakes", MORE, handshake)
    await measure(f"{BODIES} bodies of 3 MiB, no token", BODIES, body)
    await measure(f"{BODIES} bodies of 3 MiB, a token", BODIES, body, known=True)


if __name__ == "__main__":
    uvloop.run(main())
