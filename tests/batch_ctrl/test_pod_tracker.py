"""What the tracker keeps is what a full computation over its pods yields."""

from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from support.batch_tracker import check_tracker
from support.stateful import stateful_settings

from batholith.batch_ctrl.batch_pod import BatchPod, JobTraits
from batholith.batch_ctrl.core_types import PolicyAction
from batholith.batch_ctrl.failure_policy import FailureMatch
from batholith.batch_ctrl.pod_tracker import BatchPodTracker, FreeIndexes
from batholith.model.pod import PodPhase
from batholith.model.selectors import Selector

COMPLETIONS = 6
FAILS_JOB = FailureMatch(PolicyAction.FAIL_JOB, "failed")


def traits(*, indexed: bool = True, waits: bool = False) -> JobTraits:
    return JobTraits(
        uid="job",
        indexed=indexed,
        completions=COMPLETIONS if indexed else 0,
        replaces_only_failed=waits,
        policy=None,
        selector=Selector(),
        restarts_in_place=False,
    )


@st.composite
def pods(draw: st.DrawFn) -> BatchPod:
    number = draw(st.integers(0, 7))
    return BatchPod(
        uid=f"uid-{number}",
        name=f"p-{number}",
        index=draw(st.sampled_from([None, *range(COMPLETIONS + 2)])),
        phase=draw(st.sampled_from(PodPhase)),
        terminating=draw(st.booleans()),
        finalizer=draw(st.booleans()),
        scheduled=draw(st.booleans()),
        matches=draw(st.booleans()),
        ready=draw(st.booleans()),
        restarts=draw(st.integers(0, 3)),
        match=draw(st.sampled_from([FailureMatch(), FAILS_JOB])),
        resource_version=str(draw(st.integers(1, 9))),
    )


@dataclass
class _Own:
    """Own writes to a pod that are not observed yet."""

    deleted: bool = False
    released: bool = False


class TrackerMachine(RuleBasedStateMachine):
    """A tracker and the simplest model of it: pods, and own writes."""

    @initialize(indexed=st.booleans(), waits=st.booleans())
    def begin(self, indexed: bool, waits: bool) -> None:
        self.traits = traits(indexed=indexed, waits=waits)
        self.tracker = BatchPodTracker(self.traits)
        self.model: dict[str, BatchPod] = {}
        self.own: dict[str, _Own] = {}
        self.created: dict[str, int] = {}
        self.excluded = frozenset[int]()

    @rule(pod=pods())
    def observe(self, pod: BatchPod) -> None:
        pod = self._indexed(pod)
        self.tracker.observe(pod)
        own = self.own.setdefault(pod.uid, _Own())
        own.deleted &= not pod.terminating
        own.released &= pod.finalizer
        self.model[pod.uid] = pod
        self.created.pop(pod.uid, None)

    @rule(pod=pods())
    def create(self, pod: BatchPod) -> None:
        pod = replace(self._indexed(pod), terminating=False, finalizer=True)
        self.tracker.add_created(pod)
        if pod.uid not in self.model:
            self.model[pod.uid] = pod
            self.created[pod.uid] = int(pod.resource_version)

    def _indexed(self, pod: BatchPod) -> BatchPod:
        return pod if self.traits.indexed else replace(pod, index=None)

    @rule(number=st.integers(0, 7))
    def remove(self, number: int) -> None:
        self._remove(f"uid-{number}")

    def _remove(self, uid: str) -> None:
        self.tracker.remove(uid)
        for known in (self.model, self.own, self.created):
            known.pop(uid, None)

    @rule(version=st.integers(0, 9))
    def informer_synced(self, version: int) -> None:
        self.tracker.remove_unreported(version)
        for uid in [uid for uid, created in self.created.items() if created <= version]:
            self._remove(uid)

    @rule(number=st.integers(0, 7))
    def delete(self, number: int) -> None:
        uid = f"uid-{number}"
        self.tracker.mark_deleted(uid)
        if uid in self.model and not self._effective(uid).terminating:
            self.own.setdefault(uid, _Own()).deleted = True

    @rule(number=st.integers(0, 7), fails=st.booleans())
    def release(self, number: int, fails: bool) -> None:
        uid = f"uid-{number}"
        before = uid in self.model and self._effective(uid).finalizer
        self.tracker.expect_finalizer_removed(uid)
        if fails:
            self.tracker.restore_finalizer(uid)
        if before or fails:
            self.own.setdefault(uid, _Own()).released = before and not fails

    @rule(excluded=st.frozensets(st.integers(0, COMPLETIONS)))
    def more_indexes_end(self, excluded: frozenset[int]) -> None:
        self.excluded |= excluded

    @rule(excluded=st.frozensets(st.integers(0, COMPLETIONS)))
    def status_is_changed_by_another_client(self, excluded: frozenset[int]) -> None:
        self.excluded = excluded
        self.tracker.examine_all_indexes()

    @rule(completions=st.integers(0, COMPLETIONS + 2))
    def scale(self, completions: int) -> None:
        self.traits = replace(self.traits, completions=completions)
        self.tracker = self.tracker.with_traits(self.traits)

    @rule(count=st.integers(0, 4))
    def first_free_indexes_are_those_of_a_scan(self, count: int) -> None:
        """INV-BJ-4."""
        found = self.tracker.first_free(count, is_excluded=self.excluded.__contains__)
        pods = [self._effective(uid) for uid in self.model]
        occupied = {
            pod.index
            for pod in pods
            if pod.active or (self.traits.replaces_only_failed and pod.may_run)
        }
        free = [
            index
            for index in range(self.traits.completions)
            if index not in occupied and index not in self.excluded
        ]
        expected = free[:count] if self.traits.indexed else found
        assert found == expected

    def _effective(self, uid: str) -> BatchPod:
        pod, own = self.model[uid], self.own.get(uid, _Own())
        return replace(
            pod,
            terminating=pod.terminating or own.deleted,
            finalizer=pod.finalizer and not own.released,
        )

    @invariant()
    def what_is_kept_is_what_is_computed(self) -> None:
        if not hasattr(self, "tracker"):
            return
        expected = {uid: self._effective(uid) for uid in self.model}
        assert {pod.uid: pod for pod in self.tracker} == expected
        check_tracker(self.tracker)


class TestTracker(TrackerMachine.TestCase):  # type: ignore[valid-type,misc]
    settings = stateful_settings(steps=25, histories=60)


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.integers(0, 4))))
def test_free_indexes_are_the_lowest(steps: list[tuple[int, bool, int]]) -> None:
    free, occupied = FreeIndexes(), set[int]()
    for index, is_added, count in steps:
        if is_added:
            occupied.add(index)
        else:
            occupied.discard(index)
            free.release(index)
        found = free.first(count, limit=10, is_occupied=occupied.__contains__)
        assert found == [one for one in range(10) if one not in occupied][:count]


def test_search_does_not_examine_occupied_indexes_again() -> None:
    """The next index of a Job of 10,000 is found without a scan."""
    examined: list[int] = []

    def is_occupied(index: int) -> bool:
        examined.append(index)
        return index != 4 and index < 9_999

    free = FreeIndexes()
    free.first(1, limit=10_000, is_occupied=lambda index: index < 9_999)
    free.release(4)
    assert free.first(2, limit=10_000, is_occupied=is_occupied) == [4, 9_999]
    assert len(examined) < 5
