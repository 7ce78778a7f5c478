"""Intervals of planned starts, from how exact former ones were."""

from hypothesis import given
from hypothesis import strategies as st

from batholith.scheduler.framework.backfilling.start_errors import KEPT, LEAST, StartErrors


def errors(*waits: float, planned: float = 100) -> StartErrors:
    """Gangs that were planned to wait for *planned* seconds, and waited for *waits*."""
    found = StartErrors()
    for number, wait in enumerate(waits):
        found.plan(f"g{number}", 0, planned)
        found.observe(f"g{number}", wait)
    return found


def test_of_few_starts_no_interval_follows() -> None:
    assert errors(*[50] * (LEAST - 1)).interval(0, 10) is None
    assert errors(*[50] * LEAST).interval(1000, 1010) == (1005, 1005, 1005)


@given(st.lists(st.integers(0, 1000), min_size=LEAST, max_size=KEPT))
def test_most_of_the_last_starts_are_in_the_interval(waits: list[int]) -> None:
    interval = errors(*waits).interval(0, 100)
    assert interval is not None
    low, high = interval.earliest - 1e-6, interval.latest + 1e-6
    assert sum(low <= wait <= high for wait in waits) >= 0.84 * len(waits)
    assert low <= interval.expected <= high


def test_the_interval_is_the_shortest_that_contains_most_starts() -> None:
    """Most gangs start after a tenth to a fifth of the planned wait, and some much later."""
    waits = [10, 20] * 9 + [90, 100]
    assert errors(*waits).interval(0, 100) == (10, 20, 20)


def test_half_of_the_gangs_start_until_the_expected_time() -> None:
    assert errors(*range(1, 102)).interval(0, 100) == (1, 51, 85)


def test_starts_of_long_ago_do_not_count() -> None:
    assert errors(*[0] * KEPT, *[100] * KEPT).interval(0, 10) == (10, 10, 10)


def test_the_first_planned_start_counts() -> None:
    found = errors(*[100] * (LEAST - 1))
    found.plan("late", 0, 100)
    found.plan("late", 90, 200)
    found.observe("late", 100)
    assert found.interval(0, 10) == (10, 10, 10)


def test_gangs_that_are_deleted_while_they_wait_do_not_count() -> None:
    found = errors(*[100] * (LEAST - 1))
    found.plan("deleted", 0, 100)
    found.plan("waiting", 0, 100)
    found.forget_others({"waiting"})
    found.observe("deleted", 100)
    assert found.interval(0, 10) is None
    found.observe("waiting", 100)
    assert found.interval(0, 10) == (10, 10, 10)


def test_a_gang_without_a_planned_start_teaches_nothing() -> None:
    found = errors(*[100] * (LEAST - 1))
    found.observe("other", 100)
    assert found.interval(0, 10) is None
