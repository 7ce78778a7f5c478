"""The JSON Patch in the response of a mutating webhook."""

import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from batholith.admission.serving.patches import create_patch
from batholith.local.apiserver.kinds.patches import json_patch

NAMES = st.sampled_from(["a", "b", "a/b", "~", "~1", ""])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.just(1.0) | st.sampled_from(["", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(NAMES, VALUES, max_size=4)


def exact(value: Any) -> str:
    """Return text that distinguishes true from 1 and 1 from 1.0."""
    return json.dumps(value, sort_keys=True)


@given(OBJECTS, OBJECTS)
def test_applying_the_patch_yields_the_new_object(
    before: dict[str, Any], after: dict[str, Any]
) -> None:
    assert exact(json_patch(before, create_patch(before, after))) == exact(after)


@given(OBJECTS)
def test_equal_objects_have_an_empty_patch(same: dict[str, Any]) -> None:
    assert create_patch(same, copy.deepcopy(same)) == []


def test_the_patch_of_a_nested_field_contains_only_that_field() -> None:
    before = {"spec": {"tasks": [{"name": "a"}, {"name": "b"}]}}
    after = {"spec": {"tasks": [{"name": "a", "minAvailable": 1}, {"name": "b"}]}}
    assert create_patch(before, after) == [
        {"op": "add", "path": "/spec/tasks/0/minAvailable", "value": 1}
    ]
