"""Delays of failing keys: the tables of client-go, and their invariants."""

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from batholith.machinery.rate_limiters import (
    BucketRateLimiter,
    ExponentialFailureRateLimiter,
    MaxOfRateLimiter,
    default_controller_rate_limiter,
    job_rate_limiter,
)
from batholith.machinery.testing import FakeClock

BASES = st.floats(1e-3, 100)
KEYS = st.sampled_from(["a", "b", "c"])


@pytest.mark.parametrize(
    ("base", "cap", "delays"),
    [
        (10, 360, [10, 20, 40, 80, 160, 320, 360, 360]),
        (15, 1000, [15, 30, 60, 120, 240, 480, 960, 1000]),
        (1, 60, [1, 2, 4, 8, 16, 32, 60, 60]),
        (0.005, 0.1, [0.005, 0.01, 0.02, 0.04, 0.08, 0.1]),
    ],
)
def test_delays_match_client_go(base: float, cap: float, delays: list[float]) -> None:
    limiter = ExponentialFailureRateLimiter(base, cap)
    assert [limiter.when("a") for _ in delays] == pytest.approx(delays)


def test_last_delays_up_to_a_thousand_seconds() -> None:
    limiter = ExponentialFailureRateLimiter(0.005, 1000)
    delays = [limiter.when("a") for _ in range(20)]
    assert delays[16:] == pytest.approx([327.68, 655.36, 1000, 1000])


@pytest.mark.parametrize("base", [0.005, 1, 10, 15])
@pytest.mark.parametrize("failures", [29, 30, 31, 33, 34, 35, 40, 41, 42, 62, 63, 64, 65, 100_000])
def test_inv_rl_6_huge_failure_counts_wait_the_maximum(base: float, failures: int) -> None:
    """INV-RL-6 at the counts where 63 bits of nanoseconds overflow."""
    limiter = ExponentialFailureRateLimiter(base, 1000)
    for _ in range(failures):
        limiter.when("a")
    assert limiter.when("a") == 1000
    assert limiter.num_requeues("a") == failures + 1


@given(base=BASES, factor=st.floats(1, 1e6), failures=st.integers(1, 80))
@example(base=5.5, factor=1.0000000000000002, failures=1)
def test_inv_rl_1_delays_grow_up_to_the_maximum(base: float, factor: float, failures: int) -> None:
    limiter = ExponentialFailureRateLimiter(base, base * factor)
    delays = [limiter.when("a") for _ in range(failures)]
    assert delays == sorted(delays)
    assert all(0 < delay <= base * factor for delay in delays)
    assert delays[0] == base


@given(base=BASES, failures=st.integers(0, 50))
def test_inv_rl_2_a_forgotten_key_starts_at_the_base(base: float, failures: int) -> None:
    limiter = ExponentialFailureRateLimiter(base, 1000)
    for _ in range(failures):
        limiter.when("a")
    limiter.forget("a")
    assert limiter.num_requeues("a") == 0
    assert limiter.when("a") == base


@given(calls=st.lists(st.tuples(KEYS, st.booleans()), max_size=60))
def test_inv_rl_3_keys_do_not_influence_each_other(calls: list[tuple[str, bool]]) -> None:
    shared = ExponentialFailureRateLimiter(1, 60)
    alone = {key: ExponentialFailureRateLimiter(1, 60) for key in "abc"}
    for key, forget in calls:
        if forget:
            shared.forget(key)
            alone[key].forget(key)
        else:
            assert shared.when(key) == alone[key].when(key)


@given(
    delays=st.lists(st.floats(0, 3), min_size=1, max_size=80),
    rate=st.integers(1, 10),
    size=st.integers(1, 10),
    window=st.floats(0.1, 10),
)
def test_inv_rl_4_no_window_holds_more_than_the_bucket_and_its_refill(
    delays: list[float], rate: int, size: int, window: float
) -> None:
    clock = FakeClock()
    bucket = BucketRateLimiter(rate, size, clock)
    due = []
    for delay in delays:
        clock.tick(delay)
        due.append(clock.monotonic() + bucket.when("a"))
    for start in due:
        inside = sum(start <= time < start + window - 1e-9 for time in due)
        assert inside <= size + math.ceil(rate * window)


def test_burst_has_no_delay_and_later_keys_wait_for_tokens() -> None:
    bucket = BucketRateLimiter(10, 100, FakeClock())
    delays = [bucket.when("any") for _ in range(103)]
    assert delays[:100] == [0] * 100
    assert delays[100:] == pytest.approx([0.1, 0.2, 0.3])


def test_bucket_tolerates_a_clock_that_steps_back() -> None:
    """INV-RL-6."""
    clock = FakeClock()
    bucket = BucketRateLimiter(1, 1, clock)
    assert bucket.when("a") == 0
    clock.step_monotonic(-1000)
    assert bucket.when("a") == pytest.approx(1)


@given(calls=st.lists(KEYS, min_size=1, max_size=40))
def test_inv_rl_5_max_of_calls_every_limiter_once(calls: list[str]) -> None:
    left, right = (
        ExponentialFailureRateLimiter(1, 60),
        ExponentialFailureRateLimiter(3, 5),
    )  # each is now and then the longer
    both = MaxOfRateLimiter([left, right])
    twins = ExponentialFailureRateLimiter(1, 60), ExponentialFailureRateLimiter(3, 5)
    for number, key in enumerate(calls, 1):
        assert both.when(key) == max(twin.when(key) for twin in twins)
        assert left.num_requeues(key) == right.num_requeues(key) == both.num_requeues(key)
        assert sum(left.num_requeues(each) for each in set(calls)) == number


@given(calls=st.lists(st.tuples(KEYS, st.booleans()), max_size=60))
def test_inv_rl_6_default_limiter_returns_finite_non_negative_delays(
    calls: list[tuple[str, bool]],
) -> None:
    limiter = default_controller_rate_limiter(FakeClock())
    for key, forget in calls:
        if forget:
            limiter.forget(key)
        assert 0 < limiter.when(key) < math.inf


@given(calls=st.lists(KEYS, max_size=60))
def test_inv_rl_7_forgetting_all_keys_frees_the_memory(calls: list[str]) -> None:
    limiter = ExponentialFailureRateLimiter(1, 60)
    for key in calls:
        limiter.when(key)
    for key in calls:
        limiter.forget(key)
    assert len(limiter) == 0


@pytest.mark.parametrize("base", [0, -1, math.nan, math.inf])
def test_invalid_delays_are_rejected(base: float) -> None:
    with pytest.raises(ValueError, match="base"):
        ExponentialFailureRateLimiter(base, 1000)


FAILURES = st.tuples(
    KEYS,
    st.sampled_from([math.inf, 30.0, 5.0, 0.0]),
    st.floats(0, 40),
    st.booleans(),
    st.integers(1, 300),
)
"""Key, maximum delay, seconds before, whether it succeeded, repetitions."""


@given(failures=st.lists(FAILURES, max_size=40), longest=st.sampled_from([60.0, 1000.0]))
def test_no_delay_exceeds_its_maximum_after_any_history(
    failures: list[tuple[str, float, float, bool, int]], longest: float
) -> None:
    clock = FakeClock()
    limiter = default_controller_rate_limiter(clock, max_delay=longest)
    for key, at_most, delay, well, times in failures:
        clock.tick(delay)
        if well:
            limiter.forget(key)
        for _ in range(times):
            assert 0 <= limiter.when(key, max_delay=at_most) <= min(at_most, longest)


def test_outage_of_a_thousand_keys_delays_another_failure_by_at_most_the_outage_delay() -> None:
    """A token that a bounded delay does not wait for must not be reserved."""
    clock, delay = FakeClock(), 30.0
    limiter = default_controller_rate_limiter(clock)
    for _ in range(20):
        for number in range(1000):
            limiter.when(f"k{number}", max_delay=delay)
        clock.tick(delay)
    assert limiter.when("a conflict") <= delay


@given(
    calls=st.lists(
        st.tuples(st.floats(0, 3), st.sampled_from([math.inf, 1.0])), min_size=1, max_size=80
    ),
    rate=st.integers(1, 10),
    size=st.integers(1, 10),
    window=st.floats(0.1, 10),
)
def test_inv_rl_4_holds_for_reserved_tokens(
    calls: list[tuple[float, float]], rate: int, size: int, window: float
) -> None:
    clock = FakeClock()
    bucket = BucketRateLimiter(rate, size, clock)
    due = []
    for delay, at_most in calls:
        clock.tick(delay)
        delay = bucket.when("a", max_delay=at_most)
        assert delay <= at_most
        if delay < at_most:
            due.append(clock.monotonic() + delay)
    for start in due:
        inside = sum(start <= time < start + window - 1e-9 for time in due)
        assert inside <= size + math.ceil(rate * window)


def test_delays_of_the_job_controllers() -> None:
    limiter, delays = job_rate_limiter(), [1, 2, 4, 8, 16, 32, 60, 60]
    assert [limiter.when("job") for _ in delays] == delays
    assert limiter.when("other") == delays[0]
