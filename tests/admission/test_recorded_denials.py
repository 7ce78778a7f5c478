"""Recorded denials of Volcano, by the layer that denied them."""

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
    cases = [entry for entry in RECORDED if entry["refused_by"] == layer]
    return [
        pytest.param(
            entry, id=f"{entry['object']['kind']}-{entry['object']['metadata']['name'][:24]}"
        )
        for entry in cases
    ]


def recorded_queues() -> ObjectReaderStub:
    """Return the queues at the time of the recordings."""
    held = next(c["object"] for c in RECORDED if c["object"]["metadata"]["name"] == "gq-ok")
    return ObjectReaderStub(queue("gq-ok", **held["spec"]))


def with_schema_defaults(entry: dict[str, Any]) -> dict[str, Any]:
    """Return the object with the schema's defaults."""
    spec = entry["object"]["spec"]
    if entry["object"]["kind"] != "Queue":
        spec = {"queue": "default"} | spec
    return {**entry["object"], "spec": spec}


@pytest.mark.parametrize("entry", by("rules"))
def test_it_is_denied_with_the_recorded_phrases(entry: dict[str, Any]) -> None:
    text = denial(with_schema_defaults(entry), recorded_queues())
    for phrase in entry["says"]:
        assert phrase in text


@pytest.mark.parametrize("entry", by("nobody"))
def test_it_is_allowed(entry: dict[str, Any]) -> None:
    admit(with_schema_defaults(entry), ObjectReaderStub())


@pytest.mark.parametrize("entry", by("schema"))
def test_objects_that_the_schema_rejects_are_not_changed_by_defaulting(
    entry: dict[str, Any],
) -> None:
    """Defaulting precedes the schema, and must neither fail on an invalid field nor fix it."""
    sent = with_schema_defaults(entry)
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


@pytest.mark.parametrize("entry", DEFAULTS, ids=lambda entry: str(entry["recording"]))
def test_defaults_are_volcanos(entry: dict[str, Any]) -> None:
    sent = {"kind": "Job", "metadata": {"name": "j"}, "spec": {"queue": "default"} | entry["sent"]}
    assert admit(sent, ObjectReaderStub())["spec"] == entry["stored"]
