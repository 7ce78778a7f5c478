"""What may wait does so while much is going on, and never for too long."""

from batholith.machinery.change_rate import ChangeRate
from batholith.machinery.testing import FakeClock


def test_when_it_is_calm_the_least_is_waited() -> None:
    clock = FakeClock()
    bustle = ChangeRate(clock, busy_threshold=50)
    for _ in range(40):
        bustle.observe()
    assert bustle.quiet_in() == 0
    assert bustle.remaining_delay(clock.monotonic(), min_delay=1, max_delay=30) == 1
    clock.tick(3)
    assert bustle.remaining_delay(0.0, min_delay=1, max_delay=30) == 0


def test_a_burst_is_waited_for_and_then_forgotten() -> None:
    clock = FakeClock()
    bustle = ChangeRate(clock, busy_threshold=50)
    for _ in range(5000):
        bustle.observe()
    wait = bustle.remaining_delay(clock.monotonic(), min_delay=1, max_delay=30)
    assert 1 < wait < 15
    clock.tick(wait + 0.01)
    assert bustle.quiet_in() == 0
    assert bustle.remaining_delay(0.0, min_delay=1, max_delay=30) == 0


def test_a_bustle_that_never_ends_is_waited_for_no_longer_than_the_most() -> None:
    clock = FakeClock()
    bustle = ChangeRate(clock, busy_threshold=50)
    waited = 0
    while bustle.remaining_delay(0.0, min_delay=1, max_delay=30):
        for _ in range(300):
            bustle.observe()
        clock.tick(1)
        waited += 1
    assert waited == 30


def test_a_few_changes_a_second_are_no_bustle() -> None:
    clock = FakeClock()
    bustle = ChangeRate(clock, busy_threshold=50)
    for _ in range(100):
        for _ in range(20):
            bustle.observe()
        clock.tick(1)
        assert bustle.quiet_in() == 0
