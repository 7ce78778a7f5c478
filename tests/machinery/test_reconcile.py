"""The reconcile kernel: passes over a key, own writes, notices, state of keys."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.controller_api import ControllerApi
from support.polling import wait_for
from support.running_controller import FakeRecorder, running

from batholith.kube.client.client import Client
from batholith.kube.errors import ConflictError, ConnectionLostError
from batholith.kube.informer.informer import Informer, KindSource
from batholith.machinery.controller import RequeueError
from batholith.machinery.expectations import TTL
from batholith.machinery.reconcile.cache import WriteThroughCache
from batholith.machinery.reconcile.controller import Controller, ControllerSettings, Sync
from batholith.machinery.reconcile.events import Event, Events, Notices
from batholith.machinery.reconcile.state import CountThrottle, KeyStates
from batholith.machinery.result import Result
from batholith.machinery.testing import FakeClock
from batholith.model.base import ApiStruct
from batholith.model.meta import ObjectMeta
from batholith.model.names import PODS, QUEUES
from batholith.testing import RequestMatcher


class Item(ApiStruct, frozen=True):
    metadata: ObjectMeta = ObjectMeta()
    spec: dict[str, Any] = {}


def colours(item: Item) -> list[str]:
    return [item.spec["parent"]] if "parent" in item.spec else []


class Caches:
    """A cache whose watch the test holds back."""

    def __init__(self, api: ControllerApi, client: Client) -> None:
        self.api, self.client, self.clock = api, client, FakeClock()
        self.informer = Informer(client, QUEUES, Item, indexes={"colour": colours})
        self.cache = WriteThroughCache(client, QUEUES, Item, self.informer, clock=self.clock)

    async def hold_watch(self) -> None:
        """Deliver no more events until :meth:`release_watch`."""
        await wait_for(lambda: self.api.watches(QUEUES))
        for watch in self.api.watches(QUEUES):
            watch.stall()

    def release_watch(self) -> None:
        for watch in self.api.watches(QUEUES):
            watch.resume()

    def stored(self, name: str = "q") -> Item:
        return msgspec.convert(self.api.objects(QUEUES)[name], Item)

    def colour(self, name: str = "q") -> object:
        found = self.cache.get(name)
        return None if found is None else found.spec.get("parent")

    def names(self, colour: str) -> list[str]:
        return sorted(item.metadata.name for item in self.cache.by_index("colour", colour))


@pytest.fixture
async def caches() -> AsyncIterator[Caches]:
    async with ControllerApi(QUEUES) as api, api.client() as client:
        api.put(QUEUES, "q", spec={"parent": "red"})
        caches = Caches(api, client)
        task = asyncio.create_task(caches.informer.run())
        await caches.informer.wait_synced()
        yield caches
        task.cancel()
        await asyncio.wait([task])


async def patch(caches: Caches, colour: str) -> Item:
    found = caches.cache.get("q")
    assert found is not None
    return await caches.cache.patch(found.metadata, {"spec": {"parent": colour}})


async def test_own_writes_are_visible_before_the_watch_reports_them(caches: Caches) -> None:
    await caches.hold_watch()
    written = await patch(caches, "blue")
    await caches.cache.create({"metadata": {"name": "r"}, "spec": {"parent": "blue"}})
    assert caches.cache.is_own_write(written)
    assert caches.cache.is_behind("q")
    assert (caches.names("blue"), caches.names("red")) == (["q", "r"], [])
    assert (caches.colour(), caches.colour("r")) == ("blue", "blue")
    caches.release_watch()
    await wait_for(lambda: "r" in caches.informer and not caches.cache.is_behind("q"))
    assert caches.names("blue") == ["q", "r"]
    assert caches.colour("r") == "blue"
    assert len(caches.cache) == 0


async def test_later_version_of_the_informer_replaces_an_own_write(caches: Caches) -> None:
    await caches.hold_watch()
    await patch(caches, "blue")
    caches.api.put(QUEUES, "q", spec={"parent": "green"})
    assert caches.colour() == "blue"
    caches.release_watch()
    await wait_for(lambda: caches.colour() == "green")
    assert (caches.names("green"), caches.names("blue")) == (["q"], [])


async def test_object_deleted_after_an_own_write_does_not_come_back(caches: Caches) -> None:
    await caches.hold_watch()
    await patch(caches, "blue")
    caches.api.remove(QUEUES, "q")
    caches.release_watch()
    await wait_for(lambda: caches.cache.get("q") is None)
    assert caches.names("blue") == []


async def test_object_that_this_controller_deleted_is_gone_at_once(caches: Caches) -> None:
    await caches.hold_watch()
    old = caches.stored()
    assert await caches.cache.delete(old.metadata)
    assert caches.cache.get("q") is None
    assert caches.names("red") == []
    assert not await caches.cache.delete(old.metadata)
    caches.api.put(QUEUES, "q", spec={"parent": "green"})
    caches.release_watch()
    await wait_for(lambda: caches.colour() == "green")


async def test_object_that_turns_out_to_be_deleted_is_gone_at_once(caches: Caches) -> None:
    await caches.hold_watch()
    old = caches.stored()
    caches.api.remove(QUEUES, "q")
    assert caches.cache.get("q") == old
    assert not await caches.cache.delete(old.metadata)
    assert caches.cache.get("q") is None


async def test_own_write_is_unobserved_until_the_informer_has_it(caches: Caches) -> None:
    await caches.hold_watch()
    await caches.cache.create({"metadata": {"name": "r"}, "spec": {}})
    await patch(caches, "blue")
    assert caches.cache.is_unobserved("r")
    assert caches.cache.is_unobserved("q")
    caches.release_watch()
    await wait_for(lambda: caches.informer.get("q") == caches.stored())
    assert not caches.cache.is_unobserved("r")
    assert not caches.cache.is_unobserved("q")


async def test_event_may_precede_the_response_to_a_creation(caches: Caches) -> None:
    held = caches.api.hold_writes()
    creation = asyncio.create_task(caches.cache.create_or_get(Item(metadata=ObjectMeta(name="r"))))
    await wait_for(lambda: caches.cache.is_creating("r"))
    held.release()
    await creation
    assert not caches.cache.is_creating("r")


async def test_own_write_expires_if_the_server_never_reports_it(caches: Caches) -> None:
    """A server that was restored from a backup does not have it."""
    await caches.hold_watch()
    await patch(caches, "blue")
    caches.clock.tick(TTL)
    assert caches.colour() == "blue"
    caches.clock.tick(1)
    assert caches.colour() == "red"


async def test_conflict_requeues_and_shows_the_old_state(caches: Caches) -> None:
    stale = caches.stored()
    caches.api.put(QUEUES, "q", spec={"parent": "green"})
    with pytest.raises(RequeueError) as failure:
        await caches.cache.patch(stale.metadata, {"spec": {"parent": "blue"}})
    assert isinstance(failure.value.__cause__, ConflictError)
    caches.api.remove(QUEUES, "q")
    with pytest.raises(RequeueError, match="not found"):
        await caches.cache.patch(stale.metadata, {"spec": {"parent": "blue"}})


async def test_write_without_a_response_is_confirmed_by_a_read(caches: Caches) -> None:
    await caches.hold_watch()
    caches.api.faults.lose_response(RequestMatcher("patch", QUEUES))
    with pytest.raises(ConnectionLostError):
        await patch(caches, "blue")
    assert caches.colour() == "red"
    await caches.cache.confirm("q")
    assert caches.colour() == "blue"
    requests = caches.api.count()
    await caches.cache.confirm("q")
    assert caches.api.count() == requests


async def test_object_that_is_read_is_visible_before_the_watch_reports_it(caches: Caches) -> None:
    await caches.hold_watch()
    caches.api.put(QUEUES, "q", spec={"parent": "blue"})
    found = await caches.cache.read("q")
    assert found is not None and found.spec["parent"] == caches.colour() == "blue"
    assert await caches.cache.read("no-such-queue") is None


async def test_existing_object_of_a_fixed_name_is_returned(caches: Caches) -> None:
    await caches.hold_watch()
    caches.api.put(QUEUES, "r", spec={"parent": "red"})
    body = Item(metadata=ObjectMeta(name="r"), spec={"parent": "blue"})
    assert (await caches.cache.create_or_get(body)).spec["parent"] == "red"
    assert caches.colour("r") == "red"


async def test_reported_writes_are_not_kept(caches: Caches) -> None:
    for number in range(300):
        await caches.cache.create({"metadata": {"name": f"n{number}"}, "spec": {}})
    await wait_for(lambda: len(caches.informer) == 301)
    await caches.cache.create({"metadata": {"name": "last"}, "spec": {}})
    assert len(caches.cache) < 300


class Recorded(Controller[int, str]):
    """Counts down a number; each effect is recorded."""

    def __init__(self, client: Client, clock: FakeClock) -> None:
        super().__init__("recorded", ControllerSettings(workers=1), clock=clock)
        self.left, self.effects, self.failures = 3, list[str](), list[Exception]()
        self.forgotten: list[str] = []
        self.sources = [KindSource(Informer(client, QUEUES, Item), self._on_item)]
        self.keep(self)

    def _on_item(self, old: Item | None, new: Item | None) -> None:
        self.queue.add((new or old or Item()).metadata.name)

    def forget(self, key: str) -> None:
        self.forgotten.append(key)

    async def observe(self, sync: Sync) -> int | Result | None:
        if sync.key == "absent":
            return None
        return Result.after(7) if sync.key == "later" else self.left

    def decide(self, view: int) -> list[str]:
        return [f"{view}a", f"{view}b"]

    async def execute(self, sync: Sync, view: int, effect: str) -> None:
        self.effects.append(effect)
        sync.after(5)
        sync.after(9)
        if self.failures:
            sync.errors.append(self.failures.pop())
        if effect.endswith("b") and view:
            self.left -= 1
            sync.again = True


async def test_key_is_observed_again_until_nothing_is_written(caches: Caches) -> None:
    controller = Recorded(caches.client, caches.clock)
    result = await controller.reconcile("q")
    assert controller.effects == ["3a", "3b", "2a", "2b", "1a", "1b", "0a", "0b"]
    assert result == Result.after(5)
    assert await controller.reconcile("later") == Result.after(7)
    assert not controller.forgotten
    assert await controller.reconcile("absent") == Result.DONE
    assert controller.forgotten == ["absent"]


async def test_noted_error_fails_the_reconcile_after_all_effects(caches: Caches) -> None:
    controller = Recorded(caches.client, caches.clock)
    controller.failures = [ValueError("second"), ValueError("first")]
    with pytest.raises(ValueError, match="first"):
        await controller.reconcile("q")
    assert controller.effects == ["3a", "3b"]
    assert controller.queue.delayed_count() == 1  # the requested time may precede the retry


async def test_controller_runs_until_cancelled(caches: Caches) -> None:
    controller = Recorded(caches.client, caches.clock)
    async with running(controller):
        await wait_for(lambda: controller.effects[-1:] == ["0b"])
    assert controller.queue.shutting_down


def meta(uid: str = "1") -> ObjectMeta:
    return ObjectMeta(name="p", namespace="ns", uid=uid)


def test_notice_is_recorded_when_it_begins() -> None:
    recorder = FakeRecorder()
    notices = Notices(Events(recorder, PODS))
    wait, fail = Event("Wait", "for quota"), Event("Fail", "no quota", warning=True)
    for current in ([wait], [wait, fail], [fail], [], [fail]):
        notices.update(meta(), current)
    notices.update(meta("2"), [fail])
    notices.forget("ns/p")
    notices.update(meta("2"), [fail])
    assert [event[3] for event in recorder.events] == ["Wait", "Fail", "Fail", "Fail", "Fail"]
    assert recorder.events[1] == ("Pod", "p", "Warning", "Fail", "no quota")


def test_a_replaced_notice_is_recorded_if_the_last_one_with_its_reason_differs() -> None:
    recorder = FakeRecorder()
    notices = Notices(Events(recorder, PODS))
    one, two = Event("Wait", "for 1 node"), Event("Wait", "for 2 nodes")
    for event in (one, one, Event("Fail", "no quota"), one, two, one):
        notices.replace(meta(), event)
    notices.replace(meta("2"), one)
    expected = ["for 1 node", "no quota", "for 2 nodes", "for 1 node", "for 1 node"]
    assert [event[4] for event in recorder.events] == expected


def test_added_notices_are_recorded_once_until_they_are_forgotten() -> None:
    recorder = FakeRecorder()
    notices = Notices(Events(recorder, PODS))
    wait, fail = Event("Wait", "for quota"), Event("Fail", "no quota", warning=True)
    for event in (wait, fail, wait, fail):
        notices.add(meta(), event)
    notices.add(meta("2"), fail)
    notices.forget("ns/p")
    notices.add(meta("2"), fail)
    assert [event[3] for event in recorder.events] == ["Wait", "Fail", "Fail", "Fail"]


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["", "1", "2"])), max_size=20))
def test_state_belongs_to_one_object_of_a_key(steps: list[tuple[str, str]]) -> None:
    states: KeyStates[list[str]] = KeyStates(list)
    expected: dict[str, tuple[str, list[str]]] = {}
    for name, uid in steps:
        if not uid:
            states.forget(f"ns/{name}")
            expected.pop(f"ns/{name}", None)
            continue
        state = states.of(ObjectMeta(name=name, namespace="ns", uid=uid))
        state.append(uid)
        known = expected.get(f"ns/{name}")
        if known is None or known[0] != uid:
            known = expected[f"ns/{name}"] = uid, []
        known[1].append(uid)
        assert states.get(f"ns/{name}", uid) is state
        assert states.get(f"ns/{name}", "other") is None
    assert dict(states) == {key: state for key, (_, state) in expected.items()}


def test_counts_are_written_once_per_interval() -> None:
    clock = FakeClock()
    throttle = CountThrottle(clock)
    assert throttle.delay("q", 2.0) is None
    throttle.wrote("q")
    clock.tick(0.5)
    assert throttle.delay("q", 2.0) == 1.5
    assert throttle.delay("q", 0.1) is None
    clock.tick(1.5)
    assert throttle.delay("q", 2.0) is None
