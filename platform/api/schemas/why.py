"""Convert what a job waits for."""

from ...model import times
from ...model.podgroup import PodGroupCondition
from ...wire import jobs
from ..job_waits import Wait


def condition_of(condition: PodGroupCondition) -> jobs.PodGroupCondition:
    """Convert a condition of a PodGroup."""
    return jobs.PodGroupCondition(
        type=condition.type,
        status=condition.status,
        reason=condition.reason,
        message=condition.message,
        at=times.known(condition.last_transition_time),
    )


def why_of(wait: Wait) -> jobs.Why:
    """Convert the result."""
    conditions = wait.podgroup.status.conditions if wait.podgroup is not None else ()
    return jobs.Why(
        waiting=wait.waiting,
        reason=wait.reason,
        summary=wait.summary,
        conditions=[condition_of(each) for each in conditions],
        explanation=wait.explanation,
    )
