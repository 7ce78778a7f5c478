"""Random histories with ``preempt`` and ``reclaim``, checked by the oracle for evictions."""

from typing import Any

import msgspec
from hypothesis import event, given, note, settings
from hypothesis import strategies as st
from support.examples import examples
from support.preemption import EvictingWorld, member, node, podgroup
from support.scheduler_oracle.evictions import (
    Eviction,
    Facts,
    GangFacts,
    PodFacts,
    QueueFacts,
    violations,
)
from support.scheduler_queues import queue

from batholith.model.meta import LabelSelector, ObjectMeta
from batholith.scheduler.framework.decision import Decision
from batholith.scheduler.state.core_types import Affinity, PodAffinity, PodAffinityTerm
from batholith.scheduler.state.gangs.disruption_budgets import (
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
)

CONF = """
actions: "allocate, backfill, preempt, reclaim"
tiers:
- plugins:
  - name: priority
  - name: gang
    enablePreemptable: false
    enableReclaimable: false
  - name: conformance
  - name: pdb
  - name: capacity
- plugins:
  - name: predicates
  - name: nodeorder
"""
PRIORITIES = {"low": 1, "mid": 10, "high": 100}
APART = Affinity(
    pod_anti_affinity=PodAffinity(
        required_during_scheduling_ignored_during_execution=(
            PodAffinityTerm(
                topology_key="kubernetes.io/hostname",
                label_selector=LabelSelector(match_labels={"marked": "yes"}),
            ),
        )
    )
)


class Cluster:
    """The product, and the facts for the oracle."""

    def __init__(self, nodes: list[int], capability: int) -> None:
        self.facts = Facts(
            nodes={f"n{index}": cpus for index, cpus in enumerate(nodes)},
            queues={
                "one": QueueFacts("one", 4, capability),
                "two": QueueFacts("two", 4, 99),
            },
        )
        self.world = self.new_world()
        self.time = 0.0

    def new_world(self) -> EvictingWorld:
        world = EvictingWorld(CONF)
        for name, cpus in self.facts.nodes.items():
            labels = {"kubernetes.io/hostname": name}
            world.upsert(node(name, cpu=cpus, memory="100Gi", labels=labels))
        for each in self.facts.queues.values():
            deserved, capability = {"cpu": each.deserved}, {"cpu": each.capability}
            world.upsert(queue(each.name, deserved=deserved, capability=capability))
        return world

    def add(self, gang: GangFacts, pods: list[PodFacts]) -> None:
        """Create a gang and its pods."""
        self.facts.gangs[gang.name] = gang
        for each in pods:
            self.facts.pods[each.name] = each
        self.create(self.world, gang, pods)

    @staticmethod
    def create(world: EvictingWorld, gang: GangFacts, pods: list[PodFacts]) -> None:
        priority = next(name for name, value in PRIORITIES.items() if value == gang.priority)
        phase = "Running" if any(pod.node for pod in pods) else "Inqueue"
        world.upsert(
            podgroup(
                gang.name, gang.minimum, phase=phase, queue=gang.queue, priority_class=priority
            )
        )
        for each in pods:
            labels = {"marked": "yes"} if each.marked else {}
            extra: dict[str, Any] = {"affinity": APART} if each.apart else {}
            built = member(
                each.name,
                gang.name,
                each.node,
                cpu=each.cpu,
                labels=labels | ({"budgeted": "yes"} if each.budgeted else {}),
                preemptable="" if each.preemptable else "false",
                **extra,
            )
            nominated = "" if each.node else each.nominated
            status = msgspec.structs.replace(built.status, nominated_node_name=nominated)
            world.upsert(msgspec.structs.replace(built, status=status))
            if each.terminating:
                world.terminating(each.name)

    def cycle(self, world: EvictingWorld, facts: Facts) -> Decision:
        """Run a cycle, and carry it out."""
        terminating = sum(pod.budgeted and pod.terminating for pod in facts.pods.values())
        budget = PodDisruptionBudget(
            metadata=ObjectMeta(name="b", namespace="ns"),
            spec=PodDisruptionBudgetSpec(selector=LabelSelector(match_labels={"budgeted": "yes"})),
            status=PodDisruptionBudgetStatus(
                disruptions_allowed=max(facts.budget - terminating, 0)
            ),
        )
        world.cluster.disruption_budgets.update(None, budget)
        self.time += 1.0
        return world.run(time=self.time)

    def step(self) -> None:
        """Run a cycle, and check what it evicts."""
        decision = self.cycle(self.world, self.facts)
        evictions = [
            Eviction(each.name, each.message.split("gang ns/")[1].split(" ")[0])
            for each in decision.evictions
        ]
        for placement in decision.placements:
            self.facts.pods[placement.name].node = placement.node
            self.facts.pods[placement.name].nominated = ""
        nominated = {each.name: each.node for each in decision.nominations}
        note(f"{self.time}: evicts {evictions}, nominates {nominated}")
        wrong = list(violations(self.facts, evictions, nominated))
        assert not wrong, wrong
        for name, where in nominated.items():
            self.facts.pods[name].nominated = where
        for each in evictions:
            self.facts.pods[each.victim].terminating = True
        if evictions:
            event(f"victims: {len(evictions)}")
            self.check_that_beneficiaries_run({each.beneficiary for each in evictions})

    def check_that_beneficiaries_run(self, beneficiaries: set[str]) -> None:
        """Once the victims are deleted, also if the scheduler is restarted before.

        A gang of a higher priority may get what was freed, if it could not have evicted it.
        """
        world = self.new_world()
        for gang in self.facts.gangs.values():
            pods = [pod for pod in self.facts.pods.values() if pod.gang == gang.name]
            self.create(world, gang, pods)
        decisions = [self.cycle(world, self.facts)]
        world.finish_termination()
        decisions += [self.cycle(world, self.facts) for _ in range(2)]
        served_pods = [each.name for decision in decisions for each in decision.placements]
        served_pods += [each.name for decision in decisions for each in decision.nominations]
        served = {self.facts.gangs[self.facts.pods[pod].gang] for pod in served_pods}
        for name in beneficiaries:
            gang = self.facts.gangs[name]
            if any(each.queue == gang.queue and each.priority > gang.priority for each in served):
                event("taken by a higher priority")
                continue
            names = [pod.name for pod in self.facts.pods.values() if pod.gang == name]
            running = [each for each in names if each in self.alive(world) and world.node_of(each)]
            assert len(running) >= gang.minimum, f"{name} does not run"

    @staticmethod
    def alive(world: EvictingWorld) -> set[str]:
        return {each.metadata.name for each in world.pod_objects.values()}

    def end(self, names: list[str]) -> None:
        """Pods are deleted."""
        for name in names:
            self.world.remove(self.world.pod_objects[f"uid-{name}"])
            del self.facts.pods[name]


@st.composite
def gangs(draw: st.DrawFn, number: int) -> tuple[GangFacts, list[PodFacts]]:
    """A gang of equal pods."""
    count = draw(st.integers(1, 3))
    gang = GangFacts(
        f"g{number}",
        PRIORITIES[draw(st.sampled_from(sorted(PRIORITIES)))],
        draw(st.sampled_from(["one", "one", "two"])),
        draw(st.sampled_from([0, 0, count])),
    )
    kind = draw(st.sampled_from(["plain", "plain", "marked", "apart", "both"]))
    fields: dict[str, Any] = {
        "cpu": draw(st.integers(1, 4)),
        "marked": kind in ("marked", "both"),
        "apart": kind in ("apart", "both"),
        "budgeted": draw(st.sampled_from([False, False, True])),
        "preemptable": draw(st.sampled_from([True, True, True, False])),
    }
    return gang, [PodFacts(f"{gang.name}-t-{index}", gang.name, **fields) for index in range(count)]


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_evictions_are_permitted_sufficient_minimal_and_by_priority(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(3, 8), min_size=1, max_size=4))
    cluster = Cluster(sizes, data.draw(st.integers(4, 20)))
    for number in range(data.draw(st.integers(2, 8))):
        gang, pods = data.draw(gangs(number))
        note(f"add {gang} {pods}")
        cluster.add(gang, pods)
        cluster.step()
        ended = [pod.name for pod in cluster.facts.pods.values() if pod.terminating]
        if ended:
            cluster.end(data.draw(st.lists(st.sampled_from(ended), unique=True)))
    for _ in range(3):
        cluster.step()
        cluster.end([pod.name for pod in cluster.facts.pods.values() if pod.terminating])
    cluster.world.validate()
