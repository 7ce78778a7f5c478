"""JSON paths and regular expressions of definitions."""

from typing import Any

import pytest

from batholith.cluster.apiserver.custom import jsonpath
from batholith.cluster.apiserver.custom.go_regex import compile_go

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
        ("", [OBJ]),
    ],
)
def test_paths_find_values(path: str, values: list[Any]) -> None:
    assert jsonpath.find(path, OBJ) == values


@pytest.mark.parametrize("path", [".a[", ".a[x]", ".a..[b", "[?(x)]"])
def test_what_is_no_path_is_refused(path: str) -> None:
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
    ],
)
def test_patterns_mean_what_they_mean_in_go(pattern: str, yes: str, no: str) -> None:
    compiled = compile_go(pattern)
    assert compiled is not None
    assert compiled.search(yes)
    assert not compiled.search(no)


def test_patterns_without_words_in_python_are_let_go_and_broken_ones_refused() -> None:
    assert compile_go(r"^\p{L}+$") is None
    with pytest.raises(ValueError, match="error parsing regexp"):
        compile_go("(")
