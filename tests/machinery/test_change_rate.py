"""Deferrable writes are delayed under load, up to a maximum."""

from batholith.machinery.change_rate import ChangeRate
from batholith.machinery.testing import FakeClock


def test_minimum_delay_applies_at_low_load() -> None:
    clock = FakeClock()
    rate = ChangeRate(clock, busy_threshold=50)
    for _ in range(40):
        rate.observe()
    assert rate.quiet_in() == 0
    assert rate.remaining_delay(clock.monotonic(), min_delay=1, max_delay=30) == 1
    clock.tick(3)
    assert rate.remaining_delay(0.0, min_delay=1, max_delay=30) == 0


def test_burst_delays_writes_until_it_decays() -> None:
    clock = FakeClock()
    rate = ChangeRate(clock, busy_threshold=50)
    for _ in range(5000):
        rate.observe()
    wait = rate.remaining_delay(clock.monotonic(), min_delay=1, max_delay=30)
    assert 1 < wait < 15
    clock.tick(wait + 0.01)
    assert rate.quiet_in() == 0
    assert rate.remaining_delay(0.0, min_delay=1, max_delay=30) == 0


def test_maximum_delay_applies_under_constant_load() -> None:
    clock = FakeClock()
    rate = ChangeRate(clock, busy_threshold=50)
    waited = 0
    while rate.remaining_delay(0.0, min_delay=1, max_delay=30):
        for _ in range(300):
            rate.observe()
        clock.tick(1)
        waited += 1
    assert waited == 30


def test_a_few_changes_per_second_count_as_low_load() -> None:
    clock = FakeClock()
    rate = ChangeRate(clock, busy_threshold=50)
    for _ in range(100):
        for _ in range(20):
            rate.observe()
        clock.tick(1)
        assert rate.quiet_in() == 0
