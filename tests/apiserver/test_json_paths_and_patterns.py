"""JSON paths and regular expressions of definitions."""

import re
from typing import Any

import pytest

from batholith.local.apiserver.custom import jsonpath
from batholith.local.apiserver.custom.go_regex import compile_go
from batholith.local.apiserver.custom.schema import compile_schema, schema_errors

OBJ = {
    "spec": {"a.b": 1, "list": [{"n": "x", "v": 1}, {"n": "y", "v": True}]},
    "status": {"conditions": [{"type": "Ready", "status": "True"}, {"type": "Other"}]},
}


@pytest.mark.parametrize(
    ("path", "values"),
    [
        (".spec.list[0].n", ["x"]),
        ("spec.list[-1].v", [True]),
        ("{.spec.list[*].n}", ["x", "y"]),
        (r".spec.a\.b", [1]),
        (".spec['a.b']", [1]),
        ('.status.conditions[?(@.type=="Ready")].status', ["True"]),
        (".spec.list[?(@.v == true)].n", ["y"]),
        (".spec.list[?(@.n != 'x')].n", ["y"]),
        (".status.conditions[?(@.status)].type", ["Ready"]),
        (".spec.nope.deeper", []),
        (".spec.list[7]", []),
        (".spec.list[-1:].n", ["y"]),
        (".spec.list[:1].n", ["x"]),
        (".spec.list[0:2].n", ["x", "y"]),
        (".spec.list[::2].n", ["x"]),
        (".spec.list[:].n", ["x", "y"]),
        (".spec.list[1:1].n", []),
        (".spec.list[0:3].n", []),
        (".spec.list[-3:].n", []),
        (".spec.list[1:0].n", []),
        (".spec.list[::0].n", []),
        (".spec[0:1]", []),
        ("", [OBJ]),
    ],
)
def test_paths_find_values(path: str, values: list[Any]) -> None:
    assert jsonpath.find(path, OBJ) == values


@pytest.mark.parametrize("path", [".a[", ".a[x]", ".a..[b", "[?(x)]", ".a[-:]", ".a[1:x]"])
def test_invalid_paths_are_rejected(path: str) -> None:
    with pytest.raises(ValueError, match="not a JSON path"):
        jsonpath.find(path, {})


def test_simple_paths_are_lists_of_fields() -> None:
    assert jsonpath.fields(".spec.replicas") == ("spec", "replicas")
    with pytest.raises(ValueError, match="only fields"):
        jsonpath.fields(".spec.list[0]")


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("^a$", "a", "a\n"),
        (r"\Aa\z", "a", "ba"),
        ("^[[:alpha:]_]+$", "ab_", "a1"),
        (r"^\d+$", "12", "١"),
        (r"^\Qa.b\E$", "a.b", "axb"),
        ("^[]a]$", "]", "b"),
        ("^[^]a]$", "b", "]"),
        ("^[a-z[&]+$", "a[&", "A"),
        (r"^\x{41}$", "A", "a"),
        ("b", "abc", "ac"),
        (r"^[\w$]+$", "a$", "a-"),
        ("^(?P<x>a|b)$", "b", "c"),
        (r"^\p{L}+$", "äß", "a1"),
    ],
)
def test_patterns_match_as_in_go(pattern: str, yes: str, no: str) -> None:
    search = compile_go(pattern)
    assert search(yes)
    assert not search(no)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(", "missing closing ): `(`"),
        ("[a", "missing closing ]: `[a`"),
        ("a**", "invalid nested repetition operator: `**`"),
        ("(?=x)", "invalid or unsupported Perl syntax: `(?=`"),
        (r"(a)\1", r"invalid escape sequence: `\1`"),
        (r"\C", r"invalid escape sequence: `\C`"),
        ("a{1001}", "invalid repeat count: `{1001}`"),
        ("*", "missing argument to repetition operator: `*`"),
        ("a\\", "trailing backslash at end of expression: ``"),
        ("[b-a]", "invalid character class range: `b-a`"),
    ],
)
def test_invalid_patterns_are_rejected_with_gos_message(pattern: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"error parsing regexp: {why}")):
        compile_go(pattern)


def test_a_backtracking_pattern_is_matched_in_linear_time() -> None:
    # A backtracking engine takes longer with each further "a".
    assert not compile_go("^(a+)+$")("a" * 100_000 + "b")


LARGE_PATTERN = "(.?a.?){900}z"
TOO_LARGE = "Forbidden: the patterns of the schema, and the texts to match, are too large together"


def text_schema(**keywords: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"text": {"type": "string", **keywords}}}


def test_texts_and_patterns_of_one_object_are_limited_together() -> None:
    schema = compile_schema(text_schema(pattern=LARGE_PATTERN))
    assert "should match" in schema.validate({"text": "b" * 1000})[0].message
    (error,) = schema.validate({"text": "b" * 100_000})
    assert error.message == f"text: {TOO_LARGE}"
    # The limit is for each object.
    assert "should match" in schema.validate({"text": "b" * 1000})[0].message
    branches = compile_schema(text_schema(**{"not": {"pattern": LARGE_PATTERN}}))
    assert branches.validate({"text": "b" * 1000}) == []
    assert branches.validate({"text": "b" * 100_000})[0].message == f"text: {TOO_LARGE}"
    texts = {"type": "array", "items": {"type": "string", "pattern": LARGE_PATTERN}}
    listed = compile_schema({"type": "object", "properties": {"texts": texts}})
    # Strings that are no longer than a name count, too.
    found = listed.validate({"texts": [f"{number:064}" for number in range(400)]})
    assert found[-1].message.endswith(TOO_LARGE)
    assert found[-1].field.startswith("texts[")
    usual = compile_schema(text_schema(pattern="^[A-Za-z0-9+/]*=*$"))
    assert usual.validate({"text": "a" * 3_000_000}) == []


@pytest.mark.parametrize("pattern", [LARGE_PATTERN, r"\p{L}{1000}"])
def test_the_patterns_of_one_schema_are_limited_together(pattern: str) -> None:
    def errors(count: int) -> list[str]:
        nodes = {f"p{n}": {"type": "string", "pattern": f"{pattern}{n}"} for n in range(count)}
        schema = {"type": "object", "properties": nodes}
        return [each.message for each in schema_errors(schema, "openAPIV3Schema")]

    assert f"openAPIV3Schema: {TOO_LARGE}" not in errors(3)
    assert errors(1000) == [f"openAPIV3Schema: {TOO_LARGE}"]


@pytest.mark.parametrize(
    "path", ["[?(@{blanks}x", "[?(@a=={blanks}x", ".a[{blanks}x", "['{blanks}"]
)
def test_a_path_full_of_spaces_is_rejected_in_linear_time(path: str) -> None:
    with pytest.raises(ValueError, match="not a JSON path"):
        jsonpath.find(path.format(blanks=" " * 8000), {})


def test_the_length_of_a_path_is_limited() -> None:
    with pytest.raises(ValueError, match="longer than 8192"):
        jsonpath.find(".a" * 4097, {})
