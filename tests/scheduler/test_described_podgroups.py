"""A PodGroup that a pod describes is scheduled like one that is stored."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from support.described_cluster import (
    DescribedCluster,
    Job,
    described,
    on_node,
    shown,
    with_metadata,
)
from support.examples import examples
from support.scheduler import SchedulerWorld, node, pod, podgroup, queue
from support.scheduler_queues import configuration
from support.scheduler_queues import queue as grouped_queue

from batholith.model.described_podgroup import MAX_TEXT, decode, encode
from batholith.model.names import GROUP_NAME, PODGROUP
from batholith.model.podgroup import PodGroup, PodGroupPhase, PodGroupStatus
from batholith.model.queue import NodeGroupTerms, QueueAffinity
from batholith.scheduler.state.core_types import Pod

CONF = """
actions: "enqueue, allocate, preempt, reclaim, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: conformance
  - name: sla
    arguments:
      sla-waiting-time: 1h
- plugins:
  - name: overcommit
    arguments:
      overcommit-factor: 1.5
  - name: drf
  - name: predicates
  - name: proportion
  - name: nodeorder
  - name: tdm
"""
EVICTING = """
actions: "allocate, preempt, reclaim, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
    enableReclaimable: false
  - name: conformance
- plugins:
  - name: overcommit
    arguments:
      overcommit-factor: 5
  - name: drf
    enablePreemptable: false
  - name: predicates
  - name: proportion
  - name: nodeorder
"""


def alone(name: str, *, cpu: int = 1, **of_group: Any) -> Pod:
    """A pod that describes its PodGroup of the same name."""
    group = podgroup(name, 1, phase="", resources={"cpu": cpu}, **of_group)
    return described(pod(f"{name}-t-0", name, cpu=cpu), group)


JOBS = st.builds(
    Job,
    st.sampled_from([0, 1, 2, 3, 9]),
    st.sampled_from(["default", "limited", "closed", "missing"]),
    st.sampled_from(["", "low", "high"]),
    st.sampled_from(["", "", "true", "false"]),
    st.booleans(),
)
PREEMPTORS = st.builds(
    Job,
    st.sampled_from([1, 1, 2, 3]),
    st.sampled_from(["default", "default", "limited"]),
    st.sampled_from(["low", "high", "high"]),
    st.sampled_from(["", "", "true", "false"]),
    st.booleans(),
)
LOW = [Job(cpu=cpu, priority_class="low", has_minimum=False) for cpu in (2, 2, 1, 1)]
"""They fill all nodes."""


def histories(jobs: st.SearchStrategy[Job]) -> st.SearchStrategy[list[Any]]:
    """Steps, most of which submit some of *jobs*."""
    submitted = st.lists(jobs, min_size=1, max_size=4)
    return st.lists(
        st.one_of(
            submitted,
            submitted,
            st.tuples(st.sampled_from(["succeed", "fail", "delete"]), st.integers(0, 30)),
            st.tuples(st.sampled_from(["add node", "cordon", "open", "limit"]), st.integers(0, 30)),
            st.sampled_from([("terminate", 0), ("retry", 0)]),
        ),
        min_size=2,
        max_size=10,
    )


CONFIGURED = st.one_of(
    st.tuples(st.just(CONF), histories(JOBS)), st.tuples(st.just(EVICTING), histories(PREEMPTORS))
)


def cluster(text: str, *, stored: bool) -> DescribedCluster:
    """A cluster with two nodes, and queues of which one has a limit and one is closed."""
    queues = queue("limited", capability={"cpu": 4}), queue("closed", state="Closed")
    found = DescribedCluster(text, stored=stored, queues=queues)
    found.put_nodes(n0=4, n1=2)
    if text == EVICTING:
        carry_out(found, LOW)
        found.cycle()
    return found


def carry_out(it: DescribedCluster, step: Any) -> None:
    """Let a step of a history happen."""
    if isinstance(step, list):
        for job in step:
            it.submit(f"j{len(it.jobs)}", job)
        return
    what, which = step
    if what == "add node":
        it.put_node(f"m{which}", cpu=which % 4 + 1)
    elif what == "cordon":
        name = sorted(it.nodes)[which % len(it.nodes)]
        it.put_node(name, cpu=4, cordoned=which % 2 == 0)
    elif what == "open":
        it.put_queue("closed", state="Open" if which % 2 else "Closed")
    elif what == "limit":
        it.put_queue("limited", capability={"cpu": which % 8 + 1})
    elif what in ("terminate", "retry"):
        terminated = it.finish_termination()
        for name in terminated if what == "retry" else ():
            it.submit(name, it.specs[name])
    elif names := it.names("Pending", "Running"):
        end(it, what, names[which % len(names)])


def end(it: DescribedCluster, what: str, name: str) -> None:
    node_name = it.jobs[name].spec.node_name
    if what == "delete" or not node_name:
        it.delete(name)
    else:
        it.put(name, on_node(it.jobs[name], node_name, f"{what.capitalize()}ed"))


@given(CONFIGURED)
@settings(max_examples=examples(60), deadline=None)
def test_described_and_stored_groups_get_the_same_decisions(history: tuple[str, list[Any]]) -> None:
    text, steps = history
    one, other = cluster(text, stored=True), cluster(text, stored=False)
    for step in steps:
        for each in (one, other):
            carry_out(each, step)
        for _ in range(3):
            left, right = one.cycle(), other.cycle()
            assert shown(left) == shown(right)
            assert one.sums() == other.sums()
            assert one.phases() == other.phases()
        assert not other.unreported()  # else their PodGroups are created after a minute
    event(f"evictions: {min(len(one.evicted), 3)}")
    for each in (one, other):
        for name in list(each.jobs):
            each.world.remove(each.jobs[name])
        for group in each.groups.values():
            each.world.remove(group)
        each.cycle()
        assert not each.world.cluster.gangs
    assert not len(other.world.cluster.described)


@given(CONFIGURED)
@settings(max_examples=examples(30), deadline=None)
def test_a_restart_finds_what_is_allocated(history: tuple[str, list[Any]]) -> None:
    text, steps = history
    it = cluster(text, stored=False)
    for step in steps:
        carry_out(it, step)
        it.cycle()
    before = dict(it.jobs)
    bound = {each.metadata.uid for each in before.values() if each.spec.node_name}
    it.restart()
    assert not bound.intersection(each.uid for each in it.cycle().placements)
    for name, each in before.items():
        if each.spec.node_name and each.status.phase == "Running":
            assert it.world.cluster.gangs[f"ns/{name}"].phase == PodGroupPhase.RUNNING


def decided(world: SchedulerWorld, name: str) -> tuple[str, list[str]]:
    """The phase of a gang after a cycle, and the placements."""
    placements = [each.name for each in world.decision().placements]
    return world.cluster.gangs[f"ns/{name}"].phase, placements


@pytest.fixture
def world() -> SchedulerWorld:
    world = SchedulerWorld()
    world.upsert(node("n", cpu=4))
    return world


def test_nothing_is_written_for_a_group_that_is_not_stored(world: SchedulerWorld) -> None:
    world.upsert(alone("j"))
    (report,) = world.decision().reports
    assert report.podgroup is not None
    assert not report.podgroup.is_stored


def test_a_stored_group_continues_the_status_of_the_described_one(world: SchedulerWorld) -> None:
    it = alone("j")
    world.upsert(it)
    assert decided(world, "j") == ("Inqueue", ["j-t-0"])
    world.upsert(on_node(it, "n"))
    assert decided(world, "j") == ("Running", [])
    stored = podgroup("j", 2, phase="", resources={"cpu": 2})
    world.upsert(stored, pod("j-t-1", "j", cpu=1))
    assert decided(world, "j")[1] == ["j-t-1"]
    gang = world.cluster.gangs["ns/j"]
    assert gang.podgroup is stored
    assert gang.phase == "Running"


@pytest.mark.parametrize("pod_first", [True, False])
def test_after_a_restart_a_new_group_of_a_running_pod_is_running(
    world: SchedulerWorld, pod_first: bool
) -> None:
    """Else a gang that is incomplete for now would count as never complete, and be evicted."""
    it, stored = on_node(alone("j"), "n"), podgroup("j", 2, phase="", resources={"cpu": 2})
    world.upsert(*((it, stored) if pod_first else (stored, it)))
    assert world.cluster.gangs["ns/j"].phase == "Running"
    assert world.report("j").status.phase in ("Running", "Unknown")


def test_an_admitted_group_stays_admitted_when_it_is_stored(world: SchedulerWorld) -> None:
    world.upsert(alone("j", cpu=4), alone("k", cpu=1), node("n", cpu=4, cordoned=True))
    assert decided(world, "j") == ("Inqueue", [])
    world.upsert(podgroup("j", 1, phase="", resources={"cpu": 4}))
    assert decided(world, "j") == ("Inqueue", [])


def test_a_deleted_group_is_described_again(world: SchedulerWorld) -> None:
    it, stored = alone("j"), podgroup("j", 1, phase="Inqueue", resources={"cpu": 1})
    world.upsert(stored, on_node(it, "n"))
    assert decided(world, "j")[0] == "Running"
    world.remove(stored)
    assert decided(world, "j")[0] == "Running"
    gang = world.cluster.gangs["ns/j"]
    assert gang.podgroup is not None
    assert not gang.podgroup.is_stored


def test_a_gang_that_is_described_again_uses_the_node_groups_of_its_queue() -> None:
    world = SchedulerWorld(configuration("{name: gang}, {name: nodegroup}"))
    required = QueueAffinity(node_group_affinity=NodeGroupTerms(required=("b",)))
    world.upsert(grouped_queue("q", affinity=required))
    stored = podgroup("j", 1, queue="q")
    world.upsert(stored, alone("j", queue="q"))
    assert not world.schedule()
    world.remove(stored)
    for group in ("a", "b"):
        world.upsert(node(group, labels={"volcano.sh/nodegroup-name": group}))
    assert world.schedule() == {"j-t-0": "b"}


def test_a_description_ends_with_its_pod_even_if_the_gang_has_others(world: SchedulerWorld) -> None:
    """The gang is of two pods now: without its PodGroup it must not start with one."""
    it, stored = on_node(alone("j"), "n"), podgroup("j", 2, resources={"cpu": 2})
    world.upsert(it, stored, node("full", cpu=0), pod("j-t-1", "j", cpu=9))
    assert not decided(world, "j")[1]
    world.remove(it)
    world.remove(stored)
    world.upsert(node("n", cpu=16))
    assert not world.schedule()
    assert world.cluster.gangs["ns/j"].podgroup is None
    assert not len(world.cluster.described)


def test_the_next_pod_is_admitted_again(world: SchedulerWorld) -> None:
    it = on_node(alone("j"), "n")
    world.upsert(it)
    assert decided(world, "j")[0] == "Running"
    world.remove(it)
    world.decision()
    assert "ns/j" not in world.cluster.gangs
    world.upsert(queue(state="Closed"))
    world.upsert(with_metadata(alone("j"), uid="second"))
    assert decided(world, "j") == ("Pending", [])


def test_a_pod_of_another_scheduler_describes_nothing(world: SchedulerWorld) -> None:
    it = described(pod("j-t-0", "j", scheduler="other"), podgroup("j", 1))
    world.upsert(it)
    assert "ns/j" not in world.cluster.gangs


MALFORMED: list[Callable[[PodGroup], str]] = [
    lambda group: "",
    lambda group: "{",
    lambda group: "[]",
    lambda group: '{"spec":{"minMember":"1"}}',
    lambda group: encode(group) + " " * MAX_TEXT,
    lambda group: encode(podgroup("j", 2)),
    lambda group: encode(podgroup("j", 0)),
    lambda group: encode(podgroup("j", 1, resources={"cpu": "-1"})),
    lambda group: encode(podgroup("j", 1, resources={"cpu": "many"})),
    lambda group: '{"spec":{"minMember":1,"networkTopology":{"mode":"hard"}}}',
    lambda group: '{"spec":{"minMember":1,"subGroupPolicy":[{"name":"a"}]}}',
    lambda group: "[" * 4000,
]


@pytest.mark.parametrize("text", MALFORMED)
def test_a_malformed_description_counts_as_missing(
    world: SchedulerWorld, text: Callable[[PodGroup], str]
) -> None:
    it = pod("j-t-0", "j")
    annotations = {GROUP_NAME: "j", PODGROUP: text(podgroup("j", 1))}
    world.upsert(with_metadata(it, annotations=annotations))
    assert decode(annotations[PODGROUP]) is None
    assert not world.schedule()
    assert world.cluster.gangs["ns/j"].podgroup is None


def test_a_description_is_read_as_it_was_written() -> None:
    group = podgroup("j", 1, queue="q", roles={"t": 1}, priority_class="high", resources={"cpu": 1})
    found = decode(encode(group))
    assert found is not None
    assert found.spec == group.spec
    assert PodGroup(status=PodGroupStatus()).is_stored is False
