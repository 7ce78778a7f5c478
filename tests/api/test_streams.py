"""Streams of server-sent events: limits, heartbeats, rights, slow clients, the end."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import msgspec
import pytest
from support.polling import DEFAULT_TIMEOUT, wait_until_true
from support.rest import JOB, RestClient, cluster, rest_at, sqlite, starting_api
from support.streams import ALL, Obj, events, obj

from batholith.api.problems import ProblemError
from batholith.api.streams.feeds import (
    AUTHORIZATION_INTERVAL,
    FLUSH_INTERVAL,
    HEARTBEAT_INTERVAL,
    EndReason,
    EventStreamResponse,
    Stream,
    StreamRequest,
    Streams,
    StreamSettings,
)
from batholith.httpserver.buffering import BufferingConnection
from batholith.httpserver.limits import Limits
from batholith.kube.errors import ConnectionLostError
from batholith.machinery.testing import FakeClock, run_ready_tasks
from batholith.model.names import JOBS, QUEUES


class StubInformer:
    """An informer of which the test calls the event handler."""

    def __init__(self) -> None:
        self.synced = True
        self.resource_version = "1"
        self.lists = 1
        self.handler: Callable[[Any, Any], None] | None = None

    def add_event_handler(self, handler: Callable[[Any, Any], None]) -> None:
        self.handler = handler

    def stats(self) -> SimpleNamespace:
        return SimpleNamespace(lists=self.lists)

    def put(self, new: Obj) -> None:
        assert self.handler is not None
        wrapped = SimpleNamespace(metadata=SimpleNamespace(key=new.key), row=new)
        self.resource_version = str(int(self.resource_version) + 1)
        self.handler(None, wrapped)


class Rights:
    """What the check of a stream's caller finds."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.checks = 0

    async def __call__(self) -> None:
        self.checks += 1
        if self.error is not None:
            raise self.error


class World:
    """Streams of one kind, on a clock that the test advances."""

    def __init__(self, **settings: int) -> None:
        self.clock = FakeClock()
        self.informer = StubInformer()
        self.streams = Streams(clock=self.clock, settings=StreamSettings(**settings))
        self.streams.add_feed(
            "jobs",
            self.informer,  # type: ignore[arg-type]
            lambda wrapped: wrapped.row,
            encode=msgspec.json.encode,
        )
        self.rights = Rights()

    def open(self, user: str = "ada", **changes: Any) -> Stream[Any]:
        request = StreamRequest(
            user=user,
            selection=ALL,
            authorize=self.rights,
            **({"last_event_id": None} | changes),
        )
        return self.streams.open("jobs", request)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    found = World(max_streams=5, max_streams_per_caller=3, max_changes=10)
    running = asyncio.create_task(found.streams.run())
    await run_ready_tasks()
    yield found
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def read(stream: Stream[Any]) -> list[tuple[str, str]]:
    """Return the events that the stream has to send now."""
    found: list[tuple[str, str]] = []
    while True:
        reading = asyncio.ensure_future(stream.next_chunk())
        await run_ready_tasks()
        if not reading.done():
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            return found
        chunk = reading.result()
        if chunk is None:
            return [*found, ("closed", "")]
        found += [(each.get("event", ""), each.get("data", "")) for each in events(chunk) if each]


async def test_changes_are_collected_for_a_tenth_of_a_second(world: World) -> None:
    stream = world.open()
    assert [name for name, _ in await read(stream)] == ["synced"]
    for version in range(5):
        world.informer.put(obj("a", version=version))
        assert await read(stream) == []
    await world.clock.advance(FLUSH_INTERVAL)
    ((name, data),) = await read(stream)
    assert (name, json.loads(data)["version"]) == ("added", 4)


async def test_an_idle_stream_has_heartbeats(world: World) -> None:
    stream = world.open()
    await read(stream)
    await world.clock.advance(HEARTBEAT_INTERVAL)
    assert await stream.next_chunk() == b": heartbeat\n\n"
    world.informer.resource_version = "7"
    await world.clock.advance(HEARTBEAT_INTERVAL)
    chunk = await stream.next_chunk()
    assert chunk is not None
    assert chunk.startswith(b": heartbeat\nid: jobs-.7."), "the position of a bookmark"


async def test_limits_of_streams(world: World) -> None:
    opened = [world.open() for _ in range(3)]
    with pytest.raises(ProblemError, match="user 'ada' has 3 streams open") as found:
        world.open()
    assert (found.value.status, found.value.retry_after) == (429, 10)
    opened += [world.open("bob"), world.open("eve")]
    with pytest.raises(ProblemError, match="all 5 streams are in use"):
        world.open("joe")
    for stream in opened:
        world.streams.close(stream)
        world.streams.close(stream)
    assert len(world.streams) == 0
    world.open()


async def test_a_stream_ends_when_its_credentials_expire(world: World) -> None:
    stream = world.open(expires_at=world.clock.now() + timedelta(seconds=5))
    await read(stream)
    await world.clock.advance(4)
    assert await read(stream) == []
    await world.clock.advance(2)
    (name, data), closed = await read(stream)
    assert (name, json.loads(data)["reason"], closed[0]) == ("end", "expired", "closed")


@pytest.mark.parametrize(("status", "reason"), [(401, "expired"), (403, "forbidden")])
async def test_a_stream_ends_when_its_right_is_withdrawn(
    world: World, status: int, reason: str
) -> None:
    stream = world.open()
    await read(stream)
    await world.clock.advance(AUTHORIZATION_INTERVAL + 1)
    assert (world.rights.checks, await read(stream)) == (1, [])
    world.rights.error = ProblemError(status, "no more")
    await world.clock.advance(AUTHORIZATION_INTERVAL + 1)
    (name, data), _ = await read(stream)
    assert name == "end"
    assert json.loads(data) == {"reason": reason, "detail": "no more"}


@pytest.mark.parametrize("error", [ProblemError(503, "x"), ConnectionLostError("x")])
async def test_a_stream_goes_on_while_rights_cannot_be_checked(
    world: World, error: Exception
) -> None:
    stream = world.open()
    world.rights.error = error
    await world.clock.advance(2 * AUTHORIZATION_INTERVAL + 2)
    assert world.rights.checks == 2
    assert stream.end_reason is None


async def test_a_slow_stream_ends_when_its_position_has_left_the_log(world: World) -> None:
    stream = world.open()
    for version in range(20):
        world.informer.put(obj("a", version=version))
        await world.clock.advance(FLUSH_INTERVAL)
    found = await read(stream)
    assert [name for name, _ in found] == ["synced", "end", "closed"]
    assert json.loads(found[1][1])["reason"] == "too_slow"


async def test_streams_cannot_be_opened_before_the_list_and_during_the_stop(world: World) -> None:
    late = World()
    late.informer.synced = False
    with pytest.raises(ProblemError, match="not listed yet"):
        late.open()
    stream = world.open()
    world.streams.stop()
    assert [name for name, _ in await read(stream)] == ["end", "closed"]
    with pytest.raises(ProblemError, match="the server stops"):
        world.open()


@pytest.mark.parametrize("text", ["", "nonsense", "jobs-.9.9.abc.0", "\0"])
async def test_an_unknown_position_is_gone(world: World, text: str) -> None:
    with pytest.raises(ProblemError, match="list again") as found:
        world.open(last_event_id=text)
    assert found.value.status == 410
    assert len(world.streams) == 0


async def test_a_relist_is_a_gap_of_the_log(world: World) -> None:
    """A position of another replica from before it is not continued."""
    world.open()
    world.informer.put(obj("a"))
    await world.clock.advance(FLUSH_INTERVAL)
    world.open(last_event_id="jobs-.1.1.abc.0")
    world.informer.lists += 1
    await world.clock.advance(HEARTBEAT_INTERVAL)
    with pytest.raises(ProblemError, match="list again"):
        world.open(last_event_id="jobs-.1.1.abc.0")


async def test_a_disconnected_client_ends_its_stream(world: World) -> None:
    response = EventStreamResponse(world.streams, world.open(), retry=1)
    disconnected = asyncio.Event()
    sent: list[Any] = []

    async def receive() -> Any:
        await disconnected.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    responding = asyncio.create_task(response({"type": "http"}, receive, send))
    await run_ready_tasks()
    assert len(world.streams) == 1
    disconnected.set()
    await responding
    assert len(world.streams) == 0
    assert all(message.get("more_body", True) for message in sent)
    assert world.streams.metrics.ended == {EndReason.DISCONNECTED: 1}


async def test_a_list_has_what_the_informer_has(world: World) -> None:
    """A client that saw a phase in another response does not get an earlier one."""
    world.informer.put(obj("train", "Pending"))
    stream = world.open()
    assert [name for name, _ in await read(stream)] == ["list", "synced"]
    world.informer.put(obj("train", "Running"))
    found = await read(world.open())
    assert [(name, json.loads(data).get("phase")) for name, data in found] == [
        ("list", "Running"),
        ("synced", None),
    ]
    assert [name for name, _ in await read(stream)] == ["modified"]


# Over HTTP


@pytest.fixture
async def rest(tmp_path: Path) -> AsyncIterator[RestClient]:
    async with (
        cluster(tmp_path) as (server, client),
        starting_api(client, sqlite(tmp_path)) as (url, ready, _),
        rest_at(url, server, client) as found,
    ):
        await ready.wait()
        yield found


class Reader:
    """Reads events of a response."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.response = response
        self.last_id = ""

    async def event(self) -> tuple[str, dict[str, Any]]:
        """Return name and data of the next event."""
        while True:
            found = {}
            while line := (await self.response.content.readline()).decode().rstrip("\n"):
                name, _, value = line.partition(": ")
                found[name] = value
            self.last_id = found.get("id", self.last_id)
            if "event" in found:
                return found["event"], json.loads(found["data"])
            if self.response.content.at_eof():
                return "closed", {}


def headers(rest: RestClient, last_id: str = "") -> dict[str, str]:
    found = {"Authorization": f"Bearer {rest.token}"}
    return found | ({"Last-Event-ID": last_id} if last_id else {})


async def create(rest: RestClient, name: str, **labels: str) -> None:
    job = JOB | {"metadata": {"name": name, "labels": labels}}
    await rest.client.create(JOBS, job, namespace="default")


async def wait_until_listed(rest: RestClient, count: int) -> None:
    """Wait until the informer has *count* jobs."""

    async def is_listed() -> bool:
        _, page = await rest.call("GET", "/v1/jobs")
        return len(page["items"]) == count

    await wait_until_true(is_listed)


async def test_jobs_are_streamed_and_resumed(rest: RestClient) -> None:
    url = f"{rest.url}/v1/watch/jobs"
    async with rest.session.get(url, headers=headers(rest)) as response:
        assert response.content_type == "text/event-stream"
        reader = Reader(response)
        name, job = await reader.event()
        assert (name, job["name"]) == ("list", "train")
        assert job == (await rest.call("GET", "/v1/namespaces/default/jobs/train"))[1]
        assert (await reader.event())[0] == "synced"
        await create(rest, "second")
        name, job = await reader.event()
        assert (name, job["name"]) == ("added", "second")
    await rest.client.delete(JOBS, "second", namespace="default")
    async with rest.session.get(url, headers=headers(rest, reader.last_id)) as response:
        reader = Reader(response)
        found = [await reader.event(), await reader.event()]
        assert {name for name, _ in found} == {"deleted", "synced"}
    status, problem = await rest.call("GET", "/v1/watch/jobs?phase=Odd")
    assert (status, problem["errors"][0]["field"]) == (422, "phase.0")
    async with rest.session.get(url, headers=headers(rest, "old")) as response:
        assert (response.status, response.content_type) == (410, "application/problem+json")


async def test_a_stream_is_filtered(rest: RestClient) -> None:
    await create(rest, "labelled", tier="a")
    await wait_until_listed(rest, 2)
    url = f"{rest.url}/v1/watch/namespaces/default/jobs"
    query = {"label_selector": "tier in (a,b)", "phase": "Pending", "queue": "default"}
    async with rest.session.get(url, headers=headers(rest), params=query) as response:
        reader = Reader(response)
        assert (await reader.event())[1]["name"] == "labelled"
        assert (await reader.event())[0] == "synced"
        change = {"metadata": {"labels": {"tier": "c"}}}
        await rest.client.patch(JOBS, "labelled", change, namespace="default")
        name, job = await reader.event()
        assert (name, job["labels"]) == ("deleted", {"tier": "c"})


async def test_one_job_and_queues_are_streamed(rest: RestClient) -> None:
    url = f"{rest.url}/v1/watch/namespaces/default/jobs/later"
    async with rest.session.get(url, headers=headers(rest)) as response:
        reader = Reader(response)
        assert (await reader.event())[0] == "synced"
        await create(rest, "later")
        assert (await reader.event())[0] == "added"
    url = f"{rest.url}/v1/watch/queues?state=Open"
    async with rest.session.get(url, headers=headers(rest)) as response:
        reader = Reader(response)
        assert (await reader.event())[0] == "synced"
        await rest.client.create(QUEUES, {"metadata": {"name": "lab"}, "spec": {"weight": 1}})
        name, queue = await reader.event()
        assert (name, queue) == ("added", (await rest.call("GET", "/v1/queues/lab"))[1])
    async with rest.session.head(url, headers=headers(rest)) as response:
        assert (response.status, response.content_type) == (200, "text/event-stream")
    async with rest.session.get(url) as response:
        assert response.status == 401


async def test_streams_end_at_the_stop_even_if_a_client_does_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_full = asyncio.Event()
    pause_writing = BufferingConnection.pause_writing

    def record_backpressure(connection: BufferingConnection) -> None:
        pause_writing(connection)
        is_full.set()

    monkeypatch.setattr(BufferingConnection, "pause_writing", record_backpressure)
    async with (
        cluster(tmp_path) as (server, client),
        starting_api(client, sqlite(tmp_path), send_buffer=4096) as (url, ready, serving),
        rest_at(url, server, client) as rest,
    ):
        await ready.wait()
        for number in range(100):
            await create(rest, f"job-{number}", **{f"label-{i}": "x" * 60 for i in range(60)})
        host, port = url.removeprefix("http://").split(":")
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # soon full
        connection.connect((host, int(port)))
        _, silent = await asyncio.open_connection(sock=connection, limit=1)
        silent.write(
            f"GET /v1/watch/jobs HTTP/1.1\r\nhost: x\r\n"
            f"authorization: Bearer {rest.token}\r\n\r\n".encode()
        )
        async with rest.session.get(f"{url}/v1/watch/queues", headers=headers(rest)) as response:
            reader = Reader(response)
            assert (await reader.event())[0] == "synced"
            async with asyncio.timeout(DEFAULT_TIMEOUT):
                await is_full.wait()
            serving.cancel()
            name, data = await reader.event()
            assert (name, data["reason"]) == ("end", "shutdown")
            assert (await reader.event())[0] == "closed"
        async with asyncio.timeout(5):
            await asyncio.wait((serving,))
        silent.close()


def test_streams_leave_connections_for_other_requests() -> None:
    assert StreamSettings().max_streams < Limits().connections
