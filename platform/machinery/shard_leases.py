"""Shards of the controllers' keys, each held by one of several active replicas through a Lease.

Three kinds of Leases, all of one namespace:

* the *group* Lease has the name that a single leader would hold. All replicas hold it under one
  identity that states the number of shards, so that neither a single leader nor replicas with
  another number of shards work at the same time. A renewal by one replica is one for all, and it
  is valid four times as long as the others;
* a *member* Lease of each replica shows the others that it is alive;
* a *shard* Lease of each shard shows who holds it.

A replica acquires shards without a holder, and releases some when it has more than its fair share
(:mod:`.shard_assignment`): it finishes the work on the shard, then releases the Lease. As with a
single leader, the fence blocks writes once a Lease may have expired, and a replica that loses one
must exit.
"""

import asyncio
import hashlib
import logging
import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from functools import partial

from prometheus_client import CollectorRegistry, Gauge

from ..kube.client.client import Client
from ..kube.client.lease import LeaderElectionRecord, WatchedLease
from ..kube.errors import ApiError, ConnectionLostError, NotFoundError
from ..kube.informer.informer import Informer
from ..kube.supervision import cancel_and_wait
from ..model import times
from ..model.names import LEASES
from .clock import Clock
from .leader_election import (
    JITTER_FACTOR,
    RELEASE_TIMEOUT,
    LeaderElectionConfig,
    LeaderElectionConfigError,
    LeaderElectionMetrics,
    LeaderElector,
)
from .shard_assignment import plan_shards

log = logging.getLogger(__name__)

GROUP_LABEL = "batholith.io/shard-group"
"""Label of member and shard Leases: the name of the group Lease."""

MAX_SHARDS = 256
"""Each shard is a Lease that is renewed every few seconds."""

_IDENTITY_PREFIX = "batholith-shards-"
"""Identity in the group Lease, followed by the number of shards."""

_GROUP_DURATION_FACTOR = 4
"""How much longer the group Lease is valid than the others.

The API server may respond late for as long as a replica keeps its own Leases; then the group Lease
must not be the one that ends all replicas at once.
"""

_REMOVE_AFTER = 10
"""Lease durations after which the Lease of a dead member is deleted."""

_RELEASING = ""
"""Holder, in plans, of a shard that this replica is about to release."""


class ShardCountError(Exception):
    """Replicas with another number of shards are running."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardConfig:
    """Number of shards, and the election whose Lease is the group Lease."""

    shards: int
    election: LeaderElectionConfig

    def __post_init__(self) -> None:
        """Check the number.

        Raises:
            LeaderElectionConfigError: it is out of range.
        """
        if not 1 < self.shards <= MAX_SHARDS:
            raise LeaderElectionConfigError(
                f"--shards must be from 2 to {MAX_SHARDS}, or 1 for none"
            )

    @property
    def member_lease(self) -> str:
        """Name of the member Lease of this replica."""
        digest = hashlib.sha256(self.election.identity.encode()).hexdigest()[:12]
        return f"{self.election.name}-member-{digest}"

    def shard_lease(self, shard: int) -> str:
        """Name of the Lease of *shard*."""
        return f"{self.election.name}-shard-{shard}"


class ShardMetrics:
    """Metrics of the shards of this replica; one per registry."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.shards = Gauge(
            "batholith_shards", "Shards that the replicas share.", registry=registry
        )
        self.held = Gauge(
            "batholith_shards_held", "Shards held by this replica.", registry=registry
        )
        self.members = Gauge(
            "batholith_shard_members", "Live replicas that share the shards.", registry=registry
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldShard:
    """A shard while this replica holds it."""

    index: int
    check_fence: Callable[[], None]
    """Raises NotLeaderError if the shard may be held by another replica."""


RunShard = Callable[[HeldShard], Awaitable[None]]
"""Works on a shard until cancelled; when cancelled, finishes what it has begun."""


@dataclass(slots=True)
class _Observed:
    """The last observed record of a Lease, and when it changed."""

    lease: WatchedLease
    changed_at: float
    is_stale: bool
    """Whether it had expired by the clocks of both sides when first observed, unchanged since."""


@dataclass(slots=True)
class _Running:
    """The election and the work of a held shard."""

    election: asyncio.Task[None]
    work: asyncio.Future[None]
    releasing: asyncio.Task[None] | None = None


@dataclass(slots=True, kw_only=True)
class _State:
    """What a replica observes and holds."""

    leases: dict[str, _Observed] = field(default_factory=dict)
    running: dict[int, _Running] = field(default_factory=dict)


class ShardLeases:
    """Holds the fair part of the shards of one replica; call :meth:`run` once."""

    def __init__(
        self,
        client: Client,
        config: ShardConfig,
        run_shard: RunShard,
        *,
        clock: Clock,
        on_lost: Callable[[str], object],
        metrics: LeaderElectionMetrics | None = None,
        shard_metrics: ShardMetrics | None = None,
    ) -> None:
        """*client* is exclusive and has no fence.

        *on_lost* is called with a reason when a Lease is lost or work fails; it must end the
        process at once.
        """
        self._client = client
        self._config = config
        self._run_shard = run_shard
        self._clock = clock
        self._on_lost = on_lost
        self._election_metrics = metrics or LeaderElectionMetrics()
        self._metrics = shard_metrics or ShardMetrics()
        self._metrics.shards.set(config.shards)
        self._state = _State()
        self._wake = asyncio.Event()
        election = config.election
        self._group = self._elector(
            replace(
                election,
                identity=f"{_IDENTITY_PREFIX}{config.shards}",
                shared=True,
                lease_duration=election.lease_duration * _GROUP_DURATION_FACTOR,
                renew_deadline=election.renew_deadline * _GROUP_DURATION_FACTOR,
                retry_period=election.retry_period * _GROUP_DURATION_FACTOR,
            ),
            on_renewal=self._check_group,
        )
        labels = {GROUP_LABEL: election.name}
        self._member = self._elector(replace(election, name=config.member_lease, labels=labels))
        self._shards = [self._shard_elector(shard) for shard in range(config.shards)]
        self.elected = self._group.elected
        """Set once this replica holds the group Lease."""
        self._informer = Informer(
            client,
            LEASES,
            WatchedLease,
            namespace=election.namespace,
            label_selector=f"{GROUP_LABEL}={election.name}",
        )

    def _elector(
        self,
        config: LeaderElectionConfig,
        *,
        on_renewal: Callable[[LeaderElectionRecord], None] | None = None,
    ) -> LeaderElector:
        return LeaderElector(
            self._client,
            config,
            clock=self._clock,
            metrics=self._election_metrics,
            on_renewal=on_renewal,
        )

    def _shard_elector(self, shard: int) -> LeaderElector:
        election = self._config.election
        name, labels = self._config.shard_lease(shard), {GROUP_LABEL: election.name}
        return self._elector(replace(election, name=name, labels=labels))

    def healthy(self) -> bool:
        """Return False if a Lease has not been renewed long after it expired."""
        return all(each.healthy() for each in (self._group, self._member, *self._shards))

    @property
    def holder(self) -> str:
        """Last observed identity of the group Lease."""
        return self._group.holder

    @property
    def held(self) -> tuple[int, ...]:
        """Shards on which this replica works."""
        return tuple(sorted(self._state.running))

    async def run(self, *, ready: asyncio.Event | None = None) -> None:
        """Hold shards until cancelled; then finish the work on them, and release all.

        *ready* is set once this replica waits for the group Lease or holds it.

        Raises:
            ShardCountError: replicas with another number of shards are running.
        """
        self._informer.add_event_handler(self._on_lease)
        watching = asyncio.create_task(self._informer.run())
        elections: list[asyncio.Task[None]] = []
        try:
            await self._informer.wait_synced()
            if ready is not None:
                ready.set()
            elections.append(await self._elect(self._group))
            elections.append(await self._elect(self._member))
            await self._balance()
        finally:
            await self._stop(elections)
            await cancel_and_wait(watching)

    async def _elect(self, elector: LeaderElector) -> asyncio.Task[None]:
        """Start *elector*; return once it is elected."""
        election = asyncio.create_task(elector.run())
        elected = asyncio.create_task(elector.elected.wait())
        try:
            await asyncio.wait((election, elected), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            await cancel_and_wait(election)
            raise
        finally:
            elected.cancel()
        if election.done():
            await election  # raises
        election.add_done_callback(self._on_done)
        return election

    async def _stop(self, elections: list[asyncio.Task[None]]) -> None:
        """Finish the work on all shards and release the Leases, that of the group last.

        That of the member is released at once: else the others would leave it the shards that are
        released first.
        """
        group, members = elections[:1], elections[1:]
        await asyncio.gather(
            *(self._leave(member) for member in members),
            *(self._release(shard) for shard in list(self._state.running)),
        )
        for election in group:
            await self._cancel_election(election)

    async def _leave(self, election: asyncio.Task[None]) -> None:
        await self._cancel_election(election)
        await self._delete_lease(self._config.member_lease, timeout=RELEASE_TIMEOUT)

    async def _cancel_election(self, election: asyncio.Task[None]) -> None:
        election.remove_done_callback(self._on_done)
        await cancel_and_wait(election)

    # -- observation ---------------------------------------------------------------------------

    def _check_group(self, record: LeaderElectionRecord) -> None:
        """Refuse to wait for replicas with another number of shards.

        Only a Lease that is being renewed shows that there are any.
        """
        holder = record.holder_identity
        if holder.startswith(_IDENTITY_PREFIX) and holder != self._group.identity:
            shards = holder.removeprefix(_IDENTITY_PREFIX)
            raise ShardCountError(
                f"replicas with --shards={shards} are running: stop all of them before starting "
                f"any with --shards={self._config.shards}"
            )

    def _on_lease(self, old: WatchedLease | None, new: WatchedLease | None) -> None:
        either = new or old
        if either is None:
            return
        name = either.metadata.name
        if new is None:
            self._state.leases.pop(name, None)
        else:
            known = self._state.leases.get(name)
            changed = known is None or known.lease.spec != new.spec
            if known is None or changed:
                is_stale = known is None and self._has_expired(new)
                known = _Observed(new, self._clock.monotonic(), is_stale)
            self._state.leases[name] = replace(known, lease=new)
            for elector in self._shards:
                if elector.lease_name == name:
                    elector.observe(new.lease)
        if old is None or new is None or old.spec.holder_identity != new.spec.holder_identity:
            self._wake.set()

    def _has_expired(self, lease: WatchedLease) -> bool:
        """Return whether a Lease has expired if the clocks of its holder and this replica agree."""
        record = lease.lease.record
        try:
            renewed = times.parse(record.renew_time)
        except times.TimeError:
            return False
        age = (self._clock.now() - renewed).total_seconds()
        return age > (record.lease_duration or self._config.election.lease_duration)

    def _is_live(self, observed: _Observed) -> bool:
        record = observed.lease.lease.record
        duration = record.lease_duration or self._config.election.lease_duration
        return bool(record.holder_identity) and (
            self._clock.monotonic() < observed.changed_at + duration
        )

    def _members(self) -> set[str]:
        """Return the identities of the live replicas, this one included.

        A replica whose Lease had already expired when this one started does not count as live. If
        that is wrong because clocks differ, it counts again from its next renewal on.
        """
        prefix = f"{self._config.election.name}-member-"
        found = {
            observed.lease.spec.holder_identity or ""
            for name, observed in self._state.leases.items()
            if name.startswith(prefix) and not observed.is_stale and self._is_live(observed)
        }
        return found | {self._config.election.identity}

    def _holder(self, shard: int) -> str | None:
        running = self._state.running.get(shard)
        if running is not None:
            return self._config.election.identity if running.releasing is None else _RELEASING
        observed = self._state.leases.get(self._config.shard_lease(shard))
        if observed is None or not self._is_live(observed):
            return None
        holder = observed.lease.spec.holder_identity
        # Acquired by a request whose response was lost: acquired again.
        return None if holder == self._config.election.identity else holder

    # -- acquiring and releasing ---------------------------------------------------------------

    async def _balance(self) -> None:
        while True:
            self._wake.clear()
            members = self._members()
            plan = plan_shards(
                [self._holder(shard) for shard in range(self._config.shards)],
                members=members,
                identity=self._config.election.identity,
            )
            self._metrics.members.set(len(members))
            for shard in plan.release:
                self._state.running[shard].releasing = asyncio.create_task(self._release(shard))
            await asyncio.gather(*(self._acquire(shard) for shard in plan.acquire))
            await self._delete_dead_members()
            await self._wait()

    async def _acquire(self, shard: int) -> None:
        elector = self._shards[shard]
        if shard in self._state.running or not await elector.acquire_once():
            return
        log.info("shard acquired", extra={"shard": shard})
        election = asyncio.create_task(elector.run())
        election.add_done_callback(self._on_done)
        held = HeldShard(index=shard, check_fence=partial(self._check_fence, elector))
        work = asyncio.ensure_future(self._run_shard(held))
        work.add_done_callback(self._on_done)
        self._state.running[shard] = _Running(election, work)
        self._metrics.held.set(len(self._state.running))

    def _check_fence(self, elector: LeaderElector) -> None:
        self._group.check_fence()
        elector.check_fence()

    async def _release(self, shard: int) -> None:
        """Finish the work on *shard*, then release its Lease."""
        running = self._state.running[shard]
        if running.releasing not in (None, asyncio.current_task()):
            await asyncio.gather(running.releasing, return_exceptions=True)
            return
        running.work.remove_done_callback(self._on_done)
        await cancel_and_wait(running.work)
        await self._cancel_election(running.election)
        self._shards[shard] = self._shard_elector(shard)
        del self._state.running[shard]
        self._metrics.held.set(len(self._state.running))
        log.info("shard released", extra={"shard": shard})
        self._wake.set()

    def _on_done(self, task: "asyncio.Future[None]") -> None:
        """End the process: without a Lease no more work is allowed."""
        error = None if task.cancelled() else task.exception()
        self._on_lost(str(error or "a shard stopped unexpectedly"))

    async def _delete_dead_members(self) -> None:
        """Delete the Leases of replicas that ended long ago without doing so."""
        election = self._config.election
        limit = _REMOVE_AFTER * election.lease_duration
        prefix = f"{election.name}-member-"
        now = self._clock.monotonic()
        for name, observed in list(self._state.leases.items()):
            if name.startswith(prefix) and now - observed.changed_at > limit:
                version = observed.lease.metadata.resource_version
                await self._delete_lease(name, version, timeout=election.request_timeout)

    async def _delete_lease(self, name: str, version: str = "", *, timeout: float) -> None:
        namespace = self._config.election.namespace
        try:
            async with asyncio.timeout(timeout):
                await self._client.delete(
                    LEASES, name, namespace=namespace, resource_version=version
                )
        except NotFoundError:
            return
        except (ApiError, ConnectionLostError, TimeoutError) as error:
            log.debug("cannot delete lease", extra={"lease": name, "error": str(error)})

    async def _wait(self) -> None:
        """Wait until a holder changes, or a Lease may have expired."""
        delay = self._config.election.retry_period * (1 + random.random() * JITTER_FACTOR / 10)
        timer = self._clock.call_later(delay, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()
