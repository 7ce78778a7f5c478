"""A cache that lost its place goes on at once, and a list beside tells what it missed."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from support.api_servers import Servers
from support.fake_apiserver import FakeApi
from support.fault_proxy import HttpProxy, Refusal
from support.polling import until

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
class Follower:
    """A cache that is followed, and what it told: came, changed or went, and of what."""

    cache: Informer[Pod]
    told: list[tuple[str, str]] = field(default_factory=list)
    task: asyncio.Task[None] | None = None

    def hear(self, old: Pod | None, new: Pod | None) -> None:
        what = "came" if old is None else "changed" if new is not None else "went"
        self.told.append((what, (new or old or Pod()).metadata.name))

    def start(self) -> None:
        self.task = asyncio.create_task(self.cache.run())

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)

    def holds(self, api: FakeApi) -> bool:
        """Whether it holds what the server holds, and knows it."""
        here = {pod.metadata.key: pod.metadata.resource_version for pod in self.cache}
        there = api.objects(PODS).items()
        whole = self.cache.resource_version != ""
        return whole and here == {key: obj["metadata"]["resourceVersion"] for key, obj in there}


@asynccontextmanager
async def following(api: FakeApi, **options: Any) -> AsyncIterator[Follower]:
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(0.001)

    timing = Timing(sleep=sleep, random=lambda: 0.0)
    made = ClientOptions(timing=timing, max_read_attempts=1)
    async with Client(api.credentials, user_agent="t", options=made) as client:
        follower = Follower(Informer(client, PODS, Pod, options=InformerOptions(**options)))
        follower.cache.add_event_handler(follower.hear)
        follower.start()
        try:
            await follower.cache.wait_synced()
            follower.told.clear()
            yield follower
        finally:
            await follower.stop()


@pytest.fixture
async def api() -> AsyncIterator[FakeApi]:
    async with FakeApi() as api:
        yield api


async def lose_place(api: FakeApi) -> None:
    """Let something be missed, and lists wait."""
    api.lists.clear()
    api.drop_watches()
    api.put(PODS, "changes", x=1)
    api.remove(PODS, "goes")
    api.put(PODS, "missed")
    api.forget_history()


def is_followed_from(api: FakeApi, version: int) -> bool:
    """Whether a watch has begun there."""
    return any(seen.query.get("resourceVersion") == str(version) for seen in api.seen)


def three(api: FakeApi) -> None:
    for name in ("changes", "goes", "same"):
        api.put(PODS, name)


@pytest.mark.parametrize("says_oldest", [True, False])
@pytest.mark.parametrize("streams_lists", [True, False])
async def test_news_come_while_a_list_is_awaited(
    api: FakeApi, streams_lists: bool, says_oldest: bool
) -> None:
    three(api)
    api.streams_lists, api.says_oldest = streams_lists, says_oldest
    async with following(api) as follower:
        await lose_place(api)
        await until(lambda: is_followed_from(api, api.version))
        api.put(PODS, "fresh")
        await until(lambda: "d/fresh" in follower.cache)
        assert follower.told == [("came", "fresh")]
        assert follower.cache.synced
        assert follower.cache.resource_version == ""
        assert follower.cache.stale_seconds > 0
        api.lists.set()
        await until(lambda: follower.holds(api))
        assert follower.told[1:] == [("went", "goes"), ("changed", "changes"), ("came", "missed")]
        assert follower.cache.stale_seconds == 0
        follower.cache.validate()
        assert follower.cache.stats().lists == 2


async def test_what_a_server_still_knows_is_not_missed(api: FakeApi) -> None:
    """It says from which version on it does, as one does that was started a moment ago."""
    three(api)
    async with following(api) as follower:
        await lose_place(api)
        api.put(PODS, "since")
        api.remove(PODS, "same")
        await until(lambda: len(follower.told) == 2)
        assert follower.told == [("came", "since"), ("went", "same")]
        assert api.count("GET") == 0
        api.lists.set()
        await until(lambda: follower.holds(api))


async def test_a_list_that_breaks_off_is_begun_again_while_the_watch_goes_on(api: FakeApi) -> None:
    three(api)
    async with following(api) as follower:
        await lose_place(api)
        api.put(PODS, "fresh")
        await until(lambda: "d/fresh" in follower.cache)
        api.cut_after = 30
        api.lists.set()
        await until(lambda: follower.holds(api))
        assert sorted(follower.told) == [
            ("came", "fresh"),
            ("came", "missed"),
            ("changed", "changes"),
            ("went", "goes"),
        ]
        assert follower.cache.stats().lists == 2
        followed = [seen for seen in api.seen if "resourceVersion" in seen.query]
        assert len(followed) == 2  # that which was refused, and the one since


async def test_a_watch_that_breaks_is_resumed_while_the_list_goes_on(api: FakeApi) -> None:
    three(api)
    api.streams_lists = False
    async with following(api) as follower:
        await lose_place(api)
        await until(lambda: api.count("GET") == 2)
        await until(lambda: api.watches == 1)
        api.put(PODS, "one")
        await until(lambda: "d/one" in follower.cache)
        api.drop_watches()
        api.put(PODS, "two")
        await until(lambda: "d/two" in follower.cache)
        api.lists.set()
        await until(lambda: follower.holds(api))
        assert api.count("GET") == 2  # the first list, and the one beside
        assert follower.cache.stats().lists == 2


async def test_a_place_lost_again_begins_all_anew(api: FakeApi) -> None:
    three(api)
    async with following(api) as follower:
        await lose_place(api)
        api.put(PODS, "one")
        await until(lambda: "d/one" in follower.cache)
        api.drop_watches()
        api.remove(PODS, "one")
        api.put(PODS, "two")
        api.forget_history()
        api.lists.set()
        await until(lambda: follower.holds(api))
        assert ("went", "one") in follower.told
        assert ("came", "two") in follower.told
        follower.cache.validate()


async def test_who_obeys_in_order_hears_of_nothing_new_before_what_was_missed(
    api: FakeApi,
) -> None:
    three(api)
    async with following(api, in_order=True) as follower:
        await lose_place(api)
        await until(lambda: api.watches == 1)
        api.put(PODS, "fresh")
        api.lists.set()
        await until(lambda: follower.holds(api))
        assert [name for what, name in follower.told if what == "came"] == ["missed", "fresh"]


async def test_who_is_stopped_before_the_list_came_lists_again(api: FakeApi) -> None:
    three(api)
    async with following(api) as follower:
        await lose_place(api)
        api.put(PODS, "fresh")
        await until(lambda: "d/fresh" in follower.cache)
        await follower.stop()
        api.lists.set()
        api.remove(PODS, "fresh")
        follower.start()
        await until(lambda: follower.holds(api))
        assert ("went", "goes") in follower.told
        assert ("went", "fresh") in follower.told


async def test_a_server_put_back_from_a_backup_is_believed(api: FakeApi) -> None:
    """Its versions are lower than those that are known, and it has what we hold no more."""
    three(api)
    api.put(PODS, "missed")
    async with following(api) as follower:
        api.drop_watches()
        for key, obj in api.objects(PODS).items():
            meta = {**obj["metadata"], "resourceVersion": "7"}
            api.objects(PODS)[key] = {**obj, "metadata": meta}
        del api.objects(PODS)["d/goes"]
        api.history.clear()
        api.version = 50
        api.fail(504, watch=True)  # what servers say of a version that they have not reached
        await until(lambda: follower.holds(api))
        assert follower.told[0] == ("went", "goes")
        api.put(PODS, "same", x=1)
        await until(lambda: follower.holds(api))
        assert follower.told[-1] == ("changed", "same")


async def test_what_happens_while_all_reads_are_refused_is_told_once(
    servers: Servers, tmp_path: Path
) -> None:
    """INV-INF-1, INV-INF-4."""
    refused: list[str] = []

    def refuse(method: str, path: str) -> Refusal | None:
        if method != "GET":
            return None
        refused.append(path)
        return Refusal(410, "Expired")

    async with (
        servers.start(tmp_path) as server,
        HttpProxy(server.url, ca=server.ca, own=server.pki.server) as proxy,
        server.client() as user,
        Client(replace(server.credentials, server=proxy.url), user_agent="t") as client,
    ):
        for name in ("changes", "goes", "same"):
            await user.create(CONFIGMAPS, {"metadata": {"name": name}}, namespace="default")
        options = InformerOptions(watch_timeout=(1.0, 1.0))
        cache = Informer(client, CONFIGMAPS, Pod, namespace="default", options=options)
        follower = Follower(cache)
        follower.start()
        await cache.wait_synced()
        cache.add_event_handler(follower.hear)
        follower.told.clear()
        proxy.judge = refuse
        await until(lambda: refused)
        await user.patch(CONFIGMAPS, "changes", {"data": {"k": "v"}}, namespace="default")
        await user.delete(CONFIGMAPS, "goes", namespace="default")
        await user.create(CONFIGMAPS, {"metadata": {"name": "comes"}}, namespace="default")
        proxy.judge = lambda method, path: None
        await until(lambda: cache.resource_version and len(follower.told) == 3)
        assert sorted(follower.told) == [
            ("came", "comes"),
            ("changed", "changes"),
            ("went", "goes"),
        ]
        there = await client.list(CONFIGMAPS, view=Pod, namespace="default")
        assert {pod.metadata.key: pod.metadata.resource_version for pod in cache} == {
            pod.metadata.key: pod.metadata.resource_version for pod in there.items
        }
        cache.validate()
        await follower.stop()
