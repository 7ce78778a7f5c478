"""Manifests and short forms of jobs; entity tags; phases and pods of all kinds. Pure."""

import uuid
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.rest_jobs import batch_job, volcano_job

from batholith.api.http.preconditions import EntityTags, Preconditions, etag, is_known
from batholith.api.jobs.kinds import BATCH, KINDS, VOLCANO, PodPosition
from batholith.api.problems import ProblemError
from batholith.api.serving.limits import MAX_BODY, MAX_MANIFEST, body_limit
from batholith.api.writes.manifests import build_job, decode_body
from batholith.model.meta import ObjectMeta
from batholith.model.names import OPERATION, SUBMITTED_BY
from batholith.wire.jobs import JobKindName, JobSummary

PYTORCH = KINDS[JobKindName.PYTORCHJOBS]
ID = uuid.UUID("12345678-1234-4234-8234-123456789abc")


def build(body: object, kind: Any = VOLCANO) -> dict[str, Any]:
    return build_job(body, kind, namespace="default", operation=ID, user="ann")


def rejected(body: object, kind: Any = VOLCANO) -> list[str]:
    """The fields that are invalid."""
    with pytest.raises(ProblemError) as caught:
        build(body, kind)
    assert caught.value.status == 422
    return [each["field"] for each in caught.value.errors]


def with_metadata(**metadata: Any) -> dict[str, Any]:
    return {**volcano_job(), "metadata": metadata}


def test_a_manifest_is_kept_and_marked() -> None:
    body = volcano_job("train")
    body["metadata"] |= {"annotations": {"a": "b"}, "labels": {"c": "d"}, "namespace": "default"}
    built = build(body)
    assert built["spec"] == body["spec"]
    marks = {OPERATION: str(ID), SUBMITTED_BY: "ann"}
    assert built["metadata"] == {**body["metadata"], "annotations": {"a": "b", **marks}}
    assert build({**body, "status": {}})["metadata"]["name"] == "train"
    # As Go programs print objects.
    assert build(with_metadata(name="a", creationTimestamp=None))["metadata"]["name"] == "a"


@pytest.mark.parametrize(
    ("body", "fields"),
    [
        ([], []),
        ("text", []),
        (None, []),
        ({}, ["image"]),
        ({"apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job"}, ["spec"]),
        ({"metadata": {}, "spec": {}}, ["apiVersion", "kind"]),
        ({**volcano_job(), "apiVersion": "batch/v1"}, ["apiVersion"]),
        ({**volcano_job(), "kind": "CronJob"}, ["kind"]),
        ({**volcano_job(), "spec": []}, ["spec"]),
        ({**volcano_job(), "status": {"running": 1}}, ["status"]),
        (with_metadata(namespace="other"), ["metadata.namespace"]),
        (with_metadata(name=1), ["metadata.name"]),
        (with_metadata(generateName={}), ["metadata.generateName"]),
        (with_metadata(name="a", generateName="b"), ["metadata.generateName"]),
        (with_metadata(uid="1", resourceVersion="2"), ["metadata.resourceVersion", "metadata.uid"]),
        (with_metadata(annotations=[]), ["metadata.annotations"]),
        (
            with_metadata(annotations={SUBMITTED_BY: "bob"}),
            [f"metadata.annotations[{SUBMITTED_BY}]"],
        ),
        (
            with_metadata(annotations={OPERATION: str(ID)}),
            [f"metadata.annotations[{OPERATION}]"],
        ),
        ({"image": "a", "replica": 2}, ["replica"]),
        ({"image": "a", "replicas": 0}, ["replicas"]),
        ({"image": "a", "replicas": "2"}, ["replicas"]),
        ({"image": "a", "replicas": 1, "min_available": 2}, ["min_available"]),
        ({"image": "a", "cpu": "much"}, ["cpu"]),
        ({"image": "a", "memory": "-1Gi"}, ["memory"]),
        ({"image": "a", "gpus": -1}, ["gpus"]),
        ({"image": "a", "cpu": True}, ["cpu"]),
        ({"image": "a", "cpu": -0.5}, ["cpu"]),
        ({"image": "a", "env": {"A": 1}}, ["env.A"]),
        ({"image": "a", "command": "sleep 1"}, ["command"]),
        ({"image": "a", "max_retry": 0}, ["max_retry"]),
        ({"image": "a", "name": "Upper"}, ["name"]),
    ],
)
def test_a_field_without_effect_is_rejected(body: object, fields: list[str]) -> None:
    assert rejected(body) == fields


def test_only_volcano_jobs_have_a_short_form() -> None:
    assert rejected({"image": "a"}, BATCH) == ["apiVersion", "kind", "spec", "image"][:3]


def test_the_name_of_a_generated_job_fits_into_a_label() -> None:
    name = build(with_metadata(generateName="x" * 200))["metadata"]["name"]
    assert (len(name), name.endswith(ID.hex[:10])) == (63, True)
    assert build({"image": "a"})["metadata"]["name"] == f"job-{ID.hex[:10]}"


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("cpu", 2, {"requests": {"cpu": "2"}}),
        ("cpu", 0.5, {"requests": {"cpu": "0.5"}}),
        ("memory", "1Gi", {"requests": {"memory": "1Gi"}, "limits": {"memory": "1Gi"}}),
        (
            "gpus",
            2,
            {"requests": {"nvidia.com/gpu": "2"}, "limits": {"nvidia.com/gpu": "2"}},
        ),
        ("gpus", 0, None),
    ],
)
def test_resources_of_the_short_form(field: str, value: object, expected: Any) -> None:
    [task] = build({"image": "a", field: value})["spec"]["tasks"]
    assert task["template"]["spec"]["containers"][0].get("resources") == expected


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff",
        b'{"a": NaN}',
        b'{"a": Infinity}',
        b'{"a": 1e999}',
        b'{"a": "\\ud800"}',
        b'{"a": 1, "a": 2}',
        b'{"a": [{"b": 1, "b": 1}]}',
        b"[" * 100_000,
        b'{"a": ' + b"1" * 5000 + b"}",
    ],
)
def test_what_cannot_be_passed_on_is_no_json(body: bytes) -> None:
    with pytest.raises(ProblemError) as caught:
        decode_body(body)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("text", "is_rejected"),
    [("\0", True), ("\\u0000", False), ("\\\0", True), ("\\\\u0000", False), ("u0000", False)],
)
def test_a_nul_character_is_rejected(text: str, is_rejected: bool) -> None:
    for body in ({"a": text}, {text: 1}):
        encoded = msgspec.json.encode(body)
        if is_rejected:
            with pytest.raises(ProblemError) as caught:
                decode_body(encoded)
            assert caught.value.status == 422
        else:
            assert decode_body(encoded) == body


trees = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children),
    max_leaves=8,
)
keys = st.sampled_from(
    ["apiVersion", "kind", "metadata", "spec", "status", "name", "image", "env", "labels", "cpu"]
)


@settings(max_examples=examples(200))
@given(
    body=st.dictionaries(keys, trees)
    | st.fixed_dictionaries(
        {
            "apiVersion": st.just("batch.volcano.sh/v1alpha1"),
            "kind": st.just("Job"),
            "metadata": st.dictionaries(
                st.sampled_from(["name", "generateName", "annotations", "labels", "uid"]), trees
            ),
            "spec": st.dictionaries(st.text(), trees, max_size=2),
        }
    )
)
def test_any_body_is_built_or_rejected(body: dict[str, Any]) -> None:
    try:
        built = build(decode_body(msgspec.json.encode(body)))
    except ProblemError as error:
        assert error.status == 422
    else:
        assert built["metadata"]["name"]
        assert built["metadata"]["annotations"][SUBMITTED_BY] == "ann"


@pytest.mark.parametrize(
    ("method", "path", "limit"),
    [
        ("POST", "/v1/namespaces/a/jobs", MAX_MANIFEST),
        ("POST", "/v1/namespaces/a/pytorchjobs", MAX_MANIFEST),
        ("PUT", "/v1/namespaces/a/jobs", MAX_BODY),
        ("POST", "/v1/namespaces/a/jobs/b/commands", MAX_BODY),
        ("POST", "/v1/namespaces/a/b/jobs", MAX_BODY),
        ("POST", "/v1/namespaces/a/commands", MAX_BODY),
        ("POST", "/v1/namespaces/a/jobs\n", MAX_BODY),
    ],
)
def test_only_manifests_may_be_large(method: str, path: str, limit: int) -> None:
    assert body_limit(method, path) == limit


# -- entity tags


def tags(text: str) -> EntityTags:
    return EntityTags.parse(text, header="If-Match")


def test_entity_tags_are_parsed() -> None:
    assert tags('"1"') == EntityTags(('"1"',))
    assert tags(' W/"1" , "a,b" ') == EntityTags(('W/"1"', '"a,b"'))
    assert tags("*") == EntityTags(any_version=True)
    for malformed in ("", "1", '"1" "2"', '"1",', "*, *", '"\x00"', '"1', 'w/"1"', '"ä"'):
        with pytest.raises(ProblemError) as caught:
            tags(malformed)
        assert caught.value.status == 422


def test_a_weak_tag_is_known_and_never_matches() -> None:
    assert is_known(tags('W/"1"'), "1")
    assert not is_known(EntityTags(), "1")
    Preconditions().check("1")
    Preconditions(tags('"2", "1"')).check("1")
    Preconditions(tags("*")).check("1")
    for other in ('W/"1"', '"2"'):
        with pytest.raises(ProblemError) as caught:
            Preconditions(tags(other)).check("1")
        assert caught.value.status == 412
    assert etag("1") == '"1"'


# -- summaries


def summary(kind: Any, body: dict[str, Any]) -> JobSummary:
    found: JobSummary = kind.summarize(msgspec.convert(body, kind.view))
    return found


def conditions(*types: str, status: str = "True") -> list[dict[str, str]]:
    return [
        {
            "type": each,
            "status": status,
            "reason": f"{each}Reason",
            "message": f"{each} message",
            "lastTransitionTime": "2026-01-01T00:00:09Z",
        }
        for each in types
    ]


@pytest.mark.parametrize(
    ("spec", "status", "phase"),
    [
        ({}, {}, "Pending"),
        ({}, {"active": 2, "ready": 0}, "Pending"),
        ({}, {"active": 2, "ready": 1}, "Running"),
        ({}, {"active": 1, "failed": 1}, "Running"),
        ({"suspend": True}, {}, "Suspended"),
        ({"suspend": True}, {"active": 1, "ready": 1}, "Running"),
        ({}, {"conditions": conditions("Suspended")}, "Suspended"),
        ({}, {"conditions": conditions("Suspended", status="False")}, "Pending"),
        ({}, {"conditions": conditions("FailureTarget")}, "Terminating"),
        ({}, {"conditions": conditions("FailureTarget", "Failed")}, "Failed"),
        ({}, {"conditions": conditions("SuccessCriteriaMet"), "active": 1}, "Completing"),
        ({}, {"conditions": conditions("SuccessCriteriaMet", "Complete")}, "Completed"),
    ],
)
def test_the_phase_of_a_batch_job_follows_from_its_status(
    spec: dict[str, Any], status: dict[str, Any], phase: str
) -> None:
    found = summary(BATCH, {"spec": spec, "status": status})
    assert found.phase == phase
    if phase in ("Failed", "Completed"):
        assert found.finished_at == datetime(2026, 1, 1, 0, 0, 9, tzinfo=UTC)
        assert found.reason
    else:
        assert found.finished_at is None


def test_counts_of_a_batch_job() -> None:
    body = batch_job("count", parallelism=5, completions=9)
    body["metadata"]["annotations"] = {"scheduling.volcano.sh/group-min-member": "3"}
    pod = body["spec"]["template"]
    pod["spec"] |= {"schedulerName": "volcano", "priorityClassName": "high"}
    pod["metadata"] = {"annotations": {"scheduling.volcano.sh/queue-name": "research"}}
    body["status"] = {"active": 4, "ready": 1, "succeeded": 2, "failed": 1, "terminating": 1}
    found = summary(BATCH, body)
    assert (found.pending, found.running, found.succeeded, found.failed) == (3, 1, 2, 1)
    assert (found.replicas, found.completions, found.min_available) == (5, 9, 3)
    assert (found.queue, found.priority_class_name, found.terminating) == ("research", "high", 1)
    [task] = found.tasks
    assert task.phases == {"Pending": 3, "Running": 1, "Succeeded": 2, "Failed": 1}


@pytest.mark.parametrize(
    ("types", "phase"),
    [
        ((), "Pending"),
        (("Created",), "Pending"),
        (("Created", "Running"), "Running"),
        (("Created", "Restarting"), "Restarting"),
        (("Created", "Suspended"), "Suspended"),
        (("Created", "Succeeded"), "Completed"),
        (("Created", "Failed"), "Failed"),
    ],
)
def test_the_phase_of_a_training_job_follows_from_its_conditions(
    types: tuple[str, ...], phase: str
) -> None:
    specs = {"Master": {}, "Worker": {"replicas": 3}}
    policy = {"schedulingPolicy": {"queue": "research", "priorityClass": "high"}}
    body = {
        "spec": {"pytorchReplicaSpecs": specs, "runPolicy": policy},
        "status": {
            "conditions": conditions(*types),
            "replicaStatuses": {"Worker": {"active": 1, "failed": 1}},
        },
    }
    found = summary(PYTORCH, body)
    assert found.phase == phase
    assert (found.replicas, found.min_available, found.running, found.failed) == (4, 4, 1, 1)
    assert (found.queue, found.priority_class_name) == ("research", "high")
    assert found.pending == (2 if phase in ("Pending", "Running", "Restarting") else 0)


def test_a_volcano_job_in_a_phase_of_a_later_version_is_unknown() -> None:
    assert summary(VOLCANO, {"status": {"state": {"phase": "Dreaming"}}}).phase == "Unknown"


# -- pods


def test_pods_are_selected_by_the_labels_of_their_kind() -> None:
    metadata = {"name": "train", "namespace": "a", "uid": "1"}
    selectors = {
        VOLCANO: "volcano.sh/job-name=train,volcano.sh/job-namespace=a",
        BATCH: "batch.kubernetes.io/controller-uid=1",
        PYTORCH: "training.kubeflow.org/operator-name=pytorchjob-controller,"
        "training.kubeflow.org/job-name=train",
    }
    labels = {"batch.kubernetes.io/controller-uid": "1"}
    body = {"metadata": metadata, "spec": {"selector": {"matchLabels": labels}}}
    for kind, expected in selectors.items():
        assert str(kind.pod_selector(msgspec.convert(body, kind.view))) == expected


def test_places_of_pods() -> None:
    task = {"volcano.sh/task-spec": "worker", "volcano.sh/task-index": "3"}
    assert VOLCANO.pod_position(ObjectMeta(annotations=task)) == PodPosition(task="worker", index=3)
    assert VOLCANO.pod_position(ObjectMeta()) == PodPosition(task="")
    index = {"batch.kubernetes.io/job-completion-index": "7"}
    assert BATCH.pod_position(ObjectMeta(annotations=index)) == PodPosition(task="pods", index=7)
    labels = {
        "training.kubeflow.org/replica-type": "worker",
        "training.kubeflow.org/replica-index": "x",
    }
    assert PYTORCH.pod_position(ObjectMeta(labels=labels)) == PodPosition(task="Worker")


def test_a_malformed_amount_is_explained_once() -> None:
    """In the short form, and in a manifest with equal requests and limits."""
    amounts = {"memory": "4GB"}
    body = volcano_job()
    pod = body["spec"]["tasks"][0]["template"]["spec"]
    pod["containers"][0]["resources"] = {"requests": {"cpu": 1} | amounts, "limits": amounts}
    path = "spec.tasks[0].template.spec.containers[0].resources.limits.memory"
    for body_of, field in (({"image": "a", **amounts}, "memory"), (body, path)):
        with pytest.raises(ProblemError) as caught:
            build(body_of)
        (error,) = caught.value.errors
        assert error["field"] == field
        assert '"4GB" is not a quantity: write 4Gi (powers of 1024) or 4G' in error["message"]
