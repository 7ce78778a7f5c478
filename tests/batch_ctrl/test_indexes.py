"""Sets of completion indexes and their text."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batholith.batch_ctrl.indexes import IndexSet

SETS = st.frozensets(st.integers(0, 40))
MANY = 10**6


@pytest.mark.parametrize(
    ("indexes", "text"),
    [
        ((), ""),
        ((0,), "0"),
        ((0, 1), "0,1"),
        ((0, 1, 2), "0-2"),
        ((1, 3, 4, 5, 7), "1,3-5,7"),
        ((4, 5, 7, 8, 9, 11), "4,5,7-9,11"),
    ],
)
def test_text_has_ranges_of_three_or_more(indexes: tuple[int, ...], text: str) -> None:
    """INV-BJ-9."""
    assert str(IndexSet(indexes)) == text
    assert list(IndexSet.parse(text, MANY)) == list(indexes)


@pytest.mark.parametrize(
    ("text", "completions", "expected"),
    [
        ("1-5", 4, "1-3"),
        ("1,4,2", 4, "1"),
        ("x,1,2-,3", 9, "1,3"),
        ("0-1,2-3", 9, "0-3"),
        ("5", 5, ""),
        ("-1,2", 9, "2"),
        ("3-1,7", 9, "7"),
    ],
)
def test_invalid_pieces_are_skipped_and_ends_clamped(
    text: str, completions: int, expected: str
) -> None:
    assert str(IndexSet.parse(text, completions)) == expected


@given(SETS)
def test_parse_is_the_inverse_of_format(indexes: frozenset[int]) -> None:
    """INV-BJ-9: and the text is canonical."""
    text = str(IndexSet(indexes))
    assert set(IndexSet.parse(text, MANY)) == indexes
    assert re.fullmatch(r"(\d+(-\d+)?(,\d+(-\d+)?)*)?", text)


@given(st.lists(st.integers(0, 40)), SETS)
def test_set_operations_are_those_of_sets(added: list[int], other: frozenset[int]) -> None:
    found = IndexSet()
    model = set[int]()
    for index in added:
        assert found.add(index) == (index not in model)
        model.add(index)
        assert found.total == len(found) == len(model)
    assert list(found) == sorted(model)
    assert [index in found for index in range(42)] == [index in model for index in range(42)]
    assert found.intersection_total(IndexSet(other)) == len(model & other)
    union = found.with_indexes(other)
    assert set(union) == model | other and set(found) == model
    assert union == IndexSet(model | other)
    assert (union is found) == (other <= model)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30))))
def test_ranges_merge(ranges: list[tuple[int, int]]) -> None:
    found, model = IndexSet(), set[int]()
    for first, last in ranges:
        found.add_range(first, last)
        model.update(range(first, last + 1))
    assert list(found) == sorted(model) and found.total == len(model)
    assert found == IndexSet(model)
