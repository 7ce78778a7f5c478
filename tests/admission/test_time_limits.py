"""Time limits of jobs, and those that queues set for them."""

from typing import Any

import pytest
from support.admission import ObjectReaderStub, admit, check, denial, job, queue

LIMIT = "batholith.io/time-limit"
WARNING = "batholith.io/time-limit-warning"
DEFAULT, MAXIMUM = "batholith.io/default-time-limit", "batholith.io/max-time-limit"
Json = dict[str, Any]


def limited(obj: Json, limit: str | None, **spec: Any) -> Json:
    annotations = {} if limit is None else {LIMIT: limit}
    return {**obj, "metadata": obj["metadata"] | {"annotations": annotations}}


def queues(**annotations: str) -> ObjectReaderStub:
    """Queue ``leaf`` below ``team``, which has *annotations*."""
    found = {f"batholith.io/{name.replace('_', '-')}": text for name, text in annotations.items()}
    return ObjectReaderStub(
        queue("team", parent="root", annotations=found), queue("leaf", parent="team")
    )


def podgroup(limit: str, queue: str) -> Json:
    return {
        "apiVersion": "scheduling.volcano.sh/v1beta1",
        "kind": "PodGroup",
        "metadata": {"name": "g", "namespace": "ns", "annotations": {LIMIT: limit}},
        "spec": {"minMember": 1, "queue": queue},
    }


@pytest.mark.parametrize(
    ("limit", "expected"),
    [
        ("2h", ""),
        ("2h1s", f'metadata.annotations[{LIMIT}]: Invalid value: "2h1s": queue `leaf` permits at'),
        ("soon", f'metadata.annotations[{LIMIT}]: Invalid value: "soon": time: invalid duration'),
        ("0s", "must be more than 0"),
        ("-1h", "must be more than 0"),
    ],
)
def test_limit_above_that_of_a_queue_above_is_denied(limit: str, expected: str) -> None:
    reader = queues(max_time_limit="2h")
    check(expected, limited(job(queue="leaf"), limit), reader)
    check(expected, podgroup(limit, "leaf"), reader)
    unlimited = podgroup(limit, "leaf")
    del unlimited["metadata"]["annotations"]
    admit(unlimited, reader)


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({}, None),
        ({"default_time_limit": "1h"}, "1h"),
        ({"default_time_limit": "1h", "max_time_limit": "2h"}, "1h"),
        ({"default_time_limit": "3h", "max_time_limit": "2h"}, "2h"),
        ({"max_time_limit": "2h"}, "2h"),
        ({"max_time_limit": "x"}, None),
    ],
)
def test_job_without_a_limit_gets_that_of_its_queues(
    annotations: dict[str, str], expected: str | None
) -> None:
    reader = queues(**annotations)
    for given in (job(queue="leaf"), limited(job(queue="leaf"), None)):
        created = admit(given, reader)
        assert created["metadata"].get("annotations", {}).get(LIMIT) == expected
    own = admit(limited(job(queue="leaf"), "10m"), reader)
    assert own["metadata"]["annotations"][LIMIT] == "10m"


@pytest.mark.parametrize(
    ("limit", "warning", "expected"),
    [
        ("1h", "10m", ""),
        ("1h", "60m", "must be less than batholith.io/time-limit"),
        (None, "10m", "must be less than batholith.io/time-limit"),
        ("1h", "soon", "time: invalid duration"),
        ("1h", "0s", "must be more than 0"),
    ],
)
def test_warning_is_a_duration_less_than_the_limit(
    limit: str | None, warning: str, expected: str
) -> None:
    stored = limited(job(), limit)
    warned = limited(job(), limit)
    warned["metadata"]["annotations"][WARNING] = warning
    field = f'metadata.annotations[{WARNING}]: Invalid value: "{warning}": ' if expected else ""
    check(field + expected, warned)
    if expected:
        assert field + expected in denial(warned, old=stored)


def test_warning_may_be_less_than_the_default_of_the_queue() -> None:
    warned = limited(job(queue="leaf"), None)
    warned["metadata"]["annotations"][WARNING] = "10m"
    admit(warned, queues(default_time_limit="1h"))
    assert "must be less" in denial(warned, queues(default_time_limit="5m"))


def test_limit_may_not_be_raised_above_the_maximum_later() -> None:
    reader = queues(max_time_limit="2h")
    old = admit(limited(job(queue="leaf"), "1h"), reader)
    admit(limited(old, "2h"), reader, old=old)
    assert "permits at most 2h" in denial(limited(old, "3h"), reader, old=old)
    # A job that was stored with more stays writable.
    stored = limited(old, "3h")
    labelled = {**stored, "metadata": stored["metadata"] | {"labels": {"a": "b"}}}
    admit(labelled, reader, old=stored)
    # Removing a limit is not a way around it.
    assert "permits at most 2h" in denial(limited(old, None), reader, old=old)


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({DEFAULT: "1h", MAXIMUM: "2h"}, ""),
        ({DEFAULT: "1 hour"}, f"requestBody.metadata.annotations[{DEFAULT}]: Invalid value"),
        ({MAXIMUM: "0s"}, f"requestBody.metadata.annotations[{MAXIMUM}]: Invalid value"),
        ({"batholith.io/min-runtime": "-1h"}, "must be more than 0"),
        ({"batholith.io/budget": "cpu=1000,x.com/gpu=5"}, ""),
        (
            {"batholith.io/budget": "gpu=5"},
            'requestBody.metadata.annotations[batholith.io/budget]: Invalid value: "gpu=5"',
        ),
        (
            {"batholith.io/budget-window": "24h"},
            "annotations[batholith.io/budget-window]: Invalid value",
        ),
        ({DEFAULT: "3h", MAXIMUM: "2h"}, "must not be more than batholith.io/max-time-limit"),
    ],
)
def test_annotations_of_a_queue_are_validated(annotations: dict[str, str], expected: str) -> None:
    new = queue("team", parent="root", annotations=annotations)
    check(expected, new)
    stored = queue("team", parent="root", annotations=annotations)
    admit({**stored, "spec": stored["spec"] | {"weight": 3}}, old=stored)


@pytest.mark.parametrize("wrong", [[None], {"name": "leaf"}, 7])
def test_a_queue_of_a_wrong_type_is_denied(wrong: object) -> None:
    """Defaults are set before the types are checked."""
    assert denial(job(queue=wrong)).startswith("spec.queue: Expected str, got")
