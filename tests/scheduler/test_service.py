"""The scheduling loop: events, failures, and cycles in a thread."""

import asyncio
import threading
from collections.abc import AsyncIterator, Mapping

import pytest
from prometheus_client import CollectorRegistry
from support.controller_api import ControllerApi
from support.fair_share import CONFIGURATION as FAIR_SHARE
from support.polling import wait_for
from support.running_controller import FakeRecorder, running

from batholith.model.names import GROUP_NAME, NODES, PODGROUPS, PODS, QUEUES
from batholith.scheduler.actions.registry import ACTIONS
from batholith.scheduler.conf import DEFAULT
from batholith.scheduler.cycle_time_limit import CycleTimeLimit
from batholith.scheduler.framework.session import Session
from batholith.scheduler.plugins.registry import PLUGINS
from batholith.scheduler.scheduler import Scheduler, SchedulerSettings
from batholith.scheduler.state.cache.cache import SchedulerCache
from batholith.scheduler.state.cache.events import Recheck
from batholith.scheduler.state.nodes.node_matrix import NodeInfo
from batholith.scheduler.state.podinfo.equivalence import EquivalenceClass


@pytest.fixture
async def scheduler() -> AsyncIterator[Scheduler]:
    async with ControllerApi(PODGROUPS, QUEUES) as api, api.client() as client:
        api.put(NODES, "n")
        api.put(QUEUES, "q")
        yield Scheduler(client)


async def test_failed_event_does_not_affect_other_events(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(SchedulerCache, "update_node", fail)
    async with running(scheduler):
        await wait_for(lambda: caplog.messages and "q" in scheduler.cache.queues.by_name)
        assert caplog.messages == ["cannot handle event"]


async def test_failed_cycle_ends_the_scheduler(
    scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process is restarted without the half changed cache."""

    def fail(**_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(scheduler.cycle_runner, "run_once", fail)
    with pytest.RaisesGroup(pytest.RaisesExc(RuntimeError, match="a bug"), flatten_subgroups=True):
        await asyncio.wait_for(scheduler.run(), 60)


@pytest.mark.parametrize(("conf", "waits"), [(DEFAULT, False), (FAIR_SHARE, True)])
async def test_first_cycle_waits_for_past_usage_if_that_is_configured(
    conf: str, waits: bool
) -> None:
    async with ControllerApi(PODGROUPS, QUEUES) as api, api.client() as client:
        api.put(QUEUES, "q")
        scheduler = Scheduler(client, settings=SchedulerSettings(conf=conf))
        scheduler.restored = asyncio.Event()
        cycles: list[object] = []
        run_once = scheduler.cycle_runner.run_once
        scheduler.cycle_runner.run_once = (  # type: ignore[method-assign]
            lambda **arguments: cycles.append(arguments) or run_once(**arguments)  # type: ignore[func-returns-value]
        )
        async with running(scheduler):
            await wait_for(lambda: scheduler.pending_events if waits else cycles)
            assert bool(cycles) is not waits
            scheduler.restored.set()
            await wait_for(lambda: cycles)


@pytest.mark.parametrize(("conf", "events"), [(DEFAULT, ["BudgetIgnored"]), (FAIR_SHARE, [])])
async def test_budget_without_the_plugin_that_evaluates_it_causes_an_event(
    conf: str, events: list[str]
) -> None:
    async with ControllerApi(PODGROUPS, QUEUES) as api, api.client() as client:
        api.put(QUEUES, "q", metadata={"annotations": {"batholith.io/budget": "cpu=1"}})
        recorder = FakeRecorder()
        scheduler = Scheduler(client, settings=SchedulerSettings(conf=conf), recorder=recorder)
        async with running(scheduler):
            await wait_for(lambda: "q" in scheduler.cache.queues.by_name)
            api.put(QUEUES, "q", metadata={"annotations": {"batholith.io/budget": "cpu=1"}})
            api.put(QUEUES, "last")
            await wait_for(lambda: "last" in scheduler.cache.queues.by_name)
    assert [reason for kind, name, _, reason, _ in recorder.events if name == "q"] == events


class BlockingAction:
    """An action that blocks, in its thread, once the cycle has scheduled a pod."""

    def __init__(self) -> None:
        self.entered = threading.Event()
        self.release = threading.Event()

    def __call__(self, session: Session) -> None:
        if session.placements and not self.entered.is_set():
            self.entered.set()
            assert self.release.wait(timeout=60)


async def test_loop_does_not_see_or_change_the_cache_during_a_cycle_in_a_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    action, registry = BlockingAction(), CollectorRegistry()
    monkeypatch.setitem(ACTIONS, "backfill", action)

    def allocated() -> float | None:
        name, labels = "volcano_queue_allocated_milli_cpu", {"queue_name": "default"}
        return registry.get_sample_value(name, labels)

    async with ControllerApi(PODGROUPS, QUEUES) as api, api.client() as client:
        settings = SchedulerSettings(registry=registry, inline_cycle_max_tasks=0)
        scheduler = Scheduler(client, settings=settings)
        cache = scheduler.cache
        api.put(QUEUES, "default", spec={"weight": 1}, status={"state": "Open"})
        api.put(NODES, "n", status={"allocatable": {"cpu": "4", "memory": "4Gi", "pods": "10"}})
        async with running(scheduler):
            await wait_for(lambda: allocated() == 0)
            api.put(PODGROUPS, "g", spec={"minMember": 1}, status={"phase": "Inqueue"})
            pod = {
                "schedulerName": "volcano",
                "containers": [{"name": "main", "resources": {"requests": {"cpu": "1"}}}],
            }
            meta = {"annotations": {GROUP_NAME: "g"}}
            api.put(PODS, "g-0", metadata=meta, spec=pod, status={"phase": "Pending"})
            try:
                await wait_for(action.entered.is_set)
                assert cache.queues.named("default").allocated["cpu"] == 1000
                assert allocated() == 0, "a scrape reads the last decision"
                with pytest.raises(RuntimeError, match="a cycle is running"):
                    cache.apply(Recheck("d/g"))
                api.put(QUEUES, "new", spec={"weight": 1}, status={"state": "Open"})
                await wait_for(lambda: scheduler.pending_events)
                assert "new" not in cache.queues.by_name
            finally:
                action.release.set()
            await wait_for(lambda: allocated() == 1000 and "new" in cache.queues.by_name)


class FailingFilter:
    """A filter of another package that raises."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Ignore the arguments."""

    def filter_node(self, eq_class: EquivalenceClass, node: NodeInfo) -> str | None:
        raise RuntimeError("a bug")


async def test_failing_plugin_does_not_end_the_scheduler(monkeypatch: pytest.MonkeyPatch) -> None:
    """The PodGroup has an event, and the failure is counted."""
    monkeypatch.setitem(PLUGINS, "acme", FailingFilter)
    registry, recorder = CollectorRegistry(), FakeRecorder()

    def failures() -> float | None:
        labels = {"plugin": "acme", "extension_point": "filter_node"}
        return registry.get_sample_value("batholith_scheduler_plugin_errors_total", labels)

    async with ControllerApi(PODGROUPS, QUEUES) as api, api.client() as client:
        text = DEFAULT.replace("- name: predicates", "- name: acme")
        settings = SchedulerSettings(conf=text, registry=registry)
        api.put(QUEUES, "default", spec={"weight": 1}, status={"state": "Open"})
        api.put(NODES, "n", status={"allocatable": {"cpu": "4", "memory": "4Gi", "pods": "10"}})
        api.put(PODGROUPS, "g", spec={"minMember": 1}, status={"phase": "Inqueue"})
        container = {"name": "main", "resources": {"requests": {"cpu": "1"}}}
        pod = {"schedulerName": "volcano", "containers": [container]}
        meta = {"annotations": {GROUP_NAME: "g"}}
        api.put(PODS, "g-0", metadata=meta, spec=pod, status={"phase": "Pending"})
        scheduler = Scheduler(client, settings=settings, recorder=recorder)
        async with running(scheduler):
            expected = 'plugin "acme" failed in filter_node: RuntimeError: a bug'
            await wait_for(lambda: any(e[0] == "PodGroup" for e in recorder.events))
            (event,) = (e for e in recorder.events if e[0] == "PodGroup")
            assert event[1:4] == ("g", "Warning", "Unschedulable")
            assert expected in event[4]
            assert failures()


async def test_long_cycle_is_continued_after_its_results_are_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With no time at all, each cycle still schedules a gang, and all are scheduled."""
    registry = CollectorRegistry()

    def cycles() -> float:
        name = "volcano_e2e_scheduling_latency_milliseconds_count"
        return registry.get_sample_value(name) or 0.0

    def allocated() -> float | None:
        name, labels = "volcano_queue_allocated_milli_cpu", {"queue_name": "default"}
        return registry.get_sample_value(name, labels)

    async with ControllerApi(PODGROUPS, QUEUES) as api, api.client() as client:
        api.put(QUEUES, "default", spec={"weight": 1}, status={"state": "Open"})
        api.put(NODES, "n", status={"allocatable": {"cpu": "8", "memory": "4Gi", "pods": "10"}})
        container = {"name": "main", "resources": {"requests": {"cpu": "1"}}}
        pod = {"schedulerName": "volcano", "containers": [container]}
        for number in range(4):
            name = f"g{number}"
            api.put(PODGROUPS, name, spec={"minMember": 1}, status={"phase": "Inqueue"})
            meta = {"annotations": {GROUP_NAME: name}}
            api.put(PODS, f"{name}-0", metadata=meta, spec=pod, status={"phase": "Pending"})
        monkeypatch.setattr(CycleTimeLimit, "is_reached", lambda self: True)
        settings = SchedulerSettings(registry=registry)
        async with running(Scheduler(client, settings=settings)):
            await wait_for(lambda: allocated() == 4000)
            assert cycles() >= 4
