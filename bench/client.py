"""CPU per request and watch event of the HTTP client: ``python -m bench.client [THOUSANDS]``.

The same requests are sent to the same stub server (TLS, a separate process) alternately by
Batholith's client and by a bare aiohttp session. Only the CPU time of this process is measured.
"""

import asyncio
import contextlib
import ssl
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp
import uvloop

from batholith.kube.client.client import Client
from batholith.kube.client.config import Credentials
from batholith.kube.client.watch_decoder import LineSplitter
from batholith.local.supervisor import pki
from bench.load import in_parallel

ROUNDS = 3
POD = b'{"kind":"Pod","filler":"%s"}' % (b"x" * 2500)
EVENT = b'{"type":"MODIFIED","object":%s}\n' % POD
BODY = b'{"kind":"Pod","filler":"%s"}' % (b"x" * 700)
_RESPONSE = (
    b"HTTP/1.1 201 Created\r\nAudit-Id: 7d3b7c1e-0000-4000-8000-000000000000\r\n"
    b"Cache-Control: no-cache, private\r\nContent-Type: application/json\r\n"
    b"X-Kubernetes-Pf-Flowschema-Uid: 7d3b7c1e-0000-4000-8000-000000000000\r\n"
    b"X-Kubernetes-Pf-Prioritylevel-Uid: 7d3b7c1e-0000-4000-8000-000000000000\r\n"
    b"Date: Sat, 21 Nov 2026 12:00:00 GMT\r\nContent-Length: %d\r\n\r\n%s" % (len(POD), POD)
)
_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
_CHUNK = b"%x\r\n%s\r\n" % (len(EVENT), EVENT)


async def _serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send the same response to every request; a GET of ``/N`` gets N events."""
    with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0]
            await reader.readexactly(int(length or 0))
            if head.startswith(b"POST"):
                writer.write(_RESPONSE)
                continue
            writer.write(_STREAM)
            for _ in range(int(head.split()[1].strip(b"/")) // 20):
                for _ in range(20):
                    writer.write(_CHUNK)
                await writer.drain()
            writer.write(b"0\r\n\r\n")


async def serve(directory: Path) -> None:
    """Run the stub server; print its port."""
    keys = pki.ensure(directory)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(keys.server.certificate, keys.server.key)
    server = await asyncio.start_server(_serve, "127.0.0.1", 0, ssl=context)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


async def _cost(number: int, function: Callable[[], Awaitable[object]]) -> float:
    """Return the CPU microseconds of this process per operation; *work* does *number* of them."""
    before = time.process_time()
    await function()
    return (time.process_time() - before) / number * 1e6


async def compare(port: int, ca: bytes, number: int) -> None:
    """Print the minimum of ROUNDS of each."""
    url = f"https://127.0.0.1:{port}"
    tls = ssl.create_default_context(cadata=ca.decode())
    credentials = Credentials(server=url, ca_data=ca, token="t")
    headers = {"Authorization": "Bearer t", "Accept": "application/json", "User-Agent": "bench"}
    connector = aiohttp.TCPConnector(ssl=tls, limit=0)
    async with (
        Client(credentials, user_agent="bench") as ours,
        aiohttp.ClientSession(
            connector=connector, headers=headers, skip_auto_headers=("Accept-Encoding",)
        ) as theirs,
    ):

        async def their_post(_: int) -> None:
            async with theirs.post(url + "/x", data=BODY) as response:
                await response.read()

        async def their_watch() -> None:
            cutter = LineSplitter()
            async with theirs.get(f"{url}/{number}") as response:
                while piece := await response.content.readany():
                    cutter.feed(piece)

        async def our_watch() -> None:
            async with ours.watch_lines(f"/{number}") as batches:
                async for _ in batches:
                    pass

        ways: dict[str, Callable[[], Awaitable[object]]] = {
            "POST, aiohttp": lambda: in_parallel(range(number), their_post),
            "POST, ours": lambda: in_parallel(range(number), lambda _: ours.post("/x", BODY)),
            "watch event, aiohttp": their_watch,
            "watch event, ours": our_watch,
        }
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, work in ways.items():
                taken[name].append(await _cost(number, work))
    print("| what | CPU, µs |\n| --- | ---: |")
    for name, values in taken.items():
        print(f"| {name} | {min(values):.1f} |")


async def main() -> None:
    """Start the server as a process and compare."""
    number = int(sys.argv[1] if len(sys.argv) > 1 else 10) * 1000
    with tempfile.TemporaryDirectory() as directory:
        ca = pki.ensure(Path(directory)).ca_data
        command = (sys.executable, "-m", "bench.client", "--serve", directory)
        process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
        try:
            assert process.stdout is not None
            await compare(int(await process.stdout.readline()), ca, number)
        finally:
            process.kill()
            await process.wait()


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[2])) if "--serve" in sys.argv else main())
