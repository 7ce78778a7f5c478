"""Leader election over a Lease, by client-go's rules; and the fence behind which a leader writes.

Nobody's clock is compared with another's: a Lease is over when we have not seen its record change
for as long as the record says. The holder's own time is up sooner, *renew deadline* after the start
of its last good renewal. From then on the fence lets no write pass and :meth:`Elector.run` fails;
the process must end, for what it still has in hand may be outdated.
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
from ..kube.client.lease import Lease, LeaseRecord, LeaseStore, timestamp
from ..kube.errors import (
    AlreadyExistsError,
    ApiError,
    ConflictError,
    ConnectionLostError,
    NotFoundError,
    NotLeadingError,
    RequestTimeoutError,
    UnreadableAnswerError,
)
from ..kube.supervision import supervise
from ..kube.timing import Timing
from ..model.names import LEASES
from .clock import Clock
from .event_recorder import Recorder, reference

log = logging.getLogger(__name__)

T = TypeVar("T")

JITTER = 1.2
"""A candidate's pauses are stretched by a random share of up to this much of themselves."""

RELEASE_LIMIT = 1.5
"""Seconds that giving the Lease back may take; after them it runs out by itself."""

TOLERANCE = 20.0
"""Seconds beyond the lease's duration after which a leader that does not renew is called ill."""

_FAILURES = (ApiError, ConnectionLostError, UnreadableAnswerError)


class LeadershipLostError(Exception):
    """The Lease was lost: the process must end at once, its work with it."""


class ElectionSettingsError(ValueError):
    """Settings of an election that cannot work; the text names the flag."""


def new_identity() -> str:
    """A name that no candidate ever had: the host's, and something random."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ElectionSettings:
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
                raise ElectionSettingsError(f"--leader-elect-{flag} must be more than 0")
        if self.lease_duration <= self.renew_deadline:
            raise ElectionSettingsError(
                f"--leader-elect-lease-duration ({self.lease_duration:g}s) must be longer than "
                f"--leader-elect-renew-deadline ({self.renew_deadline:g}s)"
            )
        if self.renew_deadline <= self.retry_period * JITTER:
            raise ElectionSettingsError(
                f"--leader-elect-renew-deadline ({self.renew_deadline:g}s) must be longer than "
                f"{JITTER:g} times --leader-elect-retry-period ({self.retry_period:g}s)"
            )
        if not (self.name and self.namespace and self.identity):
            raise ElectionSettingsError(
                "--leader-elect-resource-name and --leader-elect-resource-namespace must be given"
            )

    @property
    def request_timeout(self) -> float:
        """Seconds that the server has to answer one request."""
        return max(1.0, self.renew_deadline / 2)


class ElectionMetrics:
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


class Elector:
    """One candidate for one Lease. :meth:`run` it once.

    The client should be the elector's own, without a fence, so that nothing holds renewals up.
    """

    def __init__(
        self,
        client: Client,
        settings: ElectionSettings,
        *,
        clock: Clock,
        recorder: Recorder | None = None,
        metrics: ElectionMetrics | None = None,
        draw: Callable[[], float] = random.random,
    ) -> None:
        """*clock* should be one that goes on while the machine sleeps; *draw* gives the jitter."""
        self.leading = asyncio.Event()
        """Set once we lead; never cleared, for losing the Lease ends the process."""
        self.holder = ""
        """Identity of the holder that was seen last."""
        self._settings = settings
        self._clock = clock
        self._recorder = recorder
        self._metrics = metrics or ElectionMetrics()
        self._draw = draw
        self._store = LeaseStore(client, namespace=settings.namespace, name=settings.name)
        self._seen: Lease | None = None
        self._seen_at = -math.inf
        self._renewed_at = -math.inf
        self._until = -math.inf
        """When our time is up; the past while we do not lead."""
        self._wake = asyncio.Event()
        self._complaint = ""

    # -- what others ask -----------------------------------------------------------------------

    def check(self) -> None:
        """Let a write pass, or not: the fence.

        Raises:
            NotLeadingError: we do not lead, or can no longer be sure of it.
        """
        if self._left() <= 0:
            raise NotLeadingError(f"not the leader of {self._where} any more, or not yet")

    def healthy(self) -> bool:
        """False when we lead and have not renewed long after all others may have taken over."""
        silent = self._clock.monotonic() - self._renewed_at
        return not self.leading.is_set() or silent <= self._settings.lease_duration + TOLERANCE

    # -- life ----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Campaign, then renew until the Lease is lost. When cancelled, give it back.

        Cancel it only when all work has stopped: somebody else leads right after.

        Raises:
            LeadershipLostError: we led, and must not go on.
        """
        status = self._metrics.status.labels(self._settings.name)
        status.set(0)
        try:
            await self._acquire()
            status.set(1)
            self._begin()
            await self._renew()
        except asyncio.CancelledError:
            if self.leading.is_set():
                await self._release()
            raise
        finally:
            self._until = -math.inf
            status.set(0)

    async def _acquire(self) -> None:
        settings = self._settings
        log.info("campaigning", extra={"lease": self._where, "identity": settings.identity})
        clock = self._clock
        timing = Timing(monotonic=clock.monotonic, sleep=clock.sleep, now=clock.now)
        watch = asyncio.create_task(supervise("lease watch", self._watch, timing=timing))
        try:
            while not await self._try():
                await self._pause(settings.retry_period * (1 + self._draw() * JITTER))
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)

    def _begin(self) -> None:
        log.info("leading", extra={"lease": self._where, "identity": self._settings.identity})
        self.leading.set()
        self._record("became leader")

    async def _renew(self) -> NoReturn:
        while True:
            await self._pause(min(self._settings.retry_period, self._left()))
            if self._left() > 0:
                try:
                    async with self._within(self._left()):
                        await self._try()
                except TimeoutError:
                    pass  # that was the end of our time
            if self._left() <= 0:
                self._lose(f"no renewal for {self._settings.renew_deadline:g} s")

    def _lose(self, why: str) -> NoReturn:
        self._until = -math.inf
        raise LeadershipLostError(f"lost the Lease {self._where}: {why}")

    async def _release(self) -> None:
        """Give the Lease back, so that the next leader need not wait for its end."""
        still_ours = self._left() > 0
        self._until = -math.inf
        if not still_ours:
            return
        self._record("stopped leading")
        try:
            async with self._within(RELEASE_LIMIT):
                await self._give_back()
        except (TimeoutError, *_FAILURES) as error:
            log.warning("lease not released", extra={"lease": self._where, "error": str(error)})
        else:
            log.info("lease released", extra={"lease": self._where})

    async def _give_back(self) -> None:
        lease = self._seen
        while lease is not None and lease.record.holder == self._settings.identity:
            now = timestamp(self._clock.now())
            free = replace(lease.record, holder="", duration=1, acquired=now, renewed=now)
            try:
                await self._store.replace(lease, free)
            except ConflictError:  # by a renewal of our own that was cut off, or by somebody else
                lease = await self._store.read()
            else:
                return

    # -- one try -------------------------------------------------------------------------------

    async def _try(self) -> bool:
        """Try to get or to keep the Lease; whether it is ours. Failures are logged."""
        try:
            ours = await self._contend()
        except _FAILURES as error:
            self._complain(error)
            return False
        self._complaint = ""
        return ours

    async def _contend(self) -> bool:
        if self.leading.is_set() and self._seen is not None:
            try:
                await self._write(self._seen)
            except _FAILURES as error:
                log.info("renewing by way of a read", extra={"error": str(error)})
                self._metrics.slow_path.labels(self._settings.name).inc()
            else:
                return True
        lease = await self._read()
        if not self._may_take(lease):
            return False
        await self._write(lease)
        return True

    async def _read(self) -> Lease | None:
        try:
            lease = await self._in_time(self._store.read())
        except NotFoundError:
            return None
        self._observe(lease)
        return lease

    def _may_take(self, lease: Lease | None) -> bool:
        """Whether the Lease, or the place where one was, is ours to write.

        One that somebody deleted is not free before its holder must have stopped.
        """
        known = lease or self._seen
        if known is None:
            return True
        record, us = known.record, self._settings.identity
        if self.leading.is_set() and record.holder != us:
            self._lose(f"it is held by {record.holder or 'nobody'}")
        duration = record.duration or self._settings.lease_duration
        over = self._clock.monotonic() >= self._seen_at + duration
        return record.holder in ("", us) or over

    async def _write(self, lease: Lease | None) -> None:
        """Make ourselves the holder in the place of *lease*; if that succeeds, our time starts."""
        started = self._clock.monotonic()
        record = self._claim()
        if lease is None:
            written = await self._in_time(self._store.create(record))
        else:
            written = await self._in_time(self._store.replace(lease, record))
        self._observe(written)
        if self.leading.is_set() and self._left() <= 0:
            self._lose("the renewal came too late")
        self._renewed_at = started
        self._until = started + self._settings.renew_deadline

    def _claim(self) -> LeaseRecord:
        settings, now = self._settings, self._clock.now()
        duration = math.ceil(settings.lease_duration)
        former = self._seen.record if self._seen is not None else None
        if former is not None and former.holder == settings.identity:
            return former.renewal(duration=duration, now=now)
        return LeaseRecord(
            holder=settings.identity,
            duration=duration,
            acquired=timestamp(now),
            renewed=timestamp(now),
            transitions=0 if former is None else former.transitions + 1,
        )

    def _observe(self, lease: Lease) -> None:
        """Remember *lease*, and by our own clock when its record was seen to change."""
        if self._seen is None or lease.record != self._seen.record:
            self._seen_at = self._clock.monotonic()
        self._seen = lease
        if lease.record.holder != self.holder:
            self.holder = lease.record.holder
            log.info("holder seen", extra={"lease": self._where, "holder": self.holder})

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
            await self._clock.sleep(self._settings.retry_period * (1 + self._draw() * JITTER))

    async def _pause(self, seconds: float) -> None:
        """Wait *seconds*, or until the Lease is seen to be free."""
        timer = self._clock.call_later(seconds, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()
            self._wake.clear()

    async def _in_time(self, request: Coroutine[Any, Any, T]) -> T:
        """The answer to one request, if it comes soon enough to be of use."""
        limit = self._settings.request_timeout
        try:
            async with self._within(limit):
                return await request
        except TimeoutError as error:
            raise RequestTimeoutError(f"no answer about the Lease in {limit:g} s") from error

    @asynccontextmanager
    async def _within(self, seconds: float) -> AsyncIterator[None]:
        """Let the block take *seconds* by our clock at most; TimeoutError then."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(None) as limit:
            timer = self._clock.call_later(seconds, lambda: limit.reschedule(loop.time()))
            try:
                yield
            finally:
                timer.cancel()

    def _left(self) -> float:
        """Seconds until our time is up."""
        return self._until - self._clock.monotonic()

    # -- words ---------------------------------------------------------------------------------

    @property
    def _where(self) -> str:
        return f"{self._settings.namespace}/{self._settings.name}"

    def _complain(self, error: Exception) -> None:
        """Log a failure, but the same one not with every try."""
        text = str(error)
        if isinstance(error, NotFoundError) and error.details.get("kind") == "namespaces":
            text = (
                f"namespace {self._settings.namespace} is not there: create it, or name another "
                f"one by --leader-elect-resource-namespace ({error.message})"
            )
        known, self._complaint = self._complaint, text
        beaten = isinstance(error, ConflictError | AlreadyExistsError)
        level = logging.DEBUG if beaten or text == known else logging.WARNING
        log.log(level, "could not write the lease", extra={"lease": self._where, "error": text})

    def _record(self, what: str) -> None:
        if self._recorder is not None and self._seen is not None:
            self._recorder.record(
                reference(LEASES, self._seen.metadata),
                type="Normal",
                reason="LeaderElection",
                message=f"{self._settings.identity} {what}",
            )
