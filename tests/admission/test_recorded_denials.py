"""What Volcano was seen to refuse, and where it was seen to refuse it."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.admission import ObjectReaderStub, admit, denial, queue

from batholith.admission import WEBHOOKS
from batholith.model.admission import AdmissionRequest

DATA = Path(__file__).parents[1] / "data"
RECORDED = [
    json.loads(line) for line in (DATA / "admission-denials.jsonl").read_text().splitlines()
]
DEFAULTS = [json.loads(line) for line in (DATA / "job-defaults.jsonl").read_text().splitlines()]


def by(layer: str) -> list[Any]:
    cases = [case for case in RECORDED if case["refused_by"] == layer]
    return [
        pytest.param(case, id=f"{case['object']['kind']}-{case['object']['metadata']['name'][:24]}")
        for case in cases
    ]


def recorded_queues() -> ObjectReaderStub:
    """The queues at the time of the recordings."""
    held = next(c["object"] for c in RECORDED if c["object"]["metadata"]["name"] == "gq-ok")
    return ObjectReaderStub(queue("gq-ok", **held["spec"]))


def as_the_server_sees_it(case: dict[str, Any]) -> dict[str, Any]:
    """With the default that the schema has already filled in."""
    spec = case["object"]["spec"]
    if case["object"]["kind"] != "Queue":
        spec = {"queue": "default"} | spec
    return {**case["object"], "spec": spec}


@pytest.mark.parametrize("case", by("rules"))
def test_it_is_refused_and_the_field_named(case: dict[str, Any]) -> None:
    text = denial(as_the_server_sees_it(case), recorded_queues())
    for words in case["says"]:
        assert words in text


@pytest.mark.parametrize("case", by("nobody"))
def test_it_is_accepted(case: dict[str, Any]) -> None:
    admit(as_the_server_sees_it(case), ObjectReaderStub())


@pytest.mark.parametrize("case", by("schema"))
def test_what_the_schema_refuses_passes_defaulting_with_its_fault(case: dict[str, Any]) -> None:
    """Defaulting comes before the schema, and must neither fail at a fault nor mend it."""
    sent = as_the_server_sees_it(case)
    (hook,) = (each for each in WEBHOOKS if each.mutate and each.resource.kind == sent["kind"])
    review = AdmissionRequest(
        operation="CREATE", namespace="ns", name="x", object=sent, old_object=None
    )
    assert hook.mutate
    stored = hook.mutate(review, ObjectReaderStub())
    assert stored["metadata"] == sent["metadata"]
    for field, value in sent["spec"].items():
        if field != "tasks" and value != 0:
            assert stored["spec"][field] == value


@pytest.mark.parametrize("case", DEFAULTS, ids=lambda case: str(case["recording"]))
def test_defaults_are_those_of_the_reference(case: dict[str, Any]) -> None:
    sent = {"kind": "Job", "metadata": {"name": "j"}, "spec": {"queue": "default"} | case["sent"]}
    assert admit(sent, ObjectReaderStub())["spec"] == case["stored"]
