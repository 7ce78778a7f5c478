"""Convert what a job waits for."""

from collections.abc import Sequence

from ...model import times
from ...model.podgroup import PodGroupCondition
from ...wire import jobs
from ...wire.waits import Competition
from ..jobs.waits import Wait


def condition_of(condition: PodGroupCondition) -> jobs.PodGroupCondition:
    """Convert a condition of a PodGroup."""
    return jobs.PodGroupCondition(
        type=condition.type,
        status=condition.status,
        reason=condition.reason,
        message=condition.message,
        at=times.known(condition.last_transition_time),
    )


def why_of(
    wait: Wait,
    *,
    failed_pod: str = "",
    last_lines: Sequence[str] = (),
    competition: Competition | None = None,
    competition_error: str = "",
) -> jobs.Why:
    """Convert the result, with the log of the pod that failed first, or what the job competes
    with."""
    conditions = wait.podgroup.status.conditions if wait.podgroup is not None else ()
    return jobs.Why(
        waiting=wait.waiting,
        reason=wait.reason,
        summary=wait.summary,
        cause=wait.advice.cause,
        next_step=wait.advice.next_step,
        failed_pod=failed_pod,
        last_lines=list(last_lines),
        conditions=[condition_of(each) for each in conditions],
        explanation=wait.explanation,
        competition=competition,
        competition_error=competition_error,
    )
