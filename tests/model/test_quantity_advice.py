"""What is wrong with a text that is meant as a quantity, for the person who wrote it."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batholith.model.quantity import parse
from batholith.model.quantity_advice import quantity_advice


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("4GB", "write 4Gi (powers of 1024) or 4G (powers of 1000)"),
        ("4 GB", "write 4Gi (powers of 1024) or 4G (powers of 1000)"),
        ("1.5GiB", "write 1.5Gi (powers of 1024) or 1.5G (powers of 1000)"),
        ("512kb", "write 512Ki (powers of 1024) or 512k (powers of 1000)"),
        ("512KB", "write 512Ki (powers of 1024) or 512k (powers of 1000)"),
        ("two", "write a number, with one of the suffixes m (thousandths), k, M, G,"),
        ("", "write a number"),
    ],
)
def test_it_says_what_to_write_instead(text: str, instead: str) -> None:
    advice = quantity_advice(text)
    assert advice.startswith(f'"{text}" is not a quantity: {instead}')
    assert "regular expression" not in advice


@pytest.mark.parametrize("text", ["4G", "4Gi", "500m", "2", "1e3"])
def test_quantities_need_no_advice(text: str) -> None:
    assert quantity_advice(text) == ""


@given(st.from_regex(r"[-+]?[0-9.]{1,6} ?[kKMGTPEmx]?i?[bB]?", fullmatch=True))
def test_amounts_that_are_advised_are_quantities(text: str) -> None:
    found = re.fullmatch(r".* write (\S+) .*1024\) or (\S+) .*", quantity_advice(text))
    for each in found.groups() if found else ():
        parse(each)


def test_other_types_are_named() -> None:
    assert quantity_advice(True) == "a quantity is text or a number, not bool"
