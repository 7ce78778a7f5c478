"""Decisions: what a job in a given state needs."""

import itertools
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.training_harness import replica
from support.training_jobs import (
    BY_KIND,
    NOW,
    UID,
    Decision,
    after,
    conditions,
    decided,
    pod,
    service,
    typed,
    with_annotations,
)
from support.training_manifests import REQUIRED

from batholith.machinery.reconcile.events import Event
from batholith.model.meta import Condition, ObjectMeta, OwnerReference
from batholith.model.names import REPLACE_NODES, TIME_LIMIT
from batholith.model.recorded import RECORDED
from batholith.model.training.types import JobStatus
from batholith.training_ctrl import effects as fx
from batholith.training_ctrl.core_types import (
    ContainerState,
    Group,
    GroupStatus,
    Pod,
    Terminated,
)
from batholith.training_ctrl.frameworks.base import Member
from batholith.training_ctrl.gangs import SchedulerPluginsGang, VolcanoGang, gang_of
from batholith.training_ctrl.pods import build_pod
from batholith.training_ctrl.restarts import ANNOTATION, RestartRecord, encode

TF, PYTORCH, XGB, PADDLE, JAX, MPI = (
    "TFJob",
    "PyTorchJob",
    "XGBoostJob",
    "PaddleJob",
    "JAXJob",
    "MPIJob",
)


def effect(result: Decision, kind: type) -> Any:
    return next((each for each in result.writes if isinstance(each, kind)), None)


def deleted_pods(result: Decision) -> list[str]:
    found = effect(result, fx.DeletePods)
    return [each.metadata.name for each in found.pods] if found else []


def deleted_services(result: Decision) -> list[str]:
    found = effect(result, fx.DeleteServices)
    return [each.metadata.name for each in found.services] if found else []


def created_pods(result: Decision) -> list[tuple[str, int]]:
    return [
        (each.replica_type, index)
        for each in result.writes
        if isinstance(each, fx.CreatePods)
        for index in each.indices
    ]


def reasons(result: Decision) -> list[str]:
    return [
        each.event.reason
        for each in (*result.restarts, *result.announcements)
        if each.event is not None
    ]


def pytorch(workers: int = 1, policy: str = "OnFailure", **run_policy: Any) -> Any:
    return typed(
        PYTORCH,
        run_policy=run_policy,
        Master=replica(PYTORCH, policy=policy),
        Worker=replica(PYTORCH, workers, policy=policy),
    )


# The first decision.


def test_new_job_gets_its_pods_services_and_start_time() -> None:
    job = pytorch(2)
    result = decided(job)
    assert created_pods(result) == [("Master", 0), ("Worker", 0), ("Worker", 1)]
    assert [type(each) for each in result.writes] == [fx.CreatePods] * 2 + [fx.CreateServices] * 2
    assert conditions(result) == {"Created": ("True", "PyTorchJobCreated")}
    assert result.status.start_time == "2026-01-01T00:00:00Z"
    assert [each.counted for each in result.announcements] == ["created"]
    assert result.status.replica_statuses["Worker"].selector == (
        "training.kubeflow.org/job-name=j,training.kubeflow.org/operator-name=pytorchjob-controller,"
        "training.kubeflow.org/replica-type=worker"
    )


def test_second_decision_about_the_same_state_is_empty() -> None:
    """INV-TJ-12."""
    job = pytorch(1)
    pods = [pod(job, "Master", 0), pod(job, "Worker", 0)]
    services = (service(job, "Master", 0), service(job, "Worker", 0))
    first = decided(job, *pods, services=services)
    second = decided(after(job, first), *pods, services=services, now=NOW + timedelta(seconds=9))
    assert second == Decision(status=first.status)


def test_replicas_that_exist_are_not_created() -> None:
    job = pytorch(3)
    result = decided(job, pod(job, "Worker", 1))
    assert created_pods(result) == [("Master", 0), ("Worker", 0), ("Worker", 2)]


def test_pods_out_of_range_are_deleted_and_not_counted() -> None:
    job = pytorch(1)
    pods = [pod(job, "Worker", index) for index in (0, 1, 2)]
    negative = pod(job, "Worker", 0, uid="x", name="odd")
    negative.metadata.labels["training.kubeflow.org/replica-index"] = "-1"
    unindexed = pod(job, "Worker", 0, uid="y", name="none")
    unindexed.metadata.labels["training.kubeflow.org/replica-index"] = "zero"
    result = decided(job, *pods, negative, unindexed)
    assert deleted_pods(result) == ["j-worker-1", "j-worker-2", "odd"]
    assert effect(result, Event).message.startswith("Pod none is ignored")
    assert result.status.replica_statuses["Worker"].active == 1


def test_of_two_pods_with_an_index_one_is_kept() -> None:
    """INV-TJ-2: the pending one is deleted."""
    job = pytorch(1)
    result = decided(
        job, pod(job, "Worker", 0), pod(job, "Worker", 0, "Pending", uid="2", name="b")
    )
    assert deleted_pods(result) == ["b"]


def test_scaling_to_zero_creates_nothing() -> None:
    job = typed(XGB, Master=replica(XGB), Worker=replica(XGB, 0))
    assert created_pods(decided(job, pod(job, "Master", 0))) == []


# Restarts.


@pytest.mark.parametrize("policy", ["Always", "OnFailure", "ExitCode"])
def test_failed_pod_is_deleted_after_it_is_recorded(policy: str) -> None:
    """INV-TJ-7: the record is written first, and counts a pod once."""
    job = pytorch(1, policy)
    failed = pod(job, "Worker", 0, "Failed", code=137)
    result = decided(job, pod(job, "Master", 0), failed)
    assert result.record is not None and result.record.count == 1
    assert deleted_pods(result) == ["j-worker-0"]
    assert conditions(result)["Restarting"] == ("True", "PyTorchJobRestarting")
    assert reasons(result) == ["PyTorchJobRestarting"]
    recorded = with_annotations(after(job, result), {ANNOTATION: encode(result.record)})
    again = decided(recorded, pod(job, "Master", 0), failed)
    assert again.record is None and reasons(again) == []
    assert deleted_pods(again) == ["j-worker-0"]


def test_a_deleted_pod_stays_in_the_record_while_the_informer_has_it() -> None:
    """INV-TJ-7: it would count again if the watch is later than own writes are kept."""
    job = pytorch(2, "OnFailure")
    counted = RestartRecord(job_uid=UID, count=1, pods=("uid-j-worker-0",))
    job = with_annotations(job, {ANNOTATION: encode(counted)})
    pods = (pod(job, "Master", 0), pod(job, "Worker", 1, "Failed", code=137))
    late = decided(job, *pods, observed_pods=frozenset(("uid-j-worker-0", "uid-j-worker-1")))
    assert late.record is not None
    assert (late.record.count, late.record.pods) == (2, ("uid-j-worker-0", "uid-j-worker-1"))
    reported = decided(job, *pods).record
    assert reported is not None and reported.pods == ("uid-j-worker-1",)


def test_program_error_fails_the_job() -> None:
    job = pytorch(1, "ExitCode")
    result = decided(job, pod(job, "Master", 0), pod(job, "Worker", 0, "Failed", code=1))
    assert result.writes == () and result.record is None
    assert conditions(result)["Failed"] == ("True", "PyTorchJobFailed")
    assert result.status.completion_time is not None
    assert [each.counted for each in result.announcements] == ["created", "failed"]


def test_failure_of_another_container_fails_the_job() -> None:
    job = pytorch(1, "ExitCode")
    result = decided(job, pod(job, "Worker", 0, "Failed", code=0))
    assert "Failed" in conditions(result)


def test_lost_pod_of_an_earlier_run_is_not_counted() -> None:
    """A job that is resumed while its pods terminate does not fail because of them."""
    job = pytorch(1, "Never")
    suspended = decided(typed(PYTORCH, run_policy={"suspend": True}, Master=replica(PYTORCH)))
    resumed = after(job, suspended)
    deletion: Any = {
        "deletionTimestamp": "2026-01-01T00:00:20Z",
        "deletionGracePeriodSeconds": 30,
    }
    old = pod(job, "Worker", 0, **deletion)
    result = decided(resumed, pod(job, "Master", 0, **deletion), old)
    assert "Failed" not in conditions(result) and created_pods(result) == []
    assert conditions(result)["Suspended"] == ("False", "PyTorchJobResumed")
    later = pod(
        job, "Worker", 0, deletionTimestamp="2026-01-01T00:10:00Z", deletionGracePeriodSeconds=30
    )
    lost = decided(after(job, result), pod(job, "Master", 0), later)
    assert "Failed" in conditions(lost)


def lost(job: Any, deleted: str) -> Pod:
    """A pod that is deleted because of a taint of its node."""
    condition = Condition(type="DisruptionTarget", status="True", reason="DeletionByTaintManager")
    found = pod(job, "Worker", 0, deletionTimestamp=deleted)
    status = msgspec.structs.replace(found.status, conditions=(condition,))
    return msgspec.structs.replace(found, status=status)


@pytest.mark.parametrize(("annotation", "removed"), [(None, 1), ("true", 1), ("false", 0)])
def test_pods_that_were_lost_with_their_node_are_removed_unless_that_is_switched_off(
    annotation: str | None, removed: int
) -> None:
    job = pytorch(1)
    if annotation is not None:
        job = with_annotations(job, {REPLACE_NODES: annotation})
    result = decided(job, pod(job, "Master", 0), lost(job, "2020-01-01T00:00:00Z"))
    found = effect(result, fx.RemoveLostPods)
    assert len(found.pods if found is not None else ()) == removed
    assert created_pods(result) == [], "the name is in use until then"


def test_a_pod_is_not_removed_while_its_kubelet_may_still_end_it() -> None:
    job = pytorch(1)
    result = decided(job, pod(job, "Master", 0), lost(job, "2036-01-01T00:00:00Z"))
    assert effect(result, fx.RemoveLostPods) is None
    assert result.requeue_after is not None and result.requeue_after > 0


# Limits.


def test_backoff_limit_is_recorded_before_the_pods_are_deleted() -> None:
    job = pytorch(1, "OnFailure", backoffLimit=2, cleanPodPolicy="None")
    pods = [pod(job, "Master", 0, restarts=1), pod(job, "Worker", 0, restarts=1)]
    result = decided(job, *pods)
    assert result.record is not None and result.record.backoff_limit_exceeded
    assert result.needs_writes
    assert deleted_pods(result) == ["j-master-0", "j-worker-0"]
    assert result.status.conditions[-1].message == (
        "Job j has failed because it has reached the specified backoff limit"
    )
    recorded = with_annotations(job, {ANNOTATION: encode(result.record)})
    assert "Failed" in conditions(decided(recorded)), "although the pods do not exist any more"


@pytest.mark.parametrize(("count", "failed"), [(1, False), (2, True)])
def test_restarted_pods_count_towards_the_backoff_limit(count: int, failed: bool) -> None:
    job = pytorch(1, "ExitCode", backoffLimit=3)
    annotation = encode(RestartRecord(job_uid=UID, count=count))
    result = decided(
        with_annotations(job, {ANNOTATION: annotation}),
        pod(job, "Master", 0),
        pod(job, "Worker", 0, "Failed", code=130),
    )
    assert ("Failed" in conditions(result)) is failed


@pytest.mark.parametrize(
    "job",
    [
        pytorch(1, activeDeadlineSeconds=60),
        with_annotations(pytorch(1), {TIME_LIMIT: "1m"}),
        with_annotations(pytorch(1, activeDeadlineSeconds=90), {TIME_LIMIT: "1m"}),
    ],
    ids=["deadline", "limit", "both"],
)
def test_deadline_counts_from_the_start(job: Any) -> None:
    job = msgspec.structs.replace(job, status=JobStatus(start_time="2026-01-01T00:00:00Z"))
    before = decided(job, now=NOW + timedelta(seconds=59))
    assert (before.requeue_after, "Failed" in conditions(before)) == (1.0, False)
    result = decided(job, pod(job, "Master", 0), now=NOW + timedelta(seconds=60))
    assert "Failed" in conditions(result) and deleted_pods(result) == ["j-master-0"]


# The end.


def finished(job: Any, condition: str = "Succeeded", **status: Any) -> Any:
    body = {"conditions": [{"type": condition, "status": "True"}], **status}
    return msgspec.structs.replace(job, status=msgspec.convert(body, JobStatus))


PHASES = st.sampled_from(["Pending", "Running", "Succeeded", "Failed"])


@given(
    st.sampled_from([PYTORCH, TF, XGB, PADDLE, JAX, MPI]),
    st.lists(PHASES, max_size=3),
    st.sampled_from(["Succeeded", "Failed"]),
    st.sampled_from(["None", "Running", "All"]),
    st.booleans(),
)
def test_finished_job_creates_nothing(
    kind: str, phases: list[str], condition: str, policy: str, suspend: bool
) -> None:
    """INV-TJ-4."""
    leader = {"JAXJob": {}, "MPIJob": {"Launcher": replica(kind)}, "TFJob": {}}
    types = leader.get(kind, {"Master": replica(kind)})
    run_policy = {"cleanPodPolicy": policy, "suspend": suspend, "ttlSecondsAfterFinished": 9}
    job = typed(kind, run_policy=run_policy, Worker=replica(kind, 3), **types)
    pods = [pod(job, "Worker", index, phase) for index, phase in enumerate(phases)]
    for gang in (None, VolcanoGang("volcano")):
        result = decided(finished(job, condition), *pods, gang=gang)
        creating = (fx.CreatePods, fx.CreateServices, fx.CreatePodGroup, fx.CreateObject)
        assert not any(isinstance(each, creating) for each in result.writes)
        assert result.record is None


@pytest.mark.parametrize("policy", ["None", "Running", "All", None])
def test_clean_pod_policies_for_all_mixtures_of_phases(policy: str | None) -> None:
    """INV-TJ-6."""
    job = typed(PYTORCH, Worker=replica(PYTORCH, 3))
    run_policy = msgspec.structs.replace(job.spec.run_policy, clean_pod_policy=policy)
    job = msgspec.structs.replace(
        finished(job), spec=msgspec.structs.replace(job.spec, run_policy=run_policy)
    )
    services = tuple(service(job, "Worker", index) for index in range(3))
    phases = ("", "Pending", "Running", "Succeeded", "Failed", "Unknown")
    for mixture in itertools.product(phases, repeat=3):
        pods = [pod(job, "Worker", index, phase) for index, phase in enumerate(mixture)]
        result = decided(job, *pods, services=services)
        expected = [
            each.metadata.name
            for each, phase in zip(pods, mixture, strict=True)
            if policy == "All" or (policy == "Running" and phase in ("", "Pending", "Running"))
        ]
        assert deleted_pods(result) == deleted_services(result) == expected


def test_services_are_deleted_although_their_pods_are_deleted_already() -> None:
    job = finished(pytorch(2, cleanPodPolicy="Running"))
    services = tuple(service(job, "Worker", index) for index in range(2))
    kept = pod(job, "Worker", 1, "Succeeded")
    assert deleted_services(decided(job, kept, services=services)) == ["j-worker-0"]


def test_terminating_objects_are_not_deleted_again() -> None:
    job = finished(pytorch(1, cleanPodPolicy="All"))
    assert decided(job, pod(job, "Worker", 0, deletionTimestamp=END)).writes == ()


def test_time_to_live_counts_from_the_completion() -> None:
    job = pytorch(1, ttlSecondsAfterFinished=60)
    ended = finished(job, completionTime="2026-01-01T00:00:00Z")
    assert decided(ended, now=NOW + timedelta(seconds=59)).requeue_after == 1.0
    assert effect(decided(ended, now=NOW + timedelta(seconds=60)), fx.DeleteJob)
    kept = finished(
        pytorch(1, ttlSecondsAfterFinished=60, suspend=True), completionTime="2026-01-01T00:00:00Z"
    )
    assert decided(kept, now=NOW + timedelta(seconds=99)) == Decision(status=kept.status)


def test_an_expired_job_waits_for_its_record_ten_minutes() -> None:
    ended = finished(pytorch(1, ttlSecondsAfterFinished=60), completionTime="2026-01-01T00:00:00Z")

    def later(seconds: int, recorded: str = "") -> Decision:
        given = with_annotations(ended, {RECORDED: recorded})
        now = NOW + timedelta(seconds=seconds)
        return decided(given, now=now, ttl_waits_for_history=True)

    assert later(60).requeue_after == 600.0
    assert later(60, "Completed 2025-01-01T00:00:00Z 1").requeue_after == 600.0
    assert effect(later(60, "Completed 2026-01-01T00:00:00Z 1"), fx.DeleteJob)
    assert effect(later(660), fx.DeleteJob)


def test_active_pods_of_a_succeeded_job_count_as_succeeded() -> None:
    job = finished(
        pytorch(2),
        completionTime="2026-01-01T00:00:00Z",
        replicaStatuses={"Worker": {"active": 2, "failed": 1}},
    )
    counts = decided(job).status.replica_statuses["Worker"]
    assert (counts.active, counts.succeeded, counts.failed) == (0, 2, 1)


def test_suspended_job_keeps_its_start_time_and_is_announced_once() -> None:
    job = pytorch(1, suspend=True)
    running = decided(pytorch(1), pod(job, "Master", 0), pod(job, "Worker", 0))
    result = decided(
        after(job, running), pod(job, "Master", 0), services=(service(job, "Master", 0),)
    )
    assert [type(each) for each in result.writes] == [fx.DeletePods, fx.DeleteServices]
    assert result.status.start_time == running.status.start_time
    assert reasons(result) == ["PyTorchJobSuspended"]
    assert decided(after(job, result)) == Decision(status=result.status)


# Gangs.


def group(job: Any, phase: str, **spec: Any) -> Group:
    owner = OwnerReference(kind=PYTORCH, name="j", uid=UID, controller=True)
    meta = ObjectMeta(name="j", namespace="d", uid="g", owner_references=(owner,))
    return Group(metadata=meta, spec=spec, status=GroupStatus(phase=phase))


def test_pods_wait_while_the_podgroup_is_pending() -> None:
    """INV-TJ-5."""
    job, gang = pytorch(1), VolcanoGang("volcano")
    assert [type(each) for each in decided(job, gang=gang).writes] == [fx.CreatePodGroup]
    spec = gang.spec(job, {}, {})
    for phase in ("", "Pending", "Inqueue", "Running", "Unknown", "Completed"):
        result = decided(job, gang=gang, podgroup=group(job, phase, **spec))
        waits = phase in ("", "Pending")
        assert bool(created_pods(result)) is not waits
        assert (result.status.start_time is None) is waits
        assert result.requeue_after == (10.0 if waits else None)


def test_podgroup_follows_the_job_and_keeps_its_queue() -> None:
    job, gang = pytorch(3), VolcanoGang("volcano")
    found = group(job, "Running", minMember=2, queue="q", minResources={"cpu": "1"})
    update = effect(decided(job, gang=gang, podgroup=found), fx.UpdateObject)
    assert update.patch == {"spec": {"minMember": 4, "minResources": {"cpu": None}}}


def test_other_schedulers_get_podgroups_and_delay_nothing() -> None:
    job, gang = pytorch(1, schedulingPolicy={"scheduleTimeoutSeconds": 9}), gang_of("Mine")
    assert isinstance(gang, SchedulerPluginsGang)
    result = decided(job, gang=gang)
    assert [type(each) for each in result.writes[:2]] == [fx.CreatePodGroup, fx.CreatePods]
    assert effect(result, fx.CreatePodGroup).spec == {
        "minMember": 2,
        "minResources": {},
        "scheduleTimeoutSeconds": 9,
    }
    found = build_pod(BY_KIND[PYTORCH], Member(job, "Worker", 0), gang=gang)
    assert found["spec"]["schedulerName"] == "Mine"
    assert found["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] == "j"
    assert gang_of("") is None and isinstance(gang_of("VOLCANO"), VolcanoGang)


def test_podgroup_of_another_owner_blocks_the_pods() -> None:
    job, gang = pytorch(1), VolcanoGang("volcano")
    foreign = Group(metadata=ObjectMeta(name="j", namespace="d", uid="g"))
    result = decided(job, gang=gang, podgroup=foreign)
    assert [type(each) for each in result.writes] == [fx.ReportConflict]


def test_minimum_resources_are_those_of_the_most_important_pods() -> None:
    master = replica(PYTORCH, priorityClassName="low")
    worker = replica(PYTORCH, 3, priorityClassName="high")
    for body, kind, amount in ((master, "limits", "500m"), (worker, "requests", "2")):
        body["template"]["spec"]["containers"][0]["resources"] = {kind: {"cpu": amount}}
    policy = {"schedulingPolicy": {"minAvailable": 2}}
    job = typed(PYTORCH, run_policy=policy, Master=master, Worker=worker)
    gang = VolcanoGang("volcano")
    assert gang.spec(job, {}, {"high": 9})["minResources"] == {"cpu": "4"}
    assert gang.spec(job, {}, {"low": 9})["minResources"] == {"cpu": "2500m"}
    assert gang.spec(job, {}, {})["minMember"] == 2


# The rules of each framework.


def statuses(job: Any, *pods: Pod) -> dict[str, tuple[str, str]]:
    found = conditions(decided(job, *pods))
    found.pop("Created")
    return found


def test_tensorflow_chief_decides() -> None:
    job = typed(TF, Chief=replica(TF), Worker=replica(TF))
    worker = pod(job, "Worker", 0, "Succeeded", code=0)
    assert statuses(job, worker) == {}
    assert statuses(job, pod(job, "Chief", 0), worker) == {"Running": ("True", "TFJobRunning")}
    ended = statuses(job, pod(job, "Chief", 0, "Succeeded", code=0), worker)
    assert ended == {"Succeeded": ("True", "TFJobSucceeded")}


@pytest.mark.parametrize("dynamic", [False, True])
def test_tensorflow_worker_that_fails_for_good(dynamic: bool) -> None:
    job = typed(TF, enableDynamicWorker=dynamic, Worker=replica(TF, 2, policy="Never"))
    found = statuses(job, pod(job, "Worker", 0), pod(job, "Worker", 1, "Failed", code=1))
    assert ("Failed" in found) is not dynamic


def test_tensorflow_failure_of_a_type_that_never_restarts_is_not_hidden_by_another() -> None:
    job = typed(TF, PS=replica(TF, policy="Never"), Worker=replica(TF, policy="OnFailure"))
    restarting = decided(job, pod(job, "PS", 0), pod(job, "Worker", 0, "Failed", code=1))
    assert "Restarting" in conditions(restarting)
    found = statuses(after(job, restarting), pod(job, "PS", 0, "Failed", code=1))
    assert found["Failed"] == ("True", "TFJobFailed")


def test_pytorch_without_master_needs_all_workers_unless_elastic() -> None:
    policy = {"minReplicas": 1, "maxReplicas": 3}
    fixed = typed(PYTORCH, Worker=replica(PYTORCH, 2))
    elastic = typed(PYTORCH, elasticPolicy=policy, Worker=replica(PYTORCH, 2))
    for job, expected in ((fixed, "Running"), (elastic, "Succeeded")):
        found = statuses(job, pod(job, "Worker", 0, "Succeeded"), pod(job, "Worker", 1))
        assert list(found) == [expected]


def test_pytorch_never_fails_with_its_message() -> None:
    job = pytorch(2, "Never")
    result = decided(job, pod(job, "Master", 0), pod(job, "Worker", 1, "Failed", code=1))
    assert result.status.conditions[-1].message == (
        "PyTorchJob j is failed because 1 Worker replica(s) failed. j-worker-1: exit code 1"
    )


def test_xgboost_succeeds_with_its_master() -> None:
    job = typed(XGB, Master=replica(XGB), Worker=replica(XGB))
    found = statuses(job, pod(job, "Master", 0, "Succeeded"), pod(job, "Worker", 0))
    assert found == {
        "Running": ("False", "XGBoostJobRunning"),
        "Succeeded": ("True", "XGBoostJobSucceeded"),
    }


def test_jax_messages_have_the_namespace() -> None:
    job = typed(JAX, Worker=replica(JAX, 2))
    result = decided(job, *(pod(job, "Worker", index, "Succeeded") for index in range(2)))
    assert result.status.conditions[-1].message == "JAXJob d/j successfully completed."


PODS = st.lists(
    st.tuples(
        st.sampled_from(["Pending", "Running", "Succeeded", "Failed"]),
        st.sampled_from([None, 0, 1, 137]),
        st.booleans(),
    ),
    max_size=3,
)


@given(
    st.sampled_from([*BY_KIND]),
    st.sampled_from(["Always", "OnFailure", "Never", "ExitCode"]),
    st.lists(PODS, min_size=1, max_size=4),
)
def test_conditions_over_histories_of_pods(
    kind: str, policy: str, history: list[list[tuple[str, int | None, bool]]]
) -> None:
    """INV-TJ-3, INV-TJ-4, INV-TJ-12: and nothing whose status is written is repeated."""
    leader = {"JAXJob": [], "MPIJob": ["Launcher"], "TFJob": ["Chief"]}.get(kind, ["Master"])
    types = {name: replica(kind, policy=policy) for name in leader}
    job = typed(kind, Worker=replica(kind, 2, policy=policy), **types)
    slots = [(name, 0) for name in leader] + [("Worker", 0), ("Worker", 1)]
    for states in history:
        pods = [
            pod(job, *slot, phase, code=code, deletionTimestamp=END if end else None)
            for slot, (phase, code, end) in zip(slots, states, strict=False)
        ]
        result = decided(job, *pods)
        found = {name for name, (status, _) in conditions(result).items() if status == "True"}
        assert not {"Succeeded", "Failed"} <= found
        assert not {"Running", "Restarting"} <= found
        if "Failed" in found:
            assert result.status.completion_time is not None
        was_finished = {"Succeeded", "Failed"} & {
            each.type for each in job.status.conditions if each.status == "True"
        }
        assert was_finished <= found
        job = after(job, result)
        if result.record is not None:
            job = with_annotations(job, {ANNOTATION: encode(result.record)})
        again = decided(job, *pods, now=NOW + timedelta(seconds=5))
        assert again.record is None and again.restarts == again.announcements == ()
        if not {"Succeeded"} & found:
            assert again.status == result.status


END = "2026-01-01T01:00:00Z"


# Rejections by a kubelet.


def rejected(given: Any, index: int, *, age: int, reason: str = "OutOfcpu") -> Pod:
    """A worker that its node has rejected, *age* seconds after its creation."""
    created = (NOW - timedelta(seconds=age)).strftime("%Y-%m-%dT%H:%M:%SZ")
    found = pod(given, "Worker", index, "Failed", creationTimestamp=created)
    status = msgspec.structs.replace(found.status, reason=reason, container_statuses=())
    return msgspec.structs.replace(found, status=status)


@pytest.mark.parametrize("policy", ["Always", "OnFailure", "ExitCode"])
def test_rejected_pod_is_created_again_and_counts_no_restart(policy: str) -> None:
    job = pytorch(2, policy, backoffLimit=0)
    members = [pod(job, "Master", 0), pod(job, "Worker", 0), rejected(job, 1, age=9)]
    result = decided(job, *members)
    assert deleted_pods(result) == [members[2].metadata.name]
    assert result.record is None
    assert result.restarts == ()
    assert "Failed" not in conditions(result)
    assert "Restarting" not in conditions(result)
    assert created_pods(decided(job, *members[:2])) == [("Worker", 1)]


def test_rejected_pod_is_replaced_after_a_delay() -> None:
    job = pytorch(1)
    result = decided(job, pod(job, "Master", 0), rejected(job, 0, age=2))
    assert deleted_pods(result) == []
    assert result.requeue_after == 3


def test_rejected_pod_of_policy_never_stays() -> None:
    """Section 2.2: the operator leaves the pod, and the rules of the framework decide."""
    job = pytorch(1, "Never")
    assert deleted_pods(decided(job, pod(job, "Master", 0), rejected(job, 0, age=9))) == []


# Jobs that are too large.


@pytest.mark.parametrize("kind", sorted(BY_KIND))
def test_a_stored_job_with_too_many_pods_fails_and_gets_none(kind: str) -> None:
    job = typed(
        kind, **{each: replica(kind) for each in REQUIRED.get(kind, ())}, Worker=replica(kind)
    )
    running = pod(job, "Worker", 0)
    result = decided(job, running, size_error="the job has 7 pods")
    assert conditions(result)["Failed"][0] == "True"
    assert result.status.conditions[-1].message == "the job has 7 pods"
    assert deleted_pods(result) == [running.metadata.name]
    assert created_pods(result) == []
    assert effect(result, fx.CreateObject) is None
    finished = after(job, result)
    assert created_pods(decided(finished, size_error="the job has 7 pods")) == []


# Why a job failed.


def failed_pod(job: Any, index: int, code: int, ended: str, **status: Any) -> Pod:
    found = pod(job, "Worker", index, "Failed", code=code)
    (container,) = found.status.container_statuses
    state = ContainerState(terminated=Terminated(exit_code=code, reason=ended))
    container = msgspec.structs.replace(container, state=state)
    changed = msgspec.structs.replace(found.status, container_statuses=(container,), **status)
    return msgspec.structs.replace(found, status=changed)


def test_the_message_of_a_failed_job_says_why_its_pod_failed() -> None:
    job = pytorch(2, "Never")
    result = decided(job, failed_pod(job, 1, 137, "OOMKilled"))
    assert result.status.conditions[-1].message == (
        "PyTorchJob j is failed because 1 Worker replica(s) failed. j-worker-1: OOMKilled"
        " (exit code 137)"
    )


def test_the_message_of_a_job_that_used_up_its_retries_says_why_its_pod_failed() -> None:
    job = pytorch(1, "OnFailure", backoffLimit=0)
    late = failed_pod(job, 0, 143, "Error", reason="DeadlineExceeded")
    result = decided(job, late)
    assert result.status.conditions[-1].message == (
        "Job j has failed because it has reached the specified backoff limit: j-worker-0:"
        " DeadlineExceeded: it ran longer than its activeDeadlineSeconds"
    )
