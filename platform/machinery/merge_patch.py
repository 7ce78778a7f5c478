"""Merge patches (RFC 7386) between two states of an object."""

from collections.abc import Mapping
from typing import Any


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the merge patch from *before* to *after*: what differs, and None for removed keys."""
    patch: dict[str, Any] = {key: None for key in before if key not in after}
    for key, value in after.items():
        old = before.get(key)
        if isinstance(value, Mapping) and isinstance(old, Mapping):
            if changed := merge_patch(old, value):
                patch[key] = changed
        elif key not in before or old != value:
            patch[key] = value
    return patch
