"""Defaulting and validation of new Jobs (rules C1 to C20)."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.admission import (
    ObjectReaderStub,
    admit,
    check,
    container,
    denial,
    job,
    queue,
    stored_spec,
    task,
)

from batholith.admission import AdmissionSettings
from batholith.admission.task_validation import dependency_error
from batholith.model.job import DependsOn, TaskSpec

Json = dict[str, Any]


def test_a_minimal_job_is_allowed_and_defaulted() -> None:
    stored = stored_spec(admit(job(task(name="", replicas=2), task("b"))))
    assert stored["schedulerName"] == "volcano"
    assert stored["minAvailable"] == 3
    assert stored["maxRetry"] == 3
    assert [each["name"] for each in stored["tasks"]] == ["default0", "b"]
    assert [each["minAvailable"] for each in stored["tasks"]] == [2, 1]
    assert [each["maxRetry"] for each in stored["tasks"]] == [3, 3]


def test_only_missing_fields_are_changed() -> None:
    pod = {"containers": [container(resources={"requests": {"cpu": "1000m"}})], "unknown": {"a": 0}}
    sent = job(task(pod=pod), nosuch=[1])
    stored = admit(sent)
    assert stored["spec"]["nosuch"] == [1]
    assert stored["spec"]["tasks"][0]["template"] == sent["spec"]["tasks"][0]["template"]
    assert stored["metadata"] is sent["metadata"]


def test_defaulting_is_idempotent() -> None:
    once = admit(job(plugins={"mpi": ["--master=t"]}))
    assert admit(copy.deepcopy(once)) == once


def test_the_first_configured_scheduler_is_the_default() -> None:
    settings = AdmissionSettings(scheduler_names=("mine", "volcano"))
    assert stored_spec(admit(job(), settings=settings))["schedulerName"] == "mine"


def test_pods_on_the_network_of_the_node_can_resolve_services() -> None:
    stored = stored_spec(admit(job(task(pod={"hostNetwork": True}))))
    assert stored["tasks"][0]["template"]["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
    kept = stored_spec(admit(job(task(pod={"hostNetwork": True, "dnsPolicy": "Default"}))))
    assert kept["tasks"][0]["template"]["spec"]["dnsPolicy"] == "Default"


@pytest.mark.parametrize(
    ("given_plugins", "stored"),
    [
        ({}, {}),
        ({"env": []}, {"env": []}),
        ({"pytorch": ["--port=1"]}, {"pytorch": ["--port=1"], "svc": []}),
        ({"tensorflow": [], "svc": ["x"]}, {"tensorflow": [], "svc": ["x"]}),
        ({"ray": []}, {"ray": [], "svc": []}),
        ({"mpi": ["--master", "t"]}, {"mpi": ["--master", "t"], "svc": [], "ssh": []}),
        ({"hcclrank": []}, {"hcclrank": []}),
    ],
)
def test_quirk_g17_plugins_add_their_dependencies(given_plugins: Json, stored: Json) -> None:
    assert stored_spec(admit(job(plugins=given_plugins)))["plugins"] == stored


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        pytest.param(job(plugins={"mpi": ["--master=x"]}), 'no task is named "x"', id="C2"),
        pytest.param(job(name="n" * 62), f"create pod with name {'n' * 62}-t-0", id="C7"),
        pytest.param(
            job(task(pod={"containers": []})), "template.spec.containers: Required", id="C8"
        ),
        pytest.param(job(name="n" * 64), "create job with name", id="C11"),
        pytest.param(job(queue="root"), "can not submit job to root queue", id="C18"),
        pytest.param(
            job(task("a", dependsOn={"name": ["b"]}), task("b", dependsOn={"name": ["a"]})),
            "directed acyclic graph",
            id="C20",
        ),
        pytest.param(job(runningEstimate="1 hour"), "spec.runningEstimate", id="estimate"),
    ],
)
def test_invalid_jobs_are_denied(sent: Json, expected: str) -> None:
    """Rules whose phrases are in the table of denial phrases have their cases there."""
    assert expected in denial(sent)


def test_a_queue_without_a_state_is_open() -> None:
    admit(job(queue="new"), ObjectReaderStub(queue("new", state="")))


def test_a_denial_contains_all_errors() -> None:
    text = denial(job(task(), task(), plugins={"x": []}, queue="y", minAvailable=9))
    for expected in ("duplicated task name t", "total replicas", "job plugin: x", '"y" not found'):
        assert expected in text


def test_quirk_a7_replicas_of_a_duplicate_task_count() -> None:
    text = denial(job(task("a"), task("a"), task("b", replicas=5), minAvailable=7))
    assert text == "duplicated task name a"


def test_quirk_a3_the_name_of_the_last_pod_must_be_valid() -> None:
    admit(job(task(replicas=10), name="n" * 59))
    assert "create pod with name" in denial(job(task(replicas=11), name="n" * 59))


@pytest.mark.parametrize(
    ("name", "extra", "fits"),
    [
        ("a.b", {}, True),
        ("1a", {}, True),
        ("a.b", {"plugins": {"svc": []}}, False),
        ("1a", {"plugins": {"svc": []}}, False),
        ("a1", {"plugins": {"svc": []}}, True),
        ("a.b", {"plugins": {"ssh": []}}, False),
        ("1a", {"plugins": {"ssh": []}}, True),
        ("a.b", {"volumes": [{"mountPath": "/a", "volumeClaimName": "c"}]}, False),
    ],
)
def test_quirks_a4_and_g9_the_name_must_be_valid_for_objects_named_after_the_job(
    name: str, extra: Json, fits: bool
) -> None:
    check("" if fits else f'metadata.name: Invalid value: "{name}"', job(name=name, **extra))


def test_plugins_of_entry_points_can_be_allowed() -> None:
    settings = AdmissionSettings(job_plugins=frozenset(("mine",)))
    admit(job(plugins={"mine": []}), settings=settings)


@pytest.mark.parametrize(
    "volume", [{"volumeClaimName": "c"}, {"volumeClaim": {"accessModes": ["ReadWriteOnce"]}}]
)
def test_a_volume_has_a_claim_or_the_name_of_one(volume: Json) -> None:
    admit(job(volumes=[{"mountPath": "/a"} | volume]))


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ({"totalPartitions": 2, "partitionSize": 2}, ""),
        ({"totalPartitions": 2, "partitionSize": 2, "minPartitions": 1}, ""),
        (
            {
                "totalPartitions": 2,
                "partitionSize": 2,
                "networkTopology": {"highestTierAllowed": 1, "highestTierName": "x"},
            },
            "simultaneously in task: t",
        ),
    ],
)
def test_partitions(policy: Json, expected: str) -> None:
    sent = job(task(replicas=4, partitionPolicy=policy))
    check(expected, sent)


def test_min_partitions_determine_min_available() -> None:
    policy = {"totalPartitions": 3, "partitionSize": 2, "minPartitions": 2}
    sent = job(task(replicas=6, partitionPolicy=policy))
    assert stored_spec(admit(sent))["tasks"][0]["minAvailable"] == 4
    sent["spec"]["tasks"][0]["minAvailable"] = 3
    assert "MinPartitions*PartitionSize" in denial(sent)


@pytest.mark.parametrize(
    ("dependencies", "expected"),
    [
        (["b"], ""),
        (["a"], "a -> a"),
        (["nosuch"], "depends on nosuch, which is not a task"),
        (["b", "b"], "has duplicate dependency b"),
    ],
)
def test_dependencies(dependencies: list[str], expected: str) -> None:
    sent = job(task("a", dependsOn={"name": dependencies}), task("b"))
    check(expected, sent)


def test_a_task_with_many_dependencies_is_validated_in_linear_time() -> None:
    """Quadratic time would be minutes here."""
    names = tuple(f"t{number}" for number in range(50_000))
    tasks = [TaskSpec(name=name) for name in names]
    last = TaskSpec(name="last", depends_on=DependsOn(name=names))
    assert not dependency_error([*tasks, last])


@pytest.mark.parametrize(
    ("resources", "whole"),
    [
        ({"requests": {"cpu": "2"}}, True),
        ({"limits": {"cpu": 1}}, True),
        ({"requests": {"cpu": "1500m"}}, False),
        ({"requests": {"cpu": 0}}, False),
        ({"requests": {"memory": "1Gi"}, "limits": {"cpu": 1}}, False),
    ],
)
def test_topology_policies_require_whole_cpus(resources: Json, whole: bool) -> None:
    pod = {"containers": [container(resources=resources)]}
    expected = "" if whole else "cpu request isn't an integer in spec.task[0]"
    check(expected, job(task(pod=pod, topologyPolicy="best-effort")))
    admit(job(task(pod=pod, topologyPolicy="none")))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.sampled_from(["", "a", "t"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "name",
                    "tasks",
                    "replicas",
                    "minAvailable",
                    "template",
                    "spec",
                    "plugins",
                    "queue",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from(["spec", "status"]), json_values))
def test_defaulting_and_validation_accept_any_object(fields: Json) -> None:
    """The schema reports wrong types: defaulting never fails, validation only denies."""
    sent = {"kind": "Job", "metadata": {"name": "j"}} | fields
    try:
        stored = admit(sent)
    except Exception as refused:
        assert type(refused).__name__ == "DeniedError"
        assert str(refused)
    else:
        assert stored["spec"]["minAvailable"] >= 0


@pytest.mark.parametrize(
    "replicas", [(100_001,), (60_000, 40_001), (2**31 - 1, 2**31 - 1), (100_001, -50_000)]
)
def test_a_job_with_too_many_pods_is_denied_with_their_number(replicas: tuple[int, ...]) -> None:
    tasks = [task(f"t{index}", number) for index, number in enumerate(replicas)]
    message = denial(job(*tasks, minAvailable=1))
    total = sum(max(number, 0) for number in replicas)
    assert message == (
        f"spec.tasks[*].replicas: the job has {total} pods, but a job may have at most 100000"
        " (--max-pods-per-job)"
    )


def test_the_largest_number_of_pods_is_a_setting() -> None:
    settings = AdmissionSettings(max_pods_per_job=5)
    admit(job(task(replicas=5)), settings=settings)
    assert "has 6 pods" in denial(job(task(replicas=6)), settings=settings)
    admit(job(task("a", 60_000), task("b", 40_000)))


def test_a_job_that_is_stored_with_too_many_pods_can_be_scaled_down_and_relabelled() -> None:
    stored = admit(job(task(replicas=9)))
    settings = AdmissionSettings(max_pods_per_job=5)
    labelled = {**stored, "metadata": {**stored["metadata"], "labels": {"a": "b"}}}
    admit(labelled, old=stored, settings=settings)
    smaller = copy.deepcopy(stored)
    smaller["spec"] |= {"minAvailable": 1}
    smaller["spec"]["tasks"][0] |= {"replicas": 5, "minAvailable": 1}
    admit(smaller, old=stored, settings=settings)
    smaller["spec"]["tasks"][0] |= {"replicas": 6}
    assert "has 6 pods" in denial(smaller, old=stored, settings=settings)
