"""Which jobs are described for placement at creation, and as what."""

from typing import Any

import msgspec
import pytest

from batholith.job_ctrl.creation.placement import (
    Description,
    NotDescribedError,
    Unplaced,
    describe,
    scheduling_fields,
)
from batholith.job_ctrl.plugins.registry import Registry
from batholith.job_ctrl.pods import build
from batholith.model.job import Job
from batholith.model.job_defaults import DefaultedJob
from batholith.model.names import PLACE_AT_CREATION, QUEUE_GATE
from batholith.model.placement import decode_members, hash_of
from batholith.scheduler.state.core_types import Pod

REGISTRY = Registry.load()


def job(
    *,
    pod: dict[str, Any] | None = None,
    container: dict[str, Any] | None = None,
    metadata: dict[str, Any] | None = None,
    annotations: dict[str, str] | None = None,
    task: dict[str, Any] | None = None,
    version: int = 0,
    **spec: Any,
) -> Job:
    """A job with one task of three pods."""
    main = {"name": "main", "image": "busybox", "resources": {"requests": {"cpu": 1}}}
    template = {
        "metadata": metadata or {},
        "spec": {
            "restartPolicy": "Never",
            "containers": [{**main, **(container or {})}],
            **(pod or {}),
        },
    }
    body = {
        "metadata": {
            "name": "j",
            "namespace": "d",
            "uid": "u",
            "annotations": annotations or {},
        },
        "spec": {
            "queue": "default",
            "tasks": [{"name": "t", "replicas": 3, "template": template, **(task or {})}],
            **spec,
        },
        "status": {"version": version},
    }
    return msgspec.json.decode(msgspec.json.encode(body), type=DefaultedJob)


def described(given: Job, **priorities: int) -> Description:
    return describe(given, REGISTRY.for_job(given), priority_of=priorities.get)


def test_a_plain_job_is_described() -> None:
    found = described(job())
    members = decode_members(found.text)
    assert members is not None
    assert (members.job, members.uid, members.version) == ("j", "u", 0)
    assert [(role.name, role.first, role.count) for role in members.roles] == [("t", 0, 3)]
    assert found.hash == hash_of(found.text)
    pod = msgspec.json.decode(members.roles[0].pod, type=Pod)
    assert pod.spec.scheduler_name == "volcano"
    assert pod.spec.containers[0].resources.requests == {"cpu": "1"}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"annotations": {PLACE_AT_CREATION: "false"}}, Unplaced.EXCLUDED),
        ({"pod": {"nodeName": "n"}}, Unplaced.NODE),
        ({"pod": {"schedulingGates": [{"name": "g"}]}}, Unplaced.GATES),
        ({"metadata": {"annotations": {QUEUE_GATE: "true"}}}, Unplaced.GATES),
        ({"pod": {"resourceClaims": [{"name": "c"}]}}, Unplaced.CLAIMS),
        ({"container": {"resources": {"claims": [{"name": "c"}]}}}, Unplaced.CLAIMS),
        ({"pod": {"runtimeClassName": "kata"}}, Unplaced.RESOURCES),
        ({"pod": {"overhead": {"cpu": "1"}}}, Unplaced.RESOURCES),
        ({"pod": {"resources": {"requests": {"cpu": "1"}}}}, Unplaced.RESOURCES),
        ({"pod": {"topologySpreadConstraints": [{"topologyKey": "k"}]}}, Unplaced.TERMS),
        ({"pod": {"affinity": {"podAffinity": {"a": 1}}}}, Unplaced.TERMS),
        ({"pod": {"affinity": {"podAntiAffinity": {"a": 1}}}}, Unplaced.TERMS),
        (
            {"pod": {"volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}},
            Unplaced.VOLUMES,
        ),
        ({"pod": {"volumes": [{"name": "v", "ephemeral": {}}]}}, Unplaced.VOLUMES),
        ({"pod": {"volumes": [{"name": "v", "csi": {}}]}}, Unplaced.VOLUMES),
        ({"volumes": [{"mountPath": "/v", "volumeClaimName": "c"}]}, Unplaced.VOLUMES),
        ({"pod": {"someNewField": 1}}, Unplaced.FIELD),
        ({"pod": {"os": {"name": "windows"}}}, Unplaced.FIELD),
        ({"networkTopology": {"mode": "hard"}}, Unplaced.TOPOLOGY),
        ({"task": {"topologyPolicy": "best-effort"}}, Unplaced.TOPOLOGY),
        ({"task": {"partitionPolicy": {"partitionSize": 1}}}, Unplaced.TOPOLOGY),
        ({"task": {"dependsOn": {"name": ["u"]}}}, Unplaced.DEPENDENCIES),
        ({"plugins": {"missing": []}}, Unplaced.PLUGIN),
        ({"task": {"template": 5}}, Unplaced.PLUGIN),
        ({"pod": {"containers": 5}}, Unplaced.PLUGIN),
        ({"pod": {"containers": [{"resources": {"requests": 5}}]}}, Unplaced.PLUGIN),
        ({"task": {"replicas": 20_001}}, Unplaced.SIZE),
        ({"metadata": {"labels": {"l": "x" * 70_000}}}, Unplaced.SIZE),
        ({"tasks": []}, Unplaced.SIZE),
    ],
)
def test_a_job_whose_pods_may_differ_from_a_description_has_none(
    given: dict[str, Any], reason: Unplaced
) -> None:
    with pytest.raises(NotDescribedError) as refused:
        described(job(**given))
    assert refused.value.reason == reason


@pytest.mark.parametrize(
    "given",
    [
        {"plugins": {"env": [], "svc": [], "ssh": []}},
        {"plugins": {"pytorch": ["--master=t"]}},
        {"plugins": {"tensorflow": ["--worker=t"]}},
        {"plugins": {"mpi": ["--master=t"]}},
        {"plugins": {"hcclrank": []}},
        {"pod": {"volumes": [{"name": "v", "emptyDir": {}}], "hostNetwork": True}},
        {"pod": {"affinity": {"nodeAffinity": {"x": []}}, "nodeSelector": {"a": "b"}}},
        {"pod": {"overhead": {}, "affinity": None, "topologySpreadConstraints": []}},
    ],
)
def test_all_pods_of_a_task_equal_their_description(given: dict[str, Any]) -> None:
    one = job(**given)
    found, plugins = described(one), REGISTRY.for_job(one)
    for index in range(3):
        body = build(one, one.spec.tasks[0], index)
        plugins.mutate_pod(body, one)
        assert scheduling_fields(body) == found.pods["t"]


@pytest.mark.parametrize(
    "other",
    [
        {"version": 1},
        {"task": {"replicas": 4}},
        {"container": {"image": "alpine"}},
        {"container": {"resources": {"requests": {"cpu": 2}}}},
        {"container": {"resources": {"requests": {"cpu": 1}, "limits": {"memory": "1Gi"}}}},
        {"container": {"ports": [{"containerPort": 1, "hostPort": 80}]}},
        {"pod": {"nodeSelector": {"a": "b"}}},
        {"pod": {"tolerations": [{"operator": "Exists"}]}},
        {"pod": {"priorityClassName": "high"}},
        {"metadata": {"labels": {"a": "b"}}},
        {"metadata": {"annotations": {"a": "b"}}},
    ],
)
def test_jobs_that_are_scheduled_differently_have_other_descriptions(other: dict[str, Any]) -> None:
    assert described(job()).hash == described(job()).hash
    assert described(job()).hash != described(job(**other)).hash


def test_the_priority_is_that_of_the_class() -> None:
    members = decode_members(described(job(priorityClassName="high"), high=7).text)
    assert members is not None
    assert members.roles[0].priority == 7


def test_ports_of_the_host_network_are_described() -> None:
    one = job(pod={"hostNetwork": True}, container={"ports": [{"containerPort": 80}]})
    members = decode_members(described(one).text)
    assert members is not None
    pod = msgspec.json.decode(members.roles[0].pod, type=Pod)
    assert [port.host_port for port in pod.spec.containers[0].ports] == [80]
