"""Tasks of the leader: rotate the certificate and update the webhook configurations.

Losing the Lease does not stop reviews: the replica becomes a candidate again.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from ...kube.errors import ApiError, ConnectionLostError, DecodeError
from ...kube.informer.informer import Informer
from ...kube.timing import Backoff
from ...machinery.clock import Clock
from ...machinery.leader_election import LeaderElector, LeadershipLostError
from ...machinery.lifecycle import running_sources
from .ca_injector import CaInjector

log = logging.getLogger(__name__)

_MAX_SYNC_INTERVAL = 3600.0
"""Seconds between syncs: the wall clock, which determines expiry, may jump."""


class CertificateProvider(Protocol):
    """Source of the serving certificate."""

    @property
    def informers(self) -> Sequence[Informer[Any]]:
        """Informers that must be synced before :meth:`start`."""
        ...

    @property
    def ca_bundle(self) -> bytes:
        """CA bundle for webhook configurations, in PEM; empty while unknown."""
        ...

    async def start(self) -> None:
        """Load a certificate, creating one if necessary."""
        ...

    async def watch(self) -> None:
        """Load changes until cancelled."""
        ...

    async def renew(self, *, propagated_for: float) -> float:
        """Perform a due rotation step; return the seconds until the next call."""
        ...


class LeaderTasks:
    """Runs the leader's tasks while this replica is elected."""

    def __init__(
        self,
        ca_injector: CaInjector,
        certificates: CertificateProvider,
        *,
        clock: Clock,
        new_elector: Callable[[], LeaderElector] | None,
        changed: asyncio.Event,
    ) -> None:
        """Without *new_elector* this replica always leads; *changed* triggers a sync."""
        self._ca_injector = ca_injector
        self._certificates = certificates
        self._clock = clock
        self._new_elector = new_elector
        self._changed = changed
        self._backoff = Backoff()

    async def run(self) -> None:
        """Run for election and perform the tasks until cancelled."""
        while self._new_elector is not None:
            try:
                await self._run_elector(self._new_elector())
            except LeadershipLostError as error:
                log.warning(
                    "leadership lost; still serving admission reviews", extra={"error": str(error)}
                )
        await self._run_while_leading()

    async def _run_elector(self, elector: LeaderElector) -> None:
        election = asyncio.create_task(elector.run())
        work = asyncio.create_task(self._run_once_elected(elector))
        try:
            await asyncio.wait((election, work), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (work, election):  # Stop the work before releasing the lease.
                task.cancel()
                await asyncio.wait((task,))
        for task in (work, election):
            if not task.cancelled():
                task.result()

    async def _run_once_elected(self, elector: LeaderElector) -> None:
        await elector.elected.wait()
        await self._run_while_leading()

    async def _run_while_leading(self) -> None:
        async with running_sources(self._ca_injector.informers):
            while True:
                self._changed.clear()
                try:
                    delay = await self._sync()
                except (ApiError, ConnectionLostError, DecodeError) as error:
                    log.warning("sync failed, will retry", extra={"error": str(error)})
                    delay = self._backoff.next_delay()
                await self._wait(min(delay, _MAX_SYNC_INTERVAL))

    async def _sync(self) -> float:
        ca_bundle = self._certificates.ca_bundle
        if ca_bundle:
            await self._ca_injector.inject(ca_bundle)
        return await self._certificates.renew(
            propagated_for=self._ca_injector.propagated_for(ca_bundle)
        )

    async def _wait(self, seconds: float) -> None:
        timer = self._clock.call_later(seconds, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            timer.cancel()
