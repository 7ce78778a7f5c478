"""Jobs from their creation to their end, in a simulated cluster whose every change is audited."""

import itertools
from dataclasses import replace
from typing import Any

import pytest
from support.batch_audit import has_finalizer, uncounted
from support.batch_world import SETTINGS, TRACKING, BatchWorld

from batholith.batch_ctrl.settings import BatchJobSettings
from batholith.model.names import BATCH_JOBS, PODS
from batholith.model.recorded import RECORDED

Object = dict[str, Any]


def _end_all(world: BatchWorld, *, code: int = 0) -> None:
    for name in world.active():
        world.end_pod(name, code=code)


def _orphan(world: BatchWorld, name: str) -> None:
    """Remove the owner reference of a pod."""
    meta = world.objects(PODS)[name]["metadata"]
    world.api.put(PODS, name, metadata={**meta, "ownerReferences": []})


def test_job_runs_its_pods_and_completes(world: BatchWorld) -> None:
    world.submit(completions=3, parallelism=2)
    assert len(world.active()) == 2
    while world.active():
        _end_all(world)
        world.settle()
    assert world.status()["succeeded"] == 3
    assert world.condition("SuccessCriteriaMet")["reason"] == "CompletionsReached"
    assert world.condition("Complete")["message"] == "Reached expected number of succeeded pods"
    assert world.reasons() == ["SuccessfulCreate"] * 3 + ["Completed"]
    assert not any(has_finalizer(pod) for pod in world.pods().values())


def test_pods_have_generated_names_and_their_owner(world: BatchWorld) -> None:
    world.submit()
    ((name, pod),) = world.pods().items()
    assert pod["metadata"]["generateName"] == "j-"
    assert name.startswith("j-") and len(name) == len("j-") + 5
    (owner,) = pod["metadata"]["ownerReferences"]
    assert owner["controller"] and owner["blockOwnerDeletion"] and owner["name"] == "j"


def test_always_failing_job_ends_after_its_limit(world: BatchWorld) -> None:
    """INV-BJ-6: limit L and parallelism 1 end with L + 1 failed pods; INV-BJ-7: not sooner."""
    world.submit(backoffLimit=3, settle=False)
    created = []
    for _ in range(12):
        world.settle()
        if world.active():
            created.append(world.clock.monotonic())
            _end_all(world, code=1)
        world.advance(30)
    assert world.status()["failed"] == 4
    assert world.condition("Failed")["reason"] == "BackoffLimitExceeded"
    assert world.condition("FailureTarget")["reason"] == "BackoffLimitExceeded"
    assert world.reasons()[-1] == "BackoffLimitExceeded"
    gaps = [later - earlier for earlier, later in itertools.pairwise(created)]
    assert [gap >= least for gap, least in zip(gaps, (10, 20, 40), strict=True)] == [True] * 3


@pytest.mark.parametrize(("failures", "delay"), [(1, 10), (2, 20), (3, 40)])
def test_replacement_waits_for_the_backoff(world: BatchWorld, failures: int, delay: int) -> None:
    """INV-BJ-7: the delay doubles with each failure and starts at the end of the pod."""
    world.submit(settle=False)
    for _ in range(failures):
        world.advance(700)
        _end_all(world, code=1)
    world.advance(delay - 1)
    assert world.active() == []
    world.advance(2)
    assert len(world.active()) == 1


def test_failure_of_one_pod_deletes_the_others_and_counts_them(world: BatchWorld) -> None:
    world.submit(parallelism=3, completions=3, backoffLimit=0)
    for name in world.active():
        world.start_pod(name)
    world.end_pod(world.active()[0], code=1)
    world.settle()
    assert world.condition("FailureTarget") and not world.condition("Failed")
    assert world.status()["terminating"] == 2
    assert world.status()["failed"] == 3
    world.finish_deletions()
    world.settle()
    assert world.condition("Failed")["status"] == "True"
    assert world.reasons().count("SuccessfulDelete") == 2


def test_suspended_job_deletes_its_pods_without_counting_them(world: BatchWorld) -> None:
    """INV-BJ-8."""
    world.submit(parallelism=2, completions=4, backoffLimit=0)
    for name in world.active():
        world.start_pod(name)
    world.edit(suspend=True)
    world.settle()
    assert world.active() == [] and world.status()["terminating"] == 2
    assert world.condition("Suspended") | {"status": "True", "reason": "JobSuspended"} == (
        world.condition("Suspended")
    )
    assert "startTime" not in world.status()
    world.finish_deletions()
    world.settle()
    assert world.status().get("failed", 0) == 0
    world.advance(5)
    world.edit(suspend=False)
    world.settle()
    assert len(world.active()) == 2
    assert world.condition("Suspended")["status"] == "False"
    assert world.status()["startTime"] > world.job()["metadata"]["creationTimestamp"]
    assert [one for one in world.reasons() if one in ("Suspended", "Resumed")] == [
        "Suspended",
        "Resumed",
    ]


def test_suspending_does_not_lose_a_success_that_is_not_reported_yet(world: BatchWorld) -> None:
    """INV-BJ-2, INV-BJ-8: the finalizer is removed from the observed version of a pod only."""
    world.submit(parallelism=1, completions=2)
    (name,) = world.active()
    world.start_pod(name)
    world.settle()
    world.api.hold_watches(PODS)
    world.end_pod(name)
    world.edit(suspend=True)
    world.advance(3)
    world.settle()
    assert world.status()["succeeded"] == 1


def test_job_created_suspended_has_no_start_time(world: BatchWorld) -> None:
    world.submit(suspend=True)
    assert world.active() == [] and "startTime" not in world.status()
    assert world.condition("Suspended")["status"] == "True"


def test_work_queue_completes_when_the_others_have_finished(world: BatchWorld) -> None:
    world.submit(parallelism=3)
    first, *others = world.active()
    world.end_pod(first)
    world.settle()
    assert len(world.active()) == 2 and not world.condition("Complete")
    for name in others:
        world.end_pod(name, code=1)
    world.settle()
    assert world.condition("Complete") and world.status()["succeeded"] == 1
    assert world.status()["failed"] == 2


class TestIndexed:
    def test_pods_get_their_index(self, world: BatchWorld) -> None:
        world.submit(completionMode="Indexed", completions=2, parallelism=2)
        for index, (name, pod) in enumerate(world.pods().items()):
            meta = pod["metadata"]
            assert name.startswith(f"j-{index}-") and meta["generateName"] == f"j-{index}-"
            key = "batch.kubernetes.io/job-completion-index"
            assert meta["annotations"][key] == meta["labels"][key] == str(index)
            assert pod["spec"]["hostname"] == f"j-{index}"
            (variable,) = pod["spec"]["containers"][0]["env"]
            assert variable["name"] == "JOB_COMPLETION_INDEX"

    def test_each_index_succeeds_once(self, world: BatchWorld) -> None:
        world.submit(completionMode="Indexed", completions=4, parallelism=2, settle=False)
        for _ in range(4):
            world.settle()
            _end_all(world)
        world.settle()
        assert world.status()["completedIndexes"] == "0-3"
        assert world.condition("Complete")

    def test_elastic_job_drops_the_indexes_beyond_its_completions(self, world: BatchWorld) -> None:
        world.submit(completionMode="Indexed", completions=4, parallelism=4)
        world.end_pod(next(name for name in world.active() if name.startswith("j-3-")))
        world.settle()
        assert world.status()["completedIndexes"] == "3"
        world.edit(completions=2, parallelism=2)
        world.settle()
        assert "completedIndexes" not in world.status()
        assert [name[:3] for name in world.active()] == ["j-0", "j-1"]
        world.edit(completions=4, parallelism=4)
        world.settle()
        assert [name[:3] for name in world.active()] == ["j-0", "j-1", "j-2", "j-3"]

    def test_limit_per_index_fails_the_index(self, world: BatchWorld) -> None:
        world.submit(completionMode="Indexed", completions=2, parallelism=2, backoffLimitPerIndex=1)
        first = next(name for name in world.active() if name.startswith("j-0-"))
        world.end_pod(first, code=1)
        world.settle()
        assert has_finalizer(world.pods()[first]), "its failure count is needed"
        world.advance(10)
        world.settle()
        assert not has_finalizer(world.pods()[first])
        second = next(name for name in world.active() if name.startswith("j-0-"))
        annotations = world.pods()[second]["metadata"]["annotations"]
        assert annotations["batch.kubernetes.io/job-index-failure-count"] == "1"
        world.end_pod(second, code=1)
        world.settle()
        assert world.status()["failedIndexes"] == "0" and not world.condition("Failed")
        _end_all(world)
        world.settle()
        assert world.condition("Failed")["reason"] == "FailedIndexes"
        assert world.status()["completedIndexes"] == "1"

    def test_too_many_failed_indexes_fail_the_job(self, world: BatchWorld) -> None:
        world.submit(
            completionMode="Indexed",
            completions=3,
            parallelism=3,
            backoffLimitPerIndex=0,
            maxFailedIndexes=0,
        )
        world.end_pod(world.active()[0], code=1)
        world.settle()
        assert world.condition("FailureTarget")["reason"] == "MaxFailedIndexesExceeded"

    def test_success_policy_ends_the_job_as_complete(self, world: BatchWorld) -> None:
        """INV-BJ-10: also if a pod fails then."""
        world.submit(
            completionMode="Indexed",
            completions=3,
            parallelism=3,
            backoffLimit=0,
            successPolicy={"rules": [{"succeededIndexes": "1"}]},
        )
        for name in world.active():
            world.start_pod(name)
        world.end_pod(next(name for name in world.active() if name.startswith("j-1-")))
        world.settle()
        assert world.condition("SuccessCriteriaMet")["message"] == "Matched rules at index 0"
        world.finish_deletions()  # with exit code 137
        world.settle()
        assert world.condition("Complete")["reason"] == "SuccessPolicy"
        assert world.status().get("failed", 0) == 0


class TestFailurePolicy:
    def _submit(self, world: BatchWorld, rule: Object) -> None:
        world.submit(
            podFailurePolicy={"rules": [rule]}, podReplacementPolicy="Failed", backoffLimit=1
        )

    def test_fail_job(self, world: BatchWorld) -> None:
        self._submit(
            world, {"action": "FailJob", "onExitCodes": {"operator": "In", "values": [42]}}
        )
        (name,) = world.active()
        world.end_pod(name, code=42)
        world.settle()
        expected = (
            f"Container main for pod d/{name} failed with exit code 42"
            " matching FailJob rule at index 0"
        )
        assert world.condition("Failed")["message"] == expected
        assert world.condition("Failed")["reason"] == "PodFailurePolicy"

    def test_ignored_failures_are_not_counted(self, world: BatchWorld) -> None:
        target = {"type": "DisruptionTarget", "status": "True"}
        self._submit(world, {"action": "Ignore", "onPodConditions": [target]})
        for _ in range(4):
            (name,) = world.active()
            world.end_pod(name, conditions=[target])
            world.advance(700)
        assert world.status().get("failed", 0) == 0 and len(world.active()) == 1

    def test_terminating_pod_is_replaced_once_it_has_failed(self, world: BatchWorld) -> None:
        self._submit(world, {"action": "Count", "onExitCodes": {"operator": "In", "values": [1]}})
        (name,) = world.active()
        world.start_pod(name)
        world.delete_pod(name)
        world.advance(60)
        assert world.active() == [] and world.status()["terminating"] == 1
        world.finish_deletions()
        world.advance(60)
        assert len(world.active()) == 1 and world.status()["failed"] == 1


def test_terminating_pod_is_replaced_at_once_by_default(world: BatchWorld) -> None:
    world.submit()
    (name,) = world.active()
    world.start_pod(name)
    world.delete_pod(name)
    world.advance(12)
    assert len(world.active()) == 1 and world.status()["failed"] == 1


class TestDeadline:
    def test_job_fails_when_it_has_passed(self, world: BatchWorld) -> None:
        """INV-BJ-14: within a second."""
        world.submit(activeDeadlineSeconds=30, settle=False)
        world.advance(29)
        assert not world.condition("FailureTarget")
        world.advance(2)
        assert world.condition("FailureTarget")["reason"] == "DeadlineExceeded"

    def test_shortened_deadline_is_applied(self, world: BatchWorld) -> None:
        """INV-BJ-14: also one in the past."""
        world.submit(activeDeadlineSeconds=1000, settle=False)
        world.advance(100)
        world.edit(activeDeadlineSeconds=50)
        world.advance(1)
        assert world.condition("FailureTarget")["reason"] == "DeadlineExceeded"

    def test_extended_deadline_prevents_it(self, world: BatchWorld) -> None:
        """INV-BJ-14."""
        world.submit(activeDeadlineSeconds=30, settle=False)
        world.advance(20)
        world.edit(activeDeadlineSeconds=100)
        world.advance(60)
        assert not world.condition("FailureTarget")

    def test_suspended_job_has_none(self, world: BatchWorld) -> None:
        world.submit(activeDeadlineSeconds=30, settle=False)
        world.advance(20)
        world.edit(suspend=True)
        world.advance(100)
        world.edit(suspend=False)
        world.advance(25)
        assert not world.condition("FailureTarget")
        world.advance(7)
        assert world.condition("FailureTarget")


class TestTimeToLive:
    @pytest.mark.parametrize("seconds", [0, 30])
    def test_finished_job_is_deleted(self, world: BatchWorld, seconds: int) -> None:
        """INV-BJ-13: not before, and at once after."""
        world.submit(ttlSecondsAfterFinished=seconds)
        _end_all(world)
        world.advance(1.5)
        if seconds:
            world.advance(seconds - 2)
            assert "deletionTimestamp" not in world.job()["metadata"]
            world.advance(3)
        assert "deletionTimestamp" in world.job()["metadata"]
        sent = next(one.body for one in world.api.received if one.method == "DELETE")
        assert sent["propagationPolicy"] == "Foreground"
        assert sent["preconditions"]["uid"] == world.job()["metadata"]["uid"]

    def test_time_can_be_extended(self, world: BatchWorld) -> None:
        """INV-BJ-13."""
        world.submit(ttlSecondsAfterFinished=30)
        _end_all(world)
        world.advance(20)
        world.api.hold_watches(BATCH_JOBS)
        world.edit(ttlSecondsAfterFinished=100)
        world.advance(40)
        assert "deletionTimestamp" not in world.job()["metadata"]

    @pytest.mark.parametrize("recorded", [False, True])
    def test_expired_job_waits_for_its_record_ten_minutes(self, recorded: bool) -> None:
        world = BatchWorld(replace(SETTINGS, ttl_waits_for_history=True))
        world.submit(ttlSecondsAfterFinished=0)
        _end_all(world)
        world.advance(10)
        assert "deletionTimestamp" not in world.job()["metadata"]
        if recorded:
            job = world.job()
            value = f"Completed {job['status']['completionTime']} 1"
            annotations = {"annotations": {RECORDED: value}}
            world.api.put(BATCH_JOBS, "j", metadata=annotations)
            world.advance(2)
        else:
            world.advance(580)
            assert "deletionTimestamp" not in world.job()["metadata"]
            world.advance(20)
        assert "deletionTimestamp" in world.job()["metadata"]
        world.close()

    def test_it_is_left_to_other_controllers(self) -> None:
        world = BatchWorld(BatchJobSettings(managed_by=SETTINGS.managed_by))
        world.submit(ttlSecondsAfterFinished=0)
        _end_all(world)
        world.advance(10)
        assert "deletionTimestamp" not in world.job()["metadata"]
        world.close()

    def test_job_of_another_controller_is_deleted_like_any(self, world: BatchWorld) -> None:
        """INV-BJ-13: as kube-controller-manager does, which does not run here."""
        world.submit(managedBy="example.com/other", ttlSecondsAfterFinished=10, settle=False)
        finished = {"type": "Complete", "status": "True", "lastTransitionTime": world.api.now()}
        world.api.put(BATCH_JOBS, "j", status={"conditions": [finished]})
        world.advance(9)
        assert "j" in world.objects(BATCH_JOBS)
        world.advance(3)
        world.collect_garbage()
        assert "j" not in world.objects(BATCH_JOBS)


class TestManagedBy:
    def test_foreign_job_gets_no_write(self, world: BatchWorld) -> None:
        """INV-BJ-12: nor do its pods."""
        world.submit(managedBy="example.com/other", settle=False)
        world.api.put(PODS, "orphan", metadata={"finalizers": [TRACKING]})
        world.settle()
        world.delete_pod("orphan")
        world.edit(suspend=True)
        world.settle()
        assert world.pods() == {} and world.status() == {}

    def test_only_marked_jobs_are_reconciled_by_default(self) -> None:
        """INV-BJ-12: kube-controller-manager reconciles the others."""
        world = BatchWorld(BatchJobSettings())
        world.submit("theirs", settle=False)
        world.submit("built-in", managedBy="kubernetes.io/job-controller", settle=False)
        world.submit("ours", managedBy="batholith.io/job-controller")
        assert [len(world.pods(name)) for name in ("theirs", "built-in", "ours")] == [0, 0, 1]
        world.close()

    def test_pods_of_deleted_jobs_of_others_are_not_released(self) -> None:
        """INV-BJ-12."""
        world = BatchWorld(BatchJobSettings())
        reference = {"apiVersion": "batch/v1", "kind": "Job", "name": "x", "uid": "1"}
        world.api.put(
            PODS,
            "p",
            metadata={
                "finalizers": [TRACKING],
                "ownerReferences": [{**reference, "controller": True}],
            },
        )
        world.settle()
        world.delete_pod("p")
        world.settle()
        assert has_finalizer(world.objects(PODS)["p"])
        reads = [one.path for one in world.api.received if "/jobs/" in one.path]
        assert reads == [], "a request for each pod of a large cluster"
        world.close()

    def test_only_the_identity_of_their_pods_is_kept(self) -> None:
        """INV-BJ-12: they are not read, and cost little memory."""
        world = BatchWorld(BatchJobSettings())
        world.submit("ours", managedBy="batholith.io/job-controller", settle=False)
        world.submit("theirs", settle=False)
        for job in ("ours", "theirs"):
            meta = world.job(job)["metadata"]
            owner = {"apiVersion": "batch/v1", "kind": "Job", "name": job, "uid": meta["uid"]}
            world.api.put(
                PODS,
                f"of-{job}",
                metadata={
                    "labels": {"batch.kubernetes.io/controller-uid": meta["uid"]},
                    "ownerReferences": [{**owner, "controller": True}],
                },
            )
        world.settle()
        assert world.controller is not None
        kept = {pod.metadata.name: bool(pod.metadata.labels) for pod in world.controller.pods}
        assert kept == {"of-ours": True, "of-theirs": False}
        world.start_pod("of-theirs")
        world.end_pod("of-theirs")
        world.settle()
        assert world.status("theirs") == {}
        world.close()


def test_ended_pods_are_counted_while_no_pod_can_be_created(world: BatchWorld) -> None:
    """INV-BJ-2: a failed creation does not prevent the rest of the sync."""
    world.submit(parallelism=2, completions=9)
    world.api.full_namespaces.add("d")
    _end_all(world)
    world.advance(5)
    assert world.status()["succeeded"] == 2 and world.active() == []
    assert "FailedCreate" in world.reasons()
    world.api.full_namespaces.clear()
    world.settle()
    assert len(world.active()) == 2


class TestOrphans:
    def test_pods_of_a_deleted_job_are_released(self, world: BatchWorld) -> None:
        """INV-BJ-2."""
        world.submit(parallelism=2, completions=2)
        world.delete()
        world.settle()
        world.collect_garbage()
        world.settle()
        assert world.objects(PODS) == {}

    def test_pods_of_a_job_deleted_without_controller_are_released(self, world: BatchWorld) -> None:
        """INV-BJ-2: also after a restart."""
        world.submit()
        world.run(world.kill())
        world.delete()
        world.collect_garbage()
        world.settle()
        assert world.objects(PODS) == {}

    def test_pod_of_a_job_that_the_informer_lacks_is_kept(self, world: BatchWorld) -> None:
        world.settle()
        world.api.hold_watches(BATCH_JOBS)
        world.submit(settle=False)
        uid = world.job()["metadata"]["uid"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": uid}
        world.api.put(
            PODS,
            "p",
            metadata={
                "finalizers": [TRACKING],
                "ownerReferences": [{**owner, "controller": True}],
                "labels": {"batch.kubernetes.io/controller-uid": uid},
            },
            spec={"nodeName": "n"},
        )
        world.delete_pod("p")
        world.advance(3)
        assert has_finalizer(world.objects(PODS)["p"])

    def test_matching_pod_is_adopted(self, world: BatchWorld) -> None:
        labels = {"app": "x"}
        world.api.put(PODS, "p", metadata={"labels": labels})
        template = {
            "metadata": {"labels": labels},
            "spec": {"restartPolicy": "Never", "containers": [{"name": "main"}]},
        }
        world.submit(manualSelector=True, selector={"matchLabels": labels}, template=template)
        assert list(world.pods()) == ["p"] and has_finalizer(world.pods()["p"])
        world.end_pod("p")
        world.settle()
        assert world.condition("Complete")

    def test_pod_that_was_released_uncounted_is_counted_when_it_is_adopted(
        self, world: BatchWorld
    ) -> None:
        """INV-BJ-1: it is released twice, but counted once."""
        world.submit(parallelism=1, completions=1)
        (name,) = world.active()
        world.api.inject_fault(500, times=1, method="DELETE", path="/pods")
        world.edit(suspend=True)
        world.advance(0.5)
        world.edit(suspend=False)
        assert not has_finalizer(world.pods()[name])
        _orphan(world, name)
        world.settle()
        assert has_finalizer(world.pods()[name])
        world.end_pod(name)
        world.settle()
        assert world.status()["succeeded"] == 1 and world.condition("Complete")
        assert world.audit.created.total() == 1

    @pytest.mark.parametrize("code", [0, 1])
    def test_counted_pod_that_is_adopted_again_is_not_counted_again(
        self, world: BatchWorld, code: int
    ) -> None:
        """INV-BJ-1."""
        world.submit(parallelism=2, completions=2)
        name, _ = world.active()
        world.end_pod(name, code=code)
        world.settle()
        before = {kind: world.status().get(kind, 0) for kind in ("succeeded", "failed")}
        assert sum(before.values()) == 1
        _orphan(world, name)
        world.settle()
        assert name in world.pods() and not has_finalizer(world.pods()[name])
        assert {kind: world.status().get(kind, 0) for kind in before} == before

    @pytest.mark.parametrize("code", [0, 1])
    def test_pod_orphaned_before_its_finalizer_is_removed_is_counted_once(
        self, world: BatchWorld, code: int
    ) -> None:
        """INV-BJ-1: the pod is in the status, but its finalizer could not be removed."""
        world.submit(parallelism=2, completions=2)
        name, _ = world.active()
        world.api.inject_fault(500, times=3, method="PATCH", path="/pods")
        world.end_pod(name, code=code)
        for _ in range(200):
            world.run(world.run_iterations(1))
            world.clock.tick(0.05)
            if uncounted(world.job())["succeeded" if code == 0 else "failed"]:
                break
        _orphan(world, name)
        world.settle()
        counts = [world.status().get(kind, 0) for kind in ("succeeded", "failed")]
        assert counts == ([1, 0] if code == 0 else [0, 1])
        assert name in world.pods() and not has_finalizer(world.pods()[name])

    def test_terminating_orphan_of_a_live_job_is_released(self) -> None:
        """INV-BJ-2: no Job adopts it, and its Job is known as one of this controller's."""
        world = BatchWorld(BatchJobSettings())
        world.submit(parallelism=1, managedBy="batholith.io/job-controller")
        (name,) = world.active()
        world.start_pod(name)
        world.run(world.kill())
        world.delete_pod(name)
        _orphan(world, name)
        world.settle()
        assert not has_finalizer(world.objects(PODS)[name]) and world.violations == []
        world.close()

    def test_pod_that_is_not_reported_yet_is_not_counted_twice(self, world: BatchWorld) -> None:
        """INV-BJ-1: another leader listed it; the watch of pods is late."""
        world.settle()
        world.api.hold_watches(PODS)
        world.submit(parallelism=1, completions=3, settle=False)
        uid = world.job()["metadata"]["uid"]
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": uid}
        world.api.put(
            PODS,
            "p",
            metadata={
                "finalizers": [TRACKING],
                "ownerReferences": [{**owner, "controller": True}],
                "labels": {"batch.kubernetes.io/controller-uid": uid},
            },
        )
        world.end_pod("p")
        pod_uid = world.objects(PODS)["p"]["metadata"]["uid"]
        world.audit.listed[uid][pod_uid] = "succeeded"
        world.api.put(BATCH_JOBS, "j", status={"uncountedTerminatedPods": {"succeeded": [pod_uid]}})
        world.advance(3)
        world.settle()
        assert world.status()["succeeded"] == 1 and not has_finalizer(world.objects(PODS)["p"])

    def test_pod_that_does_not_match_any_more_is_released(self, world: BatchWorld) -> None:
        world.submit()
        (name,) = world.active()
        world.api.put(
            PODS, name, metadata={"labels": {"batch.kubernetes.io/controller-uid": "other"}}
        )
        world.settle()
        assert name not in world.pods() and not has_finalizer(world.objects(PODS)[name])
        assert len(world.active()) == 1


def test_restarts_in_their_pods_count_towards_the_limit(world: BatchWorld) -> None:
    world.submit(never=False, backoffLimit=2)
    (name,) = world.active()
    world.start_pod(name)
    world.restart_container(name)
    world.settle()
    assert not world.condition("FailureTarget")
    world.restart_container(name)
    world.settle()
    assert world.condition("FailureTarget")["reason"] == "BackoffLimitExceeded"


def test_scaling_down_deletes_the_pods_that_do_least(world: BatchWorld) -> None:
    world.submit(parallelism=3, completions=9)
    ready, running, pending = world.active()
    world.start_pod(ready)
    world.start_pod(running, ready=False)
    world.edit(parallelism=2)
    world.settle()
    assert pending not in world.active() and len(world.active()) == 2
    world.edit(parallelism=1)
    world.settle()
    assert world.active() == [ready]
    assert world.status().get("failed", 0) == 0


def test_job_without_parallelism_waits(world: BatchWorld) -> None:
    world.submit(parallelism=0, completions=2)
    assert world.active() == [] and "startTime" in world.status()
    world.edit(parallelism=2)
    world.settle()
    assert len(world.active()) == 2


def test_unknown_completion_mode_is_reported(world: BatchWorld) -> None:
    world.submit(completionMode="Other")
    assert world.reasons() == ["UnknownCompletionMode"] and world.pods() == {}


def test_at_most_500_pods_are_counted_at_once(world: BatchWorld) -> None:
    """INV-BJ-1: the others follow in the next syncs."""
    world.submit(parallelism=1200, completions=1200)
    assert len(world.active()) == 1200
    world.api.hold_watches(PODS)
    _end_all(world)
    world.settle()
    assert world.condition("Complete") and world.status()["succeeded"] == 1200
    listed = [
        len(uncounted(job)["succeeded"])
        for prefix, _, job in world.api.states
        if prefix == BATCH_JOBS.path()
    ]
    assert max(listed) == 500


def test_job_costs_few_status_writes(world: BatchWorld) -> None:
    """Created, ready, counted, complete."""
    world.submit(parallelism=50, completions=50)
    for name in world.active():
        world.start_pod(name)
    world.settle()
    _end_all(world)
    world.settle()
    assert world.condition("Complete")
    assert world.audit.status_writes[world.job()["metadata"]["uid"]] == 4
    patches = sum(one.method == "PATCH" and "/pods/" in one.path for one in world.api.received)
    assert patches == 50


def test_lost_response_of_a_creation_does_not_create_another_pod(world: BatchWorld) -> None:
    """INV-BJ-3, INV-BJ-4: the request is repeated with the same name."""
    world.api.inject_fault("lost", method="POST", path="/pods")
    world.api.hold_watches(PODS)
    world.submit(parallelism=2, completions=2)
    assert len(world.pods()) == 2


def test_request_that_never_arrived_is_repeated(world: BatchWorld) -> None:
    world.api.inject_fault("drop", method="POST", path="/pods")
    world.submit()
    assert len(world.active()) == 1


@pytest.mark.parametrize("suspended", [False, True])
def test_created_pod_that_no_watch_reports_is_forgotten(world: BatchWorld, suspended: bool) -> None:
    """It was deleted while the watch of pods was broken, so that no event follows."""
    world.settle()
    world.api.hold_watches(PODS)
    world.submit(parallelism=1, settle=False)
    world.advance(1)
    (name,) = world.active()
    if suspended:
        world.edit(suspend=True)
        world.advance(1)
        assert world.status()["terminating"] == 1 and world.pods() == {}
    else:
        world.api.force_delete(PODS, name)
    world.api.break_watches()
    world.settle()
    assert world.status().get("terminating", 0) == 0
    assert name not in world.pods() and len(world.active()) == (not suspended)


def test_rejected_creations_stop_at_the_first_batch(world: BatchWorld) -> None:
    """INV-SS-1: the first request is rejected, and no other is sent until the retry."""
    world.api.full_namespaces.add("d")
    world.submit(parallelism=100, completions=100, settle=False)
    world.advance(0.5)
    assert world.reasons() == ["FailedCreate"]
    world.api.full_namespaces.clear()
    world.settle()
    assert len(world.active()) == 100


def test_controller_keeps_nothing_of_finished_jobs(world: BatchWorld) -> None:
    world.submit()
    assert world.controller is not None and world.controller.statistics()["jobs"] == 1
    _end_all(world)
    world.settle()
    assert world.controller.statistics() == {"jobs": 0, "queued": 0}


KILLED: dict[str, tuple[Object, Object]] = {
    "nonindexed": (
        {"parallelism": 3, "completions": 3},
        {"succeeded": 3, "failed": 1, "end": "Complete"},
    ),
    "indexed": (
        {"parallelism": 3, "completions": 3, "completionMode": "Indexed"},
        {"succeeded": 3, "failed": 1, "end": "Complete"},
    ),
    "per index": (
        {
            "parallelism": 3,
            "completions": 3,
            "completionMode": "Indexed",
            "backoffLimitPerIndex": 0,
        },
        {"succeeded": 2, "failed": 1, "end": "Failed"},
    ),
    "failing": (
        {"parallelism": 3, "completions": 4, "backoffLimit": 0},
        {"succeeded": 2, "failed": 1, "end": "Failed"},
    ),
    "suspended": (
        {"parallelism": 4, "completions": 4},
        {"succeeded": 4, "failed": 1, "end": "Complete"},
    ),
}
"""Spec, and status at the end, of a Job of whose first pods two succeed and one fails."""


@pytest.mark.parametrize("kind", KILLED)
def test_kill_between_any_two_requests_counts_each_pod_once(kind: str) -> None:
    """INV-BJ-1, INV-BJ-2, INV-BJ-5: for each number of requests before the controller is killed."""
    spec, expected = KILLED[kind]
    for limit in range(1, 14):
        world = BatchWorld()
        world.submit(**spec)
        first, second, third, *_ = world.active()
        world.end_pod(first)
        world.end_pod(second)
        world.end_pod(third, code=1)
        world.edit(suspend=kind == "suspended")
        _kill_after(world, limit)
        world.settle()
        world.edit(suspend=False)
        world.advance(15)
        world.settle()
        _end_all(world)
        world.advance(700)
        world.settle()
        found = {name: world.status().get(name, 0) for name in ("succeeded", "failed")}
        assert found | {"end": expected["end"]} == expected, f"killed after {limit}"
        assert world.condition(expected["end"]) and world.violations == []
        world.close()


def _kill_after(world: BatchWorld, requests: int) -> None:
    """Run until the controller has sent this number of requests, then kill it."""
    until = world.api.requests + requests

    async def run() -> None:
        for _ in range(200):
            for _ in range(40):
                if world.api.requests >= until:
                    return
                await world.run_iterations(1)
            world.clock.tick(0.1)

    world.run(run())
    world.run(world.kill())


def test_a_pod_of_another_namespace_with_the_uid_of_the_job_is_not_counted(
    world: BatchWorld,
) -> None:
    """The API server stores owner references unchecked."""
    world.submit(completions=1, settle=False)
    uid = world.job()["metadata"]["uid"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "j", "uid": uid, "controller": True}
    meta = {"uid": "forged", "ownerReferences": [owner], "finalizers": [TRACKING]}
    ended = {"phase": "Succeeded"}
    world.api.put(PODS, "forged", namespace="mallory", metadata=meta, status=ended)
    world.settle()
    assert len(world.active()) == 1
    assert not world.status().get("succeeded")
