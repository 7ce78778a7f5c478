"""Repeated failures are logged without flooding the log."""

import logging

from batholith.kube.informer.failure_log import FailureLog
from batholith.kube.timing import Timing


def test_repeated_failure_is_a_warning_once_a_minute() -> None:
    now = [0.0]
    failures = FailureLog(Timing(monotonic=lambda: now[0]))
    levels = []
    for at, text in ((0, "a"), (1, "a"), (2, "a"), (3, "b"), (4, "a"), (61, "a"), (62, "b")):
        now[0] = at
        levels.append(logging.getLevelName(failures.level(text)))
    assert levels == ["INFO", "WARNING", "DEBUG", "WARNING", "DEBUG", "WARNING", "DEBUG"]
    assert failures.failing_for == failures.recovered() == 62
    assert not failures.is_failing
    assert failures.failing_for == 0
    assert failures.level("a") == logging.INFO
