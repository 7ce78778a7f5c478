"""A change outside the cluster wakes the gangs that a plugin has rejected for it."""

import threading
from collections.abc import Mapping
from typing import Any

import pytest
from support.polling import wait_for
from support.scheduled_gangs import GangServer
from support.scheduler import SchedulerWorld, node, pod, podgroup

from batholith.scheduler import conf
from batholith.scheduler.plugins.extension_points import Rejection
from batholith.scheduler.plugins.handle import Handle
from batholith.scheduler.plugins.registry import PLUGINS
from batholith.scheduler.state.gangs.gang import Gang
from batholith.scheduler.state.nodes.node_matrix import NodeInfo
from batholith.scheduler.state.podinfo.equivalence import EquivalenceClass
from batholith.scheduler.state.queue.scheduling_queue import plugin_event

CONF = conf.DEFAULT + "  - name: acme\n"


class Licences:
    """Rejects gangs for which there is no licence; nothing in the cluster changes that."""

    handles: list[Handle]
    asked: list[str]
    available: set[str]

    def __init__(self, arguments: Mapping[str, object], *, handle: Handle) -> None:
        self._handle = handle
        self.handles.append(handle)

    def job_valid(self, gang: Gang) -> Rejection | None:
        self.asked.append(gang.name)
        if gang.name in self.available:
            return None
        events = frozenset({self._handle.event(gang.name)})
        return Rejection("NoLicence", "no licence", wake_on=events)


class External:
    """A filter whose results change for reasons outside the cluster."""

    handles: list[Handle]
    is_open: bool

    def __init__(self, arguments: Mapping[str, object], handle: Handle) -> None:
        self.handles.append(handle)
        self.generation = 0

    def on_session_open(self, cache: object) -> None:
        self.generation = int(self.is_open)

    def filter_node(self, eq_class: EquivalenceClass, node: NodeInfo) -> str | None:
        return None if self.is_open else "node(s) were closed"


@pytest.fixture
def licences(monkeypatch: pytest.MonkeyPatch) -> type[Licences]:
    class Installed(Licences):
        handles = []
        asked = []
        available = set()

    monkeypatch.setitem(PLUGINS, "acme", Installed)
    return Installed


def wake_in_thread(handle: Handle, *events: Any) -> None:
    thread = threading.Thread(target=handle.wake, args=events)
    thread.start()
    thread.join()


async def test_a_change_outside_wakes_the_gang_that_waits_for_it_alone(
    licences: type[Licences],
) -> None:
    async with GangServer() as server:
        server.prepare()
        server.node("a", 3)
        async with server.scheduler(conf=CONF) as run:
            for name in ("g", "h"):
                server.gang(name, 1)
            reports = {"g", "h"}
            await wait_for(lambda: reports <= {event[1] for event in run.recorder.events})
            licences.asked.clear()
            licences.available.add("g")
            handle = licences.handles[-1]
            wake_in_thread(handle, handle.event("g"))
            await server.wait_bound("g", 1)
    assert set(licences.asked) == {"g"}


async def test_without_an_event_all_gangs_are_tried_and_filters_are_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Installed(External):
        handles = []
        is_open = False

    monkeypatch.setitem(PLUGINS, "acme", Installed)
    async with GangServer() as server:
        server.prepare()
        server.node("a", 3)
        async with server.scheduler(conf=CONF) as run:
            server.gang("g", 2)
            await wait_for(lambda: run.events("Unschedulable"))
            Installed.is_open = True
            wake_in_thread(Installed.handles[-1])
            await server.wait_bound("g", 2)


async def test_a_handle_is_of_no_effect_before_and_after_the_scheduler_runs(
    licences: type[Licences],
) -> None:
    async with GangServer() as server:
        server.prepare()
        async with server.scheduler(conf=CONF):
            pass
    for handle in licences.handles:
        handle.wake()
    SchedulerWorld(CONF)
    licences.handles[-1].wake()


def test_plugins_have_events_of_their_own() -> None:
    events = [Handle(name).event(event) for name in ("a", "b") for event in ("", "x")]
    assert len({*events, plugin_event("x"), plugin_event("")}) == 6


def test_a_plugin_without_the_parameter_gets_no_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    def create(arguments: Mapping[str, object], **others: object) -> object:
        assert not others
        return object()

    monkeypatch.setitem(PLUGINS, "acme", create)
    world = SchedulerWorld(CONF)
    world.upsert(node("a"), podgroup("g", 1), pod("g-0", "g"))
    assert world.schedule() == {"g-0": "a"}
