"""Calls of formats in expressions, some of which have an optional value."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batholith.machinery.cel.environment import CompileError, Environment
from batholith.machinery.cel.formats import with_optionals

TOKENS = (
    "format",
    ".",
    "named",
    "validate",
    "(",
    ")",
    "[",
    "]",
    "{",
    "}",
    "x",
    "in",
    "'a'",
    " ",
    "?",
)


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("format.byte().validate(x)", "<format.byte().validate(x)>"),
        ("format.named(x).value().validate(y)", "<<format.named(x)>.value().validate(y)>"),
        ("x in [format.byte()][0].validate(y)", "x in <[format.byte()][0].validate(y)>"),
        ("{'f': format.byte()}.f\n.validate(')')", "<{'f': format.byte()}.f\n.validate(')')>"),
        ("'format.named(x)' == \"format.byte().validate(\"", None),
        ("self.validate(x)", None),
    ],
)
def test_calls_with_an_optional_value_are_enclosed(expression: str, expected: str | None) -> None:
    shown = with_optionals(expression).replace("optional.ofNonZeroValue(", "<")
    assert shown == (expected or expression).replace(">", ")")


@given(st.lists(st.sampled_from(TOKENS), max_size=30).map("".join))
def test_each_text_is_rewritten_or_left(expression: str) -> None:
    written = with_optionals(expression)
    removed = written.replace("optional.ofNonZeroValue(", "")
    assert removed.replace(")", "") == expression.replace(")", "")


@pytest.mark.parametrize(
    "expression",
    [
        ").validate(format)",
        "format" + ")" * 9_000 + ".validate(x)",
        "format.byte().validate(" * 4_000,
        "format.byte()" + ".validate('a')" * 7_000,
    ],
    ids=("unbalanced", "closed", "nested", "chain"),
)
def test_odd_and_large_expressions_are_rejected(expression: str) -> None:
    with pytest.raises(CompileError):
        Environment({"x": "string"}).compile(expression)
