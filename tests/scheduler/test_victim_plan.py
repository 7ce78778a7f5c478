"""The choice of victims against an exhaustive search."""

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from batholith.scheduler.framework import victim_plan
from batholith.scheduler.framework.victim_plan import (
    Candidates,
    NodeOption,
    choose_victims,
    pods_fitting,
)

NODES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 4)),  # idle, and the number of victims
    min_size=1,
    max_size=4,
)


def candidates(victims: list[tuple[int, int]]) -> Candidates:
    """Victims as (node, size), in the order of preference."""
    nodes, sizes = (np.array(each, np.int64) for each in zip(*victims, strict=True))
    count = len(victims)
    return Candidates(
        slots=np.arange(count),
        nodes=nodes,
        requests=sizes[None],
        levels=np.zeros(count, np.int64),
        ranks=np.arange(count),
        required=np.zeros(count, np.bool_),
    )


def total_pods(options: list[NodeOption]) -> int:
    return sum(option.pods for option in options)


def minimum_victims(
    idle: list[int], numbers: list[int], size: int, request: int, count: int
) -> int | None:
    """The fewest victims of equal *size* so that *count* more pods fit, by trying all."""
    best: int | None = None
    for taken in itertools.product(*(range(number + 1) for number in numbers)):
        pods = sum(
            (free + size * each) // request - free // request
            for free, each in zip(idle, taken, strict=True)
        )
        if pods >= count and (best is None or sum(taken) < best):
            best = sum(taken)
    return best


@settings(max_examples=200, deadline=None)
@given(NODES, st.integers(1, 3), st.integers(1, 4), st.integers(1, 6), st.booleans())
def test_no_more_victims_than_necessary(
    nodes: list[tuple[int, int]], size: int, request: int, count: int, exact: bool
) -> None:
    idle, numbers = [each[0] for each in nodes], [each[1] for each in nodes]
    victims = [(node, size) for node, number in enumerate(numbers) for _ in range(number)]
    if not victims:
        return
    free = np.array([each // request * request for each in idle])
    given_idle = np.array([idle], np.int64) - free
    before = victim_plan.MAX_EXACT_STEPS
    victim_plan.MAX_EXACT_STEPS = before if exact else 0
    try:
        options = choose_victims(
            candidates(victims),
            np.array([request]),
            given_idle,
            np.full(len(nodes), 100),
            count,
        )
    finally:
        victim_plan.MAX_EXACT_STEPS = before
    expected = minimum_victims(idle, numbers, size, request, count)
    assert len({option.node for option in options}) == len(options)
    for option in options:
        left = int(given_idle[0, option.node]) + size * len(option.slots)
        assert left // request >= option.pods
    if expected is None:
        assert total_pods(options) < count
    else:
        assert total_pods(options) >= count
        if exact:
            assert sum(len(option.slots) for option in options) == expected


LEVELS = st.lists(
    st.tuples(st.integers(0, 2), st.lists(st.integers(0, 3), max_size=3)), min_size=1, max_size=3
)


@settings(max_examples=200, deadline=None)
@given(LEVELS, st.integers(1, 3), st.integers(1, 3))
def test_no_victims_of_lower_levels_suffice(
    nodes: list[tuple[int, list[int]]], request: int, count: int
) -> None:
    """Each node has something idle, and victims of some levels; all combinations are tried."""
    idle = [free % request for free, _ in nodes]
    victims = [(index, level) for index, (_, found) in enumerate(nodes) for level in found]
    if not victims:
        return
    built = candidates([(index, 1) for index, _ in victims])
    levels = np.array([level for _, level in victims])
    columns = Candidates(
        built.slots, built.nodes, built.requests, levels, built.ranks, built.required
    )
    limits = np.full(len(nodes), 100)
    options = choose_victims(columns, np.array([request]), np.array([idle]), limits, count)
    costs = [
        sorted((level for _, level in chosen), reverse=True)
        for number in range(len(victims) + 1)
        for chosen in itertools.combinations(victims, number)
        if sum(
            (free + sum(at == index for at, _ in chosen)) // request
            for index, free in enumerate(idle)
        )
        >= count
    ]
    slots = [slot for option in options for slot in option.slots.tolist()]
    if costs:
        assert sorted((int(levels[slot]) for slot in slots), reverse=True) == min(costs)
    else:
        assert total_pods(options) < count


def test_preferred_victim_is_chosen_among_equals() -> None:
    given_victims = candidates([(0, 2), (0, 2), (1, 2)])
    ranks = np.array([2, 1, 0])
    chosen = choose_victims(
        Candidates(
            given_victims.slots,
            given_victims.nodes,
            given_victims.requests,
            given_victims.levels,
            ranks,
            given_victims.required,
        ),
        np.array([2]),
        np.zeros((1, 2), np.int64),
        np.array([9, 9]),
        1,
    )
    assert [(option.node, option.slots.tolist()) for option in chosen] == [(1, [2])]


def test_one_large_victim_is_better_than_two_small_ones() -> None:
    chosen = choose_victims(
        candidates([(0, 1), (0, 1), (0, 2)]),
        np.array([2]),
        np.zeros((1, 1), np.int64),
        np.array([9]),
        1,
    )
    assert [option.slots.tolist() for option in chosen] == [[2]]


def test_a_higher_level_loses_a_victim_only_if_that_is_needed() -> None:
    built = candidates([(0, 2), (1, 1), (1, 1)])
    levels = np.array([1, 0, 0])
    columns = Candidates(
        built.slots, built.nodes, built.requests, levels, built.ranks, built.required
    )
    idle = np.zeros((1, 2), np.int64)
    limits = np.array([9, 9])
    one = choose_victims(columns, np.array([2]), idle, limits, 1)
    assert [option.slots.tolist() for option in one] == [[1, 2]]
    two = choose_victims(columns, np.array([2]), idle, limits, 2)
    assert sorted(slot for option in two for slot in option.slots.tolist()) == [0, 1, 2]


def test_required_victims_come_first() -> None:
    built = candidates([(0, 9), (0, 1)])
    columns = Candidates(
        built.slots,
        built.nodes,
        built.requests,
        built.levels,
        built.ranks,
        np.array([False, True]),
    )
    chosen = choose_victims(columns, np.array([1]), np.array([[1]]), np.array([1]), 1)
    assert [option.slots.tolist() for option in chosen] == [[1]]


def test_overcommitted_node_fits_nothing() -> None:
    amounts = np.array([[4, 4], [-1, 0]])
    assert pods_fitting(np.array([1, 0]), amounts).tolist() == [0, 4]


def test_thousand_victims_are_chosen_by_density() -> None:
    """A plan of 1,000 victims on 5,000 nodes frees all that is needed, and no node twice."""
    victims = [(node, 1) for node in range(5000) for _ in range(4)]
    options = choose_victims(
        candidates(victims),
        np.array([1]),
        np.zeros((1, 5000), np.int64),
        np.full(5000, 9),
        1000,
    )
    assert total_pods(options) == 1000
    assert sum(len(option.slots) for option in options) == 1000
