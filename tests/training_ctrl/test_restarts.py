"""The restart record of a job, and its limits."""

from datetime import UTC, datetime

import pytest

from batholith.training_ctrl.restarts import (
    ANNOTATION,
    RestartRecord,
    backoff_limit_exceeded,
    counts_restarts,
    encode,
    parse,
    remaining,
)


def test_record_survives_its_annotation() -> None:
    record = RestartRecord(job_uid="u", count=2, pods=("a",), backoff_limit_exceeded=True)
    assert parse({ANNOTATION: encode(record)}, "u") == record


@pytest.mark.parametrize(
    "annotations",
    [
        {},
        {ANNOTATION: "no JSON"},
        {ANNOTATION: '{"count": "x"}'},
        {ANNOTATION: encode(RestartRecord(job_uid="another", count=7))},
    ],
)
def test_annotation_that_is_missing_malformed_or_copied_counts_nothing(
    annotations: dict[str, str],
) -> None:
    assert parse(annotations, "u") == RestartRecord(job_uid="u")


def test_each_pod_is_counted_once() -> None:
    """INV-TJ-7."""
    record = RestartRecord(job_uid="u").add(["a", "b"], {"a", "b"})
    assert (record.count, record.pods) == (2, ("a", "b"))
    assert record.add(["b"], {"b"}) is record
    assert record.add(["b", "c"], {"b", "c"}) == RestartRecord(
        job_uid="u", count=3, pods=("b", "c")
    )


@pytest.mark.parametrize(
    ("limit", "restarts", "exceeded"),
    [
        (None, 100, False),
        (0, 0, False),
        (0, 1, True),
        (1, 0, False),
        (1, 1, True),
        (3, 2, False),
        (3, 3, True),
        (3, 4, True),
    ],
)
def test_backoff_limits(limit: int | None, restarts: int, exceeded: bool) -> None:
    assert backoff_limit_exceeded(limit, restarts) is exceeded


def test_policies_that_count() -> None:
    policies = ("Always", "OnFailure", "Never", "ExitCode")
    assert [policy for policy in policies if counts_restarts(policy)] == [
        "Always",
        "OnFailure",
        "ExitCode",
    ]


def test_remaining_time() -> None:
    now = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
    assert remaining("2026-01-01T00:00:00Z", 90, now) == 30
    assert remaining("2026-01-01T00:00:00Z", 60, now) == 0
    assert remaining(None, 60, now) is None
    assert remaining("2026-01-01T00:00:00Z", None, now) is None
