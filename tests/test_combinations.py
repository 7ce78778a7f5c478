"""Variants of tests that are chosen for `make test`, see `support.combinations`."""

from itertools import combinations, product

import hypothesis
import pytest
from hypothesis import strategies as st
from support.combinations import covering

GRID = [{"server": server, "level": level, "user": user}
        for server, level, user in product(range(2), range(3), range(6))]  # fmt: skip


@pytest.mark.parametrize(("size", "count"), [(1, 6), (3, 36)])
def test_no_more_variants_are_chosen_than_a_parameter_has_values(size: int, count: int) -> None:
    assert len(covering(GRID, size)) == count


def test_pairs_need_fewer_variants_than_there_are() -> None:
    assert 18 <= len(covering(GRID, 2)) < 27


@hypothesis.given(
    st.lists(st.fixed_dictionaries(dict.fromkeys("abc", st.integers(0, 3))), max_size=20),
    st.integers(1, 3),
)
def test_chosen_variants_contain_each_combination(
    variants: list[dict[str, int]], size: int
) -> None:
    def found(some: list[dict[str, int]]) -> set[object]:
        return {one for each in some for one in combinations(sorted(each.items()), size)}

    chosen = [variants[index] for index in covering(variants, size)]
    assert found(chosen) == found(variants)


def test_a_test_without_parameters_is_chosen() -> None:
    assert covering([{}], 1) == {0}
