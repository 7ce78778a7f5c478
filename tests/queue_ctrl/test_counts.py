"""PodGroup counts updated by events, against a full recount."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.examples import examples

from batholith.model.meta import ObjectMeta
from batholith.model.podgroup import PodGroup, PodGroupSpec, PodGroupStatus
from batholith.queue_ctrl.counts import QueueCounts

PHASES = ("Pending", "Inqueue", "Running", "Unknown", "Completed")


def podgroup(name: str, queue: str, phase: str) -> PodGroup:
    return PodGroup(
        metadata=ObjectMeta(name=name, namespace="d"),
        spec=PodGroupSpec(queue=queue),
        status=PodGroupStatus(phase=phase),
    )


class CountsMachine(RuleBasedStateMachine):
    """PodGroups are added, change phase and queue, and are deleted."""

    @initialize()
    def start(self) -> None:
        self.counts = QueueCounts()
        self.podgroups: dict[str, PodGroup] = {}

    @rule(
        name=st.sampled_from("abcdef"),
        queue=st.sampled_from(["", "default", "x", "y"]),
        phase=st.sampled_from(["", *PHASES]),
    )
    def put(self, name: str, queue: str, phase: str) -> None:
        old, new = self.podgroups.get(name), podgroup(name, queue, phase)
        before = {each: self.counts.get(each) for each in ("default", "x", "y")}
        changed = self.counts.observe(old, new)
        self.podgroups[name] = new
        assert {each for each, was in before.items() if self.counts.get(each) != was} <= changed

    @rule(name=st.sampled_from("abcdef"))
    def remove(self, name: str) -> None:
        if name in self.podgroups:
            self.counts.observe(self.podgroups.pop(name), None)

    @invariant()
    def agrees(self) -> None:
        expected = Counter(
            (each.spec.queue or "default", each.status.phase) for each in self.podgroups.values()
        )
        for queue in ("default", "x", "y"):
            of = self.counts.get(queue)
            shown = tuple(expected[queue, phase] for phase in PHASES)
            assert of.status_counts == shown
            assert of.total == sum(n for (where, _), n in expected.items() if where == queue)
        assert len(self.counts) == len({queue for queue, _ in expected})


TestCountsMachine = CountsMachine.TestCase
TestCountsMachine.settings = settings(
    max_examples=examples(50), stateful_step_count=30, deadline=None
)


def test_event_without_a_count_change_adds_no_queue() -> None:
    counts = QueueCounts()
    assert counts.observe(None, podgroup("a", "x", "Pending")) == {"x"}
    assert counts.observe(podgroup("a", "x", "Pending"), podgroup("a", "x", "Pending")) == set()
    moved = counts.observe(podgroup("a", "x", "Pending"), podgroup("a", "y", "Running"))
    assert moved == {"x", "y"}
    assert counts.get("x").total == 0
