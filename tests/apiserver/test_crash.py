"""After a SIGKILL during writes, the server has everything that it acknowledged."""

import asyncio
import os
import random
import signal
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from support.embedded_apiserver import MAPS, MERGE, config_map, embedded_server

pytestmark = pytest.mark.process

PROGRAM = """
import asyncio, sys
from pathlib import Path
from batholith.local.supervisor.apiserver import Settings, running


async def main():
    async with running(Settings(data_dir=Path(sys.argv[1]), port=0)) as server:
        print(server.url, flush=True)
        await asyncio.get_running_loop().create_future()


asyncio.run(main())
"""
WRITERS = 12
KILL_AFTER = 150
"""Acknowledged writes before the kill."""


@dataclass
class AcknowledgedWrites:
    """Writes that the server acknowledged: last content and version of each object."""

    content: dict[str, dict[str, str]] = field(default_factory=dict)
    versions: list[int] = field(default_factory=list)
    deleted: set[str] = field(default_factory=set)
    attempted: dict[str, str] = field(default_factory=dict)
    """Writes in flight when the server was killed, which may or may not have happened."""

    done: asyncio.Event = field(default_factory=asyncio.Event)

    def acknowledge(self, obj: dict[str, Any]) -> None:
        self.content[obj["metadata"]["name"]] = obj["data"]
        self.versions.append(int(obj["metadata"]["resourceVersion"]))
        if len(self.versions) >= KILL_AFTER:
            self.done.set()


@asynccontextmanager
async def server_process(data_dir: Path) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM,
        str(data_dir),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    try:
        assert process.stdout is not None
        yield (await process.stdout.readline()).decode().strip(), process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def write_until_it_dies(
    session: aiohttp.ClientSession, url: str, writer: int, writes: AcknowledgedWrites
) -> None:
    """Create objects, change them repeatedly, delete some; stop when the server is killed."""
    dice = random.Random(writer)
    path = url + MAPS
    try:
        for number in range(1000):
            name = f"w{writer}-{number}"
            writes.attempted[name] = "create"
            async with session.post(path, json=config_map(name)) as response:
                writes.acknowledge(await response.json())
            for step in range(dice.randint(0, 3)):
                writes.attempted[name] = f"step {step}"
                patch = msgspec.json.encode({"data": {"k": f"step {step}"}})
                headers = {"Content-Type": MERGE}
                async with session.patch(f"{path}/{name}", data=patch, headers=headers) as response:
                    writes.acknowledge(await response.json())
            if dice.random() < 0.2:
                writes.attempted[name] = "delete"
                async with session.delete(f"{path}/{name}") as response:
                    await response.read()
                writes.deleted.add(name)
            del writes.attempted[name]
    except aiohttp.ClientError:
        return


def admin_session(data_dir: Path) -> aiohttp.ClientSession:
    """A session with the rights of an administrator of the server of *data_dir*."""
    context = ssl.create_default_context(cafile=str(data_dir / "pki" / "ca.crt"))
    token = msgspec.json.decode((data_dir / "tokens.json").read_bytes())["admin"]
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=context),
        headers={"Authorization": f"Bearer {token}"},
    )


async def test_acknowledged_writes_survive_a_kill(tmp_path: Path) -> None:
    writes = AcknowledgedWrites()
    async with server_process(tmp_path) as (url, process), admin_session(tmp_path) as session:
        writing = [
            asyncio.create_task(write_until_it_dies(session, url, writer, writes))
            for writer in range(WRITERS)
        ]
        await writes.done.wait()
        process.send_signal(signal.SIGKILL)
        await asyncio.gather(*writing)
    assert len(set(writes.versions)) == len(writes.versions)
    async with embedded_server(tmp_path) as server:
        listed = await server.get(MAPS)
        assert int(listed["metadata"]["resourceVersion"]) >= max(writes.versions)
        stored = {item["metadata"]["name"]: item["data"] for item in listed["items"]}
        for name, data in writes.content.items():
            attempted = writes.attempted.get(name)
            if name in writes.deleted:
                assert name not in stored
            elif attempted == "delete":
                assert stored.get(name, data) == data
            elif attempted is not None and attempted != "create":
                assert stored[name] in (data, {"k": attempted})
            else:
                assert stored[name] == data
        created = await server.create(MAPS, config_map("after"))
        assert int(created["metadata"]["resourceVersion"]) > max(writes.versions)


async def test_a_watch_resumes_without_a_gap_after_a_kill(tmp_path: Path) -> None:
    async with server_process(tmp_path) as (url, process), admin_session(tmp_path) as session:
        async with session.post(url + MAPS, json=config_map("first")) as response:
            seen = (await response.json())["metadata"]["resourceVersion"]
        async with session.post(url + MAPS, json=config_map("second")) as response:
            assert response.status == 201
        process.send_signal(signal.SIGKILL)
        await process.wait()
    async with embedded_server(tmp_path) as server:
        path = f"{MAPS}?watch=1&resourceVersion={seen}&labelSelector=!none"
        async with server.watch(path) as lines:
            names = []
            while "second" not in names:
                event = await lines.next()
                assert event["type"] == "ADDED"
                names.append(event["object"]["metadata"]["name"])
            assert "first" not in names
