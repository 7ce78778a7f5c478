"""The simulation of one job, in a copy of the scheduler."""

import pickle
import time
from dataclasses import dataclass

import msgspec

from ...model.job import Job
from ...model.simulation import SimulationResult
from .forked import compute_in_copy
from .proposed_gang import CannotSimulateError, ProposedGang
from .simulator import Simulator
from .trial import SchedulerCopy, Trial

MAX_SECONDS = 0.7
"""Time after which no further change of the job is tried."""


class _Answer(msgspec.Struct):
    """What a copy sends: a result, or why there is none."""

    result: SimulationResult | None = None
    error: str = ""


@dataclass(frozen=True, slots=True)
class JobSimulation:
    """What is to be computed in a copy of the scheduler."""

    scheduler: SchedulerCopy
    job: Job
    created: str
    """When the job would be created, as RFC 3339 text."""

    max_seconds: float = MAX_SECONDS

    def compute(self) -> bytes:
        """Return the encoded answer, see :func:`decode_answer`."""
        end = time.monotonic() + self.max_seconds
        cache = self.scheduler.cache
        gang = ProposedGang(self.job, self.created, cache.queues.priority_classes.values())
        try:
            gang.check()
        except CannotSimulateError as error:
            return msgspec.json.encode(_Answer(error=str(error)))
        simulator = Simulator(cache, self._try_in_copy, lambda: time.monotonic() > end)
        return msgspec.json.encode(_Answer(simulator.simulate(gang)))

    def _try_in_copy(self, gang: ProposedGang, positions: bool) -> Trial:
        def compute() -> bytes:
            return pickle.dumps(self.scheduler.try_gang(gang, positions=positions))

        # What is loaded was written by this program, in a process that it has started.
        trial: Trial = pickle.loads(compute_in_copy(compute))  # noqa: S301
        return trial


def decode_answer(answer: bytes) -> SimulationResult:
    """Return the result in the answer of a copy.

    Raises:
        CannotSimulateError: the job is malformed.
    """
    found = msgspec.json.decode(answer, type=_Answer)
    if found.result is None:
        raise CannotSimulateError(found.error)
    return found.result
