"""Nodes that are kept for a gang whose pods were deleted or have failed."""

from typing import Any

import msgspec
import pytest
from support.scheduler import SchedulerWorld, node, pod, podgroup, queue

from batholith.model.meta import Condition
from batholith.model.names import KEEP_NODES
from batholith.model.pod import DISRUPTION_TARGET
from batholith.model.podgroup import PodGroup
from batholith.scheduler import conf
from batholith.scheduler.state.core_types import Pod

NODES = ("n0", "n1", "n2")
WAITING = podgroup("waiting", 1, created="2025-01-01T00:00:00Z")


def kept(group: PodGroup, seconds: str = "60s") -> PodGroup:
    """*group*, for whose pods nodes are kept."""
    metadata = msgspec.structs.replace(group.metadata, annotations={KEEP_NODES: seconds})
    return msgspec.structs.replace(group, metadata=metadata)


def changed(of: Pod, **status: Any) -> Pod:
    return msgspec.structs.replace(of, status=msgspec.structs.replace(of.status, **status))


def running_gang(*, keep: str = "60s") -> SchedulerWorld:
    """Three nodes, full with a gang, for which an older gang waits."""
    world = SchedulerWorld()
    world.time = 1000.0
    world.upsert(*(node(name, cpu=1) for name in NODES), kept(podgroup("g", 3), keep))
    world.upsert(*(pod(f"g-{i}", "g", node_name=at, phase="Running") for i, at in enumerate(NODES)))
    world.upsert(WAITING, pod("waiting-0", "waiting"))
    assert world.schedule() == {}
    return world


def restart(world: SchedulerWorld, *, failed: str = "") -> None:
    """Delete the pods of the gang, of which one has *failed*, and its PodGroup."""
    if failed:
        world.upsert(changed(world.pod_objects[f"uid-{failed}"], phase="Failed"))
        assert world.schedule() == {}
    for index in range(3):
        world.remove(world.pod_objects[f"uid-g-{index}"])
    world.remove(podgroup("g", 3))


def again() -> list[Pod]:
    return [pod(f"g-{index}-again", "g") for index in range(3)]


@pytest.mark.parametrize("failed", ["", "g-1"])
def test_a_gang_that_restarts_gets_its_nodes_again(failed: str) -> None:
    world = running_gang()
    restart(world, failed=failed)
    world.time = 1010.0
    assert world.schedule() == {}
    world.upsert(kept(podgroup("g", 3)), *again())
    chosen = world.schedule()
    assert sorted(chosen) == ["g-0-again", "g-1-again", "g-2-again"]
    assert set(chosen.values()) == set(NODES)
    assert not world.cluster.reservations


def test_without_the_annotation_an_older_gang_gets_a_node() -> None:
    world = running_gang(keep="")
    restart(world)
    assert list(world.schedule()) == ["waiting-0"]


def test_nodes_are_preferred_that_a_gang_had_over_better_ones() -> None:
    world = running_gang()
    world.upsert(*(node(f"large-{index}", cpu=64, memory="640Gi") for index in range(3)))
    assert list(world.schedule()) == ["waiting-0"]
    restart(world)
    world.upsert(kept(podgroup("g", 3)), *again())
    assert set(world.schedule().values()) == set(NODES)


def test_a_gang_goes_elsewhere_if_one_of_its_nodes_is_gone() -> None:
    world = running_gang()
    restart(world)
    world.remove(node("n1", cpu=1))
    world.upsert(node("n3", cpu=1), node("n4", cpu=1), kept(podgroup("g", 3)), *again())
    chosen = world.schedule()
    assert {chosen[each.metadata.name] for each in again()} > {"n0", "n2"}


def test_nodes_are_kept_for_the_time_in_the_annotation() -> None:
    world = running_gang()
    restart(world)
    assert world.schedule() == {}
    assert world.cluster.reservations.next_due() == 1060.0
    world.time = 1059.0
    assert world.schedule() == {}
    world.time = 1061.0
    assert list(world.schedule()) == ["waiting-0"]
    assert not world.cluster.reservations
    assert "ns/g" not in world.cluster.gangs


def test_a_gang_of_higher_priority_does_not_wait_for_them() -> None:
    world = running_gang()
    restart(world)
    urgent = pod("urgent", scheduler="default-scheduler", priority=1000)
    world.upsert(urgent)
    assert list(world.schedule()) == ["urgent"]


def test_the_node_of_an_evicted_pod_is_not_kept() -> None:
    world = running_gang()
    evicted = Condition(type=DISRUPTION_TARGET, status="True", reason="EvictionByEvictionAPI")
    victim = changed(world.pod_objects["uid-g-0"], conditions=(evicted,))
    world.upsert(victim)
    world.remove(victim)
    assert list(world.schedule()) == ["waiting-0"]


def test_the_node_of_a_pod_that_has_succeeded_is_not_kept() -> None:
    world = running_gang()
    world.upsert(changed(world.pod_objects["uid-g-0"], phase="Succeeded"))
    assert list(world.schedule()) == ["waiting-0"]


def test_a_single_pod_is_replaced_on_its_node() -> None:
    world = running_gang()
    world.remove(world.pod_objects["uid-g-0"])
    assert world.schedule() == {}
    world.upsert(pod("g-0-again", "g"))
    assert world.schedule() == {"g-0-again": "n0"}
    assert not world.cluster.reservations


LIMIT: dict[str, str | int | float] = {"cpu": "3", "memory": "3Gi"}


def member(name: str, group: str, **options: Any) -> Pod:
    return pod(name, group, memory="1Gi", **options)


def limited_gang(plugin: str) -> SchedulerWorld:
    """A gang that has all of its queue, and nodes for twice as much, which another gang waits for
    that is to be admitted."""
    world = SchedulerWorld(conf.DEFAULT.replace("proportion", plugin))
    world.time = 1000.0
    world.upsert(queue("team", capability={**LIMIT, "pods": "3"}))  # it is overused
    world.upsert(*(node(f"n{index}", cpu=1) for index in range(6)), team_gang("Running"))
    world.upsert(
        *(member(f"g-{i}", "g", node_name=at, phase="Running") for i, at in enumerate(NODES))
    )
    world.upsert(podgroup("new", 3, phase="Pending", queue="team", resources=LIMIT))
    world.upsert(*(member(f"new-{index}", "new") for index in range(3)))
    assert world.schedule() == {}
    return world


def team_gang(phase: str) -> PodGroup:
    return kept(podgroup("g", 3, phase=phase, queue="team", resources=LIMIT))


@pytest.mark.parametrize("plugin", ["proportion", "capacity"])
@pytest.mark.parametrize("group_first", [True, False])
def test_the_share_of_the_queue_is_kept_with_the_nodes(plugin: str, group_first: bool) -> None:
    world = limited_gang(plugin)
    if group_first:
        world.remove(team_gang("Running"))
    for index in range(3):
        world.remove(world.pod_objects[f"uid-g-{index}"])
    if not group_first:
        world.remove(team_gang("Running"))
    assert world.schedule() == {}
    assert world.cluster.queues.subtrees_allocated(["team"]) == {"team": {}}
    world.upsert(team_gang("Pending"), *(member(f"g-{index}-again", "g") for index in range(3)))
    chosen = world.schedule()
    assert sorted(chosen) == ["g-0-again", "g-1-again", "g-2-again"]
    assert set(chosen.values()) == set(NODES)
    assert world.cluster.queues.named("team").kept == {}


@pytest.mark.parametrize("plugin", ["proportion", "capacity"])
def test_pods_beyond_a_minimum_do_not_get_what_is_kept(plugin: str) -> None:
    world = limited_gang(plugin)
    world.upsert(podgroup("elastic", 1, queue="team"))
    world.upsert(*(member(f"elastic-{index}", "elastic") for index in range(3)))
    world.remove(world.pod_objects["uid-g-0"])
    assert world.schedule() == {}
    world.upsert(member("g-0-again", "g"))
    assert world.schedule() == {"g-0-again": "n0"}


@pytest.mark.parametrize("plugin", ["proportion", "capacity"])
def test_the_share_of_the_queue_is_kept_for_the_time_in_the_annotation(plugin: str) -> None:
    world = limited_gang(plugin)
    for index in range(3):
        world.remove(world.pod_objects[f"uid-g-{index}"])
    world.remove(team_gang("Running"))
    assert world.schedule() == {}
    world.time = 1061.0
    assert sorted(world.schedule()) == ["new-0", "new-1", "new-2"]
    assert world.cluster.queues.named("team").kept == {}


def test_a_queue_that_is_deleted_meanwhile_has_nothing_left() -> None:
    world = limited_gang("capacity")
    world.remove(world.pod_objects["uid-g-0"])
    assert world.schedule() == {}
    team = queue("team", capability=LIMIT)
    world.cluster.update_queue(team, None)
    world.time = 1061.0
    assert world.schedule() == {}
    assert world.cluster.queues.named("team").kept == {}
    assert world.cluster.queues.named("team").allocated["cpu"] == 2000
