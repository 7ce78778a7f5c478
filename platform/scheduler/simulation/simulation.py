"""Simulations of jobs, each in a copy of the scheduler."""

import asyncio
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from ...machinery.clock import Clock
from ...model import times
from ...model.job import Job
from ...model.simulation import Forecast, SimulationResult
from ..cycle_runner import CycleRunner
from ..state.cache.cache import SchedulerCache
from .forecast import forecast
from .forked import CopyFailedError, compute_in_copy, end_copy, result_of, start_copy
from .proposed_gang import CannotSimulateError, ProposedGang
from .simulator import Simulator
from .trial import SchedulerCopy, Trial

MAX_SECONDS = 0.7
"""Time after which no further change of the job is tried."""

TIMEOUT = 5.0
"""Seconds after which a simulation is given up."""


class Simulations:
    """Simulations that wait for the end of a cycle: during one, the state is half changed."""

    def __init__(self, clock: Clock, request_cycle: Callable[[], None]) -> None:
        """Start without any; *request_cycle* lets the scheduler run a cycle soon."""
        self._clock = clock
        self._request_cycle = request_cycle
        self._waiting: list[tuple[Job, asyncio.Future[tuple[int, int]]]] = []

    async def simulate(self, job: Job) -> SimulationResult:
        """Return what would become of *job*, which does not exist, if it were created now.

        Raises:
            CannotSimulateError: the job is malformed.
            CopyFailedError: the simulation failed, or took too long.
        """
        started: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        self._waiting.append((job, started))
        self._request_cycle()
        try:
            pid, read = await started
        except asyncio.CancelledError:
            if not (started.cancelled() or started.exception()):  # its copy has just been started
                end_copy(*started.result())
            raise
        return decode_result(await result_of(pid, read, timeout=TIMEOUT))

    def start_waiting(self, cache: SchedulerCache, runner: CycleRunner) -> None:
        """Start the simulations that wait; to be called between two cycles."""
        waiting, self._waiting = self._waiting, []
        for job, started in waiting:
            if started.cancelled():
                continue
            now = self._clock.now()
            scheduler = SchedulerCopy(
                cache, runner, now=self._clock.monotonic(), time=now.timestamp()
            )
            simulation = JobSimulation(scheduler, job, times.format(now))
            try:
                started.set_result(start_copy(simulation.compute))
            except CopyFailedError as error:
                started.set_exception(error)


class _Reply(msgspec.Struct):
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
        """Return the encoded result, see :func:`decode_result`."""
        end = time.monotonic() + self.max_seconds
        cache = self.scheduler.cache
        gang = ProposedGang(self.job, self.created, cache.queues.priority_classes.values())
        try:
            gang.check()
        except CannotSimulateError as error:
            return msgspec.json.encode(_Reply(error=str(error)))
        simulator = Simulator(
            cache, self._try_in_copy, self._forecast_in_copy, lambda: time.monotonic() > end
        )
        return msgspec.json.encode(_Reply(simulator.simulate(gang)))

    def _forecast_in_copy(self, gang: ProposedGang) -> Forecast:
        end = time.monotonic() + self.max_seconds / 2

        def compute() -> bytes:
            found = forecast(self.scheduler, gang, lambda: time.monotonic() > end)
            return msgspec.json.encode(found)

        return msgspec.json.decode(compute_in_copy(compute), type=Forecast)

    def _try_in_copy(self, gang: ProposedGang, positions: bool) -> Trial:
        def compute() -> bytes:
            return pickle.dumps(self.scheduler.try_gang(gang, positions=positions))

        # What is loaded was written by this program, in a process that it has started.
        trial: Trial = pickle.loads(compute_in_copy(compute))  # noqa: S301
        return trial


def decode_result(encoded: bytes) -> SimulationResult:
    """Return the result of a copy.

    Raises:
        CannotSimulateError: the job is malformed.
    """
    found = msgspec.json.decode(encoded, type=_Reply)
    if found.result is None:
        raise CannotSimulateError(found.error)
    return found.result
