"""Quantities agree with the Kubernetes libraries and are exact."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batholith.model import quantity
from batholith.model.quantity import Quantity, QuantityError

DATA = Path(__file__).parents[1] / "data" / "quantity-vectors.jsonl"
VECTORS = [json.loads(line) for line in DATA.read_text().splitlines()]
PARSED = [vector for vector in VECTORS if vector["type"] == "quantity"]
GOOD = [vector for vector in PARSED if "canonical" in vector]
BAD = [vector for vector in PARSED if "error" in vector]
SUMS = [vector for vector in VECTORS if vector["type"] == "quantityArith"]

SUFFIXES = ["", "n", "u", "m", "k", "M", "G", "T", "P", "Ki", "Mi", "Gi", "Ti", "e3", "E-2"]
texts = st.builds(
    lambda sign, whole, fraction, suffix: f"{sign}{whole}{fraction}{suffix}",
    st.sampled_from(["", "-", "+"]),
    st.integers(0, 10**7),
    st.one_of(st.just(""), st.integers(0, 9999).map(lambda digits: f".{digits}")),
    st.sampled_from(SUFFIXES),
)
quantities = texts.map(quantity.parse)


def test_there_are_vectors() -> None:
    assert len(GOOD) > 40
    assert len(BAD) > 5
    assert len(SUMS) > 3


@pytest.mark.parametrize("vector", GOOD, ids=lambda vector: str(vector["in"]))
def test_parsing_and_formatting_agree_with_the_kubernetes_libraries(vector: dict[str, Any]) -> None:
    read = quantity.parse(vector["in"])
    assert str(read) == vector["canonical"]
    assert read.format.value == vector["format"]
    if abs(read.milli_value()) < 2**63:  # theirs overflows, ours does not
        assert read.milli_value() == vector["milli"]
    if abs(read.value()) < 2**63:
        assert read.value() == vector["value"]


@pytest.mark.parametrize("vector", BAD, ids=lambda vector: str(vector["in"]))
def test_error_messages_agree_with_the_kubernetes_libraries(vector: dict[str, Any]) -> None:
    with pytest.raises(QuantityError) as refusal:
        quantity.parse(vector["in"])
    assert str(refusal.value) == vector["error"]


@pytest.mark.parametrize("vector", SUMS, ids=lambda vector: f"{vector['a']}, {vector['b']}")
def test_sums_differences_and_order_agree_too(vector: dict[str, Any]) -> None:
    a, b = quantity.parse(vector["a"]), quantity.parse(vector["b"])
    assert str(a + b) == vector["sum"]
    assert str(a - b) == vector["diff"]
    assert (a > b) - (a < b) == vector["cmp"]


@pytest.mark.parametrize(
    ("bare", "text"), [(2, "2"), (0.5, "500m"), (1e21, "1000E"), (-3, "-3"), (1.25, "1250m")]
)
def test_bare_numbers_are_quantities(bare: float, text: str) -> None:
    assert quantity.parse(bare) == quantity.parse(text)


@pytest.mark.parametrize("wrong", [True, None, [], "1e1001", "1e-1001", "9" * 300, ".", "-", "m"])
def test_malformed_quantities_are_rejected(wrong: Any) -> None:
    with pytest.raises(QuantityError):
        quantity.parse(wrong)


def test_sums_do_not_overflow() -> None:
    total = quantity.parse("4Ei") * 4
    assert total.value() == 2**64
    assert str(total) == "16Ei"


def test_a_sum_takes_the_format_of_its_first_nonzero_term() -> None:
    assert str(quantity.ZERO + quantity.parse("2048Mi")) == "2Gi"


def test_numbers_above_the_largest_suffix_keep_it() -> None:
    assert quantity.canonical("2000000E") == "2000000E"


@given(texts)
def test_quantities_round_trip(text: str) -> None:
    read = quantity.parse(text)
    again = quantity.parse(str(read))
    assert again == read
    assert str(again) == str(read)


@given(quantities, quantities)
def test_sums_are_exact_and_reversible(a: Quantity, b: Quantity) -> None:
    assert a + b == b + a
    assert a + b - b == a
    assert -(a - b) == b - a
    assert (a < b) == (b > a) == (not a >= b)
    assert a * 3 == a + a + a


@given(quantities)
def test_whole_and_milli_values_round_away_from_zero(amount: Quantity) -> None:
    for rounded, unit in ((amount.value(), 10**9), (amount.milli_value(), 10**6)):
        exact = Fraction(amount.nanos, unit)
        assert abs(rounded) >= abs(exact)
        assert abs(rounded - exact) < 1
    assert amount.is_whole == (Quantity(amount.value() * 10**9) == amount)


@given(quantities, quantities)
def test_equal_amounts_have_equal_hashes(a: Quantity, b: Quantity) -> None:
    same = Quantity(a.nanos, b.format)
    assert same == a
    assert hash(same) == hash(a)
    assert a != "1"
