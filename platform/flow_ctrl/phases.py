"""The phases of a JobFlow. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..model.flow import FlowPhase


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowProgress:
    """Number of the Jobs that the spec of a flow declares, by their progress."""

    total: int
    completed: int
    failed: int
    running: int


class PhaseRules:
    """The rules of one phase; these are the ones of Failed, where the Jobs that exist go on."""

    creates_jobs: bool = False
    """Whether Jobs are created in this phase."""
    deletes_jobs: bool = False
    """Whether the Jobs are deleted if the retain policy is ``delete``."""

    def next_phase(self, progress: FlowProgress) -> FlowPhase | None:
        """Return the phase that the Jobs require; ``None`` if the flow stays in this one."""
        return None


class Pending(PhaseRules):
    """No Job runs yet."""

    creates_jobs = True

    def next_phase(self, progress: FlowProgress) -> FlowPhase | None:
        """Failed with its first Job that fails; Running once a Job runs or has completed."""
        if progress.failed:
            return FlowPhase.FAILED
        if not progress.total:
            return FlowPhase.SUCCEED
        return FlowPhase.RUNNING if progress.running or progress.completed else None


class Running(PhaseRules):
    """A Job runs or has completed."""

    creates_jobs = True

    def next_phase(self, progress: FlowProgress) -> FlowPhase | None:
        """Failed with its first Job that fails; Succeed once all Jobs have completed."""
        if progress.failed:
            return FlowPhase.FAILED
        return FlowPhase.SUCCEED if progress.completed == progress.total else None


class Succeed(PhaseRules):
    """All Jobs have completed."""

    deletes_jobs = True


RULES: Mapping[FlowPhase, PhaseRules] = {
    FlowPhase.PENDING: Pending(),
    FlowPhase.RUNNING: Running(),
    FlowPhase.SUCCEED: Succeed(),
    FlowPhase.FAILED: PhaseRules(),
    FlowPhase.TERMINATING: PhaseRules(),  # which no controller sets
}
