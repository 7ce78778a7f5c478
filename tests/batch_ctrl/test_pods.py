"""Pods as they are built, and as they are read."""

from typing import Any

import msgspec
import pytest
from support.batch_views import indexed, job, policy

from batholith.batch_ctrl import pods
from batholith.batch_ctrl.batch_pod import BatchPod, JobTraits, finish_time, parse_pod
from batholith.batch_ctrl.core_types import Job, Pod, PolicyAction
from batholith.batch_ctrl.effects import Creation
from batholith.batch_ctrl.orphans import RecentUids
from batholith.machinery.pod_control import NameGenerator, Owner
from batholith.model.meta import ObjectMeta
from batholith.model.names import BATCH_JOBS
from batholith.model.pod import PodPhase

Object = dict[str, Any]

OWNER = Owner(resource=BATCH_JOBS, metadata=ObjectMeta(name="j", namespace="d", uid="job"))
TEMPLATE: Object = {
    "metadata": {"labels": {"a": "b"}, "finalizers": ["example.com/other"]},
    "spec": {
        "hostname": "given",
        "initContainers": [{"name": "init"}],
        "containers": [
            {"name": "main", "env": [{"name": "X", "value": "1"}]},
            {"name": "own", "env": [{"name": "JOB_COMPLETION_INDEX", "value": "7"}]},
        ],
    },
}
PREFIX = "batch.kubernetes.io/"


def test_pod_of_a_nonindexed_job_is_the_template() -> None:
    pod = pods.build(TEMPLATE, OWNER, Creation(), name="j-abcde")
    meta = pod["metadata"]
    assert pod["spec"] == TEMPLATE["spec"] and pod["spec"] is not TEMPLATE["spec"]
    assert (meta["name"], meta["generateName"], meta["labels"]) == ("j-abcde", "j-", {"a": "b"})
    assert meta["finalizers"] == ["example.com/other", f"{PREFIX}job-tracking"]
    assert meta["ownerReferences"][0]["uid"] == "job"


def test_pod_of_an_index_gets_its_number() -> None:
    pod = pods.build(TEMPLATE, OWNER, Creation(3), name="j-3-abcde")
    meta, spec = pod["metadata"], pod["spec"]
    assert meta["annotations"] == {f"{PREFIX}job-completion-index": "3"}
    assert meta["labels"] == {"a": "b", f"{PREFIX}job-completion-index": "3"}
    assert spec["hostname"] == "j-3"
    source = {"fieldRef": {"fieldPath": f"metadata.labels['{PREFIX}job-completion-index']"}}
    variable = {"name": "JOB_COMPLETION_INDEX", "valueFrom": source}
    assert spec["initContainers"][0]["env"] == [variable]
    assert spec["containers"][0]["env"] == [{"name": "X", "value": "1"}, variable]
    assert spec["containers"][1] == TEMPLATE["spec"]["containers"][1]


@pytest.mark.parametrize(
    ("creation", "annotations"),
    [
        (Creation(0, failures=0), {"job-index-failure-count": "0"}),
        (
            Creation(0, failures=2, ignored_failures=1),
            {"job-index-failure-count": "2", "job-index-ignored-failure-count": "1"},
        ),
    ],
)
def test_pod_with_a_limit_per_index_gets_its_failures(
    creation: Creation, annotations: dict[str, str]
) -> None:
    found = pods.build(TEMPLATE, OWNER, creation, name="x")["metadata"]["annotations"]
    del found[f"{PREFIX}job-completion-index"]
    assert found == {f"{PREFIX}{key}": value for key, value in annotations.items()}


@pytest.mark.parametrize(
    ("name", "index", "prefix"),
    [
        ("j", None, "j-"),
        ("j", 12, "j-12-"),
        ("x" * 63, None, "x" * 63 + "-"),
        ("x" * 63, 12, "x" * 54 + "-12-"),
    ],
)
def test_prefix_is_that_of_kube_controller_manager(
    name: str, index: int | None, prefix: str
) -> None:
    """Only one with an index is cut so that the random suffix fits; the name always is."""
    assert pods.name_prefix(name, index) == prefix
    assert len(prefix) <= 58 or index is None
    assert len(NameGenerator().generate(prefix)) <= 63


# Reading.


def _pod(**fields: Any) -> Pod:
    meta = {"name": "p", "namespace": "d", "uid": "u", **fields.pop("metadata", {})}
    return msgspec.convert({"metadata": meta, **fields}, Pod)


def _parse(of: Job, **fields: Any) -> BatchPod:
    return parse_pod(_pod(**fields), JobTraits.of(of))


@pytest.mark.parametrize(
    ("text", "index"),
    [
        ("0", 0),
        ("12", 12),
        (None, None),
        ("", None),
        ("x", None),
        ("-1", None),
        ("1.5", None),
        ("1" * 5000, None),
    ],
)
def test_invalid_index_is_unknown(text: str | None, index: int | None) -> None:
    annotations = {} if text is None else {f"{PREFIX}job-completion-index": text}
    assert _parse(indexed(3), metadata={"annotations": annotations}).index == index
    assert _parse(job(), metadata={"annotations": annotations}).index is None


@pytest.mark.parametrize(
    ("text", "count"), [("3", 3), ("x", 0), ("-1", 0), (str(2**31), 0), ("1" * 5000, 0)]
)
def test_invalid_failure_count_is_0(text: str, count: int) -> None:
    annotations = {f"{PREFIX}job-index-failure-count": text}
    assert _parse(indexed(3), metadata={"annotations": annotations}).failures == count


def _state(end: str | None, name: str = "main") -> Object:
    return {"name": name, "state": {"terminated": {"exitCode": 1, "finishedAt": end}}}


READY_FALSE = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:20Z"}
SIDECAR = {"initContainers": [{"name": "side", "restartPolicy": "Always"}, {"name": "init"}]}


@pytest.mark.parametrize(
    ("status", "more", "seconds"),
    [
        ({"containerStatuses": [_state("2026-01-01T00:00:05Z"), _state("2026-01-01T00:00:07Z")]},
         {}, 7),
        ({"containerStatuses": [_state("2026-01-01T00:00:05Z"), {"name": "b"}],
          "conditions": [READY_FALSE]}, {}, 20),
        ({"containerStatuses": [_state(None)], "conditions": [READY_FALSE]}, {}, 20),
        ({"containerStatuses": [_state("2026-01-01T00:00:05Z")],
          "initContainerStatuses": [_state("2026-01-01T00:00:09Z", "side"),
                                    _state("2026-01-01T00:00:11Z", "init")]},
         {"spec": SIDECAR}, 9),
        ({"conditions": [{**READY_FALSE, "status": "True"}]},
         {"metadata": {"deletionTimestamp": "2026-01-01T00:01:00Z",
                       "deletionGracePeriodSeconds": 30}}, 30),
        ({}, {"metadata": {"creationTimestamp": "2026-01-01T00:00:03Z"}}, 3),
        ({}, {}, None),
    ],
)  # fmt: skip
def test_finish_time_is_the_best_known(status: Object, more: Object, seconds: int | None) -> None:
    """INV-BJ-7: the delay of a replacement starts there."""
    start = 1767225600.0  # 2026-01-01
    pod = _pod(status={"phase": "Failed", **status}, **more)
    expected = 0.0 if seconds is None else start + seconds
    assert finish_time(pod, {"side"} if "spec" in more else ()) == expected
    assert parse_pod(pod, JobTraits.of(job())).finished_at == expected


def test_pod_is_parsed_with_all_that_decisions_need() -> None:
    of = msgspec.structs.replace(
        job(),
        spec=msgspec.structs.replace(
            job().spec,
            pod_failure_policy=policy(
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}
            ),
        ),
    )
    found = _parse(
        of,
        metadata={
            "labels": {f"{PREFIX}controller-uid": "job"},
            "finalizers": [f"{PREFIX}job-tracking"],
            "deletionTimestamp": "2026-01-01T00:00:00Z",
        },
        spec={"nodeName": "n"},
        status={
            "phase": "Running",
            "conditions": [
                {"type": "Ready", "status": "True"},
                {"type": "DisruptionTarget", "status": "True"},
            ],
            "containerStatuses": [{"name": "main", "restartCount": 2}],
            "initContainerStatuses": [{"name": "init", "restartCount": 1}],
        },
    )
    assert (found.phase, found.terminating, found.finalizer) == (PodPhase.RUNNING, True, True)
    assert (found.ready, found.restarts, found.matches) == (True, 3, True)
    assert found.match.action is PolicyAction.IGNORE
    assert found.may_run and not found.active


def test_pod_of_another_kind_of_controller_is_reduced_to_its_identity() -> None:
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r"}
    fields: Object = {
        "metadata": {
            "labels": {"a": "b"},
            "annotations": {"c": "d"},
            "resourceVersion": "7",
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": {"nodeName": "n"},
        "status": {"phase": "Running"},
    }
    reduced = _pod(**fields)
    assert (reduced.metadata.key, reduced.metadata.resource_version) == ("d/p", "7")
    assert reduced.metadata.labels == {} and reduced.status.phase == ""
    fields["metadata"]["ownerReferences"] = []
    assert _pod(**fields).status.phase == "Running"


def test_only_recent_uids_are_known() -> None:
    known = RecentUids(2)
    for uid in ("a", "b", "a", "c"):
        known.add(uid)
    assert [uid in known for uid in "abc"] == [True, False, True]
