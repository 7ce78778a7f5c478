"""The plugin ``proportion`` against its definition, and the fairness of what queues really get."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.scheduler import SchedulerWorld, node
from support.scheduler_queues import allocated_pods, configuration, queue, submit

from batholith.scheduler.plugins.fair_division import UNLIMITED, divide

SCALE = 10**9
"""Factor of the small numbers below, so that rounding is negligible."""

_EMPTY = 1e-10


@dataclass(frozen=True)
class Queue:
    """A queue of the definition, per resource."""

    weight: int
    requested: tuple[int, int]
    guarantee: tuple[int, int]
    capability: tuple[int | None, int | None]


def definition(queues: Sequence[Queue], total: Sequence[int]) -> list[list[float]]:
    """Weighted water filling: every round divides what remained at its start."""
    remaining = [float(each) for each in total]
    deserved = [[0.0, 0.0] for _ in queues]
    unmet = set(range(len(queues)))
    while unmet and max(remaining) > _EMPTY:
        weights = sum(queues[index].weight for index in unmet)
        before = list(remaining)
        met = set()
        for index in sorted(unmet):
            each, had = queues[index], deserved[index]
            new = []
            for r in range(2):
                units = had[r] + before[r] * each.weight / weights
                capability = each.capability[r]
                units = min(units, each.requested[r], units if capability is None else capability)
                new.append(max(units, each.guarantee[r]))
            deserved[index] = new
            changes = (abs(new[r] - had[r]) for r in range(2))
            if max(changes) < _EMPTY or all(each.requested[r] <= new[r] for r in range(2)):
                met.add(index)
            remaining = [remaining[r] - (new[r] - had[r]) for r in range(2)]
        remaining = [max(each, 0.0) for each in remaining]
        unmet -= met
    return deserved


def with_real_capability(queues: Sequence[Queue], total: Sequence[int]) -> list[Queue]:
    """The queues with capabilities that leave what others are guaranteed, as the plugin's."""
    free = [max(total[r] - sum(each.guarantee[r] for each in queues), 0) for r in range(2)]

    def real(each: Queue, r: int) -> int:
        limit, own = free[r] + each.guarantee[r], each.capability[r]
        return limit if own is None else min(limit, own)

    return [replace(each, capability=(real(each, 0), real(each, 1))) for each in queues]


def queues_of(draw: st.DrawFn) -> list[Queue]:
    amounts = st.tuples(st.integers(0, 20), st.integers(0, 20))
    small = st.just((0, 0)) | st.tuples(st.integers(0, 2), st.integers(0, 2))
    limits = st.tuples(st.none() | st.integers(1, 20), st.none() | st.integers(1, 20))
    count, guaranteed = draw(st.integers(1, 6)), draw(st.booleans())
    return [
        Queue(
            draw(st.integers(1, 9)),
            draw(amounts),
            draw(small) if guaranteed else (0, 0),
            draw(limits),
        )
        for _ in range(count)
    ]


@settings(max_examples=examples(150), deadline=None)
@given(st.composite(queues_of)(), st.tuples(st.integers(0, 40), st.integers(0, 40)))
def test_what_queues_deserve_is_that_of_the_definition(
    queues: list[Queue], total: tuple[int, int]
) -> None:
    queues = with_real_capability(queues, total)

    def scaled(rows: Sequence[Sequence[int | None]]) -> np.ndarray:
        return np.array(
            [[UNLIMITED if n is None else n * SCALE for n in row] for row in rows], np.int64
        )

    found = divide(
        np.array([each.weight for each in queues], np.int64),
        scaled([each.requested for each in queues]),
        scaled([each.guarantee for each in queues]),
        scaled([each.capability for each in queues]),
        np.array([n * SCALE for n in total], np.int64),
    )
    if any(n for each in queues for n in each.guarantee):
        # Rounds of the definition give guarantees in addition to what they divide, and so more than
        # there is; here they reduce what queues after them get.
        least = scaled([each.guarantee for each in queues])
        most = np.maximum(least, scaled([each.capability for each in queues]))
        assert (found <= most).all() and ((found >= least) | (np.array(total) == 0)).all()
        return
    expected = definition(queues, total)
    for row, wanted in zip(found.tolist(), expected, strict=True):
        for units, fraction in zip(row, wanted, strict=True):
            assert abs(units / SCALE - fraction) <= 1e-6


@settings(max_examples=examples(40), deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), min_size=2, max_size=5),
    st.integers(4, 40),
)
def test_the_share_error_is_less_than_one_gang(queues: list[tuple[int, int]], total: int) -> None:
    """Every queue requests more than there is, in gangs of one size; none gets more than it
    deserves, and none is a whole gang below it."""
    world = SchedulerWorld(configuration("{name: gang}, {name: proportion}", actions="allocate"))
    world.upsert(node("a", cpu=total, pods=1000))
    weights = sum(weight for weight, _ in queues)
    for index, (weight, size) in enumerate(queues):
        world.upsert(queue(f"q{index}", weight=weight))
        for number in range(total // size + 1):
            submit(world, f"q{index}g{number}", size, queue=f"q{index}", minimum=size)
    allocated_pods(world)
    for index, (weight, size) in enumerate(queues):
        deserved = Fraction(total * weight, weights)
        got = Fraction(world.cluster.queues.by_name[f"q{index}"].allocated.get("cpu", 0), 1000)
        assert deserved - size < got <= deserved + Fraction(1, 1000)
