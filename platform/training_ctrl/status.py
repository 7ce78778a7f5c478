"""The status of a training job and the rules of its conditions. Pure.

A new condition is appended at the end, because the last one is the job's state in ``kubectl get``.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from ..machinery.reconcile.events import Event
from ..model import times
from ..model.training.types import (
    ConditionType,
    JobCondition,
    JobStatus,
    ReplicaStatus,
    TrainingJob,
)
from .effects import Announcement, Counted, Reason
from .frameworks.base import Framework, ReplicaCounts
from .pods import selector_text, type_labels

_TRUE, _FALSE = "True", "False"

_EXCLUDED = {
    ConditionType.RESTARTING: ConditionType.RUNNING,
    ConditionType.RUNNING: ConditionType.RESTARTING,
}
"""The condition that is removed when another is set."""

_FINAL = (ConditionType.SUCCEEDED, ConditionType.FAILED)
"""Conditions of a finished job."""


def is_true(conditions: Sequence[JobCondition], kind: ConditionType) -> bool:
    """Whether the condition of this type is True."""
    return any(each.type == kind and each.status == _TRUE for each in conditions)


def is_finished(conditions: Sequence[JobCondition]) -> bool:
    """Whether the job has succeeded or failed."""
    return any(is_true(conditions, kind) for kind in _FINAL)


def set_condition(
    conditions: Sequence[JobCondition], new: JobCondition
) -> tuple[JobCondition, ...]:
    """Return the conditions after *new* is set; both its times are those of the change.

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
    if new.type in _FINAL and new.status == _TRUE:
        kept = [_not_running(each) for each in kept]
    return (*kept, new)


def _not_running(condition: JobCondition) -> JobCondition:
    """Return Running with status False; any other condition as it is."""
    if condition.type != ConditionType.RUNNING or condition.status == _FALSE:
        return condition
    return msgspec.structs.replace(condition, status=_FALSE)


class StatusDraft:
    """The status of a job while it is decided: conditions, counts, times, and what to announce."""

    def __init__(self, framework: Framework[Any], job: TrainingJob[Any], now: datetime) -> None:
        self._kind = framework.kind
        self._job = job
        self._before = job.status
        self.now = times.format(now)
        self.conditions = job.status.conditions
        self.replica_statuses = dict(job.status.replica_statuses)
        self.start_time = job.status.start_time
        self.completion_time = job.status.completion_time
        self.announcements: list[Announcement] = []

    def is_true(self, condition: ConditionType) -> bool:
        """Whether the condition is True now."""
        return is_true(self.conditions, condition)

    @property
    def is_finished(self) -> bool:
        """Whether the job has succeeded or failed."""
        return is_finished(self.conditions)

    def created(self) -> None:
        """Set Created, once."""
        if not self.conditions:
            self._set(ConditionType.CREATED, f"{self._subject} is created.")
            self.announcements.append(Announcement(counted="created"))

    def running(self, message: str) -> None:
        """Set Running."""
        self._set(ConditionType.RUNNING, message)

    def restarting(self, message: str, *, announced: bool) -> None:
        """Set Restarting, and record its event unless each restart was *announced* already."""
        if self._set(ConditionType.RESTARTING, message) and not announced:
            reason = self._reason(Reason.RESTARTING)
            self._announce(reason, message, warning=True, counted="restarted")

    def succeeded(self, message: str) -> None:
        """Set Succeeded, and when the job was completed."""
        self.completion_time = self.completion_time or self.now
        if self._set(ConditionType.SUCCEEDED, message):
            self._announce(self._reason(Reason.SUCCEEDED), message, counted="successful")

    def failed(self, message: str, reason: str = "") -> None:
        """Set Failed, and when the job was completed."""
        self.completion_time = self.completion_time or self.now
        if self._set(ConditionType.FAILED, message, reason=reason or Reason.FAILED):
            self._announce(self._reason(Reason.FAILED), message, warning=True, counted="failed")

    def suspended(self) -> None:
        """Set Suspended, and Running to False."""
        message = f"{self._subject} is suspended."
        was_suspended = self.is_true(ConditionType.SUSPENDED)
        if self.is_true(ConditionType.RUNNING):
            self._set(ConditionType.RUNNING, message, status=False, reason=Reason.SUSPENDED)
        self._set(ConditionType.SUSPENDED, message)
        if not was_suspended:
            self._announce(self._reason(Reason.SUSPENDED), message)

    def resumed(self) -> None:
        """Set Suspended to False; the job starts again."""
        message = f"{self._subject} is resumed."
        self._set(ConditionType.SUSPENDED, message, status=False, reason=Reason.RESUMED)
        self.start_time = self.now
        self._announce(self._reason(Reason.RESUMED), message)

    def set_counts(self, counts: Mapping[str, ReplicaCounts]) -> None:
        """Replace the counts of the replica types."""
        for replica_type, each in counts.items():
            labels = type_labels(self._kind, self._job.metadata.name, replica_type)
            self.replica_statuses[replica_type] = ReplicaStatus(
                active=each.active,
                succeeded=each.succeeded,
                failed=each.failed,
                selector=selector_text(labels) if self._kind.scalable else "",
            )

    def no_active(self, *, succeeded: bool = False) -> None:
        """Set the number of active pods of all types to 0; with *succeeded* they count as such."""
        for replica_type, status in self.replica_statuses.items():
            more = status.active if succeeded else 0
            self.replica_statuses[replica_type] = msgspec.structs.replace(
                status, active=0, succeeded=status.succeeded + more
            )

    def status(self) -> JobStatus:
        """Return the status."""
        return msgspec.structs.replace(
            self._before,
            conditions=self.conditions,
            replica_statuses=self.replica_statuses,
            start_time=self.start_time,
            completion_time=self.completion_time,
        )

    @property
    def _subject(self) -> str:
        return f"{self._kind.name} {self._job.metadata.name}"

    def _reason(self, suffix: str) -> str:
        return f"{self._kind.name}{suffix}"

    def _set(
        self, condition: ConditionType, message: str, *, status: bool = True, reason: str = ""
    ) -> bool:
        """Set a condition; return whether anything changed."""
        before = self.conditions
        new = JobCondition(
            type=condition,
            status=_TRUE if status else _FALSE,
            reason=self._reason(reason or condition),
            message=message,
            last_update_time=self.now,
            last_transition_time=self.now,
        )
        self.conditions = set_condition(before, new)
        return self.conditions != before

    def _announce(
        self, reason: str, message: str, *, warning: bool = False, counted: Counted | None = None
    ) -> None:
        self.announcements.append(Announcement(Event(reason, message, warning), counted))
