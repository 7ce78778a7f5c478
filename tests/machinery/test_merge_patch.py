"""The merge patch between two statuses."""

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from batholith.machinery.merge_patch import merge_patch

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.integers(0, 3), st.text(max_size=2), st.lists(st.integers(0, 2), max_size=2)),
    lambda inner: st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=4)


def merged(target: Any, patch: Any) -> Any:
    """RFC 7386, as the server does it."""
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(OBJECTS, OBJECTS)
def test_merge_patch_turns_the_old_into_the_new(old: dict[str, Any], new: dict[str, Any]) -> None:
    patch = merge_patch(old, new)
    assert merged(old, patch) == new
    assert (patch == {}) == (old == new)
