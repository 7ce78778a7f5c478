"""Informers that a process shares, and that keep the objects of the shards that it holds."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
from support.controller_api import ControllerApi
from support.polling import wait_for

from batholith.kube.client.client import Client
from batholith.kube.informer.factory import SharedInformers
from batholith.kube.informer.informer import Informer, KindSource
from batholith.machinery.lifecycle import run_controller
from batholith.model.base import ApiStruct
from batholith.model.meta import ObjectMeta
from batholith.model.names import CONFIGMAPS, SECRETS
from batholith.testing import RequestMatcher

SHARDS = 3
OWNER = "owner"


class Thing(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


def owner_of(thing: Thing) -> str | None:
    return thing.metadata.labels.get(OWNER)


def shard_of(key: str) -> int:
    return int(key) % SHARDS


@dataclass
class ShardController:
    """A controller of one shard, that rebuilds its objects from events."""

    informers: SharedInformers
    shard: int
    known: dict[str, Thing] = field(default_factory=dict)
    task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        await self.informers.add_shard(self.shard)
        factory = self.informers.for_shard(self.shard)
        informer = factory.informer(CONFIGMAPS, Thing, owner_key=owner_of)
        secrets = factory.informer(SECRETS, Thing)
        sources = [KindSource(informer, self._on_thing), KindSource(secrets, self._on_secret)]
        self.secrets: Informer[Thing] = secrets
        ready = asyncio.Event()
        self.task = asyncio.create_task(
            run_controller(sources, asyncio.Event().wait, ready=ready)  # type: ignore[arg-type]
        )
        await ready.wait()

    async def stop(self) -> None:
        assert self.task is not None
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        self.informers.remove_shard(self.shard)

    def _on_thing(self, old: Thing | None, new: Thing | None) -> None:
        either = new or old
        assert either is not None
        key = either.metadata.key
        assert (old is None) == (key not in self.known)
        if new is None:
            del self.known[key]
        else:
            assert shard_of(owner_of(new) or "") == self.shard
            self.known[key] = new

    def _on_secret(self, old: Thing | None, new: Thing | None) -> None:
        pass


@dataclass
class World:
    api: ControllerApi
    client: Client
    informers: SharedInformers
    controllers: dict[int, ShardController] = field(default_factory=dict)

    async def start(self, shard: int) -> None:
        self.controllers[shard] = controller = ShardController(self.informers, shard)
        await controller.start()

    async def stop(self, shard: int) -> None:
        await self.controllers.pop(shard).stop()

    def expected(self, shard: int) -> dict[str, str]:
        return {
            key: thing["metadata"]["resourceVersion"]
            for key, thing in self.api.objects(CONFIGMAPS).items()
            if (owner := thing["metadata"].get("labels", {}).get(OWNER)) is not None
            and shard_of(owner) == shard
        }

    def is_current(self) -> bool:
        return all(
            self.expected(shard)
            == {key: thing.metadata.resource_version for key, thing in controller.known.items()}
            for shard, controller in self.controllers.items()
        )

    def kept(self) -> set[str]:
        """Keys in the informer's store, through any view."""
        factory = self.informers.for_shard(next(iter(self.controllers)))
        return {
            thing.metadata.key for thing in factory.informer(CONFIGMAPS, Thing, owner_key=owner_of)
        }


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with ControllerApi() as api, api.client() as client:
        found = World(api, client, SharedInformers(client, shard_of=shard_of))
        yield found
        for shard in list(found.controllers):
            await found.stop(shard)


@pytest.mark.parametrize("seed", range(4))
async def test_each_shard_sees_its_objects_while_shards_come_and_go(
    world: World, seed: int
) -> None:
    """Objects are created, modified, moved to another shard and deleted at the same time."""
    rng = random.Random(seed)

    async def change() -> None:
        while True:
            name = f"thing-{rng.randrange(12)}"
            if rng.random() < 0.25:
                world.api.remove(CONFIGMAPS, name)
            else:
                labels = {OWNER: str(rng.randrange(6))} if rng.random() < 0.9 else {OWNER: None}
                world.api.put(CONFIGMAPS, name, metadata={"labels": labels})
            await asyncio.sleep(rng.random() * 0.004)

    changing = asyncio.create_task(change())
    for _ in range(12):
        shard = rng.randrange(SHARDS)
        await (world.stop(shard) if shard in world.controllers else world.start(shard))
    if not world.controllers:
        await world.start(1)
    changing.cancel()
    await asyncio.gather(changing, return_exceptions=True)
    await wait_for(world.is_current)
    wanted = {key for shard in world.controllers for key in world.expected(shard)}
    await wait_for(lambda: world.kept() == wanted)


async def test_shards_that_are_added_together_share_lists(world: World) -> None:
    world.api.put(CONFIGMAPS, "a", metadata={"labels": {OWNER: "0"}})
    await world.start(0)
    before = world.api.count("watch", CONFIGMAPS)
    await asyncio.gather(world.start(1), world.start(2))
    assert world.api.count("watch", CONFIGMAPS) - before <= 2
    await wait_for(lambda: len(world.api.watches(CONFIGMAPS)) == 1)


async def test_objects_that_every_shard_needs_are_kept_whole(world: World) -> None:
    world.api.put(SECRETS, "s")
    await world.start(0)
    await world.start(1)
    for controller in world.controllers.values():
        assert "s" in [thing.metadata.name for thing in controller.secrets]
    assert len(world.api.watches(SECRETS)) == 1


async def test_a_shard_is_added_while_the_server_rejects_lists(world: World) -> None:
    world.api.put(CONFIGMAPS, "a", metadata={"labels": {OWNER: "1"}})
    await world.start(0)
    fault = world.api.faults.error(RequestMatcher(count=None, resource=CONFIGMAPS), 500)
    adding = asyncio.create_task(world.start(1))
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.shield(adding), 0.3)
    assert not adding.done()
    fault.remove()
    await adding
    await wait_for(world.is_current)
