"""How long gangs with a limit probably run, from former gangs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scheduler.test_run_times import annotated, gang_of, learn, running
from support.scheduler import SchedulerWorld, node

from batholith.scheduler.state.run_times import recent_runs
from batholith.scheduler.state.run_times.recent_runs import LEAST_FRACTIONS, RecentRuns, Run

EVE, BOB = ("default", "eve", "train-#"), ("default", "bob", "test-#")


def halves(count: int = LEAST_FRACTIONS) -> RecentRuns:
    """Gangs of one user that needed half of their limits."""
    runs = RecentRuns()
    for _ in range(count):
        runs.observe(Run(BOB, 9, 500, 1000))
    return runs


def test_until_enough_gangs_have_ended_each_runs_until_its_limit() -> None:
    assert halves(LEAST_FRACTIONS - 1).expect(EVE, 1, 80, 0) == 80
    assert halves().expect(EVE, 1, 80, 0) == 40


def test_fractions_of_short_runs_do_not_count() -> None:
    runs = halves()
    for _ in range(LEAST_FRACTIONS):
        runs.observe(Run(BOB, 9, 59, 60))
    assert runs.expect(EVE, 1, 80, 0) == 40


def test_gang_that_has_run_for_longer_than_others_runs_until_its_limit() -> None:
    runs = halves()
    assert runs.expect(EVE, 1, 80, 39) == 40
    assert runs.expect(EVE, 1, 80, 41) == 80
    runs.observe(Run(BOB, 9, 900, 1000))
    assert runs.expect(EVE, 1, 80, 41) == 72


def test_runs_of_equal_size_count_before_others_of_the_pattern() -> None:
    runs = halves()
    runs.observe(Run(EVE, 1, 700, None))
    assert runs.expect(EVE, 2, 1000, 0) == 700
    runs.observe(Run(EVE, 2, 600, None))
    runs.observe(Run(EVE, 1, 800, None))
    assert runs.expect(EVE, 2, 1000, 0) == 600


def test_only_runs_that_limit_and_elapsed_time_permit_count() -> None:
    runs = halves()
    for seconds in (700, 20, 300):
        runs.observe(Run(EVE, 1, seconds, None))
    assert runs.expect(EVE, 1, 1000, 300) == 700
    assert runs.expect(EVE, 1, 500, 0) == 300
    assert runs.expect(EVE, 1, 200, 0) == 100  # a tenth of a limit is rarer than a mistake
    assert runs.expect(EVE, 1, 1000, 700) == 1000


def test_later_runs_count_more() -> None:
    runs = halves()
    for seconds in (400, 400, 400, 400, 600, 600, 600):
        runs.observe(Run(EVE, 1, seconds, None))
    assert runs.expect(EVE, 1, 1000, 0) == 600


@given(
    st.lists(st.tuples(st.integers(1, 3), st.floats(0, 2000), st.floats(1, 1000)), max_size=40),
    st.floats(1, 1000),
    st.floats(0, 1),
)
def test_probable_run_time_is_between_elapsed_time_and_limit(
    ended: list[tuple[int, float, float]], limit: float, elapsed: float
) -> None:
    runs = halves()
    for size, seconds, own_limit in ended:
        runs.observe(Run(EVE, size, seconds, own_limit))
    assert elapsed * limit <= runs.expect(EVE, 2, limit, elapsed * limit) <= limit


def test_patterns_not_seen_for_longest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent_runs, "MAX_PATTERNS", 2)
    runs = halves()
    for name in "abc":
        runs.observe(Run(("default", name, ""), 1, 90, None))
    assert runs.expect(("default", "a", ""), 1, 100, 0) == 50
    assert runs.expect(("default", "b", ""), 1, 100, 0) == 90


def test_end_of_a_gang_changes_what_is_known_of_others_of_its_pattern() -> None:
    world = SchedulerWorld()
    world.upsert(node("n"))
    run_times = world.cluster.run_times
    for number in range(LEAST_FRACTIONS):
        learn(world, f"done-{number}", 60, time_limit="2m30s")
    world.time = 1000.0
    for name in ("done-99", "new-99"):
        world.upsert(annotated(name, time_limit="10m"), running(f"{name}-0", name, 1000))
    world.schedule()
    run_times.pop_outdated()
    assert run_times.probable_end(gang_of(world, "done-99"), now=1000.0) == 1000 + 240
    learn(world, "done-100", 300, time_limit="10m")
    assert run_times.pop_outdated() == {"ns/done-99"}
    assert run_times.probable_end(gang_of(world, "done-99"), now=1000.0) == 1000 + 300
    assert run_times.probable_end(gang_of(world, "new-99"), now=1000.0) == 1000 + 240
    assert run_times.probable_end(gang_of(world, "new-99"), now=1300.0) == 1000 + 600


def test_next_longer_run_is_one_of_equal_size_if_there_is_any() -> None:
    runs = RecentRuns()
    assert runs.next_longer(EVE, 2, 0) is None
    for size, seconds in ((1, 50), (2, 30), (2, 90), (1, 200)):
        runs.observe(Run(EVE, size, seconds, None))
    found = [runs.next_longer(EVE, 2, elapsed) for elapsed in (0, 30, 90, 200)]
    assert found == [30, 90, 200, None]
    assert runs.next_longer(BOB, 2, 0) is None
