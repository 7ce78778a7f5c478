"""A new framework takes one module: admission and the definitions follow from it."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import crd_builder
from support.admission import ObjectReaderStub

from batholith.admission import AdmissionSettings, training
from batholith.local.apiserver.custom.schema import compile_schema
from batholith.model import crds
from batholith.model.admission import AdmissionRequest, DeniedError
from batholith.training_ctrl import frameworks

Json = dict[str, Any]

MODULE = '''
"""MindSpore: MSJob."""

import msgspec
from batholith.model.names import TRAINING_GROUP, Resource
from batholith.model.training.kinds import TrainingKind
from batholith.model.training.types import ReplicaSpec, RestartPolicy, TrainingJob, TrainingSpec
from batholith.training_ctrl.frameworks.base import Framework


class MindSporeSpec(TrainingSpec, frozen=True):
    replica_specs: dict[str, ReplicaSpec] = msgspec.field(default={}, name="msReplicaSpecs")
    graph: str = ""


class MindSpore(Framework[MindSporeSpec]):
    kind = TrainingKind(
        resource=Resource(TRAINING_GROUP, "v1", "msjobs", "MSJob"),
        description="A training job of MindSpore.",
        framework="mindspore",
        replica_field="msReplicaSpecs",
        replica_types=("Scheduler", "Worker"),
        main_container="ms",
        port_name="msjob-port",
        port=8118,
        restart_policy=RestartPolicy.NEVER,
        scalable=True,
    )
    job_type = TrainingJob[MindSporeSpec]
    spec_schema = {"graph": {"type": "string"}}

    def validate_spec(self, spec, errors):
        if "Scheduler" not in spec.replica_specs:
            errors.required("spec.msReplicaSpecs[Scheduler]")


FRAMEWORK = MindSpore()
'''


def job(*types: str) -> Json:
    template = {"spec": {"containers": [{"name": "ms", "image": "x"}]}}
    specs = {each: {"replicas": 1, "template": template} for each in types}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "MSJob",
        "metadata": {"name": "j"},
        "spec": {"msReplicaSpecs": specs, "graph": "g"},
    }


@pytest.fixture
def seven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Any, ...]]:
    """The frameworks with one more module in their package."""
    (tmp_path / "mindspore.py").write_text(MODULE)
    monkeypatch.setattr(frameworks, "__path__", [*frameworks.__path__, str(tmp_path)])
    found = frameworks.discover()
    monkeypatch.setattr(crd_builder, "FRAMEWORKS", found)
    yield found
    del sys.modules[f"{frameworks.__name__}.mindspore"]


def test_it_is_found_among_the_others(seven: tuple[Any, ...]) -> None:
    assert [each.kind.name for each in seven] == sorted(
        ["MSJob", *(each.kind.name for each in frameworks.FRAMEWORKS)]
    )


def test_its_jobs_are_validated(seven: tuple[Any, ...]) -> None:
    hooks = training.webhooks(AdmissionSettings(frameworks=seven))
    (hook,) = (each for each in hooks if each.resource.kind == "MSJob")
    assert hook.path == "/validate-kubeflow-org-v1-msjob"
    assert hook.validate is not None

    def validate(obj: Json) -> None:
        review = AdmissionRequest(
            operation="CREATE", namespace="default", name="j", object=obj, old_object=None
        )
        assert hook.validate is not None
        hook.validate(review, ObjectReaderStub())

    validate(job("Scheduler", "worker"))
    with pytest.raises(DeniedError, match=r"spec.msReplicaSpecs\[Scheduler\]: Required value"):
        validate(job("Worker"))


def test_its_definition_is_generated(seven: tuple[Any, ...]) -> None:
    (source,) = (
        each for each in crd_builder.training_sources() if each["spec"]["names"]["kind"] == "MSJob"
    )
    assert source["metadata"]["name"] == "msjobs.kubeflow.org"
    (version,) = source["spec"]["versions"]
    scale = version["subresources"]["scale"]
    assert scale["specReplicasPath"] == ".spec.msReplicaSpecs.Worker.replicas"
    openapi = version["schema"]["openAPIV3Schema"]
    for node in crds.placeholders(openapi):
        assert node.pop(crds.TYPE_PLACEHOLDER) == "PodTemplateSpec"
        node |= {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    schema = compile_schema(openapi)
    valid = job("Scheduler")
    assert schema.prune(valid) == []
    assert schema.validate(valid) == []
    assert valid == job("Scheduler")
