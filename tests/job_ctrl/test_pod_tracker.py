"""The ledger's running counts are those of its pods, whatever happens in whatever order."""

import dataclasses

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.jobs import job, pod_info, task

from batholith.job_ctrl.core_types import Pod
from batholith.job_ctrl.pod_info import PodInfo, parse_pod
from batholith.job_ctrl.pod_tracker import PodTracker
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
        st.tuples(st.just("doom"), PODS),
        st.tuples(st.just("reprieve"), PODS),
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
    elif step == "doom":
        tracker.mark_deleting([what.uid])
    else:
        tracker.unmark_deleting([what.uid])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_counts_equal_pods(steps: list[tuple[str, PodInfo | int]]) -> None:
    ledger = PodTracker()
    ledger.set_job(job(task("a", 2), task("b", 2)))
    for step, what in steps:
        apply_step(ledger, step, what)
        ledger.validate()
    for version in range(3):
        counts = ledger.counts(version)
        live = [pod for pod in ledger.active() if pod.version == version]
        done = list(ledger.finished())
        assert sum(sum(phases.values()) for phases in counts.tasks.values()) == len(live + done)
        assert counts.finished == sum(pod.phase in FINISHED for pod in done)
        assert {*ledger.outdated(version)} == {
            pod for pod in ledger.active() if pod.version < version
        }


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(STEPS)
def test_the_books_are_empty_when_the_pods_are_gone(
    steps: list[tuple[str, PodInfo | int]],
) -> None:
    """INV-VC-3 for the part of the ledger."""
    ledger = PodTracker()
    for step, what in steps:
        apply_step(ledger, step, what)
    for name in ("a-0", "a-1", "a-2", "b-0", "b-1", "c-0"):
        ledger.remove(f"uid-{name}")
    assert len(ledger) == 0
    ledger.validate()
    assert ledger.counts(0).unfinished == 0


def events_of(tracker: PodTracker) -> list[tuple[JobEvent, str]]:
    return [(one.event_type, one.pod) for one in tracker.events]


def tracked_pods() -> PodTracker:
    ledger = PodTracker()
    ledger.set_job(job(task("t", 2)))
    ledger.update(pod_info())
    ledger.drop_events(ledger.events)
    return ledger


def test_a_pod_that_goes_was_evicted_unless_we_asked_for_it() -> None:
    ledger = tracked_pods()
    ledger.remove("uid-t-0")
    assert events_of(ledger) == [(JobEvent.POD_EVICTED, "j-t-0")]
    ledger = tracked_pods()
    ledger.mark_deleting(["uid-t-0"])
    ledger.update(pod_info(phase=PodPhase.FAILED, terminating=True))
    ledger.remove("uid-t-0")
    assert events_of(ledger) == []


def test_inv_ex_6_a_pod_seen_to_go_twice_counts_once() -> None:
    """Once it is being deleted, and once it is gone."""
    ledger = tracked_pods()
    ledger.update(pod_info("t-1"))
    ledger.mark_deleting(["uid-t-0"])
    for _ in range(2):
        assert (ledger.counts(0).terminating, ledger.counts(0).unfinished) == (1, 2)
        ledger.update(pod_info(terminating=True))
    for _ in range(2):
        ledger.remove("uid-t-0")
        assert (ledger.counts(0).terminating, ledger.counts(0).unfinished) == (0, 1)
        assert ledger.missing("t") == [0]
    ledger.validate()


def test_a_pod_that_fails_is_a_happening_with_its_exit_code() -> None:
    ledger = tracked_pods()
    ledger.update(pod_info(phase=PodPhase.FAILED, exit_code=3))
    assert [one.exit_code for one in ledger.events] == [3]
    ledger.update(pod_info(phase=PodPhase.FAILED, exit_code=3, terminating=True))
    assert events_of(ledger) == [(JobEvent.POD_FAILED, "j-t-0")]


def test_a_replacement_that_runs_undoes_what_nobody_answered() -> None:
    ledger = tracked_pods()
    ledger.remove("uid-t-0")
    ledger.update(pod_info(phase=PodPhase.PENDING, uid="uid-new"))
    assert (JobEvent.POD_EVICTED, "j-t-0") in events_of(ledger)
    ledger.update(pod_info(phase=PodPhase.RUNNING, uid="uid-new"))
    assert events_of(ledger) == []


def test_a_pod_of_an_earlier_job_holds_its_name_and_counts_nowhere() -> None:
    ledger = PodTracker()
    ledger.set_job(job(task("t", 2)))
    ledger.update(pod_info(owner="uid-earlier"))
    assert ledger.missing("t") == [1]
    assert ledger.counts(0).unfinished == 0
    ledger.remove("uid-t-0")
    assert ledger.missing("t") == [0, 1]


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
    tracker.set_job(job(task("t", 2)))
    pending = pod_info(phase=PodPhase.PENDING)
    tracker.add_created(pending)
    assert events_of(tracker) == []
    assert tracker.update(pending, first_observed=True)
    assert events_of(tracker) == [(JobEvent.POD_PENDING, "j-t-0")]


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
