"""Placements are checked before they are sent; the rest of a gang is allocated again at once."""

from collections.abc import Callable

import pytest
from support.polling import wait_for
from support.scheduled_gangs import GangServer
from support.scheduler import node, pod, podgroup

from batholith.model.meta import ObjectMeta
from batholith.model.names import NODES, PODGROUPS
from batholith.model.podgroup import PodGroup
from batholith.scheduler.plugins.placement import GangRef, Placement
from batholith.scheduler.state.core_types import Node, Pod, Taint, Toleration
from batholith.scheduler.state.nodes.node_matrix import NodeInfo
from batholith.scheduler.writers.placement_check import PlacementCheck
from batholith.testing import RequestMatcher

STALE = "batholith_scheduler_stale_placements_total"
HARD = Taint(key="broken", effect="NoExecute")
TOLERATED = Toleration(key="broken", operator="Exists")
UNSCHEDULABLE = Toleration(key="node.kubernetes.io/unschedulable", operator="Exists")


def checked(
    current: Node | None,
    *,
    observed: Node | None = None,
    tolerations: tuple[Toleration, ...] = (),
    group: PodGroup | None = None,
) -> str:
    """Return the reason why a placement on node *a* does not hold; empty if it does."""
    seen = observed or node("a")
    info = NodeInfo("a", {}, seen.spec.taints, seen.spec.unschedulable)
    expected = podgroup("g", 1)
    found: Pod = pod("p", "g", tolerations=tolerations)
    check = PlacementCheck(
        nodes=lambda name: current if name == "a" else None,
        pods=lambda key: found if key == "ns/p" else None,
        podgroups=lambda key: (group or expected) if key == "ns/g" else None,
    )
    stale = check(Placement("ns", "p", "uid-p", "a", GangRef("ns/g", expected), info))
    return stale.reason if stale is not None else ""


def test_a_placement_holds_while_nothing_has_changed() -> None:
    assert checked(node("a")) == ""
    assert checked(node("a", taints=(Taint(key="x", effect="PreferNoSchedule"),))) == ""


def test_a_node_that_is_deleted_cordoned_or_tainted_gets_no_pod() -> None:
    assert checked(None) == "NodeDeleted"
    assert checked(node("a", cordoned=True)) == "NodeUnschedulable"
    assert checked(node("a", taints=(HARD,))) == "NodeTainted"


def test_tolerations_count() -> None:
    assert checked(node("a", taints=(HARD,)), tolerations=(TOLERATED,)) == ""
    assert checked(node("a", cordoned=True), tolerations=(UNSCHEDULABLE,)) == ""
    assert checked(node("a", cordoned=True), tolerations=(TOLERATED,)) == "NodeUnschedulable"


def test_what_the_cycle_has_seen_is_not_checked_again() -> None:
    """Filters may be disabled: the placement would be rejected in every cycle."""
    bad = node("a", taints=(HARD,), cordoned=True)
    assert checked(bad, observed=bad) == ""


def test_a_podgroup_of_the_same_name_is_another_one() -> None:
    other = PodGroup(metadata=ObjectMeta(name="g", namespace="ns", uid="other"))
    assert checked(node("a"), group=other) == "PodGroupDeleted"


def cordon(server: GangServer, name: str) -> None:
    server.put(NODES, name, spec={"unschedulable": True})


def delete(server: GangServer, name: str) -> None:
    server.remove(NODES, name)


@pytest.mark.parametrize("change", [cordon, delete])
async def test_the_rest_of_a_gang_is_placed_again_at_once(
    change: Callable[[GangServer, str], None],
) -> None:
    async with GangServer() as server:
        server.prepare()
        for name in "abcd":
            server.node(name)
        first = server.faults.hold_response(RequestMatcher("create", "pods/binding"))
        async with server.scheduler(max_bindings_in_flight=1) as run:
            server.gang("g", 3)
            await first.wait_held()
            (bound,) = server.nodes_of("g")
            allocated = {task.node for task in run.scheduler.cache.gangs["d/g"].tasks.values()}
            lost = min(allocated - {bound})
            change(server, lost)
            await wait_for(
                lambda: (
                    any(
                        name == lost and (info is None or info.unschedulable)
                        for name, info in zip(
                            run.scheduler.cache.node_matrix.names,
                            run.scheduler.cache.node_matrix.node_infos,
                            strict=True,
                        )
                    )
                    or lost not in run.scheduler.cache.node_matrix.names
                )
            )
            first.release()
            nodes = await server.wait_bound("g", 3)
            assert lost not in nodes
            assert len(set(nodes)) == 3
            assert sum(
                run.metric(STALE, reason=reason) for reason in ("NodeDeleted", "NodeUnschedulable")
            )
            assert any(lost in each for each in run.events("FailedScheduling"))


async def test_no_pod_of_a_deleted_podgroup_is_bound() -> None:
    async with GangServer() as server:
        server.prepare()
        for name in "abc":
            server.node(name)
        first = server.faults.hold_response(RequestMatcher("create", "pods/binding"))
        async with server.scheduler(max_bindings_in_flight=1) as run:
            server.gang("g", 3)
            await first.wait_held()
            server.remove(PODGROUPS, "g")
            gangs = run.scheduler.cache.gangs
            await wait_for(lambda: gangs["d/g"].podgroup is None)
            first.release()
            await wait_for(lambda: run.metric(STALE, reason="PodGroupDeleted") == 2)
            assert len(server.nodes_of("g")) == 1
            assert run.scheduler.binder.idle
