"""Annotations that let a job wait: checked when they are set or changed."""

from typing import Any

import pytest
from support.admission import ObjectReaderStub, admit, check, denial, job, queue

from batholith.model.names import BEGIN, DEPENDS_ON

READER = ObjectReaderStub(queue("default"))


def waiting(**annotations: str) -> Any:
    created = job()
    names = {"on": DEPENDS_ON, "begin": BEGIN}
    found = {names[key]: value for key, value in annotations.items()}
    return {**created, "metadata": created["metadata"] | {"annotations": found}}


@pytest.mark.parametrize(
    ("annotations", "expected"),
    [
        ({"on": "afterok:a,afterany:b.c,afternotok:d,singleton"}, ""),
        ({"on": "afterok:j"}, "a job cannot depend on itself"),
        ({"on": "after:a"}, "'after:a' is none of afterok, afternotok, afterany, singleton"),
        ({"on": ""}, "'' is none of"),
        ({"on": "afterok:A"}, "a lowercase RFC 1123 subdomain"),
        (
            {"on": ",".join(f"afterok:j{n}" for n in range(101))},
            "101 dependencies are more than 100",
        ),
        ({"begin": "2026-01-31T16:00:00+01:00"}, ""),
        ({"begin": "2026-01-31"}, "not an RFC 3339 timestamp"),
        ({"begin": "2026-02-31T16:00:00Z"}, "no such time"),
    ],
)
def test_malformed_annotations_are_denied(annotations: dict[str, str], expected: str) -> None:
    check(expected, waiting(**annotations), READER)


def test_a_changed_annotation_is_checked_and_a_stored_one_is_not() -> None:
    old, wrong = waiting(on="afterok:a"), waiting(on="wrong")
    assert "'wrong' is none of" in denial(wrong, READER, old=old)
    assert "RFC 3339" in denial(waiting(begin="x"), READER, old=old)
    admit(waiting(), READER, old=old)
    labelled = {**wrong, "metadata": wrong["metadata"] | {"labels": {"a": "b"}}}
    admit(labelled, READER, old=wrong)
