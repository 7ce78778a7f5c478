"""What the pods mean for a Job, and what to do with them, as tables."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batch_views import (
    FAILED,
    ON_FAILURE,
    PENDING,
    RUNNING,
    START,
    SUCCEEDED,
    indexed,
    job,
    pod,
    view,
)

from batholith.batch_ctrl import conditions, decide
from batholith.batch_ctrl.backoff import BackoffRecord
from batholith.batch_ctrl.batch_pod import BatchPod
from batholith.batch_ctrl.conditions import Outcome
from batholith.batch_ctrl.core_types import Job, PolicyAction
from batholith.batch_ctrl.effects import (
    CountPods,
    Creation,
    Finished,
    ManagePods,
    ReleasePods,
    SetStatus,
    SyncAction,
)
from batholith.batch_ctrl.evaluation import evaluate
from batholith.batch_ctrl.failure_policy import FailureMatch
from batholith.machinery.reconcile.events import Event
from batholith.model.names import TIME_LIMIT
from batholith.model.pod import PodPhase


def limited(created: Job) -> Job:
    """The job with a time limit of 10 s."""
    annotations = {TIME_LIMIT: "10s"}
    metadata = msgspec.structs.replace(created.metadata, annotations=annotations)
    return msgspec.structs.replace(created, metadata=metadata)


FAILS_JOB = FailureMatch(PolicyAction.FAIL_JOB, "message")
FAILS_INDEX = FailureMatch(PolicyAction.FAIL_INDEX)
IGNORED = FailureMatch(PolicyAction.IGNORE)
POLICY: dict[str, Any] = {
    "podFailurePolicy": {"rules": [{"action": "Count", "onPodConditions": []}]}
}
TARGET = {"type": "FailureTarget", "status": "True", "reason": "R", "message": "M"}
MET = {**TARGET, "type": "SuccessCriteriaMet"}


def _outcome(of: Job, *pods: BatchPod, seconds: float = 0) -> Outcome | None:
    return evaluate(view(of, *pods, seconds=seconds)).outcome


@pytest.mark.parametrize(
    ("of", "pods", "seconds", "outcome"),
    [
        (job(), [], 0, None),
        (job({"conditions": [MET, TARGET]}), [], 0, conditions.success("R", "M")),
        (job({"conditions": [MET]}, backoffLimit=0), [pod(1, FAILED)], 0, "SuccessCriteriaMet"),
        (job({"conditions": [TARGET]}), [pod(1, SUCCEEDED)], 0, conditions.failure("R", "M")),
        (job(**POLICY), [pod(1, FAILED, match=FAILS_JOB)], 0, "PodFailurePolicy"),
        (job(**POLICY), [pod(1, RUNNING, terminating=True, match=FAILS_JOB)], 0, None),
        (job(backoffLimit=1), [pod(1, FAILED)], 0, None),
        (job(backoffLimit=1), [pod(1, FAILED), pod(2, FAILED)], 0, "BackoffLimitExceeded"),
        (job({"failed": 1}, backoffLimit=1), [pod(1, FAILED)], 0, "BackoffLimitExceeded"),
        (job(backoffLimit=0), [pod(1, terminating=True)], 0, "BackoffLimitExceeded"),
        (job(backoffLimit=0, podReplacementPolicy="Failed"), [pod(1, terminating=True)], 0, None),
        (job(backoffLimit=0, **POLICY), [pod(1, FAILED, match=IGNORED)], 0, None),
        (job(backoffLimit=0), [pod(1, FAILED, finalizer=False)], 0, None),
        (
            job({"uncountedTerminatedPods": {"failed": ["u1"]}}, backoffLimit=0),
            [pod(1, FAILED)],
            0,
            "BackoffLimitExceeded",
        ),
        (job({"failed": 6}), [], 0, None),
        (job({"failed": 7}), [], 0, "BackoffLimitExceeded"),
        (job(template=ON_FAILURE, backoffLimit=2), [pod(1, restarts=1)], 0, None),
        (job(template=ON_FAILURE, backoffLimit=2), [pod(1, restarts=2)], 0, "Backoff"),
        (job(template=ON_FAILURE, backoffLimit=0), [pod(1, restarts=0)], 0, None),
        (job(template=ON_FAILURE, backoffLimit=0), [pod(1, restarts=1)], 0, "Backoff"),
        (job(backoffLimit=0), [pod(1, restarts=9)], 0, None),
        (job(activeDeadlineSeconds=10), [], 9.9, None),
        (job(activeDeadlineSeconds=10), [], 10, "DeadlineExceeded"),
        (job(activeDeadlineSeconds=10, suspend=True), [], 10, None),
        (limited(job()), [], 9.9, None),
        (limited(job()), [], 10, "DeadlineExceeded"),
        (limited(job(activeDeadlineSeconds=5)), [], 5, "DeadlineExceeded"),
        (limited(job(suspend=True)), [], 10, None),
        (indexed(2, backoffLimit=0), [pod(1, FAILED, index=2)], 0, None),
        (indexed(2, backoffLimit=0), [pod(1, FAILED)], 0, None),
        (
            indexed(2, backoffLimitPerIndex=0, maxFailedIndexes=0),
            [pod(1, FAILED, index=1)],
            0,
            "MaxFailedIndexesExceeded",
        ),
        (indexed(2, backoffLimitPerIndex=0), [pod(1, FAILED, index=1)], 0, None),
        (
            indexed(2, {"completedIndexes": "0"}, backoffLimitPerIndex=0),
            [pod(1, FAILED, index=1)],
            0,
            "FailedIndexes",
        ),
        (indexed(2, backoffLimitPerIndex=1), [pod(1, FAILED, index=1)], 0, None),
        (
            indexed(1, backoffLimitPerIndex=9, **POLICY),
            [pod(1, FAILED, index=0, match=FAILS_INDEX)],
            0,
            "FailedIndexes",
        ),
        (
            indexed(1, backoffLimitPerIndex=0, **POLICY),
            [pod(1, FAILED, index=0, match=IGNORED)],
            0,
            None,
        ),
        (
            indexed(3, successPolicy={"rules": [{"succeededCount": 1}]}),
            [pod(1, SUCCEEDED, index=2)],
            0,
            "SuccessPolicy",
        ),
        (
            indexed(3, successPolicy={"rules": [{"succeededCount": 1}]}, backoffLimit=0),
            [pod(1, SUCCEEDED, index=2), pod(2, FAILED, index=1)],
            0,
            "BackoffLimitExceeded",
        ),
    ],
)
def test_outcome(
    of: Job, pods: list[BatchPod], seconds: float, outcome: Outcome | str | None
) -> None:
    """INV-BJ-15: the end of a Job follows from its pods, its status and the time alone."""
    found = _outcome(of, *pods, seconds=seconds)
    assert _outcome(of, *reversed(pods), seconds=seconds) == found
    if isinstance(outcome, Outcome) or outcome is None:
        assert found == outcome
    else:
        assert found is not None and (outcome in found.reason or outcome == found.interim)


def test_message_is_that_of_the_pod_that_failed_first() -> None:
    """INV-BJ-15."""
    later = FailureMatch(PolicyAction.FAIL_JOB, "later")
    pods = [
        pod(1, FAILED, match=later, finished_at=2.0),
        pod(2, FAILED, match=FAILS_JOB, finished_at=1.0),
    ]
    for order in (pods, pods[::-1]):
        assert _outcome(job(**POLICY), *order) == conditions.pod_failure_policy("message")


def test_evaluation_counts_new_pods_once() -> None:
    """INV-BJ-1."""
    of = job(
        {
            "succeeded": 1,
            "failed": 2,
            "uncountedTerminatedPods": {"succeeded": ["u1", "deleted"], "failed": ["u2"]},
        }
    )
    found = evaluate(
        view(
            of,
            pod(1, SUCCEEDED),
            pod(2, FAILED),
            pod(3, SUCCEEDED),
            pod(4, FAILED),
            pod(5, SUCCEEDED, finalizer=False),
            pod(6, FAILED, match=IGNORED),
        )
    )
    assert (found.succeeded, found.failed) == (1 + 2 + 1, 2 + 1 + 1)


def test_job_starts_when_it_is_not_suspended() -> None:
    assert evaluate(view(job({"startTime": None}))).start_time is not None
    assert evaluate(view(job({"startTime": None}, suspend=True))).start_time is None


def test_latest_failed_pod_of_an_index_is_retained() -> None:
    of = indexed(4, {"completedIndexes": "3"}, backoffLimitPerIndex=2)
    found = evaluate(
        view(
            of,
            pod(1, FAILED, index=0, failures=0),
            pod(2, FAILED, index=0, failures=1),
            pod(3, FAILED, index=1),
            pod(4, RUNNING, index=1),
            pod(5, FAILED, index=2, failures=2),
            pod(6, FAILED, index=3),
        )
    )
    assert {index: one.name for index, one in found.retained.items()} == {0: "p2"}
    assert str(found.failed_indexes) == "2"


# Plans.


def _plan(of: Job, *pods: BatchPod, **options: Any) -> ManagePods:
    state = view(of, *pods, **options)
    return decide.manage(state, evaluate(state))


@pytest.mark.parametrize(
    ("of", "active", "created"),
    [
        (job(parallelism=2, completions=5), 0, 2),
        (job(parallelism=2, completions=5), 1, 1),
        (job(parallelism=2, completions=5), 2, 0),
        (job({"succeeded": 4}, parallelism=2, completions=5), 0, 1),
        (job({"succeeded": 5}, parallelism=2, completions=5), 0, 0),
        (job({"succeeded": 9}, parallelism=2, completions=5), 0, 0),
        (job(parallelism=0, completions=5), 0, 0),
        (job(parallelism=3, completions=None), 1, 2),
        (job({"succeeded": 1}, parallelism=3, completions=None), 1, 0),
        (job(parallelism=2000, completions=2000), 0, 500),
        (job(parallelism=2, completions=5, deleted=True), 0, 0),
    ],
)
def test_number_of_creations(of: Job, active: int, created: int) -> None:
    """INV-BJ-3, INV-BJ-4: never more than the Job needs."""
    found = _plan(of, *(pod(number) for number in range(active)))
    assert len(found.create) == created and not found.delete
    assert found.managed != of.is_being_deleted
    assert (found.requeue_after == 0.0) == (created == 500)


@pytest.mark.parametrize(
    ("of", "active", "deleted"),
    [
        (job(parallelism=1, completions=5), 3, ["p0", "p1"]),
        (job({"succeeded": 4}, parallelism=3, completions=5), 2, ["p0"]),
        (job(suspend=True, parallelism=3), 2, ["p0", "p1"]),
        (job({"succeeded": 1}, parallelism=1, completions=None), 3, []),
    ],
)
def test_surplus_pods_are_deleted_uncounted(of: Job, active: int, deleted: list[str]) -> None:
    """INV-BJ-8."""
    found = _plan(of, *(pod(number) for number in range(active)))
    assert sorted(one.name for one in found.delete) == deleted
    assert not found.counts_deleted and found.managed and not found.create


def test_end_deletes_all_pods_and_lets_them_count() -> None:
    found = _plan(job(backoffLimit=0, parallelism=3), pod(1), pod(2), pod(3, FAILED))
    assert {one.name for one in found.delete} == {"p1", "p2"}
    assert found.counts_deleted and not found.managed


def test_indexed_pods_are_deleted_if_misplaced_or_duplicated() -> None:
    """INV-BJ-4: at most one active pod of an index."""
    pods = [
        pod(1, index=0),
        pod(2, index=0),
        pod(3, index=1),
        pod(4, index=7),
        pod(5),
    ]
    found = _plan(indexed(3), *pods)
    assert [one.name for one in found.delete] == ["p4", "p5", "p1"]
    assert not found.create, "deletion has priority"


def test_pending_indexes_are_the_lowest_without_a_pod() -> None:
    of = indexed(9, {"completedIndexes": "0,3"}, parallelism=4)
    found = _plan(of, pod(1, index=1), pod(2, SUCCEEDED, index=2), pod(3, index=4))
    assert [one.index for one in found.create] == [5, 6]


@pytest.mark.parametrize(("waits", "created"), [(True, []), (False, [0])])
def test_terminating_pod_is_replaced_by_policy(waits: bool, created: list[int]) -> None:
    replacement = "Failed" if waits else "TerminatingOrFailed"
    of = indexed(1, podReplacementPolicy=replacement)
    found = _plan(of, pod(1, terminating=True, index=0), seconds=900)
    assert [one.index for one in found.create] == created


def test_pod_without_node_is_not_waited_for() -> None:
    of = indexed(1, podReplacementPolicy="Failed")
    found = _plan(of, pod(1, PENDING, terminating=True, scheduled=False, index=0), seconds=900)
    assert [one.index for one in found.create] == [0]


def test_creation_waits_for_the_backoff_of_the_job() -> None:
    """INV-BJ-7."""
    now = START.timestamp()
    found = _plan(job(), backoff=BackoffRecord(2, now), seconds=5)
    assert (found.create, found.requeue_after) == ((), 15.0)
    assert found.action is SyncAction.PODS_CREATED
    assert len(_plan(job(), backoff=BackoffRecord(2, now), seconds=20).create) == 1


def test_creation_waits_for_the_backoff_of_its_index() -> None:
    """INV-BJ-7: other indexes do not wait."""
    of = indexed(3, backoffLimitPerIndex=5, **POLICY)
    end = START.timestamp()
    pods = [
        pod(1, FAILED, index=0, failures=1, ignored_failures=1, finished_at=end),
        pod(2, FAILED, index=1, match=IGNORED, finished_at=end),
    ]
    found = _plan(of, *pods, seconds=12)
    assert found.create == (
        Creation(1, failures=0, ignored_failures=1),
        Creation(2, failures=0),
    )
    assert found.requeue_after == 28.0
    replaced = _plan(of, *pods, seconds=40).create[0]
    assert replaced == Creation(0, failures=2, ignored_failures=1)


@given(
    st.lists(st.tuples(st.sampled_from(PodPhase), st.booleans(), st.integers(0, 3)), max_size=8),
    st.integers(0, 4),
    st.integers(0, 4),
    st.booleans(),
)
def test_plan_creates_or_deletes_what_is_missing(
    pods: list[tuple[PodPhase, bool, int]], completions: int, parallelism: int, waits: bool
) -> None:
    """INV-BJ-3, INV-BJ-4, INV-BJ-15: for any pods, and the same each time."""
    of = indexed(
        completions,
        parallelism=parallelism,
        podReplacementPolicy="Failed" if waits else "TerminatingOrFailed",
    )
    infos = [
        pod(number, phase, terminating=terminating, index=index)
        for number, (phase, terminating, index) in enumerate(pods)
    ]
    state = view(of, *infos, seconds=9000)
    found = decide.manage(state, evaluate(state))
    assert found == decide.manage(state, evaluate(state))
    assert not (found.create and found.delete)
    active = [one.index for one in infos if one.active and one not in found.delete]
    after = active + [one.index for one in found.create]
    if not found.delete or len(found.delete) < len(active):
        assert len(set(after)) == len(after)
    assert len(after) <= parallelism and all((one or 0) < completions for one in after)


# The rest of a sync.


@pytest.mark.parametrize("released", [True, False])
def test_job_ends_once_its_counted_pods_have_no_finalizer(released: bool) -> None:
    """INV-BJ-1, INV-BJ-2: first the status with the pod, then its release, then the end."""
    of = view(indexed(1), pod(1, SUCCEEDED, index=0))
    kinds = list[type]()
    for effect in decide.decide(of):
        kinds.append(type(effect))
        if isinstance(effect, CountPods):
            assert effect.status.completed_indexes == "0"
        if isinstance(effect, ReleasePods) and released:
            for one in effect.pods:
                of.pods.expect_finalizer_removed(one.uid)
    end = [Finished, Event] if released else []
    assert kinds == [ManagePods, CountPods, ReleasePods, SetStatus, *end]


def test_decision_changes_nothing_and_is_repeated_after_a_crash() -> None:
    """INV-BJ-15: executed or not, the first effects of a sync are the same."""
    of = view(job(parallelism=2, completions=3), pod(1, SUCCEEDED), pod(2, RUNNING))
    assert list(decide.decide(of)) == list(decide.decide(of))


def test_suspended_condition_follows_a_managed_sync_only() -> None:
    running, suspended = view(job()), view(job(suspend=True))
    managed, unmanaged = ManagePods(managed=True), ManagePods()
    assert decide.suspension(suspended, managed, None) == conditions.SUSPENDED
    assert decide.suspension(running, managed, None) == conditions.RESUMED
    assert decide.suspension(suspended, unmanaged, None) is None
    assert decide.suspension(suspended, managed, conditions.COMPLETIONS_REACHED) is None


@pytest.mark.parametrize(
    ("of", "active", "complete"),
    [
        (job({"succeeded": 1}), 0, True),
        (job({"succeeded": 1}), 1, False),
        (job({"succeeded": 0}), 0, False),
        (job(completions=0), 0, True),
        (job(completions=None), 0, False),
        (job({"succeeded": 1}, completions=None), 0, True),
        (job({"succeeded": 1}, completions=None), 1, False),
        (indexed(2, {"completedIndexes": "0,1"}), 0, True),
        (indexed(2, {"completedIndexes": "0"}), 0, False),
        (indexed(0), 0, True),
    ],
)
def test_completion(of: Job, active: int, complete: bool) -> None:
    effects = decide.decide(view(of, *(pod(number) for number in range(active))))
    assert any(isinstance(each, Finished) for each in effects) == complete
