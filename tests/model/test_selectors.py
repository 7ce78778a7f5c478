"""Selectors have the semantics of kubectl and the API server."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batholith.model import selectors
from batholith.model.meta import LabelRequirement, LabelSelector
from batholith.model.selectors import FieldRequirement, SelectorError


@pytest.mark.parametrize(
    ("text", "labels", "meant"),
    [
        ("", {}, True),
        ("a=1", {"a": "1"}, True),
        ("a==1", {"a": "2"}, False),
        ("a=", {"a": ""}, True),
        ("a=", {}, False),
        ("a!=1", {}, True),
        ("a!=1", {"a": "1"}, False),
        ("a", {"a": ""}, True),
        ("!a", {"a": "x"}, False),
        ("! a", {}, True),
        ("a in (1, 2)", {"a": "2"}, True),
        ("a in(1,2),b", {"a": "2"}, False),
        ("a in (,x)", {"a": ""}, True),
        ("a notin (1,2)", {}, True),
        ("a notin (1,2)", {"a": "1"}, False),
        ("a>3", {"a": "10"}, True),
        ("a > 3", {"a": "x"}, False),
        ("a<3", {"a": "2"}, True),
        ("a<3", {}, False),
        (" example.com/role = head , !old ", {"example.com/role": "head"}, True),
        ("in in (in,notin)", {"in": "notin"}, True),
    ],
)
def test_a_label_selector_selects(text: str, labels: dict[str, str], meant: bool) -> None:
    assert selectors.parse_label_selector(text).matches(labels) is meant


@pytest.mark.parametrize(
    ("text", "found", "expected"),
    [
        ("==x", "==", "!, identifier, or 'end of string'"),
        (",", ",", "!, identifier, or 'end of string'"),
        ("a,", "", "identifier after ','"),
        ("a=1 b=2", "b", "',' or 'end of string'"),
        ("a b", "b", "in, notin, =, ==, !=, gt, lt"),
        ("a in x", "x", "'('"),
        ("a in (x", "", "',' or ')'"),
        ("a>", "", "identifier"),
        ("!", "", "identifier"),
    ],
)
def test_a_malformed_selector_is_rejected_with_the_expected_token(
    text: str, found: str, expected: str
) -> None:
    with pytest.raises(SelectorError) as refusal:
        selectors.parse_label_selector(text)
    assert f"found '{found}', expected: {expected}" in str(refusal.value)


@pytest.mark.parametrize(
    "text",
    ["-a=1", "a/b/c", "/a", "a=b/c", f"a={'x' * 64}", f"{'x' * 64}", "a>b", "A.com/x", "a=-"],
)
def test_invalid_label_keys_and_values_are_rejected(text: str) -> None:
    with pytest.raises(SelectorError):
        selectors.parse_label_selector(text)


def test_a_label_selector_object_is_converted_with_all_conditions() -> None:
    selector = selectors.from_label_selector(
        LabelSelector(
            match_labels={"app": "web"},
            match_expressions=(
                LabelRequirement(key="tier", operator="In", values=("a", "b")),
                LabelRequirement(key="zone", operator="NotIn", values=("z",)),
                LabelRequirement(key="owner", operator="Exists"),
                LabelRequirement(key="old", operator="DoesNotExist"),
            ),
        )
    )
    assert str(selector) == "app=web,tier in (a,b),zone!=z,owner,!old"
    good = {"app": "web", "tier": "b", "owner": "me"}
    assert selector.matches(good)
    for spoiled in ({"app": "x"}, {"tier": "c"}, {"zone": "z"}, {"old": ""}):
        assert not selector.matches(good | spoiled)
    assert not selector.matches({"app": "web", "tier": "b"})


def test_an_empty_selector_selects_everything_and_a_missing_one_nothing() -> None:
    assert selectors.from_label_selector(LabelSelector()).matches({})
    assert not selectors.from_label_selector(None).matches({"a": "b"})
    assert not selectors.NOTHING.matches({})


@pytest.mark.parametrize(
    "wrong",
    [
        LabelRequirement(key="a", operator="Gt", values=("1",)),
        LabelRequirement(key="a", operator="In"),
        LabelRequirement(key="a", operator="Exists", values=("1",)),
        LabelRequirement(key="", operator="Exists"),
    ],
)
def test_an_invalid_expression_is_rejected(wrong: LabelRequirement) -> None:
    with pytest.raises(SelectorError):
        selectors.from_label_selector(LabelSelector(match_expressions=(wrong,)))


@pytest.mark.parametrize(
    ("text", "terms"),
    [
        ("", []),
        ("spec.nodeName=n1", [("spec.nodeName", "=", "n1")]),
        ("a==b,c!=d", [("a", "=", "b"), ("c", "!=", "d")]),
        ("a=,b=x", [("a", "=", ""), ("b", "=", "x")]),
        (r"a=1\,2\=3\\", [("a", "=", r"1,2=3" + "\\")]),
    ],
)
def test_field_selectors_are_parsed(text: str, terms: list[tuple[str, str, str]]) -> None:
    assert selectors.parse_field_selector(text) == terms


@pytest.mark.parametrize("text", ["a", "a=b=c", "a=\\x", "a=b,c"])
def test_malformed_field_selectors_are_rejected(text: str) -> None:
    with pytest.raises(SelectorError):
        selectors.parse_field_selector(text)


def test_a_missing_field_counts_as_empty() -> None:
    assert FieldRequirement("a", "=", "").matches("")
    assert not FieldRequirement("a", "!=", "").matches("")
    assert FieldRequirement("a", "!=", "x").matches("")


identifiers = st.from_regex(r"[a-z][a-z0-9]{0,4}", fullmatch=True)
terms = st.one_of(
    identifiers,
    identifiers.map(lambda key: f"!{key}"),
    st.builds(
        lambda key, sign, value: f"{key}{sign}{value}",
        identifiers,
        st.sampled_from(["=", "!="]),
        identifiers,
    ),
    st.builds(
        lambda key, operator, values: f"{key} {operator} ({','.join(values)})",
        identifiers,
        st.sampled_from(["in", "notin"]),
        st.lists(identifiers, min_size=1, max_size=3),
    ),
)


@given(st.lists(terms, max_size=4).map(",".join), st.dictionaries(identifiers, identifiers))
def test_formatted_selectors_keep_their_semantics(text: str, labels: dict[str, str]) -> None:
    selector = selectors.parse_label_selector(text)
    again = selectors.parse_label_selector(str(selector))
    assert again == selector
    assert again.matches(labels) == selector.matches(labels)


@given(st.text(alphabet="ab=!,() in><\\", max_size=12))
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    for read in (selectors.parse_label_selector, selectors.parse_field_selector):
        try:
            read(text)
        except SelectorError as refusal:
            assert str(refusal)
