"""Log formats: text for people and grep, JSON for collectors."""

import json
import logging
import sys

import pytest

from batholith.cli.logs import JsonFormatter, TextFormatter


def record(message: str, **extra: object) -> logging.LogRecord:
    log_record = logging.makeLogRecord({"name": "batholith.x", "levelname": "INFO", "msg": message})
    vars(log_record).update(extra)
    return log_record


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("default/train", "default/train"),
        (3, "3"),
        (None, "None"),
        ("", ""),
        ("409 Conflict: no", '"409 Conflict: no"'),
        ("a=b", '"a=b"'),
        ('set "a"', r'"set \"a\""'),
        ("one\ntwo job=default/other", r'"one\ntwo job=default/other"'),
        ("Größe 3", '"Größe 3"'),
    ],
)
def test_values_with_special_characters_are_quoted(value: object, written: str) -> None:
    line = TextFormatter().format(record("job phase", job="d/j", why=value))
    assert line.endswith(f" INFO batholith.x: job phase job=d/j why={written}")


def test_a_traceback_follows_its_line_or_is_a_json_field() -> None:
    try:
        raise ValueError("wrong")
    except ValueError:
        log_record = record("sync failed", job="d/j", error="500")
        log_record.exc_info = sys.exc_info()
    first, *rest = TextFormatter().format(log_record).splitlines()
    assert first.endswith("sync failed job=d/j error=500")
    assert rest[-1] == "ValueError: wrong"
    entry = json.loads(JsonFormatter().format(log_record))
    assert (entry["message"], entry["job"], entry["error"]) == ("sync failed", "d/j", "500")
    assert entry["traceback"].endswith("ValueError: wrong")


def test_values_of_other_types_become_text_in_json() -> None:
    entry = json.loads(JsonFormatter().format(record("x", directory={1}, text="one\ntwo")))
    assert (entry["directory"], entry["text"]) == ("{1}", "one\ntwo")
