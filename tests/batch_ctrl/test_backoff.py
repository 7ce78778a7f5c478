"""Delays of replacements."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batholith.batch_ctrl.backoff import MAX_DELAY, BackoffRecord, remaining_delay

TIMES = st.lists(st.integers(0, 100).map(float), max_size=4)


@pytest.mark.parametrize(
    ("failures", "delay"),
    [(0, 0), (1, 10), (2, 20), (3, 40), (4, 80), (5, 160), (6, 320), (7, 600), (10**6, 600)],
)
def test_delay_doubles_up_to_ten_minutes(failures: int, delay: float) -> None:
    """INV-BJ-7."""
    assert remaining_delay(failures, 100.0, now=100.0) == delay
    assert remaining_delay(failures, 100.0, now=100.0 + delay) == 0


def test_delay_starts_at_the_last_failure() -> None:
    record = BackoffRecord().updated(succeeded=[], failed=[50.0, 20.0])
    assert record == BackoffRecord(2, 50.0)
    assert record.remaining(60.0) == 10 and record.remaining(80.0) == 0


@pytest.mark.parametrize(
    ("succeeded", "failed", "expected"),
    [
        ([], [], BackoffRecord(3, 10.0)),
        ([], [20.0], BackoffRecord(4, 20.0)),
        ([], [5.0], BackoffRecord(4, 10.0)),
        ([20.0], [], BackoffRecord()),
        ([20.0], [15.0, 20.0], BackoffRecord()),
        ([20.0], [15.0, 30.0, 25.0], BackoffRecord(2, 30.0)),
    ],
)
def test_success_resets_the_failures_before_it(
    succeeded: list[float], failed: list[float], expected: BackoffRecord
) -> None:
    assert BackoffRecord(3, 10.0).updated(succeeded=succeeded, failed=failed) == expected


@given(TIMES, TIMES, st.integers(0, 2000).map(float))
def test_delay_is_bounded(succeeded: list[float], failed: list[float], now: float) -> None:
    """INV-BJ-7: never negative, never more than the maximum after the last failure."""
    record = BackoffRecord().updated(succeeded=succeeded, failed=failed)
    remaining = record.remaining(now)
    assert 0 <= remaining <= max(0.0, max(failed, default=0.0) + MAX_DELAY - now)
    assert (record.last_failure is None) == (record.failures == 0)
