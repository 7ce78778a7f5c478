"""After an expired version the watch resumes at once, and a relist delivers missed changes."""

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from support.api_servers import ServerFactory
from support.fault_proxy import ErrorResponse, HttpProxy
from support.polling import wait_for
from support.watched_pods import PodsApi, impatient_client

from batholith.kube.client.client import Client
from batholith.kube.informer.informer import Informer
from batholith.kube.informer.reflector import InformerOptions
from batholith.model.base import ApiStruct
from batholith.model.meta import ObjectMeta
from batholith.model.names import CONFIGMAPS, PODS
from batholith.testing import HeldRequests, RecordedRequest, RequestMatcher


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

    def matches(self, api: PodsApi) -> bool:
        """Return whether the store equals the server's and no relist is due."""
        here = {pod.metadata.key: pod.metadata.resource_version for pod in self.informer}
        return self.informer.resource_version != "" and here == api.pod_versions()


@asynccontextmanager
async def running_informer(api: PodsApi, **options: Any) -> AsyncIterator[InformerFollower]:
    async with impatient_client(api, []) as client:
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
async def api() -> AsyncIterator[PodsApi]:
    async with PodsApi() as api:
        yield api


async def expire_resource_version(api: PodsApi) -> HeldRequests:
    """Expire the version with missed changes, and hold the outdated response to the relist."""
    held = api.hold_lists()
    api.drop_watches()
    api.put(PODS, "changes", x=1)
    api.remove(PODS, "removed")
    api.put(PODS, "missed")
    api.compact()
    await held.wait_held()
    return held


def watches_from(api: PodsApi, version: int) -> bool:
    """Return whether a watch from *version*, or a later one, was requested."""
    return api.count("watch", PODS, where=lambda seen: int(_version_of(seen) or 0) >= version) > 0


def _version_of(request: RecordedRequest) -> str:
    return request.query.get("resourceVersion", "")


def three(api: PodsApi) -> None:
    for name in ("changes", "removed", "same"):
        api.put(PODS, name)


@pytest.mark.parametrize("reports_oldest", [True, False])
@pytest.mark.parametrize("streams_lists", [True, False])
async def test_new_changes_are_delivered_during_a_relist(
    api: PodsApi, streams_lists: bool, reports_oldest: bool
) -> None:
    three(api)
    if not streams_lists:
        api.faults.reject_watch_lists()
    async with running_informer(api) as follower:
        if not reports_oldest:
            refused = RequestMatcher("watch", PODS, where=lambda seen: _version_of(seen) != "")
            api.faults.error(refused, 410, message="too old resource version")
        held = await expire_resource_version(api)
        await wait_for(lambda: watches_from(api, api.pods_version))
        api.put(PODS, "fresh")
        await wait_for(lambda: "d/fresh" in follower.informer)
        assert follower.events == [("add", "fresh")]
        assert follower.informer.synced
        assert follower.informer.resource_version == ""
        assert follower.informer.stale_seconds > 0
        held.release()
        await wait_for(lambda: follower.matches(api))
        changes = [("delete", "removed"), ("update", "changes"), ("add", "missed")]
        assert follower.events[1:] == changes
        assert follower.informer.stale_seconds == 0
        follower.informer.validate()
        assert follower.informer.stats().lists == 2


async def test_watch_resumes_from_the_oldest_version_of_the_server(api: PodsApi) -> None:
    """The error states the oldest version, as of a server that has just started."""
    three(api)
    async with running_informer(api) as follower:
        held = await expire_resource_version(api)
        api.put(PODS, "since")
        api.remove(PODS, "same")
        await wait_for(lambda: len(follower.events) == 2)
        assert follower.events == [("add", "since"), ("delete", "same")]
        assert api.count("list", PODS) == 0
        held.release()
        await wait_for(lambda: follower.matches(api))


async def test_failed_relist_is_retried_while_the_watch_continues(api: PodsApi) -> None:
    three(api)
    async with running_informer(api) as follower:
        held = await expire_resource_version(api)
        api.put(PODS, "fresh")
        await wait_for(lambda: "d/fresh" in follower.informer)
        held.lose()
        await wait_for(lambda: follower.matches(api))
        assert sorted(follower.events) == [
            ("add", "fresh"),
            ("add", "missed"),
            ("delete", "removed"),
            ("update", "changes"),
        ]
        assert follower.informer.stats().lists == 2
        # The watch that was refused, and the current one.
        assert api.count("watch", PODS, where=lambda seen: _version_of(seen) != "") == 2


async def test_failed_watch_is_resumed_while_the_relist_continues(api: PodsApi) -> None:
    three(api)
    api.faults.reject_watch_lists()
    async with running_informer(api) as follower:
        held = await expire_resource_version(api)
        await wait_for(lambda: api.watches(PODS))
        api.put(PODS, "one")
        await wait_for(lambda: "d/one" in follower.informer)
        api.drop_watches()
        api.put(PODS, "two")
        await wait_for(lambda: "d/two" in follower.informer)
        held.release()
        await wait_for(lambda: follower.matches(api))
        assert api.count("list", PODS) == 2  # the initial list and the relist
        assert follower.informer.stats().lists == 2


async def test_second_expiry_during_a_relist_restarts_it(api: PodsApi) -> None:
    three(api)
    async with running_informer(api) as follower:
        held = await expire_resource_version(api)
        api.put(PODS, "one")
        await wait_for(lambda: "d/one" in follower.informer)
        api.drop_watches()
        api.remove(PODS, "one")
        api.put(PODS, "two")
        api.compact()
        held.release()
        await wait_for(lambda: follower.matches(api))
        assert ("delete", "one") in follower.events
        assert ("add", "two") in follower.events
        follower.informer.validate()


async def test_ordered_informer_delivers_missed_changes_before_new_ones(
    api: PodsApi,
) -> None:
    three(api)
    async with running_informer(api, ordered=True) as follower:
        held = await expire_resource_version(api)
        api.put(PODS, "fresh")
        held.release()
        await wait_for(lambda: follower.matches(api))
        assert [name for what, name in follower.events if what == "add"] == ["missed", "fresh"]


async def test_informer_stopped_during_a_relist_relists_on_next_run(api: PodsApi) -> None:
    three(api)
    async with running_informer(api) as follower:
        held = await expire_resource_version(api)
        api.put(PODS, "fresh")
        await wait_for(lambda: "d/fresh" in follower.informer)
        await follower.stop()
        held.release()
        api.remove(PODS, "fresh")
        follower.start()
        await wait_for(lambda: follower.matches(api))
        assert ("delete", "removed") in follower.events
        assert ("delete", "fresh") in follower.events


async def test_state_of_a_restored_server_is_accepted(tmp_path: Path) -> None:
    """Its versions are lower than the known ones, and objects created since do not exist."""
    data, backup = tmp_path / "data", tmp_path / "backup"
    async with PodsApi(data_dir=data) as api:
        three(api)
    shutil.copytree(data, backup)
    async with AsyncExitStack() as stack:
        async with PodsApi(data_dir=data) as api:
            port = urlsplit(api.url).port
            api.put(PODS, "since")
            for number in range(100):  # more than the server itself writes at its start
                api.put(PODS, "changes", x=number)
            follower = await stack.enter_async_context(running_informer(api))
        async with PodsApi(data_dir=backup, port=port) as restored:
            assert restored.newest_version < api.newest_version
            await wait_for(lambda: follower.matches(restored))
            assert follower.events == [("delete", "since"), ("update", "changes")]
            restored.put(PODS, "same", x=1)
            await wait_for(lambda: follower.matches(restored))
            assert follower.events[2:] == [("update", "same")]


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
