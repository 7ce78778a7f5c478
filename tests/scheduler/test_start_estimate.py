"""An estimated start is reported again only if it has changed by more than a tenth of the wait."""

import pytest

from batholith.scheduler.state.gangs.start_estimate import StartBasis, StartEstimate

BEFORE = StartEstimate(1900, 2000, StartBasis.LIMITS, 1950, since=1000)
"""A narrow interval after a long wait: a tenth of the wait is 100 seconds."""


@pytest.mark.parametrize(
    ("latest", "expected", "is_close"),
    [
        (2000, 1950, True),
        (2099, 1999, True),
        (2101, 1950, False),
        (1899, 1895, False),
        (2000, 1849, False),
        (2000, None, False),
        (None, None, False),
    ],
)
def test_changes_of_up_to_a_tenth_of_the_wait_are_not_reported(
    latest: float | None, expected: float | None, *, is_close: bool
) -> None:
    estimate = StartEstimate(1850, latest, StartBasis.LIMITS, expected, since=1500)
    assert estimate.is_close_to(BEFORE) is is_close


def test_an_unknown_start_is_reported_once() -> None:
    unknown = StartEstimate(1000, None, StartBasis.UNKNOWN, since=1000)
    assert StartEstimate(5000, None, StartBasis.UNKNOWN, since=5000).is_close_to(unknown)
    assert not unknown.is_close_to(None)
    assert not StartEstimate(1900, 2000, StartBasis.PREDICTIONS, 1950, since=1000).is_close_to(
        BEFORE
    )
