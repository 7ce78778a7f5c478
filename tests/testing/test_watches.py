"""Watch streams that end, break, expire and stall, as a client meets them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from batholith.kube.client.client import Client, WatchEvent
from batholith.kube.errors import ConnectionLostError, GoneError
from batholith.kube.informer.informer import Informer
from batholith.model.base import ApiStruct
from batholith.model.meta import ObjectMeta
from batholith.model.names import CONFIGMAPS, SECRETS
from batholith.testing import ApiServer, RequestMatcher, WatchStream

Json = dict[str, Any]


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with ApiServer() as api:
        api.put(CONFIGMAPS, "a")
        yield api


@pytest.fixture
async def client(api: ApiServer) -> AsyncIterator[Client]:
    async with api.client() as client:
        yield client


class Watch:
    """A watch of the ConfigMaps of a namespace that a test reads event by event."""

    def __init__(self, events: AsyncIterator[WatchEvent[Json]], stream: WatchStream) -> None:
        self.stream = stream
        self._events = events

    async def next(self) -> tuple[str, str]:
        event = await anext(self._events)
        return event.type, event.object["metadata"]["name"]


@asynccontextmanager
async def watching(api: ApiServer, client: Client) -> AsyncIterator[Watch]:
    """A watch whose first event, of the object that there is, has been read."""
    api.remove(CONFIGMAPS, "kube-root-ca.crt")
    events = client.watch(CONFIGMAPS, namespace="default", view=dict)
    first = asyncio.ensure_future(anext(events))
    await api.wait_until(lambda: api.watches(CONFIGMAPS))
    watch = Watch(events, api.watches(CONFIGMAPS)[0])
    while (await first).object["metadata"]["name"] != "a":
        first = asyncio.ensure_future(anext(events))
    yield watch
    await events.aclose()


async def test_a_watch_that_is_closed_ends(api: ApiServer, client: Client) -> None:
    async with watching(api, client) as watch:
        watch.stream.close()
        with pytest.raises(StopAsyncIteration):
            while True:
                await watch.next()
        await api.wait_until(lambda: not api.watches())


async def test_a_watch_that_is_aborted_loses_its_connection(api: ApiServer, client: Client) -> None:
    async with watching(api, client) as watch:
        watch.stream.abort()
        with pytest.raises(ConnectionLostError):
            while True:
                await watch.next()


async def test_a_watch_can_break_in_the_middle_of_an_event(api: ApiServer, client: Client) -> None:
    async with watching(api, client) as watch:
        watch.stream.abort_after(20)
        api.put(CONFIGMAPS, "b")
        with pytest.raises(ConnectionLostError):
            while True:
                assert (await watch.next())[1] != "b"


async def test_a_watch_that_expires_sends_410_and_ends(api: ApiServer, client: Client) -> None:
    async with watching(api, client) as watch:
        watch.stream.expire()
        with pytest.raises(GoneError) as caught:
            while True:
                await watch.next()
    assert caught.value.reason == "Expired"


async def test_a_stalled_watch_delivers_nothing_until_it_is_resumed(
    api: ApiServer, client: Client
) -> None:
    async with watching(api, client) as watch:
        watch.stream.stall()
        api.put(CONFIGMAPS, "b")
        watch.stream.send_event("ADDED", {"metadata": {"name": "sent"}})
        seen = [(await watch.next())[1]]
        while seen[-1] != "sent":
            seen.append((await watch.next())[1])
        assert "b" not in seen
        watch.stream.resume()
        while seen[-1] != "b":
            seen.append((await watch.next())[1])


async def test_a_watch_can_be_refused_before_it_begins(api: ApiServer, client: Client) -> None:
    api.faults.error(RequestMatcher("watch", CONFIGMAPS), 410)
    with pytest.raises(GoneError):
        await anext(client.watch(CONFIGMAPS, view=dict))


async def test_watches_are_found_by_their_resource(api: ApiServer, client: Client) -> None:
    async with watching(api, client) as watch:
        assert api.watches(CONFIGMAPS) == api.watches("configmaps") == [watch.stream]
        assert api.watches(SECRETS) == []


async def test_after_a_compaction_a_watch_from_an_older_version_is_expired(
    api: ApiServer, client: Client
) -> None:
    version = (await api.get(CONFIGMAPS, "a"))["metadata"]["resourceVersion"]
    await api.create(CONFIGMAPS, {"metadata": {"name": "b"}})
    api.compact()
    with pytest.raises(GoneError):
        await anext(client.watch(CONFIGMAPS, view=dict, resource_version=version))


class ConfigMap(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


@pytest.mark.parametrize("end", [WatchStream.close, WatchStream.abort, WatchStream.expire])
async def test_an_informer_survives_each_of_them(api: ApiServer, client: Client, end: Any) -> None:
    informer = Informer(client, CONFIGMAPS, ConfigMap, namespace="default")
    running = asyncio.create_task(informer.run())
    await informer.wait_synced()
    seen = asyncio.Event()

    def on_change(old: ConfigMap | None, new: ConfigMap | None) -> None:
        if new is not None and new.metadata.name == "b":
            seen.set()

    informer.add_event_handler(on_change)
    for stream in api.watches(CONFIGMAPS):
        end(stream)
    await api.create(CONFIGMAPS, {"metadata": {"name": "b"}})
    await seen.wait()
    running.cancel()
    await asyncio.wait([running])


async def test_informer_lists_in_pages_if_watch_lists_are_rejected(
    api: ApiServer, client: Client
) -> None:
    rejected = api.faults.reject_watch_lists()
    informer = Informer(client, CONFIGMAPS, ConfigMap, namespace="default")
    running = asyncio.create_task(informer.run())
    await informer.wait_synced()
    assert rejected.injected == 1
    assert api.count("list", CONFIGMAPS) == 1
    assert "default/a" in informer
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
