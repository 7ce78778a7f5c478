"""Conditions of a Job: those that each way to end sets, and when one is replaced. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from ..model.meta import Condition


class ConditionType(StrEnum):
    """Type of a Job condition."""

    SUSPENDED = "Suspended"
    FAILURE_TARGET = "FailureTarget"
    SUCCESS_CRITERIA_MET = "SuccessCriteriaMet"
    FAILED = "Failed"
    COMPLETE = "Complete"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a Job ends: first the *interim* condition is set, and *terminal* once no pod is left."""

    interim: ConditionType
    terminal: ConditionType
    reason: str
    message: str

    @property
    def is_success(self) -> bool:
        """Whether the Job completes."""
        return self.terminal is ConditionType.COMPLETE


def failure(reason: str, message: str) -> Outcome:
    """Return the failure of a Job."""
    return Outcome(ConditionType.FAILURE_TARGET, ConditionType.FAILED, reason, message)


def success(reason: str, message: str) -> Outcome:
    """Return the success of a Job."""
    return Outcome(ConditionType.SUCCESS_CRITERIA_MET, ConditionType.COMPLETE, reason, message)


BACKOFF_LIMIT_EXCEEDED = failure(
    "BackoffLimitExceeded", "Job has reached the specified backoff limit"
)
DEADLINE_EXCEEDED = failure("DeadlineExceeded", "Job was active longer than specified deadline")
MAX_FAILED_INDEXES_EXCEEDED = failure(
    "MaxFailedIndexesExceeded", "Job has exceeded the specified maximal number of failed indexes"
)
FAILED_INDEXES = failure("FailedIndexes", "Job has failed indexes")
COMPLETIONS_REACHED = success("CompletionsReached", "Reached expected number of succeeded pods")


def pod_failure_policy(message: str) -> Outcome:
    """Return the failure by a FailJob rule."""
    return failure("PodFailurePolicy", message)


def success_policy(message: str) -> Outcome:
    """Return the success by a rule of the success policy."""
    return success("SuccessPolicy", message)


def is_finished(conditions: Iterable[Condition]) -> bool:
    """Whether the Job is Complete or Failed."""
    return finished_condition(conditions) is not None


def finished_condition(conditions: Iterable[Condition]) -> Condition | None:
    """Return the terminal condition, if it is True."""
    for one in conditions:
        if one.type in (ConditionType.COMPLETE, ConditionType.FAILED) and one.status == "True":
            return one
    return None


def declared_outcome(conditions: tuple[Condition, ...]) -> Outcome | None:
    """Return the end that an interim condition announces; success has priority."""
    for kind, build in (
        (ConditionType.SUCCESS_CRITERIA_MET, success),
        (ConditionType.FAILURE_TARGET, failure),
    ):
        for one in conditions:
            if one.type == kind and one.status == "True":
                return build(one.reason, one.message)
    return None


@dataclass(frozen=True, slots=True)
class Change:
    """A condition to be set."""

    type: ConditionType
    status: bool
    reason: str
    message: str


SUSPENDED = Change(ConditionType.SUSPENDED, True, "JobSuspended", "Job suspended")
RESUMED = Change(ConditionType.SUSPENDED, False, "JobResumed", "Job resumed")


def interim(outcome: Outcome) -> Change:
    """Return the condition that announces *outcome*."""
    return Change(outcome.interim, True, outcome.reason, outcome.message)


def terminal(outcome: Outcome) -> Change:
    """Return the condition that ends the Job."""
    return Change(outcome.terminal, True, outcome.reason, outcome.message)


def upsert(conditions: tuple[Condition, ...], change: Change, *, now: str) -> tuple[Condition, ...]:
    """Return the conditions with *change*; the same object if it changes nothing.

    A condition that differs is replaced with new times. One of status False is not added.
    """
    new = Condition(
        type=change.type,
        status="True" if change.status else "False",
        reason=change.reason,
        message=change.message,
        last_transition_time=now,
        last_probe_time=now,
    )
    for at, old in enumerate(conditions):
        if old.type == change.type:
            if (old.status, old.reason, old.message) == (new.status, new.reason, new.message):
                return conditions
            return (*conditions[:at], new, *conditions[at + 1 :])
    return (*conditions, new) if change.status else conditions
