"""When gangs probably start that wait for others that end before their limits."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from batholith.scheduler.framework.backfilling.probable_starts import ProbableStarts
from batholith.scheduler.framework.backfilling.profile import Held, Occupation
from batholith.scheduler.state.resources import BoolVector, IntVector

NOW = 1000.0
Pod = tuple[int, int, float, float]
"""The node of a pod, its CPUs, and in how many seconds it ends at the latest, and probably."""

CPU = np.array([1, 0], np.int64)


def starts(*pods: Pod) -> ProbableStarts:
    """The starts while *pods* run on two nodes."""
    requests = np.array([[cpus for _, cpus, _, _ in pods], [1] * len(pods)], np.int64)
    held = Held(np.array([node for node, _, _, _ in pods], np.int64), requests)
    latest = np.array([NOW + end for _, _, end, _ in pods])
    capacity = np.array([[100, 100], [1000, 1000]], np.int64)
    return ProbableStarts(
        NOW, capacity, held, latest, np.array([NOW + end for _, _, _, end in pods]), []
    )


def wait(
    found: ProbableStarts,
    planned: float,
    *,
    cpus: int = 1,
    duration: float = 1e4,
    seconds: float = 1e4,
    nodes: tuple[bool, bool] = (True, True),
    request: IntVector = CPU,
) -> float:
    """For how long a gang probably waits that is planned to wait for *planned* seconds."""
    amounts = np.array([[cpus], [1]], np.int64)
    start = NOW + planned
    occupation = Occupation(start, start + duration, np.array([0], np.int64), amounts)
    usable: BoolVector = np.array(nodes)
    return found.of(occupation, usable, request, seconds) - NOW


def test_a_gang_starts_when_as_much_is_free_as_at_its_planned_start() -> None:
    pods: tuple[Pod, ...] = ((0, 2, 100, 90), (0, 4, 200, 30), (1, 4, 400, 50), (1, 1, 300, 70))
    assert wait(starts(*pods), 100) == 30
    assert wait(starts(*pods), 200) == 50
    assert wait(starts(*pods), 300) == 50
    assert wait(starts(*pods), 400) == 90


def test_only_nodes_that_suit_it_and_what_it_requests_count() -> None:
    pods: tuple[Pod, ...] = ((0, 2, 100, 90), (1, 4, 200, 30), (1, 0, 90, 20))
    assert wait(starts(*pods), 100, nodes=(True, False)) == 90
    assert wait(starts(*pods), 100, request=np.array([0, 1], np.int64)) == 30


def test_a_gang_starts_at_its_planned_time_if_nothing_is_known_to_end_before() -> None:
    assert wait(starts((0, 2, np.inf, np.inf)), 100) == 100
    assert wait(starts((0, 2, 50, 10)), 100, request=np.zeros(2, np.int64)) == 100
    assert wait(starts((0, 2, 50, 10)), 0) == 0


def test_a_resource_that_no_pod_uses_is_not_waited_for() -> None:
    found = starts((0, 2, 50, 10))
    found.capacity = np.ones((3, 2), np.int64)
    assert wait(found, 100, request=np.array([0, 0, 1], np.int64)) == 100


def test_a_gang_waits_for_others_that_start_before_it() -> None:
    found = starts((0, 4, 100, 40), (1, 9, 1000, 1000))
    assert wait(found, 100, cpus=4, duration=200, seconds=60) == 40
    assert wait(found, 300, cpus=4) == 100


def test_a_gang_waits_for_a_part_of_what_was_planned_at_least() -> None:
    assert wait(starts((0, 4, 100, 0.1)), 100) == 5


@given(
    st.lists(
        st.tuples(st.integers(0, 1), st.integers(0, 4), st.integers(1, 100), st.floats(0.01, 1)),
        min_size=1,
        max_size=9,
    ),
    st.lists(st.tuples(st.integers(0, 100), st.integers(0, 4), st.integers(1, 50)), max_size=4),
)
def test_no_gang_starts_later_than_planned(
    running: list[tuple[int, int, int, float]], planned: list[tuple[int, int, int]]
) -> None:
    found = starts(*((node, cpus, end, end * fraction) for node, cpus, end, fraction in running))
    for start, cpus, duration in sorted(planned):
        assert 0 <= wait(found, start, cpus=cpus, duration=duration, seconds=duration / 2) <= start
