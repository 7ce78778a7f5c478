"""Validation of writes of a Job's status, by any controller.

Most rules apply only to a write that changes the fields that they are about: an invalid status must
not keep a controller from writing the rest of it.
"""

from collections.abc import Iterator
from typing import Any

from ..errors.fields import (
    IMMUTABLE,
    NOT_NEGATIVE,
    FieldError,
    duplicate,
    invalid,
    invalid_whole,
    required,
)
from .index_intervals import IntervalError, count_indexes, first_overlap

Json = dict[str, Any]

_CONDITIONS = "status.conditions"
_FINAL_CONDITIONS = ("Failed", "Complete", "FailureTarget")


class _Status:
    """The status of a Job, and what follows from it."""

    def __init__(self, job: Json) -> None:
        self.fields: Json = job.get("status", {})
        self._conditions = {
            (each.get("type"), each.get("status")) for each in self.fields.get("conditions") or ()
        }
        self.complete = self.holds("Complete")
        self.failed = self.holds("Failed")
        self.failure_target = self.holds("FailureTarget")
        self.criteria_met = self.holds("SuccessCriteriaMet")
        self.finished = self.complete or self.failed
        uncounted = self.fields.get("uncountedTerminatedPods")
        self.uncounted: Json | None = uncounted

    def holds(self, name: str, status: str = "True") -> bool:
        """Whether a condition has this status."""
        return (name, status) in self._conditions

    def get(self, key: str) -> Any:
        """A field, or ``None``."""
        return self.fields.get(key)

    def count(self, key: str) -> int:
        """A number, 0 if it is not set."""
        return self.fields.get(key) or 0


def validate_job_status(job: Json, old: Json) -> list[FieldError]:
    """Validate a write of a Job's status."""
    spec, new, before = job.get("spec", {}), _Status(job), _Status(old)
    return [
        *_validate_numbers(new),
        *_validate_uncounted(new),
        *_validate_exclusive(new, before),
        *_validate_times(new, before),
        *_validate_announced(new, before),
        *_validate_finished(spec, new, before),
        *_validate_indexes(spec, new, before),
        *_validate_pods(new, before),
        *_validate_criteria(spec, new),
        *_validate_transition(spec, new, before),
    ]


def _validate_numbers(new: _Status) -> Iterator[FieldError]:
    for key in ("active", "succeeded", "failed", "ready", "terminating"):
        if new.count(key) < 0:
            yield invalid(f"status.{key}", new.count(key), NOT_NEGATIVE)


def _validate_uncounted(new: _Status) -> Iterator[FieldError]:
    seen: set[str] = set()
    for kind in ("succeeded", "failed"):
        for index, uid in enumerate((new.uncounted or {}).get(kind) or ()):
            path = f"status.uncountedTerminatedPods.{kind}[{index}]"
            if not uid:
                yield invalid(path, uid, "must not be empty")
            elif uid in seen:
                yield duplicate(path, uid)
            seen.add(uid)


def _validate_exclusive(new: _Status, before: _Status) -> Iterator[FieldError]:
    """Check that a complete Job has not failed, and is not about to."""
    complete_changed = new.complete != before.complete
    if not new.complete:
        return
    if new.failed and (complete_changed or new.failed != before.failed):
        yield invalid_whole(_CONDITIONS, "cannot set Complete=True and Failed=true conditions")
    target_changed = new.failure_target != before.failure_target
    if new.failure_target and (complete_changed or target_changed):
        text = "cannot set Complete=True and FailureTarget=true conditions"
        yield invalid_whole(_CONDITIONS, text)


def _validate_times(new: _Status, before: _Status) -> Iterator[FieldError]:
    """Check that exactly the complete Jobs have a completion time, after their start."""
    start, end = new.get("startTime"), new.get("completionTime")
    start_changed = start != before.get("startTime")
    end_changed = end != before.get("completionTime")
    if end_changed or new.complete != before.complete:
        if end is not None and not new.complete:
            text = "cannot set completionTime when there is no Complete=True condition"
            yield invalid("status.completionTime", end, text)
        if end is None and new.complete:
            text = "completionTime is required for Complete jobs"
            yield required("status.completionTime", text)
    # Times are canonical, so that their texts compare like the times.
    if (start_changed or end_changed) and start and end and end < start:
        text = "must be equal to or after `startTime`"
        yield invalid("status.completionTime", end, text)


def _validate_announced(new: _Status, before: _Status) -> Iterator[FieldError]:
    """Check that a finished Job has the condition that announces its end."""
    failed_changed = new.failed != before.failed
    indexes_changed = new.get("failedIndexes") != before.get("failedIndexes")
    if (failed_changed or indexes_changed) and new.failed and not new.failure_target:
        text = "cannot set Failed=True condition without the FailureTarget=true condition"
        yield invalid_whole(_CONDITIONS, text)
    complete_changed = new.complete != before.complete
    criteria_changed = new.criteria_met != before.criteria_met
    if (complete_changed or criteria_changed) and new.complete and not new.criteria_met:
        text = "cannot set Complete=True condition without the SuccessCriteriaMet=true condition"
        yield invalid_whole(_CONDITIONS, text)


def _validate_finished(spec: Json, new: _Status, before: _Status) -> Iterator[FieldError]:
    """Check that a finished Job was started and is done with all of its pods."""
    if not new.finished:
        return
    finished_changed = new.finished != before.finished
    active, start = new.count("active"), new.get("startTime")
    if (finished_changed or active != before.count("active")) and active > 0:
        yield invalid("status.active", active, "active>0 is invalid for finished job")
    start_changed = start != before.get("startTime")
    never_started = spec.get("suspend") is True and spec.get("completions") == 0
    if (finished_changed or start_changed) and start is None and not never_started:
        yield required("status.startTime", "startTime is required for finished job")
    uncounted = new.uncounted or {}
    succeeded, failed = uncounted.get("succeeded"), uncounted.get("failed")
    uncounted_changed = new.uncounted != before.uncounted
    if (finished_changed or uncounted_changed) and (succeeded or failed):
        shown = {"Succeeded": succeeded, "Failed": failed}
        text = "must be empty for finished job"
        yield invalid("status.uncountedTerminatedPods", shown, text)


def _validate_indexes(spec: Json, new: _Status, before: _Status) -> Iterator[FieldError]:
    completions = spec.get("completions")
    completed, failed = new.get("completedIndexes") or "", new.get("failedIndexes")
    completed_changed = completed != (before.get("completedIndexes") or "")
    failed_changed = failed != before.get("failedIndexes")
    limited = "backoffLimitPerIndex" in spec
    texts = []
    if completed_changed:
        texts.append(("completedIndexes", completed))
    if failed_changed and limited and failed is not None:
        texts.append(("failedIndexes", failed))
    if completions is not None:
        for key, text in texts:
            try:
                count_indexes(text, completions)
            except IntervalError as error:
                yield invalid(f"status.{key}", text, f"error parsing {key}: {error}")
    if completed_changed and completed and spec.get("completionMode") != "Indexed":
        text = "cannot set non-empty completedIndexes when non-indexed completion mode"
        yield invalid("status.completedIndexes", completed, text)
    if failed_changed and failed is not None and not limited:
        text = "cannot set non-null failedIndexes when backoffLimitPerIndex is null"
        yield invalid("status.failedIndexes", failed, text)
    if (completed_changed or failed_changed) and completions is not None and failed is not None:
        overlap = first_overlap(completed, failed, completions)
        if overlap is not None:
            text = f"failedIndexes and completedIndexes overlap at index: {overlap}"
            yield invalid("status.failedIndexes", failed, text)


def _validate_pods(new: _Status, before: _Status) -> Iterator[FieldError]:
    finished_changed = new.finished != before.finished
    terminating, ready = new.get("terminating"), new.get("ready")
    if (
        (finished_changed or terminating != before.get("terminating"))
        and new.finished
        and new.count("terminating") > 0
    ):
        text = "terminating>0 is invalid for finished job"
        yield invalid("status.terminating", terminating, text)
    active = new.count("active")
    if (
        (ready != before.get("ready") or active != before.count("active"))
        and new.count("ready") > active
    ):  # fmt: skip
        yield invalid("status.ready", ready, "cannot set more ready pods than active")


def _validate_criteria(spec: Json, new: _Status) -> Iterator[FieldError]:
    """Validate the condition with which a Job begins to succeed."""
    if new.criteria_met and new.failed:
        text = "cannot set SuccessCriteriaMet=True and Failed=true conditions"
        yield invalid_whole(_CONDITIONS, text)
    if new.criteria_met and new.failure_target:
        text = "cannot set SuccessCriteriaMet=True and FailureTarget=true conditions"
        yield invalid_whole(_CONDITIONS, text)
    if "successPolicy" in spec and new.complete and not new.criteria_met:
        text = "cannot set Complete=True for Job with SuccessPolicy unless SuccessCriteriaMet=True"
        yield invalid_whole(_CONDITIONS, text)


def _validate_transition(spec: Json, new: _Status, before: _Status) -> Iterator[FieldError]:
    """Validate what never changes back."""
    for name in _FINAL_CONDITIONS:
        if before.holds(name) and not new.holds(name):
            yield invalid_whole(_CONDITIONS, f"cannot disable the terminal {name}=True condition")
    elastic = spec.get("completionMode") == "Indexed" and spec.get("completions") == spec.get(
        "parallelism"
    )
    for key, may_decrease in (("failed", False), ("succeeded", elastic)):
        if new.count(key) < before.count(key) and not may_decrease:
            text = f"cannot decrease the {key} counter"
            yield invalid(f"status.{key}", new.count(key), text)
    end, old_end = new.get("completionTime"), before.get("completionTime")
    if end is not None and old_end is not None and end != old_end:
        yield invalid("status.completionTime", end, IMMUTABLE)
    start, old_start = new.get("startTime"), before.get("startTime")
    resuming = before.holds("Suspended") and new.holds("Suspended", "False")
    if old_start is not None and start != old_start and not resuming and not spec.get("suspend"):
        text = "field is immutable for unsuspended job once set"
        yield invalid("status.startTime", start, text)
    if before.criteria_met and not new.criteria_met:
        text = "cannot disable the SuccessCriteriaMet=True condition"
        yield invalid_whole(_CONDITIONS, text)
    if before.complete and not before.criteria_met and new.criteria_met:
        text = "cannot set SuccessCriteriaMet=True for Job already has Complete=true conditions"
        yield invalid_whole(_CONDITIONS, text)
