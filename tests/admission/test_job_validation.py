"""Which new jobs are let in, and what the others are told (rules C1 to C20)."""

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.admission import (
    ObjectReaderStub,
    admit,
    container,
    denial,
    job,
    queue,
    stored_spec,
    task,
)

from batholith.admission import AdmissionSettings

Json = dict[str, Any]


def test_a_plain_job_is_let_in_with_its_defaults() -> None:
    stored = stored_spec(admit(job(task(name="", replicas=2), task("b"))))
    assert stored["schedulerName"] == "volcano"
    assert stored["minAvailable"] == 3
    assert stored["maxRetry"] == 3
    assert [each["name"] for each in stored["tasks"]] == ["default0", "b"]
    assert [each["minAvailable"] for each in stored["tasks"]] == [2, 1]
    assert [each["maxRetry"] for each in stored["tasks"]] == [3, 3]


def test_nothing_but_the_defaults_is_touched() -> None:
    pod = {"containers": [container(resources={"requests": {"cpu": "1000m"}})], "unknown": {"a": 0}}
    sent = job(task(pod=pod), nosuch=[1])
    stored = admit(sent)
    assert stored["spec"]["nosuch"] == [1]
    assert stored["spec"]["tasks"][0]["template"] == sent["spec"]["tasks"][0]["template"]
    assert stored["metadata"] is sent["metadata"]


def test_filling_in_twice_changes_nothing() -> None:
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
def test_quirk_g17_plugins_bring_those_that_they_need(given_plugins: Json, stored: Json) -> None:
    assert stored_spec(admit(job(plugins=given_plugins)))["plugins"] == stored


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        pytest.param(job() | {"spec": {"queue": "default"}}, "No task specified", id="C1"),
        pytest.param(job(plugins={"mpi": ["--master=x"]}), 'no task is named "x"', id="C2"),
        pytest.param(
            job(networkTopology={"highestTierAllowed": 0, "highestTierName": "x"}),
            "simultaneously",
            id="C3",
        ),
        pytest.param(job(task(minAvailable=2)), "in task: t, job: j", id="C4"),
        pytest.param(job(task(), task()), "duplicated task name t", id="C5"),
        pytest.param(
            job(task(policies=[{"event": "PodFailed"}])),
            'spec.tasks[0].policies: Invalid value: "": invalid policy action',
            id="C6",
        ),
        pytest.param(job(name="n" * 62), f"create pod with name {'n' * 62}-t-0", id="C7"),
        pytest.param(
            job(task(pod={"containers": []})), "template.spec.containers: Required", id="C8"
        ),
        pytest.param(job(task(topologyPolicy="restricted")), "isn't an integer", id="C9"),
        pytest.param(
            job(task(replicas=3, partitionPolicy={"totalPartitions": 2, "partitionSize": 2})),
            "'Replicas' are not equal",
            id="C10",
        ),
        pytest.param(job(name="n" * 64), "create job with name", id="C11"),
        pytest.param(job(minAvailable=2), "should not be greater than total replicas", id="C12"),
        pytest.param(job(policies=[{"action": "AbortJob"}]), "spec.policies: either", id="C13"),
        pytest.param(job(plugins={"nosuch": []}), "unable to find job plugin: nosuch", id="C14"),
        pytest.param(job(volumes=[{"mountPath": "/a"}]), "must be specified", id="C15"),
        pytest.param(job(queue="x"), '"x" not found', id="C16"),
        pytest.param(job(queue="closed"), "`closed` status is `Closed`", id="C17"),
        pytest.param(job(queue="root"), "can not submit job to root queue", id="C18"),
        pytest.param(job(queue="parent"), "has 1 child queues", id="C19"),
        pytest.param(
            job(task("a", dependsOn={"name": ["b"]}), task("b", dependsOn={"name": ["a"]})),
            "directed acyclic graph",
            id="C20",
        ),
        pytest.param(job(runningEstimate="1 hour"), "spec.runningEstimate", id="estimate"),
    ],
)
def test_a_broken_job_is_refused(sent: Json, words: str) -> None:
    shelf = ObjectReaderStub(
        queue("closed", state="Closed"), queue("parent"), queue("c", parent="parent")
    )
    assert words in denial(sent, shelf)


def test_a_queue_whose_state_nobody_has_written_yet_is_open() -> None:
    admit(job(queue="new"), ObjectReaderStub(queue("new", state="")))


def test_all_faults_are_told_at_once() -> None:
    text = denial(job(task(), task(), plugins={"x": []}, queue="y", minAvailable=9))
    for words in ("duplicated task name t", "total replicas", "job plugin: x", '"y" not found'):
        assert words in text


def test_quirk_a7_a_task_named_twice_does_not_hide_the_size_of_the_rest() -> None:
    text = denial(job(task("a"), task("a"), task("b", replicas=5), minAvailable=7))
    assert text == "duplicated task name a"


def test_quirk_a3_the_name_of_the_last_pod_must_fit() -> None:
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
def test_quirks_a4_and_g9_the_name_must_do_for_what_is_named_after_the_job(
    name: str, extra: Json, fits: bool
) -> None:
    sent = job(name=name, **extra)
    if fits:
        admit(sent)
    else:
        assert f'metadata.name: Invalid value: "{name}"' in denial(sent)


def test_plugins_of_others_can_be_let_in() -> None:
    settings = AdmissionSettings(job_plugins=frozenset(("mine",)))
    admit(job(plugins={"mine": []}), settings=settings)


@pytest.mark.parametrize(
    ("volumes", "words"),
    [
        ([{"mountPath": "/a", "volumeClaimName": "c"}], ""),
        ([{"mountPath": "/a", "volumeClaim": {"accessModes": ["ReadWriteOnce"]}}], ""),
        ([{"mountPath": "/a", "volumeClaimName": "c"}] * 2, "duplicated mountPath: /a"),
        ([{"mountPath": "/a", "volumeClaimName": "c", "volumeClaim": {}}], "conflict"),
        ([{"mountPath": "/a", "volumeClaimName": "C"}], "invalid VolumeClaimName C"),
    ],
)
def test_volumes(volumes: list[Json], words: str) -> None:
    if words:
        assert words in denial(job(volumes=volumes))
    else:
        admit(job(volumes=volumes))


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"totalPartitions": 2, "partitionSize": 2}, ""),
        ({"totalPartitions": 2, "partitionSize": 2, "minPartitions": 1}, ""),
        ({"totalPartitions": 0, "partitionSize": 2}, "'TotalPartitions' must be greater"),
        ({"totalPartitions": 2, "partitionSize": 0}, "'PartitionSize' must be greater"),
        ({"totalPartitions": 3, "partitionSize": 2}, "'Replicas' are not equal"),
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
def test_partitions(policy: Json, words: str) -> None:
    sent = job(task(replicas=4, partitionPolicy=policy))
    if words:
        assert words in denial(sent)
    else:
        admit(sent)


def test_the_least_partitions_decide_the_least_pods() -> None:
    policy = {"totalPartitions": 3, "partitionSize": 2, "minPartitions": 2}
    sent = job(task(replicas=6, partitionPolicy=policy))
    assert stored_spec(admit(sent))["tasks"][0]["minAvailable"] == 4
    sent["spec"]["tasks"][0]["minAvailable"] = 3
    assert "MinPartitions*PartitionSize" in denial(sent)


@pytest.mark.parametrize(
    ("awaited", "words"),
    [
        (["b"], ""),
        (["a"], "a -> a"),
        (["nosuch"], "depends on nosuch, which is not a task"),
        (["b", "b"], "has duplicate dependency b"),
    ],
)
def test_dependencies(awaited: list[str], words: str) -> None:
    sent = job(task("a", dependsOn={"name": awaited}), task("b"))
    if words:
        assert words in denial(sent)
    else:
        admit(sent)


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
def test_cpus_are_pinned_whole(resources: Json, whole: bool) -> None:
    pod = {"containers": [container(resources=resources)]}
    sent = job(task(pod=pod, topologyPolicy="best-effort"))
    if whole:
        admit(sent)
    else:
        assert "cpu request isn't an integer in spec.task[0]" in denial(sent)
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
def test_any_object_is_filled_in_or_left_alone(parts: Json) -> None:
    """Faults of type are the schema's to name: defaulting never fails, validation only denies."""
    sent = {"kind": "Job", "metadata": {"name": "j"}} | parts
    try:
        stored = admit(sent)
    except Exception as refused:
        assert type(refused).__name__ == "DeniedError"
        assert str(refused)
    else:
        assert stored["spec"]["minAvailable"] >= 0
