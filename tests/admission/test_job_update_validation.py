"""Validation of Job updates (rules U1 to U8), and repeated apply of a manifest."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from support.admission import admit, container, denial, job, stored_spec, task

Json = dict[str, Any]


def stored() -> Json:
    pod = {"containers": [container(resources={"requests": {"cpu": "1", "memory": "1Gi"}})]}
    return admit(
        job(
            task("a", replicas=4, pod=pod),
            task("b", policies=[{"event": "PodFailed", "action": "RestartTask"}]),
            minAvailable=3,
            plugins={"env": []},
            volumes=[{"mountPath": "/a", "volumeClaim": {"accessModes": ["ReadWriteOnce"]}}],
        )
    )


def changed(change: Callable[[Json], object]) -> Json:
    new = copy.deepcopy(stored())
    change(new["spec"])
    return new


def pod_of(spec: Json) -> Json:
    pod: Json = spec["tasks"][0]["template"]["spec"]
    return pod


@pytest.mark.parametrize(
    "change",
    [
        lambda spec: spec.update(minAvailable=5),
        lambda spec: spec.update(minAvailable=0),
        lambda spec: spec.update(priorityClassName="high"),
        lambda spec: spec.update(suspend=True),
        lambda spec: spec["tasks"][0].update(replicas=2, minAvailable=1),
        lambda spec: spec["tasks"][0].update(replicas=9),
        lambda spec: spec["tasks"][0].update(minAvailable=0),
        lambda spec: spec["volumes"][0].update(volumeClaimName="j-pvc-1"),
        lambda spec: pod_of(spec)["containers"][0]["resources"]["requests"].update(cpu="1000m"),
        lambda spec: pod_of(spec)["containers"][0]["resources"]["requests"].update(cpu=1),
        lambda spec: pod_of(spec).update(volumes=[], hostNetwork=False, nodeSelector=None),
    ],
)
def test_mutable_fields_may_change(change: Callable[[Json], object]) -> None:
    admit(changed(change), old=stored())


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda spec: spec.update(queue="other"), "spec.queue"),
        (lambda spec: spec.update(maxRetry=9), "spec.maxRetry"),
        (lambda spec: spec.update(ttlSecondsAfterFinished=0), "spec.ttlSecondsAfterFinished"),
        (lambda spec: spec.update(minSuccess=1), "spec.minSuccess"),
        (lambda spec: spec.update(schedulerName="x"), "spec.schedulerName"),
        (lambda spec: spec.update(runningEstimate="1h"), "spec.runningEstimate"),
        (lambda spec: spec.update(networkTopology={"mode": "soft"}), "spec.networkTopology"),
        (lambda spec: spec["plugins"].update(svc=[]), "spec.plugins"),
        (lambda spec: spec["plugins"].clear(), "spec.plugins"),
        (lambda spec: spec.update(policies=[{"event": "*"}]), "spec.policies"),
        (lambda spec: spec["volumes"][0].update(mountPath="/b"), "spec.volumes"),
        (lambda spec: spec["tasks"][0].update(name="x"), "spec.tasks[0].name"),
        (lambda spec: spec["tasks"].reverse(), "spec.tasks[0].name"),
        (lambda spec: spec["tasks"][1].update(maxRetry=1), "spec.tasks[1].maxRetry"),
        (lambda spec: spec["tasks"][1].pop("policies"), "spec.tasks[1].policies"),
        (
            lambda spec: spec["tasks"][1].update(dependsOn={"name": ["a"]}),
            "spec.tasks[1].dependsOn",
        ),
        (lambda spec: pod_of(spec)["containers"][0].update(image="x"), "spec.tasks[0].template"),
        (
            lambda spec: pod_of(spec).update(terminationGracePeriodSeconds=0),
            "spec.tasks[0].template",
        ),
        (lambda spec: pod_of(spec).update(nodeSelector={"gpu": ""}), "spec.tasks[0].template"),
        (
            lambda spec: pod_of(spec)["containers"][0]["resources"]["requests"].update(cpu="1001m"),
            "spec.tasks[0].template",
        ),
    ],
)
def test_quirks_a9_and_a11_other_fields_are_immutable_and_the_denial_lists_the_mutable_ones(
    change: Callable[[Json], object], field: str
) -> None:
    text = denial(changed(change), old=stored())
    assert "job updates may not change fields other than `minAvailable`" in text
    assert "besides `tasks[*].minAvailable` and `suspend`" in text
    assert f"changed: {field}" in text


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda spec: spec["tasks"].pop(), "may not add or remove tasks"),
        (lambda spec: spec["tasks"].append(task("c")), "may not add or remove tasks"),
        (lambda spec: spec.update(minAvailable=6), "must not be greater than total replicas"),
        (
            lambda spec: spec.update(
                networkTopology={"highestTierAllowed": 1, "highestTierName": "x"}
            ),
            "simultaneously",
        ),
    ],
)
def test_invalid_updates_are_denied(change: Callable[[Json], object], expected: str) -> None:
    assert expected in denial(changed(change), old=stored())


def test_quirk_a19_replicas_below_the_default_minimum_are_denied_with_both_named() -> None:
    text = denial(changed(lambda spec: spec["tasks"][0].update(replicas=2)), old=stored())
    assert text.startswith("'minAvailable' must be <= 'replicas' in task: a")
    assert "spec.tasks[0].minAvailable is 4" in text
    assert "spec.tasks[0].replicas 2" in text


def test_a_partitioned_task_cannot_be_scaled() -> None:
    policy = {"totalPartitions": 2, "partitionSize": 2}
    old = admit(job(task(replicas=4, partitionPolicy=policy)))
    new = copy.deepcopy(old)
    new["spec"]["tasks"][0].update(replicas=6)
    assert "'Replicas' are not equal" in denial(new, old=old)


def test_quirk_a10_a_manifest_without_the_defaults_can_be_applied_again() -> None:
    manifest = job(task(name="", replicas=2), task("b"), plugins={"pytorch": []})
    old = admit(copy.deepcopy(manifest))
    assert admit(copy.deepcopy(manifest), old=old)["spec"] == old["spec"]


def test_a_manifest_with_fewer_replicas_can_be_applied() -> None:
    manifest = job(task(replicas=4))
    old = admit(copy.deepcopy(manifest))
    manifest["spec"]["tasks"][0]["replicas"] = 2
    new = admit(manifest, old=old)["spec"]
    assert (new["minAvailable"], new["tasks"][0]["minAvailable"]) == (2, 2)


def test_updates_do_not_depend_on_queue_and_status() -> None:
    old = stored() | {"status": {"state": {"phase": "Completed"}}}
    old["spec"]["queue"] = "deleted"
    new = copy.deepcopy(old)
    new["metadata"]["labels"] = {"a": "b"}
    admit(new, old=old)


def test_a_job_from_before_the_webhooks_can_be_updated() -> None:
    """A job stored without validation must not block updates of labels or finalizers."""
    bare = job({"replicas": 2, "template": task()["template"]}, plugins={"mpi": []})
    del bare["spec"]["queue"]
    wrong = {**bare, "spec": bare["spec"] | {"minAvailable": 9}}
    for before in (bare, wrong):
        after = {**before, "metadata": before["metadata"] | {"labels": {"a": "b"}}}
        stored = admit(after, old=before)
        assert stored_spec(stored)["tasks"][0]["name"] == "default0"
    more = {**bare, "spec": bare["spec"] | {"maxRetry": 9}}
    assert denial(more, old=bare).endswith("changed: spec.maxRetry")
