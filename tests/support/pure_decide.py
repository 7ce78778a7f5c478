"""``decide`` with a check that it changes none of its inputs."""

import dataclasses
from enum import Enum
from typing import Any

import msgspec

from batholith.job_ctrl.decide import decide
from batholith.job_ctrl.effects import Effect
from batholith.job_ctrl.status.job_view import JobView
from batholith.model.command import Command

_MEMORIZED = {"_known_counts"}
"""Attributes that only save a repeated computation."""


def state_of(value: Any) -> Any:
    """Return a deep copy of *value* as built-in types, private attributes included."""
    if isinstance(value, JobView):  # without what it has computed
        return [state_of(getattr(value, name)) for name in value.__struct_fields__]
    if isinstance(value, msgspec.Struct):
        return type(value).__name__, msgspec.json.encode(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return type(value).__name__, [state_of(getattr(value, name)) for name in names]
    if isinstance(value, dict):
        return type(value).__name__, [(state_of(k), state_of(v)) for k, v in value.items()]
    if isinstance(value, list | tuple):
        return type(value).__name__, [state_of(each) for each in value]
    if isinstance(value, set | frozenset):
        return type(value).__name__, sorted(map(repr, value))
    if isinstance(value, Enum) or not hasattr(value, "__dict__"):
        return repr(value)  # immutable, or a counter, whose repr is its state
    kept = {name: each for name, each in vars(value).items() if name not in _MEMORIZED}
    return type(value).__name__, state_of(kept)


def pure_decide(view: JobView, command: Command | None = None) -> list[Effect]:
    """Call ``decide``, two times, and check that inputs and result stay the same."""
    before = state_of(view)
    effects = decide(view, command)
    assert state_of(view) == before, "decide has changed its view"
    assert decide(view, command) == effects, "decide depends on more than its view"
    assert state_of(view) == before, "decide has changed its view"
    return effects
