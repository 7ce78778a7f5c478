"""The scheduler decides what a slow one decides that allocates one pod at a time.

The oracle (:mod:`support.scheduler_oracle`) is written from the specification, and has neither
equivalence classes nor memory. So these tests also show that batches, masks and skipped gangs
change no decision.
"""

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.oracle_world import OracleWorld
from support.scheduler import node, pod, podgroup, queue

from batholith.model.node_selectors import NodeSelector, NodeSelectorRequirement, NodeSelectorTerm
from batholith.model.podgroup import PodGroup
from batholith.model.queue import Queue
from batholith.scheduler.state.core_types import (
    Affinity,
    ContainerPort,
    Node,
    NodeAffinity,
    Pod,
    Taint,
    Toleration,
)

FILTERS = "  - name: predicates\n"
TIERS = """
actions: "{actions}"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: conformance
- plugins:
{second}"""
PROPORTION = "  - name: overcommit\n  - name: drf\n  - name: predicates\n  - name: proportion\n"
SPREAD, PACK = "  - name: nodeorder\n", "  - name: binpack\n"
CONFIGS = {
    "default": TIERS.format(actions="enqueue, allocate, backfill", second=PROPORTION + SPREAD),
    "helm": TIERS.format(actions="enqueue, allocate, backfill", second=PROPORTION + SPREAD + PACK),
    "pack": TIERS.format(actions="enqueue, allocate, backfill", second=PROPORTION + PACK),
    "no enqueue": TIERS.format(actions="allocate, backfill", second=PROPORTION + PACK),
    "no queues": TIERS.format(actions="enqueue, allocate", second=FILTERS + SPREAD),
}
GPU = "example.com/gpu"
MODERATE = settings(max_examples=examples(60), deadline=None)

_TOLERANT = (Toleration(operator="Exists"),)
_ZONE = st.sampled_from(["a", "b"])


def _affinity(operator: str, value: str) -> Affinity:
    """Require a node by the label zone, or by its absence."""
    values = (value,) if operator in ("In", "NotIn") else ()
    requirement = NodeSelectorRequirement(key="zone", operator=operator, values=values)
    term = NodeSelectorTerm(match_expressions=(requirement,))
    required = NodeSelector(node_selector_terms=(term,))
    return Affinity(
        node_affinity=NodeAffinity(required_during_scheduling_ignored_during_execution=required)
    )


@st.composite
def nodes(draw: st.DrawFn, name: str) -> Node:
    """A node with a power of two of CPUs, so that shares of it are exact."""
    return node(
        name,
        cpu=draw(st.sampled_from([1, 2, 4, 8])),
        memory=f"{draw(st.sampled_from([2, 4, 8]))}Gi",
        pods=draw(st.sampled_from([2, 4, 110])),
        labels={"zone": draw(_ZONE)} if draw(st.booleans()) else {},
        taints=(Taint(key="t", effect="NoSchedule"),) if draw(st.integers(0, 4)) == 0 else (),
        cordoned=draw(st.integers(0, 6)) == 0,
        extra={GPU: 2} if draw(st.booleans()) else {},
    )


@st.composite
def shapes(draw: st.DrawFn) -> dict[str, object]:
    """What the pods of a role have in common."""
    cpu = draw(st.sampled_from([0, 1, 1, 1, 2, 4]))
    shape: dict[str, object] = {
        "cpu": cpu,
        "memory": f"{draw(st.sampled_from([1, 2]))}Gi" if cpu else 0,
        "extra": {GPU: 1} if draw(st.integers(0, 4)) == 0 else {},
        "tolerations": _TOLERANT if draw(st.integers(0, 3)) == 0 else (),
    }
    match draw(st.integers(0, 7)):
        case 0:
            shape["selector"] = {"zone": draw(_ZONE)}
        case 1:
            operator = draw(st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"]))
            shape["affinity"] = _affinity(operator, draw(_ZONE))
        case 2:
            number = draw(st.sampled_from([80, 81]))
            address = draw(st.sampled_from(["", "10.0.0.1", "10.0.0.2"]))
            shape["ports"] = (ContainerPort(host_port=number, host_ip=address),)
    return shape


@st.composite
def gangs(draw: st.DrawFn, name: str) -> tuple[PodGroup, list[Pod]]:
    """A gang of one or two roles, whose minimum may be met or not."""
    roles = draw(st.lists(shapes(), min_size=1, max_size=2))
    pods: list[Pod] = []
    minima: dict[str, int] = {}
    for role, shape in zip("xy", roles, strict=False):
        size = draw(st.integers(1, 4))
        priority = draw(st.sampled_from([None, None, 5]))
        pods += [
            pod(f"{name}-{role}-{i}", name, role=role, priority=priority, **shape)  # type: ignore[arg-type]
            for i in range(size)
        ]
        if draw(st.booleans()):
            minima[role] = draw(st.integers(1, size))
    group = podgroup(
        name,
        draw(st.integers(0, len(pods))),
        phase=draw(st.sampled_from(["Inqueue", "Pending", ""])),
        queue=draw(st.sampled_from(["default", "q", "q", "absent"])),
        roles=minima,
        resources={"cpu": draw(st.integers(1, 8))} if draw(st.booleans()) else None,
        created=f"2026-01-01T00:00:0{draw(st.integers(0, 2))}Z",
    )
    return group, pods


@st.composite
def queues(draw: st.DrawFn) -> Queue:
    """The queue q, maybe with limits."""
    return queue(
        "q",
        state=draw(st.sampled_from(["Open", "Open", "Open", "Closed"])),
        weight=draw(st.integers(1, 3)),
        priority=draw(st.sampled_from([0, 0, 1])),
        capability={"cpu": draw(st.integers(0, 8))} if draw(st.booleans()) else None,
    )


@MODERATE
@given(
    config=st.sampled_from(sorted(CONFIGS)),
    limits=queues(),
    cluster=st.integers(1, 5).flatmap(lambda n: st.tuples(*(nodes(f"n{i}") for i in range(n)))),
    work=st.integers(1, 5).flatmap(lambda n: st.tuples(*(gangs(f"g{i}") for i in range(n)))),
    single=st.lists(shapes(), max_size=2),
)
def test_a_cycle_decides_as_the_oracle(
    config: str,
    limits: Queue,
    cluster: tuple[Node, ...],
    work: tuple[tuple[PodGroup, list[Pod]], ...],
    single: list[dict[str, object]],
) -> None:
    """The same gangs are admitted, the same pods allocated, on the same nodes."""
    world = OracleWorld(CONFIGS[config])
    world.upsert(queue(), limits, *cluster)
    for group, pods in work:
        world.upsert(group, *pods)
    for i, shape in enumerate(single):
        world.upsert(pod(f"single-{i}", scheduler="default-scheduler", **shape))  # type: ignore[arg-type]
    world.compare_cycle()
    world.compare_cycle()


@MODERATE
@given(config=st.sampled_from(["default", "pack"]), limits=queues(), data=st.data())
def test_later_cycles_decide_as_the_oracle(config: str, limits: Queue, data: st.DataObject) -> None:
    """What a cycle skips, since nothing changed that concerns it, would be rejected again."""
    world = OracleWorld(CONFIGS[config])
    world.upsert(queue(), limits, *(data.draw(nodes(f"n{i}")) for i in range(3)))
    for step in range(data.draw(st.integers(2, 6))):
        for _ in range(data.draw(st.integers(1, 3))):
            data.draw(st.sampled_from(EVENTS))(data, world, step)
        world.compare_cycle()


def _add_gang(data: st.DataObject, world: OracleWorld, step: int) -> None:
    group, pods = data.draw(gangs(f"s{step}"))
    if ("PodGroup", group.metadata.name) not in world.objects:
        world.upsert(group, *pods)


def _run_or_finish_pod(data: st.DataObject, world: OracleWorld, step: int) -> None:
    bound = [each for each in world.pods if each.spec.node_name]
    if bound:
        chosen = data.draw(st.sampled_from(bound))
        world.set_phase(chosen, data.draw(st.sampled_from(["Running", "Succeeded", "Failed"])))


def _delete_pod(data: st.DataObject, world: OracleWorld, step: int) -> None:
    if world.pods:
        world.remove(data.draw(st.sampled_from(world.pods)))


def _change_node(data: st.DataObject, world: OracleWorld, step: int) -> None:
    name = f"n{data.draw(st.integers(0, 4))}"
    known = world.objects.get(("Node", name))
    if known is not None and data.draw(st.booleans()):
        world.remove(known)
    else:
        world.upsert(data.draw(nodes(name)))


def _change_queue(data: st.DataObject, world: OracleWorld, step: int) -> None:
    world.upsert(data.draw(queues()))


EVENTS = [_add_gang, _add_gang, _run_or_finish_pod, _delete_pod, _change_node, _change_queue]


def test_best_effort_pods_of_a_ready_gang_are_left_to_backfill() -> None:
    """Whether or not a cycle tries the gang for its other pods."""
    world = OracleWorld(CONFIGS["no queues"])
    world.upsert(queue(), node("a"), podgroup("g", 1), pod("g-x-0", "g", cpu=9))
    world.upsert(pod("g-x-1", "g", node_name="a"), pod("g-x-2", "g", cpu=0))
    decision, _ = world.compare_cycle()
    assert decision.placements == ()


def test_a_gang_that_requests_zero_is_admitted_while_pods_exceed_the_cluster() -> None:
    """Only requested resources are compared with what is idle."""
    world = OracleWorld(CONFIGS["default"])
    world.upsert(queue(), node("a", cpu=2), pod("other", node_name="a", cpu=4, scheduler="other"))
    world.upsert(podgroup("g", 1, phase="Pending", resources={"cpu": 0}))
    decision, _ = world.compare_cycle()
    assert [ref.key for ref in decision.enqueued] == ["ns/g"]


def test_pods_of_a_deleted_node_do_not_count_against_the_others() -> None:
    """What they request is in no node, so it overcommits none."""
    world = OracleWorld(CONFIGS["default"])
    world.upsert(queue(), node("a"), node("b"), pod("p", node_name="a", cpu=8, scheduler="other"))
    world.remove(node("a"))
    world.upsert(podgroup("g", 1, phase="Pending", resources={"cpu": 8}))
    decision, _ = world.compare_cycle()
    assert [ref.key for ref in decision.enqueued] == ["ns/g"]


def test_a_node_is_removed_after_a_pod_has_named_a_new_resource() -> None:
    """Between two cycles."""
    world = OracleWorld(CONFIGS["default"])
    world.upsert(queue(), node("a"), node("b"), podgroup("g", 1))
    world.upsert(pod("g-t-0", "g", extra={"example.com/new": 1}))
    world.remove(node("a"))
    world.upsert(podgroup("h", 1), pod("h-t-0", "h"))
    decision, _ = world.compare_cycle()
    assert [each.node for each in decision.placements] == ["b"]


def test_a_gang_that_is_pending_again_is_admitted_in_the_next_cycle() -> None:
    """Though its last pod was rejected before, and nothing else has changed since."""
    world = OracleWorld(CONFIGS["default"])
    bound = pod("g-x-0", "g", node_name="a")
    world.upsert(queue(), node("a"), podgroup("g", 0), bound, pod("g-y-0", "g", cpu=9))
    world.compare_cycle()
    world.remove(bound)
    world.compare_cycle()
    decision, _ = world.compare_cycle()
    assert [ref.key for ref in decision.enqueued] == ["ns/g"]


def _gang_that_has_lost_a_pod(node_cpu: int, *, cpu: int = 1) -> OracleWorld:
    """Return a world where the gang g has one pod on node a, and its other pod waits."""
    world = OracleWorld(CONFIGS["default"])
    bound = [pod(f"g-x-{i}", "g", node_name="a", phase="Running") for i in range(2)]
    world.upsert(queue(), node("a", cpu=node_cpu), podgroup("g", 2, phase="Running"), *bound)
    world.compare_cycle()
    world.remove(bound[1])
    world.upsert(pod("g-x-2", "g", cpu=cpu))
    return world


def test_a_gang_that_has_lost_a_pod_is_allocated_before_others() -> None:
    """Though it has a larger share of the cluster than another gang."""
    world = _gang_that_has_lost_a_pod(2)
    world.upsert(podgroup("h", 1), pod("h-x-0", "h"))
    decision, _ = world.compare_cycle()
    assert [each.name for each in decision.placements] == ["g-x-2"]


def test_what_a_gang_lacks_is_held_for_it() -> None:
    """What is free on the node is for no other gang, though it is too little for this one."""
    world = _gang_that_has_lost_a_pod(4, cpu=4)
    world.upsert(podgroup("h", 1), pod("h-x-0", "h"))
    decision, _ = world.compare_cycle()
    assert decision.placements == ()


@pytest.mark.parametrize("config", ["default", "pack"])
def test_a_gang_fits_once_its_queue_may_have_less(config: str) -> None:
    """Then its first pods leave the node to the one that it cannot do without."""
    world = OracleWorld(CONFIGS[config])
    world.upsert(queue(), node("a", pods=2), podgroup("g", 1, roles={"x": 1}))
    world.upsert(pod("g-y-0", "g", role="y"), pod("g-y-1", "g", role="y"))
    world.upsert(pod("g-x-0", "g", role="x", cpu=0))
    decision, _ = world.compare_cycle()
    assert decision.placements == ()
    world.upsert(queue(capability={"cpu": 1}))
    decision, _ = world.compare_cycle()
    assert [each.name for each in decision.placements] == ["g-y-0", "g-x-0"]


def _waiting_gangs(**requests: list[int]) -> OracleWorld:
    """Return a world with two of 12 CPUs left, where gangs of each queue request more than that.

    If the pod run-x-1 is deleted, three are left.
    """
    world = OracleWorld(CONFIGS["default"])
    world.upsert(queue("old"), node("a", cpu=10), podgroup("run", 2, phase="Running", queue="old"))
    for index, cpu in enumerate((9, 1)):
        world.upsert(pod(f"run-x-{index}", "run", node_name="a", phase="Running", cpu=cpu))
    for name, amounts in requests.items():
        world.upsert(queue(name), *(_pending(name, i, cpu) for i, cpu in enumerate(amounts)))
    decision, _ = world.compare_cycle()
    assert decision.enqueued == ()
    return world


def _pending(queue_name: str, index: int, cpu: int) -> PodGroup:
    name, resources = f"{queue_name}{index}", {"cpu": cpu}
    return podgroup(name, 1, phase="Pending", queue=queue_name, resources=dict(resources))


@pytest.mark.parametrize("large", [(20, 30), (20, 20)], ids=["unequal", "equal"])
def test_a_gang_that_still_waits_counts_in_the_rounds_of_admission(large: tuple[int, int]) -> None:
    """The first gangs of each queue are asked first, whether or not they can have changed."""
    world = _waiting_gangs(a=[*large, 3], b=[20, 3])
    world.remove(world.objects["Pod", "run-x-1"])
    decision, _ = world.compare_cycle()
    assert [ref.key for ref in decision.enqueued] == ["ns/b1"]


def test_a_new_gang_is_asked_after_those_of_its_queue_that_wait() -> None:
    """It is no further in its queue than they are."""
    world = _waiting_gangs(a=[20, 30], b=[20, 3])
    world.upsert(_pending("a", 2, 3))
    world.remove(world.objects["Pod", "run-x-1"])
    decision, _ = world.compare_cycle()
    assert [ref.key for ref in decision.enqueued] == ["ns/b1"]


def test_a_gang_that_is_deleted_or_in_another_queue_counts_no_more() -> None:
    """Those that were behind it are asked earlier."""
    world = _waiting_gangs(a=[20, 30, 40, 3], b=[20, 30, 3])
    for name in ("a0", "a1"):
        world.remove(world.objects["PodGroup", name])
    world.upsert(podgroup("a2", 1, phase="Pending", queue="b", resources={"cpu": 40}))
    world.remove(world.objects["Pod", "run-x-1"])
    decision, _ = world.compare_cycle()
    assert [ref.key for ref in decision.enqueued] == ["ns/a3"]


def test_a_gang_that_runs_without_being_admitted_reserves_its_minimum() -> None:
    """Its phase follows from its pods, before the PodGroup is written."""
    world = _waiting_gangs(a=[20, 3])
    world.upsert(pod("a0-x-0", "a0", node_name="a", phase="Running", cpu=0))
    world.compare_cycle()
    world.remove(world.objects["Pod", "run-x-1"])
    decision, _ = world.compare_cycle()
    assert decision.enqueued == ()


@MODERATE
@given(data=st.data())
def test_gangs_of_many_queues_are_admitted_as_by_the_oracle(data: st.DataObject) -> None:
    """While resources are freed, and most gangs wait."""
    world = OracleWorld(CONFIGS["default"])
    world.upsert(*(queue(name, weight=data.draw(st.integers(1, 3))) for name in "abc"))
    world.upsert(queue("old"), node("a", cpu=10), podgroup("run", 1, phase="Running", queue="old"))
    for i in range(10):
        world.upsert(pod(f"run-x-{i}", "run", node_name="a", phase="Running"))
    for step in range(data.draw(st.integers(3, 8))):
        for i in range(data.draw(st.integers(0, 4))):
            resources: dict[str, str | int | float] = {
                "cpu": data.draw(st.sampled_from([1, 2, 2, 3, 4, 20]))
            }
            name, queue_name = f"g{step}.{i}", data.draw(st.sampled_from("abc"))
            world.upsert(podgroup(name, 1, phase="Pending", queue=queue_name, resources=resources))
        match data.draw(st.integers(0, 3)):
            case 0 if len(world.podgroups) > 1:
                world.remove(data.draw(st.sampled_from(world.podgroups[1:])))
            case 1 if world.pods:
                world.remove(data.draw(st.sampled_from(world.pods)))
            case 2:
                world.upsert(node("a", cpu=data.draw(st.integers(9, 12))))
        world.compare_cycle()


def _exact_shares(weights: list[int], demand: list[int], cluster: int) -> list[Fraction]:
    """Divide *cluster* by weight up to each demand, without rounding."""
    shares = [Fraction(0)] * len(weights)
    unmet = [i for i, wanted in enumerate(demand) if wanted]
    remaining = Fraction(cluster)
    while unmet and remaining:
        total = sum(weights[i] for i in unmet)
        level = min(
            remaining / total, *(Fraction(demand[i] - shares[i]) / weights[i] for i in unmet)
        )
        for i in unmet:
            shares[i] += level * weights[i]
            remaining -= level * weights[i]
        unmet = [i for i in unmet if shares[i] < demand[i]]
    return shares


@MODERATE
@given(
    cluster=st.integers(1, 40),
    wanted=st.lists(
        st.tuples(st.integers(1, 5), st.lists(st.integers(1, 6), max_size=8)),
        min_size=1,
        max_size=4,
    ),
)
@example(cluster=19, wanted=[(1, [1, 1, 1, 1, 1, 4]), (1, [3]), (1, [1, 1, 6])])
def test_no_queue_misses_its_share_by_more_than_one_gang(
    cluster: int, wanted: list[tuple[int, list[int]]]
) -> None:
    """Each queue gets no more than its share, and less by at most its smallest waiting gang.

    The pods request one CPU each, so that no gang is rejected for the nodes.
    """
    world = OracleWorld(CONFIGS["no enqueue"])
    world.upsert(queue(), *(node(f"n{i}", cpu=1) for i in range(cluster)))
    for q, (weight, sizes) in enumerate(wanted):
        world.upsert(queue(f"q{q}", weight=weight))
        for g, size in enumerate(sizes):
            name = f"g{q}.{g}"
            world.upsert(podgroup(name, size, queue=f"q{q}"))
            world.upsert(*(pod(f"{name}-t-{i}", name) for i in range(size)))
    decision, _ = world.compare_cycle()
    counts = Counter(each.name.rpartition("-t-")[0] for each in decision.placements)
    demand = [sum(sizes) for _, sizes in wanted]
    shares = _exact_shares([weight for weight, _ in wanted], demand, cluster)
    for q, (_, sizes) in enumerate(wanted):
        got = sum(counts[f"g{q}.{g}"] for g in range(len(sizes)))
        waiting = [size for g, size in enumerate(sizes) if not counts[f"g{q}.{g}"]]
        assert got <= shares[q]
        assert not waiting or shares[q] - got < min(waiting)
