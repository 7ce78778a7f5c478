"""Rate limits per caller: token buckets in bounded memory."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples

from batholith.api.identity.rate_limit import RateLimiter, source_key
from batholith.machinery.testing import FakeClock


async def test_a_burst_of_two_seconds_then_the_rate() -> None:
    clock = FakeClock()
    limiter = RateLimiter(5, clock=clock)
    assert [limiter.take("a") for _ in range(10)] == [0.0] * 10
    assert limiter.take("a") == pytest.approx(0.2)
    assert limiter.take("b") == 0
    await clock.advance(0.2)
    assert limiter.take("a") == 0
    assert limiter.take("a") > 0


async def test_a_fraction_of_a_request_per_second() -> None:
    clock = FakeClock()
    limiter = RateLimiter(0.1, clock=clock)
    assert limiter.take("a") == 0
    assert limiter.take("a") == pytest.approx(10)
    await clock.advance(10)
    assert limiter.take("a") == 0


def test_zero_is_no_limit() -> None:
    limiter = RateLimiter(0, clock=FakeClock())
    assert not any(limiter.take("a") for _ in range(1000))
    limiter.refund("a")
    assert len(limiter) == 0


def test_what_is_given_back_does_not_count() -> None:
    limiter = RateLimiter(1, clock=FakeClock())
    for _ in range(100):
        assert limiter.take("a") == 0
        limiter.refund("a")
    assert len(limiter) == 0


def test_memory_is_bounded() -> None:
    limiter = RateLimiter(1, clock=FakeClock(), size=10)
    for caller in range(1000):
        limiter.take(str(caller))
    assert len(limiter) == 10


@given(
    rate=st.floats(0.01, 1000),
    waits=st.lists(st.floats(0, 20), max_size=60),
)
@settings(max_examples=examples(100))
async def test_no_interval_has_more_requests_than_burst_and_rate(
    rate: float, waits: list[float]
) -> None:
    clock = FakeClock()
    limiter = RateLimiter(rate, clock=clock)
    accepted: list[float] = []
    for wait in waits:
        await clock.advance(wait)
        delay = limiter.take("a")
        assert math.isfinite(delay)
        if not delay:
            accepted.append(clock.monotonic())
    burst = max(1.0, 2 * rate)
    for first in range(len(accepted)):
        for last in range(first, len(accepted)):
            allowed = burst + rate * (accepted[last] - accepted[first])
            assert last - first + 1 <= allowed + 1e-6


@pytest.mark.parametrize(
    ("host", "key"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("unix", "unix"),
    ],
)
def test_a_client_is_known_by_its_address_or_ipv6_network(host: str, key: str) -> None:
    assert source_key(host) == key
