"""The status of a job while it is decided; a mutable copy, without I/O."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

import msgspec

from ..model import times
from ..model.training.types import (
    ConditionType,
    JobCondition,
    JobStatus,
    ReplicaStatus,
    TrainingJob,
)
from . import conditions
from .effects import Announcement, Counted, Reason
from .frameworks.base import Framework
from .observation import ReplicaCounts
from .pods import selector_text, type_labels


class StatusDraft:
    """Collects conditions, counts and times, and the events that their change causes."""

    def __init__(self, framework: Framework[Any], job: TrainingJob[Any], now: datetime) -> None:
        self._kind = framework.kind
        self._job = job
        self._before = job.status
        self.now = times.format(now)
        self.conditions = job.status.conditions
        self.replica_statuses = dict(job.status.replica_statuses)
        self.start_time = job.status.start_time
        self.completion_time = job.status.completion_time
        self.transitions: list[Announcement] = []

    def is_true(self, condition: ConditionType) -> bool:
        """Whether the condition is True now."""
        return conditions.is_true(self.conditions, condition)

    @property
    def is_finished(self) -> bool:
        """Whether the job has succeeded or failed."""
        return conditions.is_finished(self.conditions)

    def created(self) -> None:
        """Set Created, once."""
        if not self.conditions:
            self._set(ConditionType.CREATED, f"{self._subject} is created.")
            self._announce("", "", counted="created")

    def running(self, message: str) -> None:
        """Set Running."""
        self._set(ConditionType.RUNNING, message)

    def restarting(self, message: str, *, announced: bool) -> None:
        """Set Restarting; its event is recorded unless it is *announced* for each restart."""
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
        """Set the active pods of all types to 0; they count as *succeeded* if so."""
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
            status=conditions.TRUE if status else conditions.FALSE,
            reason=self._reason(reason or condition),
            message=message,
            last_update_time=self.now,
            last_transition_time=self.now,
        )
        self.conditions = conditions.set_condition(before, new)
        return self.conditions != before

    def _announce(
        self, reason: str, message: str, *, warning: bool = False, counted: Counted | None = None
    ) -> None:
        self.transitions.append(
            Announcement(reason=reason, message=message, warning=warning, counted=counted)
        )
