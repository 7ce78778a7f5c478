"""A server on a full disk: a small file system in memory, mounted without privileges."""

import asyncio
import errno
import io
import json
import os
import shutil
import signal
import ssl
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import aiohttp
import pytest
from support.embedded_apiserver import MAPS, config_map
from support.polling import wait_until_true

pytestmark = pytest.mark.process

PROGRAM = """
import asyncio, json, sys
from pathlib import Path
from batholith.local.supervisor.apiserver import Settings, running


async def main():
    async with running(Settings(data_dir=Path(sys.argv[1]), port=0)) as server:
        connection = [server.url, server.tokens.by_user["admin"], server.pki.ca_data.decode()]
        print(json.dumps(connection), flush=True)
        await asyncio.get_running_loop().create_future()


asyncio.run(main())
"""
SIZE = 32 * 2**20
REVISIONS = "/apis/apps/v1/namespaces/default/controllerrevisions"
AGAIN = f'"{sys.executable}" -c "$1" "$2"; "{sys.executable}" -c "$1" "$2"'


def large_object(name: str, size: int) -> dict[str, object]:
    """An object of a kind that takes any content."""
    return {"metadata": {"name": name}, "revision": 1, "data": {"k": "x" * size}}


class Disk:
    """The file system of a server's process, accessed from outside."""

    def __init__(self, pid: int, data_dir: Path) -> None:
        self._filler = Path(f"/proc/{pid}/root{data_dir}") / "filler"

    def fill(self) -> None:
        with self._filler.open("ab", buffering=0) as file:
            _fill(file)

    @contextmanager
    def filled_continuously(self) -> Iterator[None]:
        """Fill the disk, and in a thread again and again, with what becomes free."""
        stopping = threading.Event()
        with self._filler.open("ab", buffering=0) as file:
            _fill(file)

            def fill() -> None:
                while not stopping.wait(0.001):
                    _fill(file)

            thread = threading.Thread(target=fill)
            thread.start()
            try:
                yield
            finally:
                stopping.set()
                thread.join()

    def clear(self) -> None:
        self._filler.unlink()


def _fill(file: io.FileIO) -> None:
    for piece in (2**16, 1):
        try:
            while file.write(bytes(piece)):
                pass
        except OSError as error:
            assert error.errno == errno.ENOSPC


class DiskTestClient:
    """Client of the server."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, url

    async def __call__(self, method: str, path: str, body: object = None) -> tuple[int, str]:
        headers = {"Content-Type": "application/json"}
        data = None if body is None else io.BytesIO(json.dumps(body).encode())
        async with self._session.request(
            method, self._url + path, data=data, headers=headers
        ) as response:
            return response.status, await response.text()


@asynccontextmanager
async def connect(process: asyncio.subprocess.Process) -> AsyncIterator[DiskTestClient]:
    """Connect to the server whose URL the process prints next."""
    assert process.stdout is not None
    url, token, ca = json.loads(await process.stdout.readline())
    connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(cadata=ca))
    headers = {"Authorization": f"Bearer {token}"}
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        yield DiskTestClient(session, url)


def server_in(process: asyncio.subprocess.Process) -> int:
    """Return the process id of the server: the innermost child."""
    pid = process.pid
    while children := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        pid = int(children[0])
    return pid


@asynccontextmanager
async def servers_on_a_disk(
    tmp_path: Path, size: int
) -> AsyncIterator[tuple[asyncio.subprocess.Process, Path]]:
    """Run a server on a disk of *size* bytes, and another after its end; yield their parent."""
    if not shutil.which("bwrap"):
        if "bubblewrap" in os.environ.get("BATHOLITH_REQUIRE", "").split(","):
            pytest.fail("bwrap, which mounts the disk, is missing")
        pytest.skip("bwrap, which mounts the disk, is missing")
    data_dir = tmp_path / "disk"
    data_dir.mkdir()
    process = await asyncio.create_subprocess_exec(
        *("bwrap", "--dev-bind", "/", "/", "--size", str(size), "--tmpfs", str(data_dir)),
        *("--die-with-parent", "sh", "-c", AGAIN, "sh", PROGRAM, str(data_dir)),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        yield process, data_dir
    finally:
        await _end(process)


async def test_on_a_full_disk_the_server_starts_reads_deletes_and_recovers(
    tmp_path: Path,
) -> None:
    async with servers_on_a_disk(tmp_path, SIZE) as (process, data_dir):
        async with connect(process) as client:
            for name in "abc":
                assert (await client("POST", MAPS, config_map(name)))[0] == 201
            disk = Disk(server_in(process), data_dir)
            disk.fill()
            stored = await _write_until_refused(client)
            assert (await client("POST", MAPS, config_map("refused")))[0] == 507
            await _check_full(client, deleted="a", there="b")
            os.kill(server_in(process), signal.SIGKILL)
        async with connect(process) as client:
            disk = Disk(server_in(process), data_dir)
            await _check_full(client, deleted="b", there="c")
            for name in stored:
                assert (await client("GET", f"{REVISIONS}/{name}"))[0] == 200
            assert (await client("GET", f"{MAPS}/refused"))[0] == 404
            disk.clear()

            async def ready() -> bool:
                return (await client("GET", "/readyz"))[0] == 200

            await wait_until_true(ready)
            assert (await client("POST", MAPS, config_map("d")))[0] == 201


@pytest.mark.parametrize(
    ("megabytes", "object_size"),
    [
        (32, 2_900_000),
        (24, 20_000),
        (40, 100_000),
        (100, 2_900_000),
        pytest.param(300, 900_000, marks=pytest.mark.soak),
    ],
)
async def test_a_server_that_has_filled_its_disk_deletes_everything_also_after_sigkill(
    tmp_path: Path, megabytes: int, object_size: int
) -> None:
    async with servers_on_a_disk(tmp_path, megabytes * 2**20) as (process, _):
        async with connect(process) as client:
            stored = await _write_until_refused(client, object_size)
            half = len(stored) // 2
            assert half
            await _delete_all(client, stored[:half])
            # Fill the pages that the deletions have freed.
            stored = stored[half:] + await _write_until_refused(client, object_size, "again")
            os.kill(server_in(process), signal.SIGKILL)
        async with connect(process) as client:
            await _delete_all(client, stored)

            assert json.loads((await client("GET", REVISIONS))[1])["items"] == []

            async def writable() -> bool:
                return (await client("POST", REVISIONS, large_object("z", object_size)))[0] == 201

            await wait_until_true(writable)


async def test_deletions_work_while_another_process_takes_all_space_that_becomes_free(
    tmp_path: Path,
) -> None:
    async with servers_on_a_disk(tmp_path, 100 * 2**20) as (process, data_dir):
        async with connect(process) as client:
            stored = []
            for number in range(40):
                stored.append(f"m{number}")
                body = large_object(stored[-1], 500_000)
                assert (await client("POST", REVISIONS, body))[0] == 201
            with Disk(server_in(process), data_dir).filled_continuously():
                stored += await _write_until_refused(client, 2_000_000, "large")
                await _delete_all(client, stored[:20])
                os.kill(server_in(process), signal.SIGKILL)
        async with connect(process) as client:
            with Disk(server_in(process), data_dir).filled_continuously():
                await _delete_all(client, stored[20:])


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill both servers, one after the other; the other processes end with them."""
    while process.returncode is None:
        os.kill(server_in(process), signal.SIGKILL)
        await asyncio.wait((asyncio.ensure_future(process.wait()),), timeout=0.2)
    assert process.stdout is not None
    await process.stdout.read()


async def _delete_all(client: DiskTestClient, stored: list[str]) -> None:
    for name in stored:
        assert (await client("DELETE", f"{REVISIONS}/{name}"))[0] == 200, name


async def _write_until_refused(
    client: DiskTestClient, size: int = 100_000, prefix: str = "m"
) -> list[str]:
    """Fill the space that the server's files have; return the stored names."""
    stored: list[str] = []
    for number in range(10_000):
        status, text = await client("POST", REVISIONS, large_object(f"{prefix}{number}", size))
        if status != 201:
            assert (status, "cannot store: disk full" in text) == (507, True)
            return stored
        stored.append(f"{prefix}{number}")
    raise AssertionError("the disk has no end")


async def _check_full(client: DiskTestClient, *, deleted: str, there: str) -> None:
    assert (await client("GET", "/readyz"))[0] == 500
    assert (await client("GET", "/livez"))[0] == 200
    assert (await client("DELETE", f"{MAPS}/{deleted}"))[0] == 200
    assert (await client("GET", f"{MAPS}/{deleted}"))[0] == 404
    assert (await client("GET", f"{MAPS}/{there}"))[0] == 200
