"""Hints at the name that is nearest to a misspelt one."""

import pytest

from batholith.model.spelling import hint

ARGUMENTS = ("command", "cpu", "env", "gpus", "image", "memory")


@pytest.mark.parametrize(
    ("given", "meant"),
    [("gpu", "gpus"), ("mem", "memory"), ("cmd", "command"), ("comand", "command"), ("CPU", "cpu")],
)
def test_the_nearest_name_is_hinted_at(given: str, meant: str) -> None:
    assert hint(given, ARGUMENTS) == f"did you mean {meant!r}?"


def test_without_a_near_name_all_are_listed() -> None:
    assert hint("unrelated", ("b", "a")) == "known: a, b"
    assert hint("unrelated", ()) == "known: none"
