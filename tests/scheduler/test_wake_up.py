"""Rejected gangs are tried again if, and only if, something happened that they wait for."""

from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.scheduler import Amount, SchedulerWorld, node, pod, podgroup, queue
from support.scheduler_terms import labelled

from batholith.model.meta import ObjectMeta
from batholith.model.names import QUEUE_GATE
from batholith.model.podgroup import PodGroup
from batholith.scheduler import conf
from batholith.scheduler.plugins.extension_points import Rejection
from batholith.scheduler.plugins.registry import PLUGINS
from batholith.scheduler.state.cache.cache import SchedulerCache
from batholith.scheduler.state.cache.events import Recheck
from batholith.scheduler.state.core_types import (
    ContainerPort,
    Node,
    PersistentVolumeClaim,
    PersistentVolumeClaimSpec,
    PersistentVolumeClaimStatus,
    PersistentVolumeClaimVolumeSource,
    Pod,
    PriorityClass,
    Taint,
    Volume,
)
from batholith.scheduler.state.gangs.gang import Gang

_CAPABILITIES: list[dict[str, Amount] | None] = [None, {"cpu": 2}, {"cpu": 4}]
_QUEUES = ("default", "q1", "q2")
_CONFIGURATIONS = (
    conf.DEFAULT,
    conf.DEFAULT.replace("name: proportion", "name: capacity"),
    conf.DEFAULT.replace("name: proportion", "name: capacity\n    enableHierarchy: true"),
)


class TwoWorlds:
    """The same cluster twice: in one of them, every rejected gang is tried in each cycle."""

    def __init__(self, text: str = conf.DEFAULT) -> None:
        self.ours = SchedulerWorld(text, queue_gates=True)
        self.eager = SchedulerWorld(text, queue_gates=True)
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.pvc: PersistentVolumeClaim | None = None
        self.both(lambda world: world.upsert(*(queue(name) for name in _QUEUES[1:])))

    def both(self, change: Callable[[SchedulerWorld], object]) -> None:
        """Apply *change* to both."""
        change(self.ours)
        change(self.eager)

    def schedule(self, time: float) -> None:
        """Run a cycle in both, bind the pods, and compare."""
        for gang in self.eager.cluster.pending_gangs.values():
            self.eager.cluster.scheduling_queue.activate(gang)
        decisions = [world.core.run_once(now=time, time=time) for world in (self.ours, self.eager)]
        placements, expected = (
            sorted((each.name, each.node) for each in decision.placements) for decision in decisions
        )
        assert placements == expected
        assert {each.name for each in decisions[0].ungated} == {
            each.name for each in decisions[1].ungated
        }
        assert {each.key for each in decisions[0].enqueued} == {
            each.key for each in decisions[1].enqueued
        }
        self.ours.validate()
        for world, decision in zip((self.ours, self.eager), decisions, strict=True):
            for report in decision.reports:
                if report.requeue_after == 0:
                    world.cluster.apply(Recheck(report.key))
        for name, node_name in placements:
            self.set_pod(_with_node(self.pods[name], node_name))
        for each in decisions[0].ungated:
            self.set_pod(_without_gate(self.pods[each.name]))

    def set_pod(self, new: Pod) -> None:
        """Add or update a pod."""
        self.pods[new.metadata.name] = new
        self.both(lambda world: world.upsert(new))


def _with_node(known: Pod, node_name: str) -> Pod:
    spec = msgspec.structs.replace(known.spec, node_name=node_name)
    return msgspec.structs.replace(
        known, spec=spec, status=msgspec.structs.replace(known.status, phase="Running")
    )


def _without_gate(known: Pod) -> Pod:
    return msgspec.structs.replace(
        known, spec=msgspec.structs.replace(known.spec, scheduling_gates=())
    )


def _set_node(data: st.DataObject, worlds: TwoWorlds, step: int) -> None:
    name = f"n{data.draw(st.integers(0, 4))}"
    new = node(
        name,
        cpu=data.draw(st.integers(1, 6)),
        pods=data.draw(st.sampled_from([2, 4, 110])),
        labels={"zone": data.draw(st.sampled_from("ab"))},
        taints=(Taint(key="t", effect="NoSchedule"),) if data.draw(st.booleans()) else (),
        cordoned=data.draw(st.integers(0, 4)) == 0,
        extra={"example.com/gpu": 2} if data.draw(st.booleans()) else {},
    )
    worlds.nodes[name] = new
    worlds.both(lambda world: world.upsert(new))


def _remove_node(data: st.DataObject, worlds: TwoWorlds, step: int) -> None:
    if worlds.nodes:
        found = worlds.nodes.pop(data.draw(st.sampled_from(sorted(worlds.nodes))))
        worlds.both(lambda world: world.remove(found))


def _add_gang(data: st.DataObject, worlds: TwoWorlds, step: int) -> None:
    name = f"g{step}"
    size = data.draw(st.integers(1, 4))
    minimum = data.draw(st.integers(1, size))
    roles = data.draw(st.sampled_from([{}, {"a": 1}, {"a": 1, "b": 1}]))
    resources: dict[str, Amount] | None = {"cpu": minimum} if data.draw(st.booleans()) else None
    group = podgroup(
        name,
        minimum,
        phase=data.draw(st.sampled_from(["Pending", "Inqueue"])),
        queue=data.draw(st.sampled_from(_QUEUES)),
        roles=roles,
        priority_class=data.draw(st.sampled_from(["", "high"])),
        resources=resources,
        created=f"2026-01-01T00:00:{data.draw(st.integers(0, 3)):02}Z",
    )
    worlds.both(lambda world: world.upsert(group))
    for i in range(size):
        cpu = data.draw(st.sampled_from([0, 1, 1, 2, 3]))
        gated = data.draw(st.integers(0, 5)) == 0
        worlds.set_pod(
            pod(
                f"{name}-t-{i}",
                name,
                role=data.draw(st.sampled_from("ab")),
                cpu=cpu,
                selector={"zone": "a"} if data.draw(st.integers(0, 3)) == 0 else {},
                ports=(ContainerPort(host_port=80),) if data.draw(st.integers(0, 5)) == 0 else (),
                gates=(QUEUE_GATE,) if gated else (),
                gated_only_by_queue=gated,
                extra={"example.com/gpu": 1} if data.draw(st.integers(0, 4)) == 0 else {},
            )
        )


_TERMS: list[dict[str, Any]] = [
    {
        "affinity": {
            kind: {
                "requiredDuringSchedulingIgnoredDuringExecution": [
                    {"labelSelector": {"matchLabels": {"app": app}}, "topologyKey": "zone"}
                ]
            }
        }
    }
    for kind in ("podAffinity", "podAntiAffinity")
    for app in ("x", "y")
] + [
    {
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "zone",
                "whenUnsatisfiable": "DoNotSchedule",
                "labelSelector": {"matchLabels": {"app": "x"}},
            }
        ]
    },
    {},
    {},
]


def _add_pods_with_terms(data: st.DataObject, worlds: TwoWorlds, step: int) -> None:
    """A gang whose pods have terms on other pods, or are seen by such terms."""
    name, size = f"t{step}", data.draw(st.integers(1, 3))
    group = podgroup(name, data.draw(st.integers(1, size)))
    worlds.both(lambda world: world.upsert(group))
    spec, app = data.draw(st.sampled_from(_TERMS)), data.draw(st.sampled_from("xy"))
    for i in range(size):
        worlds.set_pod(labelled(pod(f"{name}-t-{i}", name), spec=spec, app=app))


def _upsert(group: PodGroup, world: SchedulerWorld) -> None:
    world.upsert(group)


def _add_alike(data: st.DataObject, worlds: TwoWorlds, step: int) -> None:
    """Several gangs with equal demand."""
    minimum, cpu = data.draw(st.integers(1, 3)), data.draw(st.sampled_from([1, 2]))
    for number in range(data.draw(st.integers(2, 4))):
        name = f"e{step}-{number}"
        group = podgroup(name, minimum, created=f"2026-01-01T00:01:{number:02}Z")
        worlds.both(partial(_upsert, group))
        for i in range(minimum):
            worlds.set_pod(pod(f"{name}-t-{i}", name, cpu=cpu))


def _add_foreign_pod(data: st.DataObject, worlds: TwoWorlds, step: int) -> None:
    if worlds.nodes:
        name = data.draw(st.sampled_from(sorted(worlds.nodes)))
        worlds.set_pod(pod(f"f{step}", node_name=name, scheduler="other", phase="Running", cpu=1))


def _finish_pod(data: st.DataObject, worlds: TwoWorlds, step: int) -> None:
    running = sorted(name for name, each in worlds.pods.items() if each.spec.node_name)
    if running:
        found = worlds.pods.pop(data.draw(st.sampled_from(running)))
        worlds.both(lambda world: world.remove(found))


def _terminate_pod(data: st.DataObject, worlds: TwoWorlds, step: int) -> None:
    running = sorted(name for name, each in worlds.pods.items() if each.spec.node_name)
    if running:
        found = worlds.pods[data.draw(st.sampled_from(running))]
        meta = msgspec.structs.replace(found.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
        worlds.set_pod(msgspec.structs.replace(found, metadata=meta))


def _set_queue(data: st.DataObject, worlds: TwoWorlds, step: int) -> None:
    new = queue(
        data.draw(st.sampled_from(_QUEUES)),
        state=data.draw(st.sampled_from(["Open", "Open", "Closed"])),
        weight=data.draw(st.integers(1, 4)),
        capability=data.draw(st.sampled_from(_CAPABILITIES)),
    )
    worlds.both(lambda world: world.upsert(new))


def _mount_pvc(data: st.DataObject, worlds: TwoWorlds, step: int) -> None:
    """A gang of one pod that mounts a PVC, which may be bound later."""
    name = f"v{step}"
    group = podgroup(name, 1)
    worlds.both(lambda world: world.upsert(group))
    volume = Volume(
        name="data",
        persistent_volume_claim=PersistentVolumeClaimVolumeSource(claim_name="claim"),
    )
    mounting = pod(f"{name}-t-0", name)
    worlds.set_pod(
        msgspec.structs.replace(
            mounting, spec=msgspec.structs.replace(mounting.spec, volumes=(volume,))
        )
    )


def _set_pvc(data: st.DataObject, worlds: TwoWorlds, step: int) -> None:
    phase = data.draw(st.sampled_from(["Pending", "Bound", "Lost"]))
    pvc = PersistentVolumeClaim(
        metadata=ObjectMeta(name="claim", namespace="ns"),
        spec=PersistentVolumeClaimSpec(volume_name="pv" if phase == "Bound" else ""),
        status=PersistentVolumeClaimStatus(phase=phase),
    )
    old, worlds.pvc = worlds.pvc, pvc
    worlds.both(lambda world: world.cluster.update_pvc(old, pvc))


def _set_priority(data: st.DataObject, worlds: TwoWorlds, step: int) -> None:
    value = data.draw(st.integers(0, 2))
    new = PriorityClass(metadata=ObjectMeta(name="high"), value=value)
    worlds.both(lambda world: world.cluster.update_priority_class(None, new))


_EVENTS = [
    _set_node, _set_node, _remove_node, _add_gang, _add_gang, _add_gang, _add_alike,
    _add_foreign_pod, _finish_pod, _finish_pod, _terminate_pod, _set_queue, _set_priority,
    _mount_pvc, _set_pvc, _add_pods_with_terms,
]  # fmt: skip


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_gangs_are_scheduled_as_if_all_were_tried_in_each_cycle(data: st.DataObject) -> None:
    worlds = TwoWorlds(data.draw(st.sampled_from(_CONFIGURATIONS)))
    for step in range(3):
        _set_node(data, worlds, step)
    for step in range(data.draw(st.integers(4, 25))):
        for _ in range(data.draw(st.integers(1, 2))):
            data.draw(st.sampled_from(_EVENTS))(data, worlds, step * 10 + _)
        worlds.schedule(float(step))


def _waiting_world() -> SchedulerWorld:
    """One full node, and gangs that wait for one CPU or two."""
    world = SchedulerWorld()
    world.upsert(node("a", cpu=4))
    world.upsert(
        *(pod(f"x{i}", node_name="a", scheduler="other", phase="Running") for i in range(4))
    )
    for number in range(3):
        world.upsert(podgroup(f"one{number}", 1), pod(f"one{number}-t-0", f"one{number}"))
        world.upsert(podgroup(f"two{number}", 2))
        world.upsert(*(pod(f"two{number}-t-{i}", f"two{number}") for i in range(2)))
    assert world.schedule() == {}
    return world


def _remove(world: SchedulerWorld, *names: str) -> None:
    for name in names:
        world.remove(world.pod_objects[f"uid-{name}"])


def test_gang_is_tried_again_when_its_class_has_enough_capacity() -> None:
    world = _waiting_world()
    _remove(world, "x0")
    decision = world.decision()
    assert [each.name for each in decision.placements] == ["one0-t-0"]
    # Those of one pod wake together, and only the first one is tried; those of two do not wake.
    assert (dict(decision.retries), decision.rejected) == ({"nodes": 1}, 0)
    _remove(world, "x1", "x2")
    decision = world.decision()
    assert len(decision.placements) == 2
    assert dict(decision.retries) == {"nodes": 2}


def test_event_that_frees_nothing_wakes_no_gang() -> None:
    world = _waiting_world()
    world.upsert(podgroup("new", 1), pod("new-t-0", "new", cpu=2))
    decision = world.decision()
    assert (decision.retries, decision.rejected) == ((), 1)
    world.upsert(node("b", cpu=1, cordoned=True))
    assert world.decision().rejected == 0
    world.upsert(node("b", cpu=1))
    assert world.schedule() == {"one0-t-0": "b"}


def test_gang_that_shrunk_nodes_can_never_take_blocks_no_admission() -> None:
    world = SchedulerWorld()
    world.upsert(node("a", cpu=6), node("b", cpu=2))
    world.upsert(pod("x", node_name="a", cpu=6, scheduler="other", phase="Running"))
    world.upsert(podgroup("big", 2, phase="Inqueue", resources={"cpu": 6}))
    world.upsert(*(pod(f"big-t-{i}", "big", cpu=3) for i in range(2)))
    world.upsert(podgroup("small", 1, phase="Pending", resources={"cpu": 2}))
    world.upsert(pod("small-t-0", "small", cpu=2))
    assert world.schedule() == {}
    world.upsert(node("a", cpu=5))  # not even an empty one takes both pods of the first gang
    world.decision()
    assert world.schedule() == {"small-t-0": "b"}


def test_queue_limit_that_grows_wakes_the_gangs_of_the_queue() -> None:
    world = SchedulerWorld()
    world.upsert(node("a"), queue("q1", capability={"cpu": 1}), queue("q2", capability={"cpu": 1}))
    for name in ("q1", "q2"):
        world.upsert(podgroup(name, 2, queue=name))
        world.upsert(*(pod(f"{name}-t-{i}", name) for i in range(2)))
    assert world.schedule() == {}
    world.upsert(queue("q1", capability={"cpu": 2}))
    decision = world.decision()
    assert {each.name for each in decision.placements} == {"q1-t-0", "q1-t-1"}
    assert dict(decision.retries) == {"queue": 1, "queues": 1}


@pytest.mark.parametrize("plugin", ["proportion", "capacity"])
def test_end_of_a_pod_wakes_only_gangs_that_its_queue_limits(plugin: str) -> None:
    world = SchedulerWorld(conf.DEFAULT.replace("name: proportion", f"name: {plugin}"))
    world.upsert(node("a"), *(queue(name, capability={"cpu": 1}) for name in _QUEUES[1:]))
    for name in _QUEUES[1:]:
        world.upsert(podgroup(f"{name}-running", 1, queue=name, phase="Running"))
        world.upsert(pod(f"{name}-running-0", f"{name}-running", node_name="a", phase="Running"))
        world.upsert(podgroup(f"{name}-waiting", 1, queue=name, phase="Inqueue"))
        world.upsert(pod(f"{name}-waiting-0", f"{name}-waiting"))
    assert world.schedule() == {}
    world.remove(pod("q1-running-0", "q1-running", node_name="a", phase="Running"))
    decision = world.decision()
    assert [each.name for each in decision.placements] == ["q1-waiting-0"]
    assert dict(decision.retries) == {"queue": 1}


def test_woken_gang_with_lost_pods_precedes_the_others() -> None:
    """It waited for its queue, so that nothing is reserved for it."""
    world = SchedulerWorld()
    world.upsert(node("a"), queue("q1", capability={"cpu": 1}))
    world.upsert(podgroup("g", 2, queue="q1"), pod("g-t-1", "g"))
    world.upsert(pod("g-t-0", "g", node_name="a", phase="Running"))
    world.upsert(podgroup("f", 1, queue="q1"), pod("f-t-0", "f"))
    assert world.schedule() == {}
    world.upsert(queue("q1", capability={"cpu": 2}))
    assert world.schedule() == {"g-t-1": "a"}


def test_everything_is_tried_again_after_five_minutes_one_by_one() -> None:
    world = _waiting_world()
    assert world.core.run_once(now=299.0).rejected == 0
    assert world.cluster.scheduling_queue.next_due() == 300.0
    decision = world.core.run_once(now=300.0)
    assert (dict(decision.retries), decision.rejected) == ({"resync": 6}, 6)
    assert world.cluster.scheduling_queue.next_due() == 600.0
    assert world.core.run_once(now=301.0).rejected == 0


def _conf_with(plugin: str) -> str:
    return conf.DEFAULT.replace("  - name: gang", f"  - name: {plugin}\n  - name: gang")


def test_timer_of_a_rejection_wakes_the_gang(monkeypatch: pytest.MonkeyPatch) -> None:
    class Deadline:
        """A plugin that rejects gangs until a time."""

        now = 0.0

        def __init__(self, arguments: object) -> None:
            """Ignore the arguments."""

        def on_session_open(self, cache: SchedulerCache) -> None:
            self.now = cache.cycle_time

        def job_valid(self, gang: Gang) -> Rejection | None:
            if self.now >= 10 or gang.name != "one0":
                return None
            return Rejection("TooEarly", "too early", wake_on=frozenset(), retry_at=10.0)

    monkeypatch.setitem(PLUGINS, "deadline", Deadline)
    world = SchedulerWorld(
        conf.DEFAULT.replace("  - name: gang", "  - name: deadline\n  - name: gang")
    )
    world.upsert(node("a"), podgroup("one0", 1), pod("one0-t-0", "one0"))
    assert world.schedule() == {}
    assert world.cluster.scheduling_queue.next_due() == 10.0
    world.upsert(node("b"))
    assert world.core.run_once(now=9.0).rejected == 0
    decision = world.core.run_once(now=10.0)
    assert len(decision.placements) == 1
    assert dict(decision.retries) == {"timer": 1}


def test_plugin_with_a_new_generation_has_its_gangs_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Zone:
        """A plugin that excludes all nodes until its zone opens."""

        def __init__(self, arguments: object) -> None:
            """Ignore the arguments."""
            self.generation = 0

        def on_session_open(self, cache: SchedulerCache) -> None:
            self.generation = int(cache.cycle_time >= 10)

        def filter_node(self, eq_class: object, node: object) -> str | None:
            return None if self.generation else "the zone is closed"

    monkeypatch.setitem(PLUGINS, "zone", Zone)
    world = SchedulerWorld(_conf_with("zone"))
    world.upsert(node("a"), podgroup("one0", 1), pod("one0-t-0", "one0"))
    assert world.schedule() == {}
    assert world.core.run_once(now=9.0).rejected == 0
    assert len(world.core.run_once(now=10.0).placements) == 1


def _after(calls: int) -> Callable[[], bool]:
    """Return a function that returns true from the call after *calls* calls on."""
    counter = iter(range(100))
    return lambda: next(counter) > calls


def test_long_cycle_leaves_the_rest_to_the_next() -> None:
    world = SchedulerWorld()
    world.upsert(node("a", cpu=8))
    for number in range(8):
        name = f"g{number}"
        world.upsert(podgroup(name, 1, phase="Pending"), pod(f"{name}-t-0", name))
    allocated: list[str] = []
    cycles = 0
    while world.cluster.has_changes():
        decision = world.core.run_once(now=0.0, interrupted=_after(cycles % 4))
        world.validate()
        allocated += [each.name for each in decision.placements]
        cycles += 1
        if cycles == 2:  # an event between two cycles
            world.remove(pod("g7-t-0", "g7"))
            world.remove(node("a", cpu=8))
            world.upsert(node("b", cpu=8))
        assert cycles < 100
    assert sorted(allocated) == [f"g{i}-t-0" for i in range(7)]
    assert cycles > 3


def test_gangs_that_compete_for_nodes_do_not_keep_the_scheduler_busy() -> None:
    """Their attempts are undone, which wakes no gang."""
    world = SchedulerWorld()
    world.upsert(node("a", cpu=2, labels={"zone": "a"}), node("b", cpu=2))
    for name in ("g", "h"):
        world.upsert(podgroup(name, 2))
        # Either fits alone; together they do not.
        world.upsert(pod(f"{name}-t-0", name, cpu=2, selector={"zone": "a"}))
        world.upsert(pod(f"{name}-t-1", name, cpu=1, selector={"zone": "a"}))
    world.upsert(podgroup("k", 1), pod("k-t-0", "k", cpu=2))
    cycles = 0
    while world.cluster.has_changes():
        world.decision()
        cycles += 1
        assert cycles < 5
    assert cycles > 0
    assert world.decision().rejected == 0


def test_further_pods_that_do_not_fit_do_not_keep_the_scheduler_busy() -> None:
    """Nothing is committed for a ready gang, so that no gang that waits for usage wakes."""
    world = SchedulerWorld()
    world.upsert(node("a", cpu=2))
    term = {"labelSelector": {"matchLabels": {"app": "absent"}}, "topologyKey": "zone"}
    spec = {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}
    for name in ("g", "h"):
        world.upsert(podgroup(name, 1), pod(f"{name}-t-0", name, node_name="a", phase="Running"))
        world.upsert(labelled(pod(f"{name}-t-1", name, cpu=1), spec=spec, app=name))
    cycles = 0
    while world.cluster.has_changes():
        decision = world.decision()
        assert decision.scheduled == 0
        cycles += 1
        assert cycles < 5
    assert cycles > 0
    assert world.decision().rejected == 0


@pytest.mark.parametrize("stopped", [False, True])
def test_gang_whose_plugin_fails_does_not_hold_up_the_others(
    stopped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Broken:
        """A plugin that fails for one gang."""

        def __init__(self, arguments: object) -> None:
            """Ignore the arguments."""

        def job_valid(self, gang: Gang) -> Rejection | None:
            if gang.name == "g0":
                raise RuntimeError("a bug")
            return None

    monkeypatch.setitem(PLUGINS, "broken", Broken)
    world = SchedulerWorld(_conf_with("broken"))
    world.upsert(node("a"))
    for number in range(3):
        world.upsert(podgroup(f"g{number}", 1), pod(f"g{number}-t-0", f"g{number}"))
    allocated: list[str] = []
    cycles = 0
    while world.cluster.has_changes():
        decision = world.core.run_once(now=0.0, interrupted=lambda: stopped)
        allocated += [each.name for each in decision.placements]
        cycles += 1
        assert cycles < 10
    assert sorted(allocated) == ["g1-t-0", "g2-t-0"]
    assert world.decision().rejected == 1  # the failed gang is tried in each cycle
