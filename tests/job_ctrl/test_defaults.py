"""A job that no admission has filled in is read as if one had."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.jobs import encode_templates

from batholith.job_ctrl import pods
from batholith.model.job_defaults import DefaultedJob, set_defaults
from batholith.model.meta import ObjectMeta

Json = dict[str, Any]

DATA = Path(__file__).parents[1] / "data"
RECORDED = [json.loads(line) for line in (DATA / "job-defaults.jsonl").read_text().splitlines()]
TEMPLATE = {"spec": {"containers": [{"name": "main", "image": "busybox:1.36"}]}}


def decode_job(spec: Json) -> DefaultedJob:
    """A stored job, as the controller reads it; the definition has filled in the queue."""
    created = msgspec.convert({"spec": encode_templates({"queue": "default"} | spec)}, DefaultedJob)
    return msgspec.structs.replace(created, metadata=ObjectMeta(name="j", namespace="ns"))


def interpret(spec: Json) -> Json:
    """Everything that the controller reads of the spec, and a pod of each task."""
    job = decode_job(spec)
    built = [pods.build(job, task, 0) for task in job.spec.tasks]
    bare = [msgspec.structs.replace(task, template=msgspec.Raw(b"{}")) for task in job.spec.tasks]
    whole = msgspec.structs.replace(job.spec, tasks=tuple(bare), scheduler_name="")
    return {"spec": whole, "pods": built}


@pytest.mark.parametrize("sample", RECORDED, ids=lambda sample: str(sample["recording"]))
def test_it_means_what_the_recorded_admission_stored(sample: Json) -> None:
    assert interpret(sample["sent"]) == interpret(sample["stored"])


@pytest.mark.parametrize(
    "spec",
    [
        {"maxRetry": 0},
        {"plugins": {"mpi": [], "svc": ["--disable-network-policy=true"]}},
        {"plugins": {"ray": []}},
        {"plugins": {"env": []}},
        {"minAvailable": 1},
        {},
    ],
)
def test_it_means_what_our_admission_would_store(spec: Json) -> None:
    sent = {"tasks": [{"replicas": 3, "template": TEMPLATE}], **spec}
    stored = set_defaults({"spec": sent}, scheduler_name="volcano")["spec"]
    assert interpret(sent) == interpret(stored)


def test_podgroup_of_a_stopped_job_is_deleted() -> None:
    task = {"name": "t", "replicas": 3, "minAvailable": 1, "template": TEMPLATE}
    assert decode_job({"tasks": [task], "minAvailable": 0}).spec.min_available == 0
    assert decode_job({"tasks": [task]}).spec.min_available == 1
