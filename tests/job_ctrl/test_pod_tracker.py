"""The tracker's incremental counts equal its pods, after changes in any order."""

import dataclasses

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.jobs import job, pod_info, task

from batholith.job_ctrl.tracker.core_types import Pod
from batholith.job_ctrl.tracker.pod_info import PodInfo, parse_pod
from batholith.job_ctrl.tracker.pod_tracker import PodTracker
from batholith.model.job import JobEvent
from batholith.model.meta import ObjectMeta, OwnerReference
from batholith.model.pod import FINISHED, PodPhase

PODS = st.builds(
    lambda name, phase, changes: pod_info(name, phase, **changes),
    st.sampled_from(["a-0", "a-1", "a-2", "b-0", "b-1", "c-0"]),
    st.sampled_from(PodPhase),
    st.fixed_dictionaries(
        {
            "version": st.integers(0, 2),
            "terminating": st.booleans(),
            "owner": st.sampled_from(["uid-j", "uid-other"]),
        }
    ),
)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), PODS),
        st.tuples(st.just("drop"), PODS),
        st.tuples(st.just("delete"), PODS),
        st.tuples(st.just("undelete"), PODS),
        st.tuples(st.just("scale"), st.integers(0, 3)),
    ),
    max_size=40,
)


def apply_step(tracker: PodTracker, step: str, what: PodInfo | int) -> None:
    """Do one step of a random history."""
    if isinstance(what, int):
        tracker.set_job(job(task("a", what), task("b", 2)))
    elif step == "put":
        tracker.update(what)
    elif step == "drop":
        tracker.remove(what.uid)
    elif step == "delete":
        tracker.mark_deleting([what.uid])
    else:
        tracker.unmark_deleting([what.uid])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_counts_equal_pods(steps: list[tuple[str, PodInfo | int]]) -> None:
    tracker = PodTracker()
    tracker.set_job(job(task("a", 2), task("b", 2)))
    for step, what in steps:
        apply_step(tracker, step, what)
        tracker.validate()
    for version in range(3):
        counts = tracker.counts(version)
        live = [pod for pod in tracker.active() if pod.version == version]
        done = list(tracker.finished())
        assert sum(sum(phases.values()) for phases in counts.tasks.values()) == len(live + done)
        assert counts.finished == sum(pod.phase in FINISHED for pod in done)
        assert {*tracker.outdated(version)} == {
            pod for pod in tracker.active() if pod.version < version
        }


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_tracker_is_empty_after_the_deletion_of_all_pods(
    steps: list[tuple[str, PodInfo | int]],
) -> None:
    """INV-VC-3 for the tracker."""
    tracker = PodTracker()
    for step, what in steps:
        apply_step(tracker, step, what)
    for name in ("a-0", "a-1", "a-2", "b-0", "b-1", "c-0"):
        tracker.remove(f"uid-{name}")
    assert len(tracker) == 0
    tracker.validate()
    assert tracker.counts(0).unfinished == 0


def events_of(tracker: PodTracker) -> list[tuple[JobEvent, str]]:
    return [(one.event_type, one.pod) for one in tracker.events]


def tracked_pods() -> PodTracker:
    tracker = PodTracker()
    tracker.set_job(job(task("t", 2)))
    tracker.update(pod_info())
    tracker.drop_events(tracker.events)
    return tracker


def test_deleted_pod_is_evicted_unless_the_controller_deleted_it() -> None:
    tracker = tracked_pods()
    tracker.remove("uid-t-0")
    assert events_of(tracker) == [(JobEvent.POD_EVICTED, "j-t-0")]
    tracker = tracked_pods()
    tracker.mark_deleting(["uid-t-0"])
    tracker.update(pod_info(phase=PodPhase.FAILED, terminating=True))
    tracker.remove("uid-t-0")
    assert events_of(tracker) == []


def test_inv_ex_6_two_observations_of_a_deletion_count_once() -> None:
    """While it is being deleted, and after its deletion."""
    tracker = tracked_pods()
    tracker.update(pod_info("t-1"))
    tracker.mark_deleting(["uid-t-0"])
    for _ in range(2):
        assert (tracker.counts(0).terminating, tracker.counts(0).unfinished) == (1, 2)
        tracker.update(pod_info(terminating=True))
    for _ in range(2):
        tracker.remove("uid-t-0")
        assert (tracker.counts(0).terminating, tracker.counts(0).unfinished) == (0, 1)
        assert tracker.missing("t") == [0]
    tracker.validate()


def test_failed_pod_is_an_event_with_its_exit_code() -> None:
    tracker = tracked_pods()
    tracker.update(pod_info(phase=PodPhase.FAILED, exit_code=3))
    assert [one.exit_code for one in tracker.events] == [3]
    tracker.update(pod_info(phase=PodPhase.FAILED, exit_code=3, terminating=True))
    assert events_of(tracker) == [(JobEvent.POD_FAILED, "j-t-0")]


def test_running_replacement_removes_an_unhandled_eviction() -> None:
    tracker = tracked_pods()
    tracker.remove("uid-t-0")
    tracker.update(pod_info(phase=PodPhase.PENDING, uid="uid-new"))
    assert (JobEvent.POD_EVICTED, "j-t-0") in events_of(tracker)
    tracker.update(pod_info(phase=PodPhase.RUNNING, uid="uid-new"))
    assert events_of(tracker) == []


def test_a_pod_of_an_earlier_job_holds_its_name_and_counts_nowhere() -> None:
    tracker = PodTracker()
    tracker.set_job(job(task("t", 2)))
    tracker.update(pod_info(owner="uid-earlier"))
    assert tracker.missing("t") == [1]
    assert tracker.counts(0).unfinished == 0
    tracker.remove("uid-t-0")
    assert tracker.missing("t") == [0, 1]


def test_created_pod_counts_until_its_expectation_expires() -> None:
    tracker = PodTracker()
    tracker.set_job(job(task("t", 2)))
    tracker.add_created(pod_info(phase=PodPhase.PENDING))
    assert tracker.missing("t") == [1]
    tracker.remove_created("uid-t-0")
    assert tracker.missing("t") == [0, 1]
    assert events_of(tracker) == []


def test_first_observation_of_a_created_pod_causes_its_events() -> None:
    tracker = PodTracker()
    policies = [{"event": "PodPending", "action": "AbortJob", "timeout": "1m"}]
    tracker.set_job(job(task("t", 2, policies=policies)))
    pending = pod_info(phase=PodPhase.PENDING)
    tracker.add_created(pending)
    assert events_of(tracker) == []
    assert tracker.update(pending, first_observed=True)
    assert events_of(tracker) == [(JobEvent.POD_PENDING, "j-t-0")]


def test_first_observation_of_a_created_pod_is_no_change_without_policies() -> None:
    tracker = PodTracker()
    tracker.set_job(job(task("t", 2)))
    pending = pod_info(phase=PodPhase.PENDING)
    tracker.add_created(pending)
    assert not tracker.update(pending, first_observed=True)
    assert events_of(tracker) == []
    assert tracker.update(pod_info(phase=PodPhase.RUNNING))


def test_a_new_pod_observed_before_the_response_is_no_change_without_policies() -> None:
    tracker = PodTracker()
    tracker.set_job(job(task("t", 2)))
    assert not tracker.update(pod_info(phase=PodPhase.PENDING), first_observed=True)
    assert (events_of(tracker), tracker.has_index("t", 0)) == ([], True)
    assert tracker.update(pod_info(phase=PodPhase.RUNNING))


def test_a_pod_that_has_started_before_the_response_is_a_change() -> None:
    tracker = PodTracker()
    tracker.set_job(job(task("t", 2)))
    assert tracker.update(pod_info(phase=PodPhase.RUNNING), first_observed=True)
    assert not tracker.all_pending


def pod(**changes: object) -> Pod:
    meta = ObjectMeta(
        name="j-t-1",
        namespace="ns",
        uid="u",
        annotations={
            "volcano.sh/job-name": "j",
            "volcano.sh/task-spec": "t",
            "volcano.sh/job-version": "2",
        },
        owner_references=(
            OwnerReference(
                api_version="batch.volcano.sh/v1alpha1",
                kind="Job",
                name="j",
                uid="uid-j",
                controller=True,
            ),
        ),
    )
    return Pod(metadata=msgspec.structs.replace(meta, **changes))


def test_only_pods_of_volcano_jobs_are_read() -> None:
    read_pod = parse_pod(pod())
    assert read_pod is not None
    assert dataclasses.asdict(read_pod) == dataclasses.asdict(
        pod_info("t-1", PodPhase.PENDING, uid="u", version=2)
    )
    assert parse_pod(pod(owner_references=())) is None
    assert parse_pod(pod(annotations={})) is None
    assert parse_pod(pod(name="else-1")) is None
