"""Node lifecycle, taint eviction and pod garbage collection, as in kube-controller-manager."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batholith.local.apiserver.controllers import node_health
from batholith.local.apiserver.controllers.base import Controller, ControllerContext
from batholith.local.apiserver.controllers.node_health import (
    EXCLUDE_DISRUPTION,
    NOT_READY,
    OUT_OF_SERVICE,
    UNREACHABLE,
    NodeLifecycleSettings,
    ZoneState,
    toleration_seconds,
    zone_state,
)
from batholith.local.apiserver.controllers.node_lifecycle import NodeLifecycleController
from batholith.local.apiserver.controllers.pod_garbage_collector import PodGarbageCollector
from batholith.local.apiserver.controllers.pods_by_node import PodsByNode
from batholith.local.apiserver.controllers.taint_eviction import TaintEvictionController
from batholith.machinery.controller import run_workers
from batholith.machinery.testing import FakeClock
from batholith.model import times
from batholith.model.names import EVENTS, LEASES, NODES, PODS
from batholith.model.tolerations import tolerates
from batholith.testing import ApiServer

Json = dict[str, Any]
GRACE = 50.0
FOREVER: Json = {"operator": "Exists"}


@dataclass
class World:
    """An API server whose controllers of nodes run on a clock of the test."""

    server: ApiServer
    clock: FakeClock
    settings: NodeLifecycleSettings
    controllers: list[Controller] = field(default_factory=list)
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)

    async def start(self) -> None:
        """Start the controllers, as a server that starts does."""
        app = self.server.app
        store = app.handlers.writer.store
        context = ControllerContext(
            writer=app.handlers.writer,
            deleter=app.handlers.deleter,
            catalog=app.catalog,
            clock=self.clock,
        )
        pods = PodsByNode(context.resource_store(PODS))
        pods.rebuild()
        store.listeners.append(pods.observe)
        self.controllers = [
            NodeLifecycleController(context, pods, self.settings),
            TaintEvictionController(context, pods),
            PodGarbageCollector(context, pods, self.settings),
        ]
        for each in self.controllers:
            each.enqueue_all()
            store.listeners.append(each.handle_event)
        self._tasks = [
            asyncio.create_task(run_workers(each.queue, each.reconcile))
            for each in self.controllers
        ]
        await self.settle()

    async def stop(self) -> None:
        """Stop the controllers."""
        listeners = self.server.app.handlers.writer.store.listeners
        del listeners[-1 - len(self.controllers) :]
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def settle(self) -> None:
        """Wait until the controllers have nothing to do before the clock advances."""
        store = self.server.app.handlers.writer.store
        quiet = 0
        while quiet < 3:
            await asyncio.sleep(0)
            busy = any(each.queue.depth() for each in self.controllers)
            pending = any(each.pending for each in store.resource_stores())
            quiet = 0 if busy or pending else quiet + 1
            if pending:
                await asyncio.sleep(0.001)

    async def advance(self, seconds: float, *, alive: Sequence[str] = ()) -> None:
        """Let time pass in small steps, in which the *alive* nodes renew their Leases."""
        left = seconds
        while left > 0:
            step = min(left, 1.0)
            for name in alive:
                self.renew(name)
            await self.settle()
            await self.clock.advance(step)
            await self.settle()
            left -= step

    def renew(self, name: str) -> None:
        """Renew the Lease of a node."""
        renewed = times.format_micros(self.clock.now())
        spec = {"renewTime": renewed, "leaseDurationSeconds": 40}
        self.server.put(LEASES, name, namespace="kube-node-lease", spec=spec)

    def node(self, name: str, *, ready: str = "True", **metadata: Any) -> None:
        """Store a node whose kubelet reports that it is *ready*; empty: it reports nothing."""
        condition = {"type": "Ready", "status": ready, "lastHeartbeatTime": "2026-01-01T00:00:00Z"}
        status = {"conditions": [condition]} if ready else {}
        self.server.put(NODES, name, status=status, **metadata)
        self.renew(name)

    def pod(self, name: str, node: str, *tolerations: Json, **more: Any) -> None:
        """Store a running pod."""
        conditions = [{"type": "Ready", "status": "True"}]
        status = more.pop("status", {"phase": "Running", "conditions": conditions})
        spec = {
            "nodeName": node,
            "containers": [{"name": "c", "image": "i"}],
            "tolerations": list(tolerations),
        }
        self.server.put(PODS, name, namespace="default", spec=spec, status=status, **more)

    def stored(self, name: str) -> Json:
        """Return a node."""
        return self.server.objects(NODES)[name]

    def pods(self) -> dict[str, Json]:
        """Return the pods that are not being deleted, by name."""
        return {
            pod["metadata"]["name"]: pod
            for pod in self.server.objects(PODS).values()
            if "deletionTimestamp" not in pod["metadata"]
        }

    def taints(self, name: str) -> set[tuple[str, str]]:
        """Return key and effect of the taints of a node."""
        found = (self.stored(name).get("spec") or {}).get("taints") or ()
        return {(each["key"], each["effect"]) for each in found}

    def events(self, reason: str) -> list[str]:
        """Return the messages of the events with *reason*."""
        found = self.server.objects(EVENTS).values()
        return [each["message"] for each in found if each["reason"] == reason]


@asynccontextmanager
async def world(*, started: bool = True, **settings: Any) -> AsyncIterator[World]:
    async with ApiServer(node_lifecycle=None) as server:
        created = World(server, FakeClock(), NodeLifecycleSettings(**settings))
        if started:
            await created.start()
        try:
            yield created
        finally:
            await created.stop()


# -- health ---------------------------------------------------------------------------------------


async def test_a_node_that_does_not_report_is_unknown_and_unreachable() -> None:
    async with world() as w:
        for name in ("lost", "alive"):
            w.node(name)
        w.pod("p", "lost", FOREVER)
        await w.advance(GRACE, alive=("alive",))
        assert w.taints("lost") == set()
        await w.advance(10, alive=("alive",))
        conditions = {each["type"]: each for each in w.stored("lost")["status"]["conditions"]}
        assert {each["status"] for each in conditions.values()} == {"Unknown"}
        assert conditions["Ready"]["reason"] == "NodeStatusUnknown"
        assert conditions["Ready"]["message"] == "Kubelet stopped posting node status."
        assert conditions["MemoryPressure"]["reason"] == "NodeStatusNeverUpdated"
        assert w.taints("lost") == {(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")}
        assert all(each["timeAdded"] for each in w.stored("lost")["spec"]["taints"])
        assert w.events("NodeNotReady") == [
            "Node lost status is now: NodeNotReady", "Node is not ready",
        ]  # fmt: skip
        assert w.pods()["p"]["status"]["conditions"][0]["status"] == "False"
        assert w.taints("alive") == set()


async def test_a_heartbeat_of_the_status_counts_as_a_lease_does() -> None:
    async with world() as w:
        w.node("n")
        w.node("other")
        await w.advance(40)
        heartbeat = {"type": "Ready", "status": "True", "lastHeartbeatTime": "2026-01-01T00:05:00Z"}
        w.server.put(NODES, "n", status={"conditions": [heartbeat]})
        await w.advance(30)
        assert w.taints("n") == set()
        assert w.taints("other") != set()


async def test_a_node_without_a_status_has_the_startup_grace_period() -> None:
    async with world() as w:
        w.node("n", ready="")
        w.node("alive")
        await w.advance(59, alive=("alive",))
        assert "conditions" not in w.stored("n")["status"]
        await w.advance(10, alive=("alive",))
        (ready, *_) = w.stored("n")["status"]["conditions"]
        assert (ready["status"], ready["reason"]) == ("Unknown", "NodeStatusNeverUpdated")


async def test_the_leases_of_simulated_nodes_are_renewed_more_rarely() -> None:
    async with world() as w:
        w.node("n")
        w.node("alive")
        spec = {"renewTime": times.format_micros(w.clock.now()), "leaseDurationSeconds": 200}
        w.server.put(LEASES, "n", namespace="kube-node-lease", spec=spec)
        await w.advance(245, alive=("alive",))
        assert w.taints("n") == set()
        await w.advance(20, alive=("alive",))
        assert (UNREACHABLE, "NoSchedule") in w.taints("n")


async def test_time_in_which_the_server_did_not_run_does_not_count() -> None:
    async with world() as w:
        w.node("n")
        w.node("other")
        await w.advance(20)
        w.clock.step_monotonic(600)  # the process was stopped
        await w.advance(20)
        assert w.taints("n") == set()


async def test_a_restart_of_the_server_gives_each_node_the_whole_grace_period() -> None:
    async with world(started=False) as w:
        w.node("n")
        w.node("other")
        await w.clock.advance(3600)
        await w.start()
        await w.advance(45)
        assert w.taints("n") == set()


# -- taints ---------------------------------------------------------------------------------------


async def test_conditions_and_cordons_are_no_schedule_taints() -> None:
    async with world() as w:
        own = {"key": "dedicated", "value": "x", "effect": "NoSchedule"}
        pressure = {"type": "MemoryPressure", "status": "True"}
        ready = {"type": "Ready", "status": "True"}
        w.node("n", spec={"unschedulable": True, "taints": [own]})
        w.server.put(NODES, "n", status={"conditions": [pressure, ready]})
        await w.settle()
        assert w.taints("n") == {
            ("dedicated", "NoSchedule"),
            ("node.kubernetes.io/memory-pressure", "NoSchedule"),
            ("node.kubernetes.io/unschedulable", "NoSchedule"),
        }
        w.server.put(NODES, "n", spec={"unschedulable": None}, status={"conditions": [ready]})
        await w.settle()
        assert w.stored("n")["spec"]["taints"] == [own]


async def test_the_two_no_execute_taints_exclude_each_other() -> None:
    async with world() as w:
        w.node("n", ready="False")
        w.node("alive")
        await w.advance(1, alive=("alive", "n"))
        assert w.taints("n") == {(NOT_READY, "NoSchedule"), (NOT_READY, "NoExecute")}
        await w.advance(60, alive=("alive",))
        assert w.taints("n") == {(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")}
        w.node("n")
        await w.settle()
        assert w.taints("n") == set()


async def test_nodes_of_a_zone_are_tainted_one_by_one() -> None:
    async with world() as w:
        alive = [f"alive-{number}" for number in range(9)]
        for name in alive:
            w.node(name)
        for name in ("a", "b", "c"):
            w.node(name, ready="False")

        def tainted() -> int:
            return sum((NOT_READY, "NoExecute") in w.taints(name) for name in "abc")

        await w.advance(1, alive=[*alive, "a", "b", "c"])
        assert tainted() == 1
        await w.advance(10, alive=[*alive, "a", "b", "c"])
        assert tainted() == 2
        await w.advance(10, alive=[*alive, "a", "b", "c"])
        assert tainted() == 3


async def test_no_node_is_tainted_while_none_is_ready() -> None:
    async with world() as w:
        for name in ("a", "b"):
            w.node(name)
        await w.advance(120)
        for name in ("a", "b"):
            assert w.taints(name) == {(UNREACHABLE, "NoSchedule")}
        w.node("a")  # and from now on the other has the whole grace period again
        await w.advance(20, alive=("a",))
        assert w.taints("b") == {(UNREACHABLE, "NoSchedule"), (UNREACHABLE, "NoExecute")}


async def test_taints_are_removed_when_the_last_node_is_lost() -> None:
    async with world() as w:
        for name in ("a", "b"):
            w.node(name)
        await w.advance(60, alive=("b",))
        assert (UNREACHABLE, "NoExecute") in w.taints("a")
        await w.advance(60)
        assert w.taints("a") == {(UNREACHABLE, "NoSchedule")}
        assert w.taints("b") == {(UNREACHABLE, "NoSchedule")}


async def test_a_small_zone_that_is_mostly_lost_is_not_tainted_further() -> None:
    async with world() as w:
        labels = {"topology.kubernetes.io/zone": "z"}
        for name in ("a", "b", "c", "d"):
            w.node(name, ready="True" if name == "d" else "False", metadata={"labels": labels})
        w.node("elsewhere")
        await w.advance(60, alive=("a", "b", "c", "d", "elsewhere"))
        tainted = [name for name in "abc" if (NOT_READY, "NoExecute") in w.taints(name)]
        assert tainted == []


async def test_nodes_may_be_excluded_from_disruption_checks() -> None:
    async with world() as w:
        w.node("a")
        w.node("b", metadata={"labels": {EXCLUDE_DISRUPTION: ""}})
        await w.advance(60, alive=("b",))
        assert w.taints("a") == {(UNREACHABLE, "NoSchedule")}


# -- eviction by taints ---------------------------------------------------------------------------


def tolerated_for(seconds: int, key: str = UNREACHABLE) -> Json:
    """The toleration that admission adds, for fewer seconds."""
    return {
        "key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": seconds,
    }  # fmt: skip


async def test_pods_are_deleted_after_their_toleration_seconds() -> None:
    async with world() as w:
        for name in ("lost", "alive"):
            w.node(name)
        w.pod("default", "lost", tolerated_for(300))
        w.pod("short", "lost", tolerated_for(30), tolerated_for(300))
        w.pod("none", "lost")
        w.pod("forever", "lost", FOREVER)
        w.pod("elsewhere", "alive")
        await w.advance(60, alive=("alive",))
        assert sorted(w.pods()) == ["default", "elsewhere", "forever", "short"]
        await w.advance(40, alive=("alive",))
        assert sorted(w.pods()) == ["default", "elsewhere", "forever"]
        await w.advance(260, alive=("alive",))
        assert sorted(w.pods()) == ["elsewhere", "forever"]
        evicted = w.server.objects(PODS)["default/default"]
        (target,) = [
            each for each in evicted["status"]["conditions"] if each["type"] == "DisruptionTarget"
        ]
        assert (target["status"], target["reason"]) == ("True", "DeletionByTaintManager")
        assert target["message"] == "Taint manager: deleting due to NoExecute taint"
        assert "Marking for deletion Pod default/default" in w.events("TaintManagerEviction")


async def test_a_node_that_returns_in_time_keeps_its_pods() -> None:
    async with world() as w:
        for name in ("n", "alive"):
            w.node(name)
        w.pod("p", "n", tolerated_for(300))
        await w.advance(60, alive=("alive",))
        w.node("n")
        await w.advance(1, alive=("alive", "n"))
        assert w.events("TaintManagerEviction") == ["Cancelling deletion of Pod default/p"]
        await w.advance(400, alive=("alive", "n"))
        assert list(w.pods()) == ["p"]


async def test_a_pod_that_is_bound_to_a_tainted_node_is_deleted() -> None:
    async with world() as w:
        w.node("n", spec={"taints": [{"key": "broken", "effect": "NoExecute"}]})
        await w.settle()
        w.pod("p", "n")
        w.pod("q", "n", {"key": "broken", "operator": "Equal", "effect": "NoExecute"})
        await w.settle()
        assert list(w.pods()) == ["q"]


# -- garbage collection ---------------------------------------------------------------------------


async def test_pods_of_a_deleted_node_are_removed_after_the_quarantine() -> None:
    async with world() as w:
        w.node("n")
        w.pod("running", "n")
        w.pod("terminating", "n", metadata={
            "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30,
        })  # fmt: skip
        w.pod("done", "n", status={"phase": "Succeeded"})
        await w.settle()
        w.server.remove(NODES, "n")
        await w.advance(35)
        assert len(w.server.objects(PODS)) == 3
        await w.advance(40)
        assert w.server.objects(PODS) == {}
        deleted = [
            change.object
            for change in w.server.changes
            if change.resource == PODS and change.type == "DELETED"
        ]
        phases = {each["metadata"]["name"]: each["status"]["phase"] for each in deleted}
        assert phases == {"running": "Failed", "terminating": "Failed", "done": "Succeeded"}
        conditions = {
            each["metadata"]["name"]: each["status"].get("conditions", [{}])[-1].get("reason")
            for each in deleted
        }
        assert conditions["running"] == conditions["terminating"] == "DeletionByPodGC"


async def test_a_node_that_is_created_again_keeps_its_pods() -> None:
    async with world() as w:
        w.pod("p", "n")
        await w.advance(30)
        w.node("n")
        await w.advance(25, alive=("n",))
        w.server.remove(NODES, "n")
        await w.advance(35)
        assert list(w.pods()) == ["p"]


async def test_the_oldest_terminated_pods_above_the_threshold_are_removed() -> None:
    async with world(terminated_pod_gc_threshold=2) as w:
        w.node("n")
        for number in range(4):
            created = {"creationTimestamp": f"2026-01-01T00:0{number}:00Z"}
            w.pod(f"p{number}", "n", status={"phase": "Failed"}, metadata=created)
        w.server.put(PODS, "p3", status={"reason": "Evicted"})
        w.pod("running", "n")
        await w.advance(25, alive=("n",))
        assert sorted(w.pods()) == ["p1", "p2", "running"]


async def test_terminating_pods_of_a_node_out_of_service_are_removed() -> None:
    terminating = {
        "deletionTimestamp": "2026-01-01T00:00:00Z", "deletionGracePeriodSeconds": 30,
    }  # fmt: skip
    taint = {"key": OUT_OF_SERVICE, "value": "nodeshutdown", "effect": "NoExecute"}
    async with world() as w:
        w.node("ready", spec={"taints": [taint]})
        w.node("down", ready="Unknown", spec={"taints": [taint]})
        for node in ("ready", "down"):
            w.pod(f"{node}-leaving", node, FOREVER, metadata=dict(terminating))
            w.pod(f"{node}-staying", node, FOREVER)
        await w.advance(25, alive=("ready", "down"))
        assert sorted(w.server.objects(PODS)) == [
            "default/down-staying", "default/ready-leaving", "default/ready-staying",
        ]  # fmt: skip


async def test_terminating_pods_without_a_node_are_removed() -> None:
    async with world() as w:
        w.pod("p", "", metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})
        w.pod("q", "")
        await w.advance(25)
        assert list(w.server.objects(PODS)) == ["default/q"]


# -- pure functions -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ready", "unready", "state"),
    [
        (0, 0, ZoneState.NORMAL),
        (0, 1, ZoneState.FULL_DISRUPTION),
        (1, 2, ZoneState.NORMAL),
        (2, 3, ZoneState.PARTIAL_DISRUPTION),
        (5, 5, ZoneState.NORMAL),
    ],
)
def test_zone_states(ready: int, unready: int, state: ZoneState) -> None:
    assert zone_state(ready, unready) is state


@pytest.mark.parametrize(
    ("toleration", "tolerated"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "k", "operator": "Exists"}, True),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "operator": "Equal", "value": "v", "effect": "NoExecute"}, True),
        ({"key": "k", "value": "other"}, False),
        ({"key": "k", "operator": "Exists", "effect": "NoSchedule"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "k", "operator": "Gt", "value": "1"}, False),
        ({}, False),
    ],
)
def test_tolerations(toleration: Json, tolerated: bool) -> None:
    assert tolerates(toleration, {"key": "k", "value": "v", "effect": "NoExecute"}) is tolerated


@pytest.mark.parametrize(
    ("operator", "bound", "value", "tolerated"),
    [
        ("Gt", "5", "6", True),
        ("Gt", "5", "5", False),
        ("Lt", "5", "-6", True),
        ("Lt", "5", "6", False),
        ("Lt", "5", "04", False),
        ("Lt", "9223372036854775808", "4", False),
        ("Lt", "9" * 5_000, "4", False),
        ("Lt", "5", "", False),
    ],
)
def test_tolerations_by_number(operator: str, bound: str, value: str, tolerated: bool) -> None:
    toleration = {"key": "k", "operator": operator, "value": bound}
    assert tolerates(toleration, {"key": "k", "value": value}) is tolerated
    assert not tolerates(toleration, {"key": "other", "value": value})


_KEYS = st.sampled_from(["a", "b", UNREACHABLE])
_SECONDS = st.none() | st.integers(0, 9)


@given(
    st.lists(_KEYS, unique=True, min_size=1, max_size=3),
    st.lists(st.tuples(_KEYS, _SECONDS), max_size=4),
)
def test_the_shortest_toleration_counts(
    keys: list[str], tolerations: list[tuple[str, int | None]]
) -> None:
    taints = [{"key": key, "effect": "NoExecute"} for key in keys]
    given_ = [
        {"key": key, "operator": "Exists"} | ({} if s is None else {"tolerationSeconds": s})
        for key, s in tolerations
    ]
    first = dict(reversed(tolerations))
    if set(keys) <= set(first):
        limited = [s for key in keys if (s := first[key]) is not None]
        assert toleration_seconds(taints, given_) == (min(limited) if limited else None)
    else:
        assert toleration_seconds(taints, given_) == 0


_NODE_TAINTS = st.lists(
    st.builds(
        lambda key, effect: {"key": key, "effect": effect},
        st.sampled_from([NOT_READY, UNREACHABLE, "own"]),
        st.sampled_from(["NoSchedule", "NoExecute"]),
    ),
    unique_by=lambda each: (each["key"], each["effect"]),
    max_size=5,
)


@given(_NODE_TAINTS, st.sampled_from(["", "True", "False", "Unknown"]))
def test_taints_follow_the_condition_and_keep_those_of_users(
    taints: list[Json], ready: str
) -> None:
    node: Json = {
        "metadata": {"name": "n"},
        "spec": {"taints": taints},
        "status": {"conditions": [{"type": "Ready", "status": ready}] if ready else []},
    }
    for change, effect in (
        (node_health.with_no_schedule_taints, "NoSchedule"),
        (node_health.with_no_execute_taint, "NoExecute"),
    ):
        once = change(node, now="t")
        assert change(once, now="later") == once
        found = once["spec"].get("taints", [])
        own = [each for each in taints if each["key"] == "own" or each["effect"] != effect]
        assert [each for each in found if each in own] == own
        keys = {each["key"] for each in found if each["effect"] == effect} - {"own"}
        expected = {"False": {NOT_READY}, "Unknown": {UNREACHABLE}}.get(ready, set())
        assert keys == expected
