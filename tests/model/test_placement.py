"""Members and plans: what is encoded is decoded, and nothing else is accepted."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batholith.model.placement import (
    MAX_MEMBERS,
    MAX_TEXT,
    MemberRole,
    Members,
    Plan,
    decode_members,
    decode_plan,
    encode_members,
    hash_of,
)

NAMES = st.text("abcdefgh0123-.", min_size=1, max_size=12)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
PLANS = st.builds(
    Plan,
    id=NAMES,
    members=NAMES,
    version=st.integers(0, 9),
    until=st.integers(0, 2**33),
    nodes=st.dictionaries(st.tuples(NAMES, st.integers(0, 40)), NAMES, max_size=60),
    former=st.sets(
        st.tuples(st.tuples(NAMES | st.just("t"), st.integers(0, 9)), NAMES), max_size=20
    ).map(lambda drawn: tuple(sorted(drawn))),
)
PODS = st.dictionaries(NAMES, JSON, max_size=3).map(
    lambda pod: msgspec.Raw(msgspec.json.encode(pod))
)
ROLES = st.builds(
    MemberRole,
    name=NAMES,
    count=st.integers(0, 50),
    first=st.integers(0, 5),
    pod=PODS,
    priority=st.none() | st.integers(-5, 5),
)
MEMBERS = st.builds(
    Members,
    job=NAMES,
    uid=NAMES,
    version=st.integers(0, 9),
    roles=st.lists(ROLES, min_size=1, max_size=3, unique_by=lambda role: role.name).map(tuple),
)


def plan_text(**changes: Any) -> str:
    body = {"id": "p", "members": "h", "version": 0, "until": 5, "nodes": ["n"]}
    return msgspec.json.encode({**body, "roles": {"t": [[0, 0, 2]]}, **changes}).decode()


def members_text(**changes: Any) -> str:
    body = {"job": "j", "uid": "u", "version": 0}
    roles = [{"name": "t", "count": 2, "pod": {}}]
    return msgspec.json.encode({**body, "roles": roles, **changes}).decode()


@given(PLANS)
def test_a_plan_is_decoded_as_encoded(plan: Plan) -> None:
    assert decode_plan(plan.encode()) == plan


@given(MEMBERS)
def test_members_are_decoded_as_encoded_and_have_one_text(members: Members) -> None:
    text = encode_members(members)
    decoded = decode_members(text)
    assert decoded is not None
    assert encode_members(decoded) == text
    assert hash_of(text) == hash_of(encode_members(members))


@given(st.text(max_size=40) | JSON.map(lambda value: msgspec.json.encode(value).decode()))
def test_any_other_text_is_refused_without_an_error(text: str) -> None:
    assert decode_plan(text) is None
    assert decode_members(text) is None


@given(
    st.dictionaries(st.sampled_from(["id", "version", "until", "nodes", "roles", "former"]), JSON)
)
def test_a_changed_plan_is_refused_or_names_each_pod_once(changes: dict[str, Any]) -> None:
    plan = decode_plan(plan_text(**changes))
    if plan is not None:
        assert len(plan.nodes) <= MAX_MEMBERS
        assert decode_plan(plan.encode()) == plan


@pytest.mark.parametrize(
    "changes",
    [
        {"roles": {"t": [[1, 0, 1]]}},
        {"roles": {"t": [[-1, 0, 1]]}},
        {"roles": {"t": [[0, -1, 1]]}},
        {"roles": {"t": [[0, 0, 0]]}},
        {"roles": {"t": [[0, 0, 10**9]]}},
        {"roles": {"t": [[0, 0, 15_000], [0, 15_000, 15_000]]}},
        {"roles": {"t": [[0, 0, 2], [0, 1, 2]]}},
        {"roles": {"t": [[0, 2**62, 1]]}},
        {"former": {"t": [[1, 0, 1]]}},
        {"former": {"t": [[0, -1, 1]]}},
        {"former": {"t": [[0, 0, 15_000], [0, 0, 15_000]]}},
        {"former": {"../t": [[0, 0, 1]]}},
        {"nodes": ["../n"]},
        {"nodes": ["n" * 300]},
        {"nodes": [""]},
        {"id": ""},
        {"until": -1},
        {"until": 2**63},
        {"version": -1},
    ],
)
def test_an_impossible_plan_is_refused(changes: dict[str, Any]) -> None:
    assert decode_plan(plan_text()) is not None
    assert decode_plan(plan_text(**changes)) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"roles": []},
        {"roles": [{"name": "t", "count": 10**9, "pod": {}}]},
        {"roles": [{"name": "t", "count": -1, "pod": {}}]},
        {"roles": [{"name": "t", "count": 1, "first": -1, "pod": {}}]},
        {
            "roles": [
                {"name": "t", "count": 15_000, "pod": {}},
                {"name": "u", "count": 15_000, "pod": {}},
            ]
        },
        {"roles": [{"name": "t", "count": 1, "pod": {}}, {"name": "t", "count": 1, "pod": {}}]},
        {"roles": [{"name": "a/b", "count": 1, "pod": {}}]},
        {"roles": [{"name": "t", "count": 1, "pod": {}, "priority": 2**40}]},
        {"job": ""},
        {"version": -1},
    ],
)
def test_impossible_members_are_refused(changes: dict[str, Any]) -> None:
    assert decode_members(members_text()) is not None
    assert decode_members(members_text(**changes)) is None


def test_a_text_that_is_too_long_is_refused() -> None:
    assert decode_plan(plan_text(ignored="x" * MAX_TEXT)) is None
    assert decode_members(members_text(ignored="x" * MAX_TEXT)) is None


def test_a_deeply_nested_text_is_refused_without_an_error() -> None:
    assert decode_members("[" * 60_000) is None
    assert decode_plan(plan_text()[:-1] + ',"x":' + "[" * 50_000) is None
