"""Nodes that two schedulers have filled at once lose the youngest pod of this one."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.polling import wait_for
from support.scheduled_gangs import GangServer
from support.scheduler import SchedulerWorld, node, pod, podgroup

from batholith.model.names import PODS, REPLACED_BY_SCHEDULER
from batholith.model.pod_resources import Resources
from batholith.scheduler.framework import overcommitted_nodes
from batholith.scheduler.framework.decision import Decision
from batholith.scheduler.framework.overcommitted_nodes import KUBELET_DELAY
from batholith.scheduler.state.core_types import Pod


class World(SchedulerWorld):
    """A node of four CPUs, and a clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.upsert(node("a", cpu=4))
        self.cluster.has_changes()  # what is known from the start is not checked

    def own(self, name: str, created: int = 0, **more: Any) -> Pod:
        """Add a running pod of this scheduler."""
        found = pod(name, name, node_name="a", phase="Running", **more)
        moment = f"2026-01-01T00:00:{created:02}Z"
        meta = msgspec.structs.replace(found.metadata, creation_timestamp=moment)
        found = msgspec.structs.replace(found, metadata=meta)
        self.upsert(podgroup(name, 1, phase="Running"), found)
        return found

    def foreign(self, name: str, cpu: int) -> Pod:
        """Add a pod that another scheduler has bound."""
        found = pod(name, scheduler="other", node_name="a", phase="Running", cpu=cpu)
        self.upsert(found)
        return found

    def after(self, seconds: float = 0.0) -> Decision:
        self.now += seconds
        return self.decision(now=self.now)


def evicted(decision: Decision) -> list[str]:
    return [each.name for each in decision.evictions]


def test_the_youngest_pod_is_replaced_unless_a_kubelet_rejects_one() -> None:
    world = World()
    for name, created in (("old", 1), ("young", 9), ("middle", 5)):
        world.own(name, created)
    world.foreign("other", 2)
    first = world.after()
    assert evicted(first) == []
    assert first.rechecks == {"ns/young": KUBELET_DELAY}
    decision = world.after(KUBELET_DELAY)
    assert evicted(decision) == ["young"]
    (eviction,) = decision.evictions
    assert (eviction.reason, eviction.replaced) == ("NodeOvercommitted", True)
    assert evicted(world.after(KUBELET_DELAY)) == []


def test_a_pod_that_arrives_where_others_use_too_much_is_replaced() -> None:
    world = World()
    world.foreign("other", 3)
    world.foreign("another", 3)
    assert evicted(world.after()) == []
    world.after(1)
    world.own("own")
    assert evicted(world.after(1)) == []
    assert evicted(world.after(KUBELET_DELAY)) == ["own"]


def test_an_arrival_while_a_replaced_pod_terminates_has_its_effect() -> None:
    world = World()
    world.own("old", 1, cpu=2)
    young = world.own("young", 2, cpu=2)
    world.foreign("other", 1)
    world.after()
    assert evicted(world.after(KUBELET_DELAY)) == ["young"]
    deleted = msgspec.structs.replace(young.metadata, deletion_timestamp="2026-01-01T00:01:00Z")
    world.upsert(msgspec.structs.replace(young, metadata=deleted))
    world.foreign("another", 2)
    world.after(1)
    assert evicted(world.after(KUBELET_DELAY)) == ["old"]


def test_a_pod_that_the_kubelet_rejects_in_time_suffices() -> None:
    world = World()
    world.own("old", 1)
    world.own("young", 2)
    rejected = world.foreign("other", 3)
    assert evicted(world.after()) == []
    world.remove(rejected)
    assert evicted(world.after(KUBELET_DELAY)) == []
    assert list(world.cluster.arrivals) == []


def test_a_terminating_pod_counts_as_leaving() -> None:
    world = World()
    world.own("old", 1)
    world.upsert(pod("leaving", "leaving", node_name="a", phase="Running", terminating=True))
    world.foreign("other", 3)
    world.after()
    assert evicted(world.after(KUBELET_DELAY)) == []


def test_only_pods_that_use_what_is_lacking_are_replaced() -> None:
    world = World()
    world.own("cpu", 1)
    world.own("memory", 9, cpu=0, memory="1Gi")
    world.foreign("other", 4)
    world.after()
    assert evicted(world.after(KUBELET_DELAY)) == ["cpu"]


def test_pods_of_other_schedulers_are_left_alone() -> None:
    world = World()
    world.foreign("one", 3)
    world.foreign("other", 3)
    assert world.after().rechecks == {}
    assert evicted(world.after(KUBELET_DELAY)) == []


def test_a_node_that_shrinks_is_not_overcommitted() -> None:
    world = World()
    world.own("own")
    world.upsert(node("a", cpu=0))
    world.after()
    assert evicted(world.after(KUBELET_DELAY)) == []


def test_an_arrival_does_not_make_up_for_allocatable_resources_that_fell() -> None:
    """A device plugin restarts, and a pod arrives that needs none of its devices, or one."""
    world = World()
    world.upsert(node("a", cpu=4, extra={"nvidia.com/gpu": 4}))
    for index in range(4):
        world.own(f"train{index}", index, cpu=0, extra={"nvidia.com/gpu": 1})
    world.after()
    world.upsert(node("a", cpu=4, extra={"nvidia.com/gpu": 0}))
    world.upsert(pod("daemon", scheduler="other", node_name="a", phase="Running", cpu=1))
    world.upsert(
        pod("device", scheduler="other", node_name="a", cpu=0, extra={"nvidia.com/gpu": 1})
    )
    world.after()
    assert evicted(world.after(KUBELET_DELAY)) == []
    world.upsert(node("a", cpu=4, extra={"nvidia.com/gpu": 4}))
    world.after()
    assert evicted(world.after(KUBELET_DELAY)) == []


def test_an_arrival_before_or_after_a_fall_is_made_up_for_as_far_as_it_caused_it() -> None:
    for falls_first in (True, False):
        world = World()
        for index in range(3):
            world.own(f"p{index}", index)
        if falls_first:
            world.upsert(node("a", cpu=3))
        world.foreign("other", 2)
        world.after()
        if not falls_first:
            world.upsert(node("a", cpu=1))
        expected = ["p2", "p1"] if falls_first else ["p2"]
        assert evicted(world.after(KUBELET_DELAY)) == expected
        assert evicted(world.after(KUBELET_DELAY)) == []


def test_a_pod_that_changes_on_its_node_has_not_arrived() -> None:
    world = World()
    world.own("own", 1, cpu=3)
    other = world.foreign("other", 1)
    world.after()
    world.upsert(node("a", cpu=2))
    labels = msgspec.structs.replace(other.metadata, labels={"new": "label"})
    requests = msgspec.structs.replace(
        other.spec.containers[0], resources=Resources(requests={"cpu": 2})
    )
    spec = msgspec.structs.replace(other.spec, containers=(requests,))
    world.upsert(msgspec.structs.replace(other, metadata=labels, spec=spec))
    world.after()
    assert evicted(world.after(KUBELET_DELAY)) == []


def test_a_younger_pod_stays_if_an_older_one_has_to_leave_anyway() -> None:
    world = World()
    world.own("large", 1, cpu=3)
    world.own("small", 2)
    world.foreign("other", 3)
    world.after()
    assert evicted(world.after(KUBELET_DELAY)) == ["large"]


def test_a_node_that_is_overcommitted_at_the_start_is_left_alone() -> None:
    """Why is not known: it may have shrunk."""
    world = SchedulerWorld()
    world.upsert(node("a", cpu=1), podgroup("g", 2))
    world.upsert(*(pod(f"g-{n}", "g", node_name="a", phase="Running") for n in range(2)))
    world.decision(now=0.0)
    assert evicted(world.decision(now=KUBELET_DELAY)) == []


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.integers(1, 3), min_size=0, max_size=5),
    st.lists(st.integers(1, 4), min_size=0, max_size=3),
)
def test_as_few_pods_leave_as_the_order_permits(own: list[int], foreign: list[int]) -> None:
    world = World()
    left = 4
    pods = []
    for number, cpu in enumerate(own):
        if cpu <= left:
            pods.append((number, cpu))
            world.own(f"p{number}", number, cpu=cpu)
            left -= cpu
    for number, cpu in enumerate(foreign):
        world.foreign(f"f{number}", cpu)
    world.after()
    leaving = evicted(world.after(KUBELET_DELAY))
    lacking = max(sum(foreign) - left, 0)
    expected = []
    for number, cpu in reversed(pods):
        if lacking <= 0:
            break
        expected.append((number, cpu))
        lacking -= cpu
    for pair in reversed(expected):
        if lacking + pair[1] <= 0:
            expected.remove(pair)
            lacking += pair[1]
    assert leaving == [f"p{number}" for number, _ in expected]


async def test_the_pod_is_marked_and_deleted(monkeypatch: Any) -> None:
    monkeypatch.setattr(overcommitted_nodes, "KUBELET_DELAY", 0.1)
    async with GangServer() as server:
        server.prepare()
        server.node("n", cpu=2)
        async with server.scheduler() as run:
            server.gang("g", 2)
            await server.wait_bound("g", 2)
            server.member("other", 0, node="n", schedulerName="other")
            deleted = RecordedDeletion(server)
            await wait_for(deleted.find)
            conditions = {each["type"]: each for each in deleted.pod["status"]["conditions"]}
            assert conditions[REPLACED_BY_SCHEDULER]["status"] == "True"
            assert conditions["DisruptionTarget"]["status"] == "True"
            assert (
                run.metric("batholith_scheduler_replaced_pods_total", reason="NodeOvercommitted")
                == 1.0
            )
            await wait_for(lambda: any("overcommitted" in each for each in run.events("Evict")))


class RecordedDeletion:
    """The first pod of the gang *g* that is deleted."""

    def __init__(self, server: GangServer) -> None:
        self.server = server
        self.pod: dict[str, Any] = {}

    def find(self) -> bool:
        for change in self.server.changes:
            is_own = change.resource == PODS and change.object["metadata"]["name"].startswith("g-")
            if is_own and (
                change.type == "DELETED" or "deletionTimestamp" in change.object["metadata"]
            ):
                self.pod = change.object
                return True
        return False
