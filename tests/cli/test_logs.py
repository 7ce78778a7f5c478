"""The two forms of the log: lines for people and grep, JSON for collectors."""

import json
import logging
import sys

import pytest

from batholith.cli.logs import JsonFormatter, TextFormatter


def record(message: str, **extra: object) -> logging.LogRecord:
    made = logging.makeLogRecord({"name": "batholith.x", "levelname": "INFO", "msg": message})
    vars(made).update(extra)
    return made


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("default/train", "default/train"),
        (3, "3"),
        (None, "None"),
        ("", ""),
        ("409 Conflict: no", '"409 Conflict: no"'),
        ("a=b", '"a=b"'),
        ('say "a"', r'"say \"a\""'),
        ("one\ntwo job=default/other", r'"one\ntwo job=default/other"'),
        ("Größe 3", '"Größe 3"'),
    ],
)
def test_a_value_never_looks_like_another_line_or_pair(value: object, written: str) -> None:
    line = TextFormatter().format(record("job phase", job="d/j", why=value))
    assert line.endswith(f" INFO batholith.x: job phase job=d/j why={written}")


def test_a_traceback_stands_below_its_line_and_in_a_field_of_its_own() -> None:
    try:
        raise ValueError("wrong")
    except ValueError:
        made = record("gave up", job="d/j", error="500")
        made.exc_info = sys.exc_info()
    first, *rest = TextFormatter().format(made).splitlines()
    assert first.endswith("gave up job=d/j error=500")
    assert rest[-1] == "ValueError: wrong"
    entry = json.loads(JsonFormatter().format(made))
    assert (entry["message"], entry["job"], entry["error"]) == ("gave up", "d/j", "500")
    assert entry["traceback"].endswith("ValueError: wrong")


def test_values_that_json_does_not_know_become_text() -> None:
    entry = json.loads(JsonFormatter().format(record("x", folder={1}, text="one\ntwo")))
    assert (entry["folder"], entry["text"]) == ("{1}", "one\ntwo")
