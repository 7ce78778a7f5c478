"""Counts of PodGroups that pods describe, against a full recount."""

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.examples import examples

from batholith.model.described_podgroup import encode
from batholith.model.meta import ObjectMeta
from batholith.model.names import GROUP_NAME, PODGROUP
from batholith.model.pod import PodPhaseStatus
from batholith.model.podgroup import PodGroup, PodGroupSpec, PodGroupStatus
from batholith.queue_ctrl.counts import QueueCounts
from batholith.queue_ctrl.described_podgroups import DescribedCounts, Pod, PodSpec

GROUPS = st.sampled_from("abc")
QUEUES = ("default", "x", "y")


def pod(group: str, uid: int, queue: str, node: str, phase: str) -> Pod:
    described = PodGroup(spec=PodGroupSpec(min_member=1, queue=queue))
    annotations = {GROUP_NAME: group, PODGROUP: encode(described)}
    meta = ObjectMeta(
        name=f"{group}-{uid}",
        namespace="d",
        uid=f"{group}{uid}",
        annotations=annotations,
        creation_timestamp=f"2026-01-01T00:00:0{uid}Z",
    )
    return Pod(metadata=meta, spec=PodSpec(node_name=node), status=PodPhaseStatus(phase=phase))


class DescribedCountsMachine(RuleBasedStateMachine):
    """Pods and PodGroups are added, changed and deleted."""

    @initialize()
    def start(self) -> None:
        self.counts = QueueCounts()
        self.stored: dict[str, PodGroup] = {}
        self.described = DescribedCounts(self.counts, lambda key: key in self.stored)
        self.pods: dict[str, Pod] = {}

    @rule(
        group=GROUPS,
        uid=st.integers(0, 2),
        queue=st.sampled_from(["", *QUEUES]),
        node=st.sampled_from(["", "n"]),
        phase=st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
    )
    def put(self, group: str, uid: int, queue: str, node: str, phase: str) -> None:
        new = pod(group, uid, queue, node, phase)
        before = {each: self.counts.get(each) for each in QUEUES}
        changed = self.described.observe_pod(self.pods.get(new.metadata.uid), new)
        self.pods[new.metadata.uid] = new
        assert {each for each, was in before.items() if self.counts.get(each) != was} <= changed

    @rule(which=st.integers(0, 8))
    def remove(self, which: int) -> None:
        if self.pods:
            uid = sorted(self.pods)[which % len(self.pods)]
            self.described.observe_pod(self.pods.pop(uid), None)

    @rule(group=GROUPS, queue=st.sampled_from(QUEUES))
    def store_or_delete(self, group: str, queue: str) -> None:
        key = f"d/{group}"
        old = self.stored.pop(key, None)
        new = None
        if old is None:
            new = self.stored[key] = PodGroup(
                metadata=ObjectMeta(name=group, namespace="d", uid="u"),
                spec=PodGroupSpec(queue=queue),
                status=PodGroupStatus(phase="Inqueue"),
            )
        self.counts.observe(old, new)
        self.described.update(key)

    @invariant()
    def agrees(self) -> None:
        """Each PodGroup counts once: the stored one, or that of its newest unfinished pod."""
        expected = Counter((each.spec.queue, "Inqueue") for each in self.stored.values())
        newest: dict[str, Pod] = {}
        for each in sorted(self.pods.values(), key=lambda pod: pod.metadata.name):
            if each.status.phase in ("Pending", "Running"):
                newest[f"d/{each.metadata.annotations[GROUP_NAME]}"] = each
        for key, each in newest.items():
            if key not in self.stored:
                text = each.metadata.annotations[PODGROUP]
                queue = next((name for name in QUEUES if f'"{name}"' in text), "default")
                expected[queue, "Running" if each.spec.node_name else "Pending"] += 1
        for queue in QUEUES:
            found = self.counts.get(queue)
            assert found.total == sum(n for (name, _), n in expected.items() if name == queue)
            assert found.running == expected[queue, "Running"]
            assert found.pending == expected[queue, "Pending"]
            assert found.inqueue == expected[queue, "Inqueue"]


TestDescribedCountsMachine = DescribedCountsMachine.TestCase
TestDescribedCountsMachine.settings = settings(
    max_examples=examples(50), stateful_step_count=30, deadline=None
)
