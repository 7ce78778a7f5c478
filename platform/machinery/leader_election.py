"""Leader election over a Lease, by client-go's rules; and the fence behind which a leader writes.

Nobody's clock is compared with another's: a Lease is over when we have not seen its record change
for as long as the record says. The holder's own time is up sooner, *renew deadline* after the start
of its last good renewal. From then on the fence lets no write pass and
:meth:`Elector.run_in_thread` fails; the process must end, for what it still has in hand may be
outdated.
"""

import asyncio
import logging
import math
import random
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge

from ..kube.client.client import Client
from ..kube.client.lease import Lease, LeaseRecord, LeaseStore, format_micro_time
from ..kube.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    ConnectionLostError,
    DecodeError,
    NotFoundError,
    NotLeaderError,
    RequestTimeoutError,
)
from ..kube.supervision import supervise
from ..kube.timing import Timing
from ..model.names import LEASES
from .clock import Clock
from .event_recorder import Recorder, object_reference

log = logging.getLogger(__name__)

T = TypeVar("T")

JITTER_FACTOR = 1.2
"""A candidate's pauses are stretched by a random share of up to this much of themselves."""

RELEASE_TIMEOUT = 1.5
"""Seconds that giving the Lease back may take; after them it runs out by itself."""

HEALTH_TIMEOUT = 20.0
"""Seconds beyond the lease's duration after which a leader that does not renew is called ill."""

_FAILURES = (ApiError, ConnectionLostError, DecodeError)


class LeadershipLostError(Exception):
    """The Lease was lost: the process must end at once, its work with it."""


class LeaderElectionConfigError(ValueError):
    """Settings of an election that cannot work; the text names the flag."""


def new_identity() -> str:
    """A name that no candidate ever had: the host's, and something random."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderElectionConfig:
    """What is contended for, and how patiently. Times are in seconds.

    With clocks that run at different speeds two may lead at once if the lease's duration does not
    exceed the renew deadline by more than that difference; by default it is half as long again.
    """

    name: str
    """Name of the Lease."""
    namespace: str = "volcano-system"
    identity: str = field(default_factory=new_identity)
    lease_duration: float = 15.0
    """How long others let a silent leader alone."""
    renew_deadline: float = 10.0
    """How long a leader goes on without a renewal."""
    retry_period: float = 2.0
    """The pause between tries."""

    def __post_init__(self) -> None:
        """Check that a leader stops before others begin.

        Raises:
            ElectionSettingsError: it would not, or something is missing.
        """
        for flag, value in {
            "lease-duration": self.lease_duration,
            "renew-deadline": self.renew_deadline,
            "retry-period": self.retry_period,
        }.items():
            if value <= 0:
                raise LeaderElectionConfigError(f"--leader-elect-{flag} must be more than 0")
        if self.lease_duration <= self.renew_deadline:
            raise LeaderElectionConfigError(
                f"--leader-elect-lease-duration ({self.lease_duration:g}s) must be longer than "
                f"--leader-elect-renew-deadline ({self.renew_deadline:g}s)"
            )
        if self.renew_deadline <= self.retry_period * JITTER_FACTOR:
            raise LeaderElectionConfigError(
                f"--leader-elect-renew-deadline ({self.renew_deadline:g}s) must be longer than "
                f"{JITTER_FACTOR:g} times --leader-elect-retry-period ({self.retry_period:g}s)"
            )
        if not (self.name and self.namespace and self.identity):
            raise LeaderElectionConfigError(
                "--leader-elect-resource-name and --leader-elect-resource-namespace must be given"
            )

    @property
    def request_timeout(self) -> float:
        """Seconds that the server has to answer one request."""
        return max(1.0, self.renew_deadline / 2)


class LeaderElectionMetrics:
    """What elections report, under client-go's names; one for each registry."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.status = Gauge(
            "leader_election_master_status",
            "1 while this process leads, else 0.",
            ("name",),
            registry=registry,
        )
        self.slow_path = Counter(
            "leader_election_slowpath",
            "Renewals that had to read the Lease first.",
            ("name",),
            registry=registry,
        )


class LeaderElector:
    """One candidate for one Lease. :meth:`run_in_thread` it once.

    The client should be the elector's own, without a fence, so that nothing holds renewals up.
    """

    def __init__(
        self,
        client: Client,
        config: LeaderElectionConfig,
        *,
        clock: Clock,
        recorder: Recorder | None = None,
        metrics: LeaderElectionMetrics | None = None,
        random_source: Callable[[], float] = random.random,
    ) -> None:
        """*clock* should be one that goes on while the machine sleeps; *draw* gives the jitter."""
        self.elected = asyncio.Event()
        """Set once we lead; never cleared, for losing the Lease ends the process."""
        self.holder = ""
        """Identity of the holder that was seen last."""
        self._config = config
        self._clock = clock
        self._recorder = recorder
        self._metrics = metrics or LeaderElectionMetrics()
        self._random = random_source
        self._store = LeaseStore(client, namespace=config.namespace, name=config.name)
        self._observed: Lease | None = None
        self._observed_at = -math.inf
        self._renewed_at = -math.inf
        self._valid_until = -math.inf
        """When our time is up; the past while we do not lead."""
        self._wake = asyncio.Event()
        self._last_error = ""

    # -- what others ask -----------------------------------------------------------------------

    def check_fence(self) -> None:
        """Let a write pass, or not: the fence.

        Raises:
            NotLeadingError: we do not lead, or can no longer be sure of it.
        """
        if self._remaining() <= 0:
            raise NotLeaderError(f"not the leader of {self._lease_key} any more, or not yet")

    def healthy(self) -> bool:
        """False when we lead and have not renewed long after all others may have taken over."""
        silent = self._clock.monotonic() - self._renewed_at
        return not self.elected.is_set() or silent <= self._config.lease_duration + HEALTH_TIMEOUT

    # -- life ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Campaign, then renew until the Lease is lost. When cancelled, give it back.

        Cancel it only when all work has stopped: somebody else leads right after.

        Raises:
            LeadershipLostError: we led, and must not go on.
        """
        status = self._metrics.status.labels(self._config.name)
        status.set(0)
        try:
            await self._acquire()
            status.set(1)
            self._start_leading()
            await self._renew()
        except asyncio.CancelledError:
            if self.elected.is_set():
                await self._release()
            raise
        finally:
            self._valid_until = -math.inf
            status.set(0)

    async def _acquire(self) -> None:
        settings = self._config
        log.info("campaigning", extra={"lease": self._lease_key, "identity": settings.identity})
        clock = self._clock
        timing = Timing(monotonic=clock.monotonic, sleep=clock.sleep, now=clock.now)
        watch = asyncio.create_task(supervise("lease watch", self._watch, timing=timing))
        try:
            while not await self._try_acquire_or_renew():
                await self._wait(settings.retry_period * (1 + self._random() * JITTER_FACTOR))
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    def _start_leading(self) -> None:
        log.info("leading", extra={"lease": self._lease_key, "identity": self._config.identity})
        self.elected.set()
        self._record_event("became leader")

    async def _renew(self) -> NoReturn:
        while True:
            await self._wait(min(self._config.retry_period, self._remaining()))
            if self._remaining() > 0:
                try:
                    async with self._deadline(self._remaining()):
                        await self._try_acquire_or_renew()
                except TimeoutError:
                    pass  # that was the end of our time
            if self._remaining() <= 0:
                self._lose(f"no renewal for {self._config.renew_deadline:g} s")

    def _lose(self, reason: str) -> NoReturn:
        self._valid_until = -math.inf
        raise LeadershipLostError(f"lost the Lease {self._lease_key}: {reason}")

    async def _release(self) -> None:
        """Give the Lease back, so that the next leader need not wait for its end."""
        still_ours = self._remaining() > 0
        self._valid_until = -math.inf
        if not still_ours:
            return
        self._record_event("stopped leading")
        try:
            async with self._deadline(RELEASE_TIMEOUT):
                await self._write_released()
        except (TimeoutError, *_FAILURES) as error:
            log.warning("lease not released", extra={"lease": self._lease_key, "error": str(error)})
        else:
            log.info("lease released", extra={"lease": self._lease_key})

    async def _write_released(self) -> None:
        lease = self._observed
        while lease is not None and lease.record.holder == self._config.identity:
            now = format_micro_time(self._clock.now())
            free = replace(lease.record, holder="", duration=1, acquired=now, renewed=now)
            try:
                await self._store.replace(lease, free)
            except ConflictError:  # by a renewal of our own that was cut off, or by somebody else
                lease = await self._store.read()
            else:
                return

    # -- one try -------------------------------------------------------------------------------

    async def _try_acquire_or_renew(self) -> bool:
        """Try to get or to keep the Lease; whether it is ours. Failures are logged."""
        try:
            ours = await self._acquire_or_renew()
        except _FAILURES as error:
            self._log_failure(error)
            return False
        self._last_error = ""
        return ours

    async def _acquire_or_renew(self) -> bool:
        if self.elected.is_set() and self._observed is not None:
            try:
                await self._write(self._observed)
            except _FAILURES as error:
                log.info("renewing by way of a read", extra={"error": str(error)})
                self._metrics.slow_path.labels(self._config.name).inc()
            else:
                return True
        lease = await self._read()
        if not self._is_available(lease):
            return False
        await self._write(lease)
        return True

    async def _read(self) -> Lease | None:
        try:
            lease = await self._with_timeout(self._store.read())
        except NotFoundError:
            return None
        self._observe_record(lease)
        return lease

    def _is_available(self, lease: Lease | None) -> bool:
        """Whether the Lease, or the place where one was, is ours to write.

        One that somebody deleted is not free before its holder must have stopped.
        """
        known = lease or self._observed
        if known is None:
            return True
        record, us = known.record, self._config.identity
        if self.elected.is_set() and record.holder != us:
            self._lose(f"it is held by {record.holder or 'nobody'}")
        duration = record.duration or self._config.lease_duration
        over = self._clock.monotonic() >= self._observed_at + duration
        return record.holder in ("", us) or over

    async def _write(self, lease: Lease | None) -> None:
        """Make ourselves the holder in the place of *lease*; if that succeeds, our time starts."""
        started = self._clock.monotonic()
        record = self._new_record()
        if lease is None:
            written = await self._with_timeout(self._store.create(record))
        else:
            written = await self._with_timeout(self._store.replace(lease, record))
        self._observe_record(written)
        if self.elected.is_set() and self._remaining() <= 0:
            self._lose("the renewal came too late")
        self._renewed_at = started
        self._valid_until = started + self._config.renew_deadline

    def _new_record(self) -> LeaseRecord:
        settings, now = self._config, self._clock.now()
        duration = math.ceil(settings.lease_duration)
        former = self._observed.record if self._observed is not None else None
        if former is not None and former.holder == settings.identity:
            return former.renew(duration=duration, now=now)
        return LeaseRecord(
            holder=settings.identity,
            duration=duration,
            acquired=format_micro_time(now),
            renewed=format_micro_time(now),
            transitions=0 if former is None else former.transitions + 1,
        )

    def _observe_record(self, lease: Lease) -> None:
        """Remember *lease*, and by our own clock when its record was seen to change."""
        if self._observed is None or lease.record != self._observed.record:
            self._observed_at = self._clock.monotonic()
        self._observed = lease
        if lease.record.holder != self.holder:
            self.holder = lease.record.holder
            log.info("holder seen", extra={"lease": self._lease_key, "holder": self.holder})

    # -- waiting -------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """While we are a candidate, notice at once when the Lease is given back."""
        while True:
            try:
                async for record in self._store.watch():
                    if not record.holder:
                        self._wake.set()
            except _FAILURES as error:
                log.debug("watch of the lease broke", extra={"error": str(error)})
            await self._clock.sleep(
                self._config.retry_period * (1 + self._random() * JITTER_FACTOR)
            )

    async def _wait(self, seconds: float) -> None:
        """Wait *seconds*, or until the Lease is seen to be free."""
        timer = self._clock.call_later(seconds, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()
            self._wake.clear()

    async def _with_timeout(self, request: Coroutine[Any, Any, T]) -> T:
        """The answer to one request, if it comes soon enough to be of use."""
        limit = self._config.request_timeout
        try:
            async with self._deadline(limit):
                return await request
        except TimeoutError as error:
            raise RequestTimeoutError(f"no answer about the Lease in {limit:g} s") from error

    @asynccontextmanager
    async def _deadline(self, seconds: float) -> AsyncIterator[None]:
        """Let the block take *seconds* by our clock at most; TimeoutError then."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(None) as limit:
            timer = self._clock.call_later(seconds, lambda: limit.reschedule(loop.time()))
            try:
                yield
            finally:
                timer.cancel()

    def _remaining(self) -> float:
        """Seconds until our time is up."""
        return self._valid_until - self._clock.monotonic()

    # -- words ---------------------------------------------------------------------------------

    @property
    def _lease_key(self) -> str:
        return f"{self._config.namespace}/{self._config.name}"

    def _log_failure(self, error: Exception) -> None:
        """Log a failure, but the same one not with every try."""
        text = str(error)
        if isinstance(error, NotFoundError) and error.details.get("kind") == "namespaces":
            text = (
                f"namespace {self._config.namespace} is not there: create it, or name another "
                f"one by --leader-elect-resource-namespace ({error.message})"
            )
        known, self._last_error = self._last_error, text
        beaten = isinstance(error, ConflictError | AlreadyExistsError)
        level = logging.DEBUG if beaten or text == known else logging.WARNING
        log.log(level, "could not write the lease", extra={"lease": self._lease_key, "error": text})

    def _record_event(self, action: str) -> None:
        if self._recorder is not None and self._observed is not None:
            self._recorder.record(
                object_reference(LEASES, self._observed.metadata),
                type="Normal",
                reason="LeaderElection",
                message=f"{self._config.identity} {action}",
            )
