"""The division among all queues at once equals one queue after the other."""

from fractions import Fraction

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.scheduler import Amount, SchedulerWorld, node, pod, podgroup, queue
from support.scheduler_oracle.queues import rounded

from batholith.scheduler.plugins.fair_division import UNLIMITED, divide
from batholith.scheduler.plugins.proportion import Division

_RESOURCES = 2
_NOTHING = Fraction(1, 10**6)
_UNITS = st.lists(st.integers(0, 60), min_size=_RESOURCES, max_size=_RESOURCES)
_QUEUE = st.tuples(
    st.integers(1, 9),
    _UNITS,
    st.lists(st.sampled_from([0, 0, 5, 40]), min_size=_RESOURCES, max_size=_RESOURCES),
    st.lists(st.sampled_from([3, 20, UNLIMITED]), min_size=_RESOURCES, max_size=_RESOURCES),
)
Queue = tuple[int, list[int], list[int], list[int]]


def _one_by_one(queues: list[Queue], total: list[int]) -> list[list[int]]:
    """Divide in rounds, queue by queue, as the reference does; then round to units."""
    deserved = [[Fraction(0)] * _RESOURCES for _ in queues]
    unmet, remaining = list(range(len(queues))), [Fraction(each) for each in total]
    while unmet and max(remaining) > _NOTHING:
        weights = sum(queues[each][0] for each in unmet)
        before, still = list(remaining), []
        for each in unmet:
            weight, requested, guarantee, capability = queues[each]
            had = deserved[each]
            new = []
            for r in range(_RESOURCES):
                units = had[r] + min(before[r] * weight / weights, remaining[r])
                most = Fraction(min(capability[r], requested[r]))
                units = max(min(units, most), Fraction(guarantee[r]))
                new.append(units)
                remaining[r] = max(remaining[r] - (units - had[r]), Fraction(0))
            deserved[each] = new
            if new != had and any(want > has for want, has in zip(requested, new, strict=True)):
                still.append(each)
        if all(had - left <= _NOTHING for had, left in zip(before, remaining, strict=True)):
            break
        unmet = still
    columns = [rounded([row[r] for row in deserved], total[r]) for r in range(_RESOURCES)]
    return [list(row) for row in zip(*columns, strict=True)]


def _divided(queues: list[Queue], total: list[int]) -> list[list[int]]:
    weights, *limits = (np.array([each[i] for each in queues], np.int64) for i in range(4))
    requested, guarantee, capability = limits
    total_units = np.array(total, np.int64)
    found: list[list[int]] = divide(weights, requested, guarantee, capability, total_units).tolist()
    return found


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(_QUEUE, min_size=1, max_size=7), _UNITS)
@example(
    [(1, [1, 3], [0, 0], [3, 3]), (2, [0, 12], [0, 0], [3, 20])]
    + 2 * [(3, [0, 17], [0, 0], [3, 20])],
    [1, 48],
)
def test_division_equals_that_of_one_queue_after_the_other(
    queues: list[Queue], total: list[int]
) -> None:
    assert _divided(queues, total) == _one_by_one(queues, total)


def test_weights_and_amounts_may_be_large() -> None:
    queues: list[Queue] = [
        (2**31 - 1, [2**59, 0], [0, 0], [UNLIMITED] * 2),
        (2**31 - 2, [2**59, 0], [0, 0], [UNLIMITED] * 2),
    ]
    for ours, exact in zip(
        _divided(queues, [2**59, 0]), _one_by_one(queues, [2**59, 0]), strict=True
    ):
        assert 0 <= exact[0] - ours[0] <= 1  # units of such amounts are not divided further
        assert ours[1] == exact[1]


def test_sums_that_exceed_64_bits_are_more_than_there_is() -> None:
    queues: list[Queue] = [(1, [2**59, 0], [0, 0], [UNLIMITED] * 2)] * 16
    assert [row[0] for row in _divided(queues, [2**59, 0])] == [2**55] * 16


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 9), st.integers(0, 50), st.integers(0, 30)),
        min_size=1,
        max_size=6,
    ),
    st.integers(1, 100),
)
def test_deserved_is_within_the_total_and_all_limits(
    queues: list[tuple[int, int, int]], total: int
) -> None:
    rows: list[Queue] = [(w, [asked, 0], [0, 0], [limit, 0]) for w, asked, limit in queues]
    deserved = [row[0] for row in _divided(rows, [total, 0])]
    assert sum(deserved) <= total
    maxima = [min(request, limit) for _, request, limit in queues]
    assert all(each <= maximum for each, maximum in zip(deserved, maxima, strict=True))
    assert deserved == maxima or sum(deserved) == total


@settings(max_examples=examples(40), deadline=None)
@given(st.data())
def test_updated_division_equals_a_new_one(data: st.DataObject) -> None:
    world = SchedulerWorld()
    kept = Division()
    for step in range(data.draw(st.integers(1, 12))):
        name = f"q{data.draw(st.integers(0, 2))}"
        match data.draw(st.integers(0, 4)):
            case 0:
                world.upsert(node(f"n{step % 3}", cpu=data.draw(st.integers(1, 8))))
            case 1:
                capability: dict[str, Amount] = {"cpu": data.draw(st.integers(1, 4))}
                world.upsert(
                    queue(name, weight=data.draw(st.integers(1, 5)), capability=capability)
                )
            case 2:
                gpu: dict[str, Amount] = {"example.com/gpu": 1} if data.draw(st.booleans()) else {}
                world.upsert(
                    podgroup(f"g{step}", 1, queue=name), pod(f"p{step}", f"g{step}", extra=gpu)
                )
            case 3 if world.pod_objects:
                world.remove(data.draw(st.sampled_from(list(world.pod_objects.values()))))
            case _:
                world.schedule()
        world.cluster.refresh()
        kept.update(world.cluster)
        new = Division()
        new.update(world.cluster)
        for each in world.cluster.queues.by_name:
            assert kept.deserved(each) == new.deserved(each)
            assert kept.real_capability(each) == new.real_capability(each)
