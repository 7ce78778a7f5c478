"""Objects that a framework needs in addition to pods and Services. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from ..machinery.merge_patch import merge_patch
from ..model.names import Resource
from .core_types import DependentObject


@dataclass(frozen=True, slots=True, kw_only=True)
class DesiredObject:
    """An object as a framework needs it."""

    resource: Resource
    name: str
    content: Mapping[str, Any] = field(default_factory=dict)
    """Fields other than the metadata; changes by others are reverted."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels in addition to those of the job."""


def changes(existing: DependentObject, desired: DesiredObject) -> dict[str, Any]:
    """Return the merge patch of the content fields of *desired* that *existing* has otherwise."""
    observed = msgspec.to_builtins(existing)
    patch: dict[str, Any] = {}
    for name, value in desired.content.items():
        old = observed.get(name, type(value)())
        if not _matches(value, old, exact=name == "data"):
            patch[name] = merge_patch(old, value) if isinstance(value, dict) else value
    return patch


def _matches(desired: Any, observed: Any, *, exact: bool = False) -> bool:
    """Whether *observed* has all fields of *desired*; other fields may be defaults."""
    if isinstance(desired, Mapping) and isinstance(observed, Mapping):
        if exact and desired.keys() != observed.keys():
            return False
        return all(key in observed and _matches(desired[key], observed[key]) for key in desired)
    if isinstance(desired, Sequence) and not isinstance(desired, str):
        return (
            isinstance(observed, Sequence)
            and len(desired) == len(observed)
            and all(map(_matches, desired, observed))
        )
    return bool(desired == observed)
