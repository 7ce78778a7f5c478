"""Defaults of training jobs."""

from typing import Any

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.training_manifests import (
    BY_KIND,
    INVALID_JOBS,
    REQUIRED,
    replicas,
    training_job,
    valid_jobs,
)

from batholith.model.training.templates import Container, Port, containers
from batholith.model.training.types import TrainingJob

Json = dict[str, Any]


def decoded(job: Json) -> TrainingJob[Any]:
    return BY_KIND[job["kind"]].decode(msgspec.json.encode(job))


def defaulted(job: Json) -> TrainingJob[Any]:
    return BY_KIND[job["kind"]].default(decoded(job))


@st.composite
def jobs(draw: st.DrawFn) -> Json:
    """Jobs of all kinds, most of them valid."""
    kind = draw(st.sampled_from(sorted(BY_KIND)))
    row = BY_KIND[kind].kind
    types = draw(st.sets(st.sampled_from(row.replica_types), min_size=1))
    types |= set(REQUIRED.get(kind, ()))
    specs = {}
    for name in draw(st.permutations(sorted(types))):
        spelling = draw(st.sampled_from([name, name.lower(), name.upper()]))
        specs[spelling] = draw(replica_specs(kind, name))
    fields: Json = {}
    if kind in ("PyTorchJob", "PaddleJob"):
        limits = st.dictionaries(st.sampled_from(["minReplicas", "maxReplicas"]), st.integers(1, 4))
        fields["elasticPolicy"] = draw(st.none() | limits)
    if kind == "PyTorchJob":
        fields["nprocPerNode"] = draw(st.sampled_from([None, "auto", "2"]))
        if fields["elasticPolicy"] is not None and draw(st.booleans()):
            fields["elasticPolicy"]["nProcPerNode"] = 2
    policies = st.sampled_from([None, "None", "Running", "All"])
    fields["runPolicy"] = {"cleanPodPolicy": draw(policies)}
    if kind == "MPIJob":
        fields["cleanPodPolicy"] = draw(policies)
        fields["slotsPerWorker"] = draw(st.sampled_from([None, 1, 3]))
    return training_job(kind, specs, **fields)


@st.composite
def replica_specs(draw: st.DrawFn, kind: str, replica_type: str) -> Json:
    row = BY_KIND[kind].kind
    single = replica_type in ("Master", "Launcher")
    count = draw(st.just(1) if single else st.none() | st.integers(0, 5))
    port = st.fixed_dictionaries(
        {"name": st.sampled_from([row.port_name, "other"]), "containerPort": st.integers(1, 9)}
    )
    ports = draw(st.none() | st.lists(port, max_size=2, unique_by=lambda each: each["name"]))
    main: Json = {"name": row.main_container, "image": "x"} | ({"ports": ports} if ports else {})
    extra = {"name": "side", "image": "y"}
    restart = draw(st.sampled_from(["", "Never", "ExitCode"]))
    found = draw(st.sampled_from([[main], [main, extra], [extra, main]]))
    spec: Json = {"template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": found}}}
    return spec | ({"replicas": count} if count is not None else {}) | {"restartPolicy": restart}


@given(jobs())
def test_defaults_are_idempotent_and_keep_a_valid_job_valid(job: Json) -> None:
    """INV-TJ-14."""
    framework = BY_KIND[job["kind"]]
    given_job = decoded(job)
    complete = framework.default(given_job)
    assert framework.default(complete) is complete
    again = decoded(msgspec.json.decode(msgspec.json.encode(complete)) | {"kind": job["kind"]})
    assert msgspec.json.encode(framework.default(again)) == msgspec.json.encode(complete)
    assume(not framework.validate(given_job))
    assert framework.validate(complete) == []
    assert framework.validate_update(complete, given_job) == []


@given(jobs())
def test_a_defaulted_job_has_canonical_types_with_all_values(job: Json) -> None:
    row = BY_KIND[job["kind"]].kind
    specs = defaulted(job).spec.replica_specs
    assert list(specs) == [each for each in row.replica_types if each in specs]
    assert len(specs) == len(job["spec"][row.replica_field])
    for spec in specs.values():
        assert spec.replicas is not None
        assert spec.restart_policy in ("Never", "ExitCode", row.restart_policy)
        (main,) = (each for each in containers(spec.template) if each.name == row.main_container)
        assert (main.port(row.port_name) is not None) or not row.adds_port


@pytest.mark.parametrize("job", valid_jobs(), ids=lambda job: f"{job['kind']}/{job['metadata']}")
def test_inv_tj_14_holds_for_the_samples(job: Json) -> None:
    framework = BY_KIND[job["kind"]]
    complete = defaulted(job)
    assert framework.default(complete) is complete
    assert framework.validate(complete) == []


@pytest.mark.parametrize("invalid", INVALID_JOBS, ids=lambda invalid: invalid.label)
def test_defaults_of_an_invalid_job_are_idempotent(invalid: Any) -> None:
    complete = defaulted(invalid.job)
    assert BY_KIND[invalid.kind].default(complete) is complete


DEFAULTS = {
    "TFJob": ("tensorflow", "tfjob-port", 2222, "Never"),
    "PyTorchJob": ("pytorch", "pytorchjob-port", 23456, "OnFailure"),
    "MPIJob": ("mpi", None, None, "Never"),
    "XGBoostJob": ("xgboost", "xgboostjob-port", 9999, "Never"),
    "PaddleJob": ("paddle", "master", 36543, "OnFailure"),
    "JAXJob": ("jax", "jaxjob-port", 6666, "Never"),
}


@pytest.mark.parametrize("kind", DEFAULTS)
def test_defaults_of_a_worker(kind: str) -> None:
    container, port, number, restart = DEFAULTS[kind]
    types = {each: replicas(kind) for each in REQUIRED.get(kind, ())}
    spec = defaulted(training_job(kind, types | {"Worker": replicas(kind, None)})).spec
    worker = spec.replica_specs["Worker"]
    assert worker.replicas == (0 if kind == "MPIJob" else 1)
    assert worker.restart_policy == restart
    ports = () if port is None else (Port(name=port, container_port=number or 0),)
    main = Container(name=container, image="example.com/train", ports=ports)
    assert containers(worker.template) == (main,)
    assert spec.run_policy.clean_pod_policy == "None"


def test_the_port_is_added_to_the_first_container_if_there_is_no_main_one() -> None:
    job = training_job("TFJob")
    found = [{"name": "a", "image": "x"}, {"name": "b", "image": "y"}]
    job["spec"]["tfReplicaSpecs"]["Worker"]["template"] = {"spec": {"containers": found}}
    first, second = containers(defaulted(job).spec.replica_specs["Worker"].template)
    assert (first.port("tfjob-port"), second.ports) == (2222, ())


def test_the_rest_of_a_template_is_kept() -> None:
    job = training_job("TFJob")
    template = {
        "metadata": {"labels": {"a": "b"}},
        "spec": {"containers": [{"name": "tensorflow", "image": "x", "args": ["1"]}], "x": [1.5]},
    }
    job["spec"]["tfReplicaSpecs"]["Worker"]["template"] = template
    result = msgspec.json.decode(defaulted(job).spec.replica_specs["Worker"].template)
    added = result["spec"]["containers"][0].pop("ports")
    assert added == [{"name": "tfjob-port", "containerPort": 2222}]
    assert result == template


@pytest.mark.parametrize(
    ("given_range", "expected"),
    [
        ({}, (3, 3)),
        ({"minReplicas": 2}, (2, 2)),
        ({"maxReplicas": 5}, (5, 5)),
        ({"minReplicas": 2, "maxReplicas": 5}, (2, 5)),
    ],
)
@pytest.mark.parametrize("kind", ["PyTorchJob", "PaddleJob"])
def test_a_missing_limit_of_the_elastic_range(
    kind: str, given_range: Json, expected: tuple[int, int]
) -> None:
    job = training_job(kind, {"worker": replicas(kind, 3)}, elasticPolicy=given_range)
    policy = defaulted(job).spec.elastic_policy
    assert (policy.min_replicas, policy.max_replicas) == expected


@pytest.mark.parametrize("kind", ["PyTorchJob", "PaddleJob"])
def test_an_elastic_job_without_workers_has_no_range(kind: str) -> None:
    job = training_job(kind, {"Master": replicas(kind)}, elasticPolicy={})
    policy = defaulted(job).spec.elastic_policy
    assert (policy.min_replicas, policy.max_replicas) == (None, None)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, "auto"),
        ({"nprocPerNode": "gpu"}, "gpu"),
        ({"elasticPolicy": {}}, "auto"),
        ({"elasticPolicy": {"nProcPerNode": 2}}, None),
    ],
)
def test_processes_per_pod(fields: Json, expected: str | None) -> None:
    assert defaulted(training_job("PyTorchJob", **fields)).spec.nproc_per_node == expected


@pytest.mark.parametrize(
    ("run_policy", "older", "expected"),
    [
        (None, None, "None"),
        ("All", None, "All"),
        (None, "All", "All"),
        ("Running", "All", "Running"),
    ],
)
def test_both_clean_up_policies_of_an_mpi_job_are_equal(
    run_policy: str | None, older: str | None, expected: str
) -> None:
    policy = {"cleanPodPolicy": run_policy} if run_policy else {}
    fields: Json = {"cleanPodPolicy": older} if older else {}
    spec = defaulted(training_job("MPIJob", runPolicy=policy, **fields)).spec
    assert (spec.run_policy.clean_pod_policy, spec.clean_pod_policy) == (expected, expected)


def test_the_canonical_spelling_of_a_type_counts() -> None:
    specs = {"WORKER": replicas("TFJob", 1), "Worker": replicas("TFJob", 2)}
    assert defaulted(training_job("TFJob", specs)).spec.replica_specs["Worker"].replicas == 2


def test_unknown_types_come_last() -> None:
    specs = {"Other": replicas("TFJob"), "worker": replicas("TFJob"), "ps": replicas("TFJob")}
    complete = defaulted(training_job("TFJob", specs)).spec.replica_specs
    assert list(complete) == ["PS", "Worker", "Other"]


def test_names_of_pods() -> None:
    assert BY_KIND["TFJob"].pod_name("j", "PS", 2) == "j-ps-2"
    assert BY_KIND["MPIJob"].pod_name("j", "Launcher", 0) == "j-launcher"
    assert BY_KIND["MPIJob"].pod_name("j", "Worker", 0) == "j-worker-0"


def test_names_of_the_operator() -> None:
    names = {kind: framework.kind.controller_name for kind, framework in BY_KIND.items()}
    assert names["TFJob"] == "tfjob-controller" and names["JAXJob"] == "jaxjob-controller"
