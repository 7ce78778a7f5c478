"""What fails again and again is told of, but does not drown the rest."""

import logging

from batholith.kube.informer.failure_log import FailureLog
from batholith.kube.timing import Timing


def test_repeated_failure_is_a_warning_once_a_minute() -> None:
    now = [0.0]
    complaints = FailureLog(Timing(monotonic=lambda: now[0]))
    told = []
    for at, text in ((0, "a"), (1, "a"), (2, "a"), (3, "b"), (4, "a"), (61, "a"), (62, "b")):
        now[0] = at
        told.append(logging.getLevelName(complaints.level(text)))
    assert told == ["INFO", "WARNING", "DEBUG", "WARNING", "DEBUG", "WARNING", "DEBUG"]
    assert complaints.failing_for == complaints.recovered() == 62
    assert not complaints.is_failing
    assert complaints.failing_for == 0
    assert complaints.level("a") == logging.INFO
