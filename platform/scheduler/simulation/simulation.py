"""Simulations of jobs, each in a copy of the scheduler."""

import asyncio
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

import msgspec

from ...machinery.clock import Clock
from ...model import times
from ...model.job import Job
from ...model.scheduler_questions import Reservations, WaitDetails, WaitRequest
from ...model.simulation import Forecast, SimulationResult
from ..cycle_runner import CycleRunner
from ..state.cache.cache import SchedulerCache
from .forecast import forecast
from .forked import CopyFailedError, compute_in_copy, end_copy, result_of, start_copy
from .proposed_gang import CannotSimulateError, ProposedGang
from .reserved_nodes import list_reservations
from .simulator import Simulator
from .trial import SchedulerCopy, Trial
from .wait_details import explain_wait

MAX_SECONDS = 0.7
"""Time after which no further change of the job is tried."""

TIMEOUT = 5.0
"""Seconds after which a simulation is given up."""


Computation = Callable[[SchedulerCopy], bytes]


class Simulations:
    """Computations in copies of the scheduler, which wait for the end of a cycle: during one, the
    state is half changed."""

    def __init__(self, clock: Clock, request_cycle: Callable[[], None]) -> None:
        """Start without any; *request_cycle* lets the scheduler run a cycle soon."""
        self._clock = clock
        self._request_cycle = request_cycle
        self._waiting: list[tuple[Computation, asyncio.Future[tuple[int, int]]]] = []

    async def simulate(self, job: Job) -> SimulationResult:
        """Return what would become of *job*, which does not exist, if it were created now.

        Raises:
            CannotSimulateError: the job is malformed.
            CopyFailedError: the simulation failed, or took too long.
        """

        def compute(scheduler: SchedulerCopy) -> bytes:
            created = times.format(datetime.fromtimestamp(scheduler.time, UTC))
            return JobSimulation(scheduler, job, created).compute()

        return decode_result(await self._compute(compute))

    async def explain_wait(self, request: WaitRequest) -> WaitDetails | None:
        """Return what a gang competes with that waits; ``None`` if there is no such gang.

        Raises:
            CopyFailedError: it could not be computed.
        """
        found = await self._compute(lambda copy: msgspec.json.encode(explain_wait(copy, request)))
        return msgspec.json.decode(found, type=WaitDetails | None)

    async def list_reservations(self) -> Reservations:
        """Return what is reserved on nodes, and for whom.

        Raises:
            CopyFailedError: it could not be computed.
        """
        found = await self._compute(lambda copy: msgspec.json.encode(list_reservations(copy)))
        return msgspec.json.decode(found, type=Reservations)

    async def _compute(self, computation: Computation) -> bytes:
        started: asyncio.Future[tuple[int, int]] = asyncio.get_running_loop().create_future()
        self._waiting.append((computation, started))
        self._request_cycle()
        try:
            pid, read = await started
        except asyncio.CancelledError:
            if not (started.cancelled() or started.exception()):  # its copy has just been started
                end_copy(*started.result())
            raise
        return await result_of(pid, read, timeout=TIMEOUT)

    def start_waiting(self, cache: SchedulerCache, runner: CycleRunner) -> None:
        """Start what waits; to be called between two cycles."""
        waiting, self._waiting = self._waiting, []
        for computation, started in waiting:
            if started.cancelled():
                continue
            time = self._clock.now().timestamp()
            scheduler = SchedulerCopy(cache, runner, now=self._clock.monotonic(), time=time)
            try:
                started.set_result(start_copy(partial(computation, scheduler)))
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
