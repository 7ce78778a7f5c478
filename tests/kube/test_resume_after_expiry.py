"""After an expired version the watch resumes at once, and a relist delivers missed changes."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from support.api_servers import ServerFactory
from support.fake_apiserver import FakeApi
from support.fault_proxy import ErrorResponse, HttpProxy
from support.polling import wait_for

from batholith.kube.client.client import Client, ClientOptions
from batholith.kube.informer.informer import Informer
from batholith.kube.informer.reflector import InformerOptions
from batholith.kube.timing import Timing
from batholith.model.base import ApiStruct
from batholith.model.meta import ObjectMeta
from batholith.model.names import CONFIGMAPS, PODS


class Pod(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


@dataclass
class InformerFollower:
    """An informer and its events: add, update or delete, and the object's name."""

    informer: Informer[Pod]
    events: list[tuple[str, str]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    def on_event(self, old: Pod | None, new: Pod | None) -> None:
        what = "add" if old is None else "update" if new is not None else "delete"
        self.events.append((what, (new or old or Pod()).metadata.name))

    def start(self) -> None:
        self.task = asyncio.create_task(self.informer.run())

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    def matches(self, api: FakeApi) -> bool:
        """Return whether the store equals the server's and no relist is due."""
        here = {pod.metadata.key: pod.metadata.resource_version for pod in self.informer}
        there = api.objects(PODS).items()
        complete = self.informer.resource_version != ""
        return complete and here == {key: obj["metadata"]["resourceVersion"] for key, obj in there}


@asynccontextmanager
async def running_informer(api: FakeApi, **options: Any) -> AsyncIterator[InformerFollower]:
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(0.001)

    timing = Timing(sleep=sleep, random=lambda: 0.0)
    client_options = ClientOptions(timing=timing, max_read_attempts=1)
    async with Client(api.credentials, user_agent="t", options=client_options) as client:
        follower = InformerFollower(Informer(client, PODS, Pod, options=InformerOptions(**options)))
        follower.informer.add_event_handler(follower.on_event)
        follower.start()
        try:
            await follower.informer.wait_synced()
            follower.events.clear()
            yield follower
        finally:
            await follower.stop()


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as api:
        yield api


async def expire_resource_version(api: FakeApi) -> None:
    """Expire the version with missed changes, and hold lists back."""
    api.lists.clear()
    api.drop_watches()
    api.put(PODS, "changes", x=1)
    api.remove(PODS, "removed")
    api.put(PODS, "missed")
    api.forget_history()


def watches_from(api: FakeApi, version: int) -> bool:
    """Return whether a watch from *version* was requested."""
    return any(seen.query.get("resourceVersion") == str(version) for seen in api.received)


def three(api: FakeApi) -> None:
    for name in ("changes", "removed", "same"):
        api.put(PODS, name)


@pytest.mark.parametrize("says_oldest", [True, False])
@pytest.mark.parametrize("streams_lists", [True, False])
async def test_new_changes_are_delivered_during_a_relist(
    api: FakeApi, streams_lists: bool, says_oldest: bool
) -> None:
    three(api)
    api.supports_watch_list, api.reports_oldest_version = streams_lists, says_oldest
    async with running_informer(api) as follower:
        await expire_resource_version(api)
        await wait_for(lambda: watches_from(api, api.version))
        api.put(PODS, "fresh")
        await wait_for(lambda: "d/fresh" in follower.informer)
        assert follower.events == [("add", "fresh")]
        assert follower.informer.synced
        assert follower.informer.resource_version == ""
        assert follower.informer.stale_seconds > 0
        api.lists.set()
        await wait_for(lambda: follower.matches(api))
        changes = [("delete", "removed"), ("update", "changes"), ("add", "missed")]
        assert follower.events[1:] == changes
        assert follower.informer.stale_seconds == 0
        follower.informer.validate()
        assert follower.informer.stats().lists == 2


async def test_watch_resumes_from_the_oldest_version_of_the_server(api: FakeApi) -> None:
    """The error states the oldest version, as of a server that has just started."""
    three(api)
    async with running_informer(api) as follower:
        await expire_resource_version(api)
        api.put(PODS, "since")
        api.remove(PODS, "same")
        await wait_for(lambda: len(follower.events) == 2)
        assert follower.events == [("add", "since"), ("delete", "same")]
        assert api.count("GET") == 0
        api.lists.set()
        await wait_for(lambda: follower.matches(api))


async def test_failed_relist_is_retried_while_the_watch_continues(api: FakeApi) -> None:
    three(api)
    async with running_informer(api) as follower:
        await expire_resource_version(api)
        api.put(PODS, "fresh")
        await wait_for(lambda: "d/fresh" in follower.informer)
        api.break_watch_after = 30
        api.lists.set()
        await wait_for(lambda: follower.matches(api))
        assert sorted(follower.events) == [
            ("add", "fresh"),
            ("add", "missed"),
            ("delete", "removed"),
            ("update", "changes"),
        ]
        assert follower.informer.stats().lists == 2
        followed = [seen for seen in api.received if "resourceVersion" in seen.query]
        assert len(followed) == 2  # that which was refused, and the one since


async def test_failed_watch_is_resumed_while_the_relist_continues(api: FakeApi) -> None:
    three(api)
    api.supports_watch_list = False
    async with running_informer(api) as follower:
        await expire_resource_version(api)
        await wait_for(lambda: api.count("GET") == 2)
        await wait_for(lambda: api.watches == 1)
        api.put(PODS, "one")
        await wait_for(lambda: "d/one" in follower.informer)
        api.drop_watches()
        api.put(PODS, "two")
        await wait_for(lambda: "d/two" in follower.informer)
        api.lists.set()
        await wait_for(lambda: follower.matches(api))
        assert api.count("GET") == 2  # the initial list and the relist
        assert follower.informer.stats().lists == 2


async def test_second_expiry_during_a_relist_restarts_it(api: FakeApi) -> None:
    three(api)
    async with running_informer(api) as follower:
        await expire_resource_version(api)
        api.put(PODS, "one")
        await wait_for(lambda: "d/one" in follower.informer)
        api.drop_watches()
        api.remove(PODS, "one")
        api.put(PODS, "two")
        api.forget_history()
        api.lists.set()
        await wait_for(lambda: follower.matches(api))
        assert ("delete", "one") in follower.events
        assert ("add", "two") in follower.events
        follower.informer.validate()


async def test_ordered_informer_delivers_missed_changes_before_new_ones(
    api: FakeApi,
) -> None:
    three(api)
    async with running_informer(api, ordered=True) as follower:
        await expire_resource_version(api)
        await wait_for(lambda: api.watches == 1)
        api.put(PODS, "fresh")
        api.lists.set()
        await wait_for(lambda: follower.matches(api))
        assert [name for what, name in follower.events if what == "add"] == ["missed", "fresh"]


async def test_informer_stopped_during_a_relist_relists_on_next_run(api: FakeApi) -> None:
    three(api)
    async with running_informer(api) as follower:
        await expire_resource_version(api)
        api.put(PODS, "fresh")
        await wait_for(lambda: "d/fresh" in follower.informer)
        await follower.stop()
        api.lists.set()
        api.remove(PODS, "fresh")
        follower.start()
        await wait_for(lambda: follower.matches(api))
        assert ("delete", "removed") in follower.events
        assert ("delete", "fresh") in follower.events


async def test_state_of_a_restored_server_is_accepted(api: FakeApi) -> None:
    """Its versions are lower than the known ones, and stored objects are missing."""
    three(api)
    api.put(PODS, "missed")
    async with running_informer(api) as follower:
        api.drop_watches()
        for key, obj in api.objects(PODS).items():
            meta = {**obj["metadata"], "resourceVersion": "7"}
            api.objects(PODS)[key] = {**obj, "metadata": meta}
        del api.objects(PODS)["d/removed"]
        api.history.clear()
        api.version = 50
        api.inject_fault(504, watch=True)  # error for a version that the server has not reached
        await wait_for(lambda: follower.matches(api))
        assert follower.events[0] == ("delete", "removed")
        api.put(PODS, "same", x=1)
        await wait_for(lambda: follower.matches(api))
        assert follower.events[-1] == ("update", "same")


async def test_changes_during_rejected_reads_are_delivered_once(
    servers: ServerFactory, tmp_path: Path
) -> None:
    """INV-INF-1, INV-INF-4."""
    refused: list[str] = []

    def refuse(method: str, path: str) -> ErrorResponse | None:
        if method != "GET":
            return None
        refused.append(path)
        return ErrorResponse(410, "Expired")

    async with (
        servers.start(tmp_path) as server,
        HttpProxy(server.url, ca=server.ca, own=server.pki.server) as proxy,
        server.client() as user,
        Client(replace(server.credentials, server=proxy.url), user_agent="t") as client,
    ):
        for name in ("changes", "removed", "same"):
            await user.create(CONFIGMAPS, {"metadata": {"name": name}}, namespace="default")
        options = InformerOptions(watch_timeout=(1.0, 1.0))
        informer = Informer(client, CONFIGMAPS, Pod, namespace="default", options=options)
        follower = InformerFollower(informer)
        follower.start()
        await informer.wait_synced()
        informer.add_event_handler(follower.on_event)
        follower.events.clear()
        proxy.fault_policy = refuse
        await wait_for(lambda: refused)
        await user.patch(CONFIGMAPS, "changes", {"data": {"k": "v"}}, namespace="default")
        await user.delete(CONFIGMAPS, "removed", namespace="default")
        await user.create(CONFIGMAPS, {"metadata": {"name": "added"}}, namespace="default")
        proxy.fault_policy = lambda method, path: None
        await wait_for(lambda: informer.resource_version and len(follower.events) == 3)
        assert sorted(follower.events) == [
            ("add", "added"),
            ("delete", "removed"),
            ("update", "changes"),
        ]
        there = await client.list(CONFIGMAPS, view=Pod, namespace="default")
        assert {pod.metadata.key: pod.metadata.resource_version for pod in informer} == {
            pod.metadata.key: pod.metadata.resource_version for pod in there.items
        }
        informer.validate()
        await follower.stop()
