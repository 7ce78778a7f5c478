"""A PodGroup that a pod describes is scheduled like one that is stored."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.scheduler import SchedulerWorld, node, pod, podgroup, queue

from batholith.model.described_podgroup import MAX_TEXT, decode, encode
from batholith.model.meta import ObjectMeta
from batholith.model.names import GROUP_NAME, PODGROUP
from batholith.model.podgroup import PodGroup, PodGroupPhase, PodGroupStatus
from batholith.scheduler.framework.decision import Decision
from batholith.scheduler.state.core_types import Node, Pod, PriorityClass
from batholith.scheduler.state.gangs import TaskStatus

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
CLASSES = {"low": 1, "high": 100}


def described(it: Pod, group: PodGroup) -> Pod:
    """Let a pod describe *group*."""
    meta = it.metadata
    return with_metadata(it, annotations={**meta.annotations, PODGROUP: encode(group)})


def with_metadata(it: Pod, **fields: Any) -> Pod:
    return msgspec.structs.replace(it, metadata=msgspec.structs.replace(it.metadata, **fields))


def on_node(it: Pod, name: str, phase: str = "Running") -> Pod:
    spec = msgspec.structs.replace(it.spec, node_name=name)
    return msgspec.structs.replace(
        it, spec=spec, status=msgspec.structs.replace(it.status, phase=phase)
    )


def alone(name: str, *, cpu: int = 1, **of_group: Any) -> Pod:
    """A pod that describes its PodGroup of the same name."""
    group = podgroup(name, 1, phase="", resources={"cpu": cpu}, **of_group)
    return described(pod(f"{name}-t-0", name, cpu=cpu), group)


class Job(msgspec.Struct, frozen=True):
    """A job of one pod."""

    cpu: int
    queue: str
    priority_class: str
    preemptable: bool
    has_minimum: bool


JOBS = st.builds(
    Job,
    st.sampled_from([0, 1, 2, 3, 9]),
    st.sampled_from(["default", "limited", "closed", "missing"]),
    st.sampled_from(["", "low", "high"]),
    st.booleans(),
    st.booleans(),
)
STEPS = st.lists(
    st.one_of(
        st.lists(JOBS, min_size=1, max_size=4),
        st.tuples(st.sampled_from(["succeed", "fail", "delete"]), st.integers(0, 30)),
        st.tuples(st.sampled_from(["add node", "cordon", "open", "limit"]), st.integers(0, 30)),
    ),
    min_size=2,
    max_size=10,
)


class Cluster:
    """A scheduler, and the objects that it has seen; PodGroups are *stored* or described."""

    def __init__(self, *, stored: bool) -> None:
        self.world = SchedulerWorld(CONF)
        self.world.time = 1_800_000_000.0
        self.stored = stored
        self.jobs: dict[str, Pod] = {}
        self.groups: dict[str, PodGroup] = {}
        for name, value in CLASSES.items():
            self.world.cluster.update_priority_class(
                None, PriorityClass(metadata=ObjectMeta(name=name), value=value)
            )
        self.nodes: dict[str, Node] = {}
        self.apply(queue("limited", capability={"cpu": 4}), queue("closed", state="Closed"))
        self.apply(node("n0", cpu=4), node("n1", cpu=2))

    def apply(self, *objects: Any) -> None:
        for each in objects:
            if isinstance(each, Node):
                self.nodes[each.metadata.name] = each
        self.world.upsert(*objects)

    def submit(self, name: str, job: Job) -> None:
        group = podgroup(
            name,
            1,
            phase="",
            queue=job.queue,
            priority_class=job.priority_class,
            resources={"cpu": job.cpu, "pods": 1} if job.has_minimum else None,
            created=f"2026-01-01T00:{len(self.jobs):02}:00Z",
        )
        if job.preemptable:
            marks = {"volcano.sh/preemptable": "true"}
            group = msgspec.structs.replace(
                group, metadata=msgspec.structs.replace(group.metadata, annotations=marks)
            )
        created = group.metadata.creation_timestamp
        it = pod(f"{name}-t-0", name, cpu=job.cpu, priority=CLASSES.get(job.priority_class, 0))
        marks = {**it.metadata.annotations, "volcano.sh/preemptable": str(job.preemptable).lower()}
        it = with_metadata(it, creation_timestamp=created, annotations=marks)
        if self.stored:
            self.groups[name] = group
            self.apply(group)
        else:
            it = described(it, group)
        self.put(name, it)

    def put(self, name: str, it: Pod) -> None:
        self.jobs[name] = it
        self.apply(it)

    def step(self, step: Any) -> None:
        if isinstance(step, list):
            for job in step:
                self.submit(f"j{len(self.jobs)}", job)
            return
        what, which = step
        if what == "add node":
            self.apply(node(f"m{which}", cpu=which % 4 + 1))
        elif what == "cordon":
            name = sorted(self.nodes)[which % len(self.nodes)]
            self.apply(node(name, cpu=4, cordoned=which % 2 == 0))
        elif what == "open":
            self.apply(queue("closed", state="Open" if which % 2 else "Closed"))
        elif what == "limit":
            self.apply(queue("limited", capability={"cpu": which % 8 + 1}))
        else:
            self.end(what, which)

    def end(self, what: str, which: int) -> None:
        names = [
            name for name, it in self.jobs.items() if it.status.phase in ("Pending", "Running")
        ]
        if not names:
            return
        name = names[which % len(names)]
        it = self.jobs[name]
        if what == "delete" or not it.spec.node_name:
            self.world.remove(it)
            if self.stored:
                self.world.remove(self.groups[name])
            phase = "Deleted"
        else:
            phase = "Succeeded" if what == "succeed" else "Failed"
            self.put(name, on_node(it, it.spec.node_name, phase))
        self.jobs[name] = msgspec.structs.replace(
            it, status=msgspec.structs.replace(it.status, phase=phase)
        )

    def cycle(self) -> Decision:
        """Run a cycle; its placements and evictions are carried out."""
        self.world.time = (self.world.time or 0) + 1
        decision = self.world.decision()
        for each in decision.placements:
            name = each.name.removesuffix("-t-0")
            self.put(name, on_node(self.jobs[name], each.node))
        for eviction in decision.evictions:
            name = eviction.name.removesuffix("-t-0")
            self.world.remove(self.jobs[name])
            if self.stored:
                self.world.remove(self.groups[name])
            self.jobs[name] = msgspec.structs.replace(
                self.jobs[name],
                status=msgspec.structs.replace(self.jobs[name].status, phase="Deleted"),
            )
        return decision

    def phases(self) -> dict[str, str]:
        return {
            gang.name: gang.phase
            for gang in self.world.cluster.gangs.values()
            if gang.podgroup is not None
            and any(task.status < TaskStatus.SUCCEEDED for task in gang.tasks.values())
        }

    def sums(self) -> dict[str, Any]:
        return {
            name: (each.allocated, each.requested, each.reserved, each.elastic)
            for name, each in self.world.cluster.queues.items()
        }


def shown(decision: Decision) -> dict[str, Any]:
    """What a cycle has decided and reported, without what only a stored PodGroup has."""
    return {
        "placements": [(each.name, each.node) for each in decision.placements],
        "evictions": [(each.name, each.message) for each in decision.evictions],
        "nominations": [(each.name, each.node) for each in decision.nominations],
        "enqueued": [each.key for each in decision.enqueued],
        "conditions": {
            (each.name, each.reason, each.message)
            for report in decision.reports
            for each in report.pod_conditions
        },
        "why": {
            (report.key, report.why.encode())
            for report in decision.reports
            if report.why is not None and report.pod_conditions
        },
        "stats": decision.stats.queues,
    }


@given(STEPS)
@settings(max_examples=examples(40), deadline=None)
def test_described_and_stored_groups_get_the_same_decisions(steps: list[Any]) -> None:
    one, other = Cluster(stored=True), Cluster(stored=False)
    for step in steps:
        for each in (one, other):
            each.step(step)
        for _ in range(3):
            left, right = one.cycle(), other.cycle()
            assert shown(left) == shown(right)
            assert one.sums() == other.sums()
            assert one.phases() == other.phases()
    for each in (one, other):
        for it in each.jobs.values():
            each.world.remove(it)
        for group in each.groups.values():
            each.world.remove(group)
        each.cycle()
        assert not each.world.cluster.gangs
    assert not len(other.world.cluster.described)


@given(STEPS)
@settings(max_examples=examples(20), deadline=None)
def test_a_restart_finds_what_is_allocated(steps: list[Any]) -> None:
    before = Cluster(stored=False)
    for step in steps:
        before.step(step)
        before.cycle()
    after = Cluster(stored=False)
    after.apply(*before.nodes.values())
    for name, it in before.jobs.items():
        if it.status.phase != "Deleted":
            after.put(name, it)
    allocated = [each.uid for each in after.cycle().placements]
    bound = {it.metadata.uid for it in before.jobs.values() if it.spec.node_name}
    assert not bound.intersection(allocated)
    for name, it in before.jobs.items():
        if it.spec.node_name and it.status.phase == "Running":
            assert after.world.cluster.gangs[f"ns/{name}"].phase == PodGroupPhase.RUNNING


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
