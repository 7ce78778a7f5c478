"""A plugin that raises affects the gangs that it is called for, and nothing else."""

import logging
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from support.scheduler import SchedulerWorld, node, pod, podgroup, queue

from batholith.model.names import QUEUE_GATE
from batholith.scheduler import conf
from batholith.scheduler.framework.plugin_calls import PluginFailure
from batholith.scheduler.plugins.registry import PLUGINS

_CONF = conf.DEFAULT.replace("  - name: nodeorder", "  - name: acme\n  - name: nodeorder")


class Acme:
    """A plugin of another package, with all extension points; some raise."""

    raising: frozenset[str] = frozenset()

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Ignore the arguments."""

    def _answer(self, point: str, value: Any) -> Any:
        if point in self.raising:
            raise RuntimeError("a bug")
        return value

    def on_session_open(self, cache: object) -> None:
        self._answer("on_session_open", None)

    def queue_order(self, queue: object) -> float:
        return float(self._answer("queue_order", 0.0))

    def job_order(self, gang: object) -> float:
        return float(self._answer("job_order", 0.0))

    def task_order(self, task: object) -> float:
        return float(self._answer("task_order", 0.0))

    def job_valid(self, gang: object) -> Any:
        return self._answer("job_valid", None)

    def job_enqueueable(self, gang: object) -> Any:
        return self._answer("job_enqueueable", True)

    def job_enqueued(self, gang: object) -> None:
        self._answer("job_enqueued", None)

    def allocatable_count(self, queue: object, eq_class: Any) -> Any:
        limited = "queue_rejection" in self.raising
        return self._answer("allocatable_count", 0 if limited else 100)

    def queue_rejection(self, queue: object, eq_class: object) -> Any:
        return self._answer("queue_rejection", None)

    def overused(self, queue: object) -> Any:
        return self._answer("overused", False)

    def filter_node(self, eq_class: object, node: object) -> Any:
        return self._answer("filter_node", None)

    def node_limit(self, eq_class: object, nodes: Any, node_indexes: Any) -> Any:
        return self._answer("node_limit", None)

    def node_limit_reason(self, eq_class: object) -> str:
        return "node(s) were full"

    def score(self, request: object, allocatable: Any, used: Any) -> Any:
        return self._answer("score", np.zeros(used.shape[1]))

    def static_score(self, eq_class: object, nodes: object) -> Any:
        return self._answer("static_score", None)


@pytest.fixture
def acme(monkeypatch: pytest.MonkeyPatch) -> type[Acme]:
    class Installed(Acme):
        pass

    monkeypatch.setitem(PLUGINS, "acme", Installed)
    return Installed


def _world(*, queue_gates: bool = False) -> SchedulerWorld:
    world = SchedulerWorld(_CONF, queue_gates=queue_gates)
    world.upsert(node("a"), node("b"))
    world.upsert(podgroup("g", 2, phase="Pending", resources={"cpu": 2}))
    world.upsert(*(pod(f"g-{i}", "g") for i in range(2)))
    return world


REJECTING = (
    "on_session_open", "job_valid", "job_enqueueable", "job_enqueued", "allocatable_count",
    "queue_rejection", "overused", "filter_node", "node_limit",
)  # fmt: skip
SKIPPED = ("queue_order", "job_order", "task_order", "score", "static_score")


def test_every_extension_point_is_tested() -> None:
    methods = {name for name in vars(Acme) if not name.startswith("_")}
    assert methods - {"raising", "node_limit_reason"} == {*REJECTING, *SKIPPED}


@pytest.mark.parametrize("point", REJECTING)
def test_filter_limit_or_vote_that_raises_rejects_the_gang(
    point: str, acme: type[Acme], caplog: pytest.LogCaptureFixture
) -> None:
    world = _world()
    before = world.cluster.node_matrix.idle.copy()
    acme.raising = frozenset({point})
    with caplog.at_level(logging.ERROR):
        decision = world.decision()
    assert decision.placements == ()
    (report,) = decision.reports
    (condition,) = report.status.conditions
    assert (condition.type, condition.reason) == ("Unschedulable", "PluginError")
    expected = f'plugin "acme" failed in {point}: RuntimeError: a bug'
    assert condition.message == f"2 of 2 pods cannot be scheduled: {expected}"
    assert {each.message for each in report.pod_conditions} == {expected}
    assert {(each.plugin, each.extension_point) for each in decision.plugin_failures} == {
        ("acme", point)
    }
    assert [each.message for each in caplog.records] == ["plugin failed"]
    assert caplog.records[0].exc_info
    assert (world.cluster.node_matrix.idle[: len(before)] == before).all()
    assert not world.cluster.queues.named("default").allocated
    acme.raising = frozenset()
    world.cluster.changes.mark(world.cluster.gangs["ns/g"])
    assert set(world.schedule()) == {"g-0", "g-1"}, "no event is necessary"
    assert world.cluster.gangs["ns/g"].diagnosis is None


@pytest.mark.parametrize("point", SKIPPED)
def test_order_or_score_that_raises_is_skipped(point: str, acme: type[Acme]) -> None:
    expected = _world().schedule()
    world = _world()
    acme.raising = frozenset({point})
    decision = world.decision()
    assert {each.name: each.node for each in decision.placements} == expected
    (failure,) = decision.plugin_failures
    assert (failure.plugin, failure.extension_point) == ("acme", point)


def test_score_that_raises_in_the_middle_of_a_batch_is_skipped(acme: type[Acme]) -> None:
    """The keys that were computed with it are computed again."""
    counter = 0

    def score(self: Acme, request: object, allocatable: Any, used: Any) -> Any:
        nonlocal counter
        counter += 1
        if counter > 1:
            raise RuntimeError("a bug")
        return used[0] * 10.0

    acme.score = score  # type: ignore[method-assign]
    world = SchedulerWorld(_CONF)
    nodes = [node(f"n{i}", cpu=8 + i) for i in range(3)]
    world.upsert(*nodes, podgroup("g", 20), *(pod(f"g-{i}", "g") for i in range(20)))
    decision = world.decision()
    assert decision.plugin_failures == (PluginFailure("acme", "score", 1),)
    first, *rest = decision.placements
    expected = SchedulerWorld()
    expected.upsert(*nodes, pod("g-0", "g", node_name=first.node), podgroup("g", 20))
    expected.upsert(*(pod(f"g-{i}", "g") for i in range(1, 20)))
    assert {each.name: each.node for each in rest} == expected.schedule()


@pytest.mark.parametrize("value", [np.zeros(1), np.full(2, np.nan), 1.0])
def test_malformed_score_is_skipped(value: Any, acme: type[Acme]) -> None:
    expected = _world().schedule()
    world = _world()
    acme.score = lambda *_: value  # type: ignore[method-assign]
    decision = world.decision()
    assert {each.name: each.node for each in decision.placements} == expected
    assert [each.extension_point for each in decision.plugin_failures] == ["score"]


@pytest.mark.parametrize("point", ["queue_order", "job_order", "task_order"])
def test_order_that_is_not_a_number_is_skipped(point: str, acme: type[Acme]) -> None:
    """A sorted list with NaN would not be sorted."""
    expected = _world().schedule()
    world = _world()
    setattr(acme, point, lambda *_: math.nan)
    decision = world.decision()
    assert {each.name: each.node for each in decision.placements} == expected
    (failure,) = decision.plugin_failures
    assert (failure.plugin, failure.extension_point) == ("acme", point)


def test_limit_that_raises_during_a_gang_discards_its_allocations(acme: type[Acme]) -> None:
    """The second template of the gang fails; other gangs are scheduled."""

    def filter_node(self: Acme, eq_class: Any, node: object) -> None:
        if eq_class.request["cpu"] == 2000:
            raise RuntimeError("a bug")

    acme.filter_node = filter_node  # type: ignore[method-assign]
    world = SchedulerWorld(_CONF)
    world.upsert(node("a", cpu=2), podgroup("g", 2), podgroup("h", 2))
    world.upsert(pod("g-0", "g", role="x"), pod("g-1", "g", role="y", cpu=2))
    world.upsert(pod("h-0", "h"), pod("h-1", "h"))
    assert set(world.schedule()) == {"h-0", "h-1"}
    assert world.cluster.queues.named("default").allocated["cpu"] == 2000


def test_limit_that_raises_keeps_queue_gates(acme: type[Acme]) -> None:
    world = SchedulerWorld(_CONF, queue_gates=True)
    world.upsert(node("a"), podgroup("g", 1), queue())
    world.upsert(pod("g-0", "g", gates=(QUEUE_GATE,), gated_only_by_queue=True))
    acme.raising = frozenset({"allocatable_count"})
    decision = world.decision()
    assert decision.ungated == ()
    assert not world.cluster.queues.named("default").allocated
    assert "failed in allocatable_count" in world.fit_message("g")
    acme.raising = frozenset()
    world.cluster.changes.mark(world.cluster.gangs["ns/g"])
    assert [each.name for each in world.decision().ungated] == ["g-0"]


def test_best_effort_gang_is_rejected_as_well(acme: type[Acme]) -> None:
    world = SchedulerWorld(_CONF)
    world.upsert(node("a"), podgroup("g", 1), pod("g-0", "g", cpu=0))
    acme.raising = frozenset({"node_limit"})
    assert world.schedule() == {}
    assert "failed in node_limit" in world.fit_message("g")
