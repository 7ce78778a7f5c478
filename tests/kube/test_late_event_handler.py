"""A handler added to a large store receives an initial replay, in slices and in order."""

import asyncio
import itertools
from collections.abc import Iterator
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from batholith.kube.client.client import Client
from batholith.kube.client.config import Credentials
from batholith.kube.informer import informer as informer_module
from batholith.kube.informer.informer import Informer
from batholith.model.base import ApiStruct
from batholith.model.meta import ObjectMeta
from batholith.model.names import PODS

SLICE = 3


class Pod(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()


class RecordingHandler:
    """Rebuilds the store from the events, and checks that they are consistent."""

    def __init__(self) -> None:
        self.known: dict[str, Pod] = {}
        self.event_count = 0

    def __call__(self, old: Pod | None, new: Pod | None) -> None:
        self.event_count += 1
        obj = new or old
        assert obj is not None
        key = obj.metadata.key
        assert self.known.get(key) is old, "not the object delivered before"
        if new is None:
            del self.known[key]
        else:
            self.known[key] = new


class InformerWorld:
    """An informer to which the test applies changes."""

    def __init__(self) -> None:
        self.informer = Informer(
            Client(Credentials(server="http://nowhere"), user_agent="t"), PODS, Pod
        )
        self._version = 0

    def put(self, name: str, *, uid: str = "") -> None:
        self._version += 1
        there = self.informer.get(name)
        meta = ObjectMeta(
            name=name,
            uid=uid or (there.metadata.uid if there else f"{name}-{self._version}"),
            resource_version=str(self._version),
        )
        self.informer._store.apply("MODIFIED", Pod(metadata=meta))

    def remove(self, name: str) -> None:
        self.informer._store.delete(name)

    def agrees(self, listener: RecordingHandler) -> bool:
        return listener.known == {pod.metadata.key: pod for pod in self.informer}


@pytest.fixture(autouse=True, scope="module")
def small_slices() -> Iterator[None]:
    with mock.patch.object(informer_module, "YIELD_EVERY", SLICE):
        yield


async def test_initial_replay_yields_to_other_tasks() -> None:
    world, listener = InformerWorld(), RecordingHandler()
    for number in range(10 * SLICE):
        world.put(f"p{number}")
    steps = []
    attaching = asyncio.create_task(world.informer.attach_event_handler(listener))
    while not attaching.done():
        steps.append(listener.event_count)
        await asyncio.sleep(0)
    assert max(after - before for before, after in itertools.pairwise(steps)) <= SLICE
    assert len(steps) >= 10
    assert world.agrees(listener)


async def test_changes_during_the_replay_are_delivered_once_and_in_order() -> None:
    world, listener = InformerWorld(), RecordingHandler()
    for number in range(2 * SLICE):
        world.put(f"p{number}")
    attaching = asyncio.create_task(world.informer.attach_event_handler(listener))
    await asyncio.sleep(0)
    assert list(listener.known) == ["p0", "p1", "p2"]
    world.put("p0")  # replayed: the update is delivered
    world.put("p4")  # not replayed: the replay delivers this state
    world.remove("p3")  # not replayed: never delivered
    world.put("p5", uid="another")  # recreated with another uid
    world.put("new")
    world.remove("p1")
    assert listener.event_count == 7
    await attaching
    assert listener.event_count == 8
    assert world.agrees(listener)
    world.put("p4")
    assert world.agrees(listener)


async def test_cancelled_attach_delivers_nothing_more() -> None:
    world, listener = InformerWorld(), RecordingHandler()
    for number in range(2 * SLICE):
        world.put(f"p{number}")
    attaching = asyncio.create_task(world.informer.attach_event_handler(listener))
    await asyncio.sleep(0)
    attaching.cancel()
    await asyncio.gather(attaching, return_exceptions=True)
    count = listener.event_count
    world.put("p0")
    world.put("p5")
    assert listener.event_count == count


async def test_failing_handler_is_counted_and_called_again() -> None:
    world = InformerWorld()
    world.put("a")
    received = []

    def bad(old: Pod | None, new: Pod | None) -> None:
        received.append(new)
        raise RuntimeError("a bug")

    await world.informer.attach_event_handler(bad)
    world.put("a")
    assert len(received) == 2
    assert world.informer.stats().handler_errors == 2


CHANGES = st.tuples(
    st.sampled_from(["put", "another", "remove", "yield", "attach"]), st.integers(0, 9)
)


@settings(max_examples=examples(200), deadline=None)
@given(before=st.sets(st.integers(0, 9)), changes=st.lists(CHANGES, max_size=40))
async def test_every_handler_receives_a_consistent_history(
    before: set[int], changes: list[tuple[str, int]]
) -> None:
    """For handlers added at any time, with any changes between their slices."""
    world, listeners = InformerWorld(), [RecordingHandler()]
    world.informer.add_event_handler(listeners[0])
    for number in before:
        world.put(f"p{number}")
    attaching: list[asyncio.Task[None]] = []
    for change, number in changes:
        name = f"p{number}"
        if change == "put":
            world.put(name)
        elif change == "another":
            world.put(name, uid=f"{name}-again-{len(attaching)}")
        elif change == "remove":
            world.remove(name)
        elif change == "attach":
            listeners.append(RecordingHandler())
            attaching.append(
                asyncio.create_task(world.informer.attach_event_handler(listeners[-1]))
            )
        else:
            await asyncio.sleep(0)
    await asyncio.gather(*attaching)
    for listener in listeners:
        assert world.agrees(listener)
    world.informer.validate()
    assert world.informer.stats().handler_errors == 0
