"""Leader election with a Lease, by client-go's rules, and the fence for a leader's writes.

Clocks of different processes are never compared: a Lease is expired if its record has not been
observed to change for its duration. The holder itself stops earlier, *renew deadline* after the
start of its last successful renewal. From then on the fence blocks all writes and
:meth:`LeaderElector.run` raises; the process must exit, since its work in flight may be outdated.
"""

import asyncio
import logging
import math
import random
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge

from ..kube.client.client import Client
from ..kube.client.lease import LeaderElectionRecord, Lease, LeaseLock, format_micro_time
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
from ..kube.supervision import cancel_and_wait, supervise
from ..kube.timing import Timing
from ..model.names import LEASES, SYSTEM_NAMESPACE
from .clock import Clock
from .event_recorder import Recorder, object_reference

log = logging.getLogger(__name__)

T = TypeVar("T")

JITTER_FACTOR = 1.2
"""Maximum jitter of the retry period, as a fraction of it."""

RELEASE_TIMEOUT = 1.5
"""Seconds for the release of the Lease; after that it is left to expire."""

SHARED_RETRY_DELAY = 0.1
"""Maximum seconds before a retry after a conflict on a shared Lease."""

HEALTH_TIMEOUT = 20.0
"""Seconds beyond the lease duration after which a leader that does not renew is unhealthy."""

_FAILURES = (ApiError, ConnectionLostError, DecodeError)


class LeadershipLostError(Exception):
    """The Lease was lost: the process must exit at once."""


class LeaderElectionConfigError(ValueError):
    """Invalid leader election configuration; the text names the flag."""


def new_identity() -> str:
    """Return a unique identity: the host name and a UUID."""
    return f"{socket.gethostname()}_{uuid.uuid4()}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderElectionConfig:
    """Lease and timing of leader election. Times are in seconds.

    If clocks run at different speeds, two leaders are possible unless the lease duration exceeds
    the renew deadline by more than the difference; by default it is 50% longer.
    """

    name: str
    """Name of the Lease."""
    namespace: str = SYSTEM_NAMESPACE
    identity: str = field(default_factory=new_identity)
    lease_duration: float = 15.0
    """Duration candidates wait before acquiring an unrenewed lease."""
    renew_deadline: float = 10.0
    """Duration the leader retries renewal before it stops leading."""
    retry_period: float = 2.0
    """Interval between attempts to acquire or renew."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels of the Lease, set when it is created."""
    shared: bool = False
    """Several processes hold the Lease under one identity: none releases it, and a renewal by one
    of them is one for all that observe it."""

    def __post_init__(self) -> None:
        """Check that a leader stops before a candidate can acquire the lease.

        Raises:
            LeaderElectionConfigError: it does not, or a name is missing.
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
        """Timeout of one request in seconds."""
        return max(1.0, self.renew_deadline / 2)


class LeaderElectionMetrics:
    """Metrics of leader election, under client-go's names; one per registry."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.status = Gauge(
            "leader_election_master_status",
            "1 while this process is the leader, else 0.",
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
    """One candidate for one Lease. Call :meth:`run` once.

    Its client should be exclusive and without a fence, so that renewals are not delayed.
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
        on_renewal: Callable[[LeaderElectionRecord], None] | None = None,
    ) -> None:
        """*clock* should include system suspend; *random_source* provides the jitter.

        *on_renewal* is called with each change of the record after the first one that is observed;
        its exception ends the election.
        """
        self.elected = asyncio.Event()
        """Set on acquiring the Lease; never cleared, since losing it ends the process."""
        self.holder = ""
        """Identity of the last observed holder."""
        self._config = config
        self._clock = clock
        self._recorder = recorder
        self._metrics = metrics or LeaderElectionMetrics()
        self._random = random_source
        self._on_renewal = on_renewal
        self._lock = LeaseLock(
            client, namespace=config.namespace, name=config.name, labels=config.labels
        )
        self._observed: Lease | None = None
        self._observed_at = -math.inf
        self._observed_since = -math.inf
        """When the request began that returned `_observed`."""
        self._read_again = False
        """Whether a renewal by another process was observed late, so that the next read is due."""
        self._renewed_at = -math.inf
        self._valid_until = -math.inf
        """Monotonic time until which this process is the leader; in the past while it is not."""
        self._may_hold = False
        """Whether the last write had no response, so that it may have acquired the Lease."""
        self._wake = asyncio.Event()
        self._last_error = ""

    # -- state ---------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """Identity of this candidate."""
        return self._config.identity

    @property
    def lease_name(self) -> str:
        """Name of the Lease."""
        return self._config.name

    def check_fence(self) -> None:
        """Check that this process may write: the fence.

        Raises:
            NotLeaderError: this process is not, or may no longer be, the leader.
        """
        if self._remaining() <= 0:
            raise NotLeaderError(f"lease {self._lease_key} is not held or has expired")

    def healthy(self) -> bool:
        """Return False for a leader that has not renewed long after its lease expired."""
        since_renewal = self._clock.monotonic() - self._renewed_at
        return (
            not self.elected.is_set()
            or since_renewal <= self._config.lease_duration + HEALTH_TIMEOUT
        )

    # -- run -----------------------------------------------------------------------------------

    async def run(self) -> None:
        """Acquire the Lease, then renew it until it is lost. When cancelled, release it.

        Cancel it only after all work has stopped: another candidate leads right after.

        Raises:
            LeadershipLostError: the leader could not renew.
        """
        status = self._metrics.status.labels(self._config.name)
        status.set(0)
        try:
            if self._remaining() <= 0:
                await self._acquire()
            status.set(1)
            self._start_leading()
            await self._renew()
        except asyncio.CancelledError:
            if (self.elected.is_set() or self._may_hold) and not self._config.shared:
                await self._release()
            raise
        finally:
            self._valid_until = -math.inf
            status.set(0)

    def observe(self, lease: Lease) -> None:
        """Note what a watch has shown of the Lease, so that its expiry is known before :meth:`run`.

        Not for the holder, whose own last write is newer.
        """
        if not self.elected.is_set() and self._remaining() <= 0:
            self._observe_record(lease)

    async def acquire_once(self) -> bool:
        """Try to acquire the Lease once; if it is held then, call :meth:`run` at once."""
        return await self._try_acquire_or_renew()

    async def _acquire(self) -> None:
        settings = self._config
        log.info(
            "attempting to acquire lease",
            extra={"lease": self._lease_key, "identity": settings.identity},
        )
        clock = self._clock
        timing = Timing(monotonic=clock.monotonic, sleep=clock.sleep, now=clock.now)
        watch = asyncio.create_task(supervise("lease watch", self._watch, timing=timing))
        try:
            while not await self._try_acquire_or_renew():
                await self._wait(settings.retry_period * (1 + self._random() * JITTER_FACTOR))
        finally:
            await cancel_and_wait(watch)

    def _start_leading(self) -> None:
        log.info(
            "acquired lease", extra={"lease": self._lease_key, "identity": self._config.identity}
        )
        self.elected.set()
        self._record_event("became leader")

    async def _renew(self) -> NoReturn:
        while True:
            delay = 0.0 if self._read_again else self._config.retry_period
            await self._wait(min(delay, self._remaining()))
            if self._remaining() > 0:
                try:
                    async with self._deadline(self._remaining()):
                        await self._try_acquire_or_renew()
                except TimeoutError:
                    pass  # the renew deadline has passed
            if self._remaining() <= 0:
                self._lose(f"no renewal for {self._config.renew_deadline:g} s")

    def _lose(self, reason: str) -> NoReturn:
        self._valid_until = -math.inf
        raise LeadershipLostError(f"lost lease {self._lease_key}: {reason}")

    async def _release(self) -> None:
        """Release the Lease, so that the next leader need not wait for its expiry."""
        valid = self._remaining() > 0
        self._valid_until = -math.inf
        if not valid and not self._may_hold:
            return
        if self.elected.is_set():
            self._record_event("stopped leading")
        try:
            async with self._deadline(RELEASE_TIMEOUT):
                await self._write_released()
        except (TimeoutError, *_FAILURES) as error:
            log.warning(
                "cannot release lease", extra={"lease": self._lease_key, "error": str(error)}
            )
        else:
            log.info("lease released", extra={"lease": self._lease_key})

    async def _write_released(self) -> None:
        lease = await self._lock.get() if self._may_hold else self._observed
        while lease is not None and lease.record.holder_identity == self._config.identity:
            now = format_micro_time(self._clock.now())
            released = replace(
                lease.record, holder_identity="", lease_duration=1, acquire_time=now, renew_time=now
            )
            try:
                await self._lock.update(lease, released)
            except ConflictError:  # by our own renewal that timed out, or by another candidate
                lease = await self._lock.get()
            else:
                return

    # -- one attempt ---------------------------------------------------------------------------

    async def _try_acquire_or_renew(self) -> bool:
        """Try to acquire or renew the Lease; return whether it is held. Failures are logged."""
        try:
            held = await self._acquire_or_renew()
        except _FAILURES as error:
            self._log_failure(error)
            return False
        self._last_error = ""
        return held

    async def _acquire_or_renew(self) -> bool:
        if self._config.shared:
            return await self._acquire_or_renew_shared()
        if self.elected.is_set() and self._observed is not None:
            try:
                await self._write(self._observed)
            except _FAILURES as error:
                log.info("lease update failed, reading it first", extra={"error": str(error)})
                self._metrics.slow_path.labels(self._config.name).inc()
            else:
                return True
        lease = await self._read()
        if not self._is_available(lease):
            return False
        await self._write(lease)
        return True

    async def _acquire_or_renew_shared(self) -> bool:
        """Read the Lease, and write it only if no other process has renewed it since the last read.

        Otherwise processes would block each other: the update of a slow one would always conflict.
        """
        self._read_again = False
        while True:
            previous, since = self._observed, self._observed_since
            lease = await self._read()
            if not self._is_available(lease):
                return False
            remaining = since + self._config.renew_deadline - self._clock.monotonic()
            if remaining > 0 and self._is_renewed(previous, lease):
                self._extend(since)
                self._read_again = remaining < self._config.renew_deadline / 2
                return True
            try:
                await self._write(lease)
            except (ConflictError, AlreadyExistsError):
                await self._clock.sleep(self._random() * SHARED_RETRY_DELAY)
            else:
                return True

    def _is_renewed(self, previous: Lease | None, lease: Lease | None) -> bool:
        """Return whether *lease* was renewed after *previous* was read."""
        return (
            previous is not None
            and lease is not None
            and previous.metadata.uid == lease.metadata.uid
            and previous.record.holder_identity == self._config.identity
            and lease.record.holder_identity == self._config.identity
            and previous.record.renew_time != lease.record.renew_time
        )

    async def _read(self) -> Lease | None:
        started = self._clock.monotonic()
        try:
            lease = await self._with_timeout(self._lock.get())
        except NotFoundError:
            return None
        self._observe_record(lease, started)
        return lease

    def _is_available(self, lease: Lease | None) -> bool:
        """Return whether this candidate may write the Lease, or create a deleted one.

        A deleted Lease is not available before its last holder must have stopped.
        """
        previous = lease or self._observed
        if previous is None:
            return True
        record, identity = previous.record, self._config.identity
        if self.elected.is_set() and record.holder_identity != identity:
            self._lose(f"it is held by {record.holder_identity or '(none)'}")
        duration = record.lease_duration or self._config.lease_duration
        expired = self._clock.monotonic() >= self._observed_at + duration
        return record.holder_identity in ("", identity) or expired

    async def _write(self, lease: Lease | None) -> None:
        """Write the Lease with this process as holder; success starts its validity."""
        started = self._clock.monotonic()
        record = self._new_record()
        self._may_hold = True
        if lease is None:
            written = await self._with_timeout(self._lock.create(record))
        else:
            written = await self._with_timeout(self._lock.update(lease, record))
        self._may_hold = False
        self._observe_record(written, started)
        self._extend(started)

    def _extend(self, renewed_at: float) -> None:
        """Extend the validity of the Lease, which was renewed at *renewed_at* or later."""
        if self.elected.is_set() and self._remaining() <= 0:
            self._lose("the renewal exceeded the renew deadline")
        self._renewed_at = renewed_at
        self._valid_until = renewed_at + self._config.renew_deadline

    def _new_record(self) -> LeaderElectionRecord:
        settings, now = self._config, self._clock.now()
        duration = math.ceil(settings.lease_duration)
        previous = self._observed.record if self._observed is not None else None
        if previous is not None and previous.holder_identity == settings.identity:
            return previous.renew(duration=duration, now=now)
        return LeaderElectionRecord(
            holder_identity=settings.identity,
            lease_duration=duration,
            acquire_time=format_micro_time(now),
            renew_time=format_micro_time(now),
            transitions=0 if previous is None else previous.transitions + 1,
        )

    def _observe_record(self, lease: Lease, since: float = -math.inf) -> None:
        """Store *lease*, read by a request that began at *since*, and when its record changed."""
        previous = self._observed
        if previous is None or lease.record != previous.record:
            self._observed_at = self._clock.monotonic()
        self._observed, self._observed_since = lease, since
        if previous is not None and lease.record != previous.record and self._on_renewal:
            self._on_renewal(lease.record)
        if lease.record.holder_identity != self.holder:
            self.holder = lease.record.holder_identity
            log.info("new leader observed", extra={"lease": self._lease_key, "holder": self.holder})

    # -- waiting -------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Wake a waiting candidate when the Lease is released."""
        while True:
            try:
                async for record in self._lock.watch():
                    if not record.holder_identity:
                        self._wake.set()
            except _FAILURES as error:
                log.debug("lease watch failed", extra={"error": str(error)})
            await self._clock.sleep(
                self._config.retry_period * (1 + self._random() * JITTER_FACTOR)
            )

    async def _wait(self, seconds: float) -> None:
        """Wait *seconds*, or until the Lease is released."""
        timer = self._clock.call_later(seconds, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()
            self._wake.clear()

    async def _with_timeout(self, request: Coroutine[Any, Any, T]) -> T:
        """Return the response to one request, within the request timeout."""
        limit = self._config.request_timeout
        try:
            async with self._deadline(limit):
                return await request
        except TimeoutError as error:
            raise RequestTimeoutError(
                f"no response to a Lease request within {limit:g} s"
            ) from error

    @asynccontextmanager
    async def _deadline(self, seconds: float) -> AsyncIterator[None]:
        """Raise TimeoutError after *seconds* by the injected clock."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(None) as limit:
            timer = self._clock.call_later(seconds, lambda: limit.reschedule(loop.time()))
            try:
                yield
            finally:
                timer.cancel()

    def _remaining(self) -> float:
        """Return the remaining validity in seconds."""
        return self._valid_until - self._clock.monotonic()

    # -- logs and events -----------------------------------------------------------------------

    @property
    def _lease_key(self) -> str:
        return f"{self._config.namespace}/{self._config.name}"

    def _log_failure(self, error: Exception) -> None:
        """Log a failure; repeated and expected ones at DEBUG."""
        text = str(error)
        if isinstance(error, NotFoundError) and error.details.get("kind") == "namespaces":
            text = (
                f"namespace {self._config.namespace} not found: create it, or set "
                f"--leader-elect-resource-namespace ({error.message})"
            )
        previous, self._last_error = self._last_error, text
        expected = isinstance(error, ConflictError | AlreadyExistsError)
        level = logging.DEBUG if expected or text == previous else logging.WARNING
        log.log(
            level, "cannot acquire or renew lease", extra={"lease": self._lease_key, "error": text}
        )

    def _record_event(self, action: str) -> None:
        if self._recorder is not None and self._observed is not None:
            self._recorder.record(
                object_reference(LEASES, self._observed.metadata),
                type="Normal",
                reason="LeaderElection",
                message=f"{self._config.identity} {action}",
            )
