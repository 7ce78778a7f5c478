"""Conditions of a training job. Pure.

A new entry is appended at the end, because the last one is the job's state in ``kubectl get``.
"""

from collections.abc import Sequence

import msgspec

from ..model.training.types import ConditionType, JobCondition

TRUE, FALSE = "True", "False"

_EXCLUDED = {
    ConditionType.RESTARTING: ConditionType.RUNNING,
    ConditionType.RUNNING: ConditionType.RESTARTING,
}
"""The condition that is removed when another is set."""

FINAL = (ConditionType.SUCCEEDED, ConditionType.FAILED)
"""Conditions of a finished job."""


def is_true(conditions: Sequence[JobCondition], kind: ConditionType) -> bool:
    """Whether the condition of this type is True."""
    return any(each.type == kind and each.status == TRUE for each in conditions)


def is_finished(conditions: Sequence[JobCondition]) -> bool:
    """Whether the job has succeeded or failed."""
    return any(is_true(conditions, kind) for kind in FINAL)


def set_condition(
    conditions: Sequence[JobCondition], new: JobCondition
) -> tuple[JobCondition, ...]:
    """Return the conditions with *new*, whose times are both now.

    Failed is final. A change of the message alone is ignored.
    """
    given = tuple(conditions)
    if is_true(given, ConditionType.FAILED):
        return given
    old = next((each for each in given if each.type == new.type), None)
    if old is not None and (old.status, old.reason) == (new.status, new.reason):
        return given
    if old is not None and old.status == new.status:
        new = msgspec.structs.replace(new, last_transition_time=old.last_transition_time)
    removed = (new.type, _EXCLUDED.get(ConditionType(new.type)))
    kept = [each for each in given if each.type not in removed]
    if new.type in FINAL and new.status == TRUE:
        kept = [_not_running(each) for each in kept]
    return (*kept, new)


def _not_running(condition: JobCondition) -> JobCondition:
    """Return Running with status False; any other condition as it is."""
    if condition.type != ConditionType.RUNNING or condition.status == FALSE:
        return condition
    return msgspec.structs.replace(condition, status=FALSE)
