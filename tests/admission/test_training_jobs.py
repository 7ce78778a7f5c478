"""Validation of training jobs, one table for all kinds."""

import copy
from typing import Any

import pytest
from support.admission import ObjectReaderStub, write_request
from support.training_manifests import (
    BY_KIND,
    INVALID_JOBS,
    REQUIRED,
    InvalidJob,
    replicas,
    training_job,
    valid_jobs,
)

from batholith.admission.serving.cert_secret import SecretSettings
from batholith.admission.serving.registration import Registration, WebhookEndpoint
from batholith.admission.serving.service import AdmissionOptions
from batholith.admission.settings import AdmissionSettings
from batholith.admission.training import webhooks
from batholith.cli.admission import ENABLED
from batholith.model.admission import DeniedError, Webhook
from batholith.training_ctrl.frameworks import FRAMEWORKS

Json = dict[str, Any]

SETTINGS = AdmissionSettings(frameworks=FRAMEWORKS)
HOOKS: dict[str, Webhook] = {hook.resource.kind: hook for hook in webhooks(SETTINGS)}
KINDS = sorted(HOOKS)


def admit(obj: Json, old: Json | None = None) -> None:
    """Validate a write; it must not change the object."""
    untouched = copy.deepcopy(obj)
    hook = HOOKS[obj["kind"]]
    assert hook.validate is not None
    try:
        hook.validate(write_request(obj, old), ObjectReaderStub())
    finally:
        assert obj == untouched


def denial(obj: Json, old: Json | None = None) -> str:
    with pytest.raises(DeniedError) as denied:
        admit(obj, old)
    return str(denied.value)


def test_names_and_paths_are_kubeflows() -> None:
    assert {hook.path: hook.name for hook in HOOKS.values()} == {
        f"/validate-kubeflow-org-v1-{one}": f"validator.{one}.training-operator.kubeflow.org"
        for one in ("jaxjob", "mpijob", "paddlejob", "pytorchjob", "tfjob", "xgboostjob")
    }
    assert all(hook.operations == {"CREATE", "UPDATE"} for hook in HOOKS.values())
    assert all(hook.mutate is None for hook in HOOKS.values())


@pytest.mark.parametrize("invalid", INVALID_JOBS, ids=lambda invalid: invalid.label)
def test_invalid_jobs_are_denied(invalid: InvalidJob) -> None:
    assert invalid.error in denial(invalid.job)


@pytest.mark.parametrize("job", valid_jobs(), ids=lambda job: f"{job['kind']}/{job['metadata']}")
def test_valid_jobs_are_admitted(job: Json) -> None:
    admit(job)


@pytest.mark.parametrize("kind", KINDS)
def test_types_in_any_case_are_admitted(kind: str) -> None:
    job = training_job(kind)
    field = BY_KIND[kind].kind.replica_field
    job["spec"][field] = {name.upper(): spec for name, spec in job["spec"][field].items()}
    admit(job)


@pytest.mark.parametrize("kind", KINDS)
def test_the_longest_name_that_fits_is_admitted(kind: str) -> None:
    types = {each: replicas(kind) for each in BY_KIND[kind].kind.replica_types}
    types.pop("Chief", None)
    longest = max(len(BY_KIND[kind].pod_name("", each, 0)) for each in types)
    admit(training_job(kind, types, name="a" * (63 - longest)))
    assert "must be no more than 63 bytes" in denial(
        training_job(kind, types, name="a" * (64 - longest))
    )


def test_a_name_with_dots_is_one_of_an_mpi_job() -> None:
    admit(training_job("MPIJob", name="a.b"))


def test_all_errors_are_named_in_brackets() -> None:
    job = training_job("TFJob", name="1", successPolicy="x", runPolicy={"backoffLimit": -1})
    text = denial(job)
    assert text.startswith("[metadata.name: ") and text.endswith("]")
    assert "spec.successPolicy: " in text and "spec.runPolicy.backoffLimit: " in text


@pytest.mark.parametrize("spec", [{}, {"runPolicy": {}}, None])
@pytest.mark.parametrize("kind", KINDS)
def test_a_job_without_replica_types_is_denied(kind: str, spec: Json | None) -> None:
    job = training_job(kind) | {"spec": spec}
    if spec is None:
        del job["spec"]
    path = f"spec.{BY_KIND[kind].kind.replica_field}"
    assert f"{path}: Required value: must have at least one replica type" in denial(job)


@pytest.mark.parametrize(
    ("spec", "error"),
    [
        ({"runPolicy": 1}, "spec.runPolicy: Expected `object`, got `int`"),
        ({"tfReplicaSpecs": {"Worker": {"replicas": "1"}}}, "Expected `int | null`, got `str`"),
        (
            {"tfReplicaSpecs": {"Worker": {"template": {"spec": {"containers": 1}}}}},
            "spec.tfReplicaSpecs[Worker].template: Expected `array`, got `int`",
        ),
        ({"tfReplicaSpecs": {"Worker": {"template": []}}}, "Expected `object`, got `array`"),
    ],
)
def test_fields_of_a_wrong_type_are_denied(spec: Json, error: str) -> None:
    assert error.replace("`", "") in denial(training_job("TFJob") | {"spec": spec}).replace("`", "")


@pytest.mark.parametrize("kind", KINDS)
def test_managed_by_is_immutable(kind: str) -> None:
    ours, theirs = "kubeflow.org/training-operator", "kueue.x-k8s.io/multikueue"
    for before, after in ((ours, theirs), (None, theirs), (None, ours), (ours, None)):
        old, new = (
            training_job(kind, runPolicy={} if value is None else {"managedBy": value})
            for value in (before, after)
        )
        assert "spec.runPolicy.managedBy: Invalid value: " in denial(new, old)
        assert denial(new, old).endswith("field is immutable")
        admit(new | {"spec": new["spec"] | {"nprocPerNode": "1"}}, new)


@pytest.mark.parametrize("kind", KINDS)
def test_the_queue_is_immutable_once_it_is_set(kind: str) -> None:
    def in_queue(name: str | None) -> Json:
        policy = {"schedulingPolicy": {"queue": name}} if name else {}
        return training_job(kind, runPolicy=policy)

    admit(in_queue("a"), in_queue(None))
    for after in ("b", None):
        text = denial(in_queue(after), in_queue("a"))
        assert "spec.runPolicy.schedulingPolicy.queue: Invalid value: " in text
        assert text.endswith("field is immutable once it is set")


@pytest.mark.parametrize("kind", KINDS)
def test_other_fields_may_change(kind: str) -> None:
    new = training_job(kind, runPolicy={"suspend": True, "backoffLimit": 1})
    field = BY_KIND[kind].kind.replica_field
    new["spec"][field]["Worker"]["replicas"] = 2
    admit(new, training_job(kind))


@pytest.mark.parametrize("invalid", INVALID_JOBS, ids=lambda invalid: invalid.label)
def test_an_invalid_job_that_is_stored_may_be_labelled_and_fixed(invalid: InvalidJob) -> None:
    labelled = copy.deepcopy(invalid.job)
    labelled["metadata"]["labels"] = {"a": "b"}
    admit(labelled, invalid.job)
    fixed = training_job(invalid.kind, name="j")
    old_policy = invalid.job["spec"].get("runPolicy", {})
    kept = old_policy.get("managedBy"), old_policy.get("schedulingPolicy", {}).get("queue")
    if kept == (None, None):
        admit(fixed, invalid.job)


def test_a_stored_job_with_a_field_of_a_wrong_type_may_be_fixed() -> None:
    admit(training_job("TFJob"), training_job("TFJob") | {"spec": {"runPolicy": 1}})


def test_the_deprecated_number_of_processes_warns() -> None:
    hook = HOOKS["PyTorchJob"]
    assert hook.warn is not None
    job = training_job("PyTorchJob", elasticPolicy={"nProcPerNode": 2})
    admit(job)
    text = "spec.elasticPolicy.nProcPerNode is deprecated, use spec.nprocPerNode instead"
    assert hook.warn(write_request(job), ObjectReaderStub()) == [text]
    for kind in KINDS:
        quiet = HOOKS[kind].warn
        assert quiet is not None
        assert quiet(write_request(training_job(kind)), ObjectReaderStub()) == []


def test_the_paths_can_be_enabled_and_are_not_by_default() -> None:
    paths = tuple(hook.path for hook in HOOKS.values())
    options = AdmissionOptions(
        paths=("/jobs/validate", *paths),
        endpoint=WebhookEndpoint(url="https://127.0.0.1"),
        certificates=SecretSettings(namespace="a", hosts=("b",)),
    )
    enabled = options.enabled_webhooks(SETTINGS)
    assert [hook.path for hook in enabled] == ["/jobs/validate", *paths]
    assert not set(paths) & set(ENABLED.split(","))
    registration = Registration(webhooks=enabled, endpoint=options.endpoint)
    (webhook,) = registration.configuration(HOOKS["TFJob"])["webhooks"]
    assert webhook["name"] == "validator.tfjob.training-operator.kubeflow.org"
    assert webhook["failurePolicy"] == "Fail"
    assert webhook["rules"] == [
        {
            "apiGroups": ["kubeflow.org"],
            "apiVersions": ["v1"],
            "resources": ["tfjobs"],
            "operations": ["CREATE", "UPDATE"],
        }
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_job_with_too_many_pods_is_denied_with_their_number(kind: str) -> None:
    types = {each: replicas(kind) for each in REQUIRED.get(kind, ())} | {
        "Worker": replicas(kind, 2**31 - 1)
    }
    total = 2**31 - 1 + len(types) - 1
    field = BY_KIND[kind].kind.replica_field
    assert denial(training_job(kind, types)) == (
        f"spec.{field}[*].replicas: the job has {total} pods, but a job may have at most 100000"
        " (--max-pods-per-job)"
    )
    types["Worker"] = replicas(kind, 100_000 - len(types) + 1)
    admit(training_job(kind, types))
