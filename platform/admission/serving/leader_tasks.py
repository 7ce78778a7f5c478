"""What one replica does for all: it renews the certificate and keeps the webhook configurations.

It is the holder of a Lease. To lose that ends no review: the replica stands for office again.
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
"""Seconds between two looks: the wall clock, which certificates go by, may jump."""


class CertificateProvider(Protocol):
    """Where certificates come from."""

    @property
    def informers(self) -> Sequence[Informer[Any]]:
        """What must run and be synced first."""
        ...

    @property
    def ca_bundle(self) -> bytes:
        """What configurations are to trust, PEM; empty while that is not known."""
        ...

    async def start(self) -> None:
        """See to it that there is a certificate, if nobody else does."""
        ...

    async def watch(self) -> None:
        """Take up changes until cancelled."""
        ...

    async def renew(self, *, propagated_for: float) -> float:
        """Take a step towards the next certificate; the seconds until the next call."""
        ...


class LeaderTasks:
    """Does the work of the office whenever *elector* makes a candidate that leads."""

    def __init__(
        self,
        ca_injector: CaInjector,
        certificates: CertificateProvider,
        *,
        clock: Clock,
        new_elector: Callable[[], LeaderElector] | None,
        changed: asyncio.Event,
    ) -> None:
        """Without *elector* it is always ours; *changed* is set when there may be work."""
        self._ca_injector = ca_injector
        self._certificates = certificates
        self._clock = clock
        self._new_elector = new_elector
        self._changed = changed
        self._backoff = Backoff()

    async def run(self) -> None:
        """Stand for office until cancelled."""
        while self._new_elector is not None:
            try:
                await self._campaign(self._new_elector())
            except LeadershipLostError as error:
                log.warning("the office is lost, the reviews go on", extra={"error": str(error)})
        await self._run_while_leading()

    async def _campaign(self, elector: LeaderElector) -> None:
        campaign = asyncio.create_task(elector.run())
        duty = asyncio.create_task(self._run_once_elected(elector))
        try:
            await asyncio.wait((campaign, duty), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (duty, campaign):  # no work is left when somebody else may lead
                task.cancel()
                await asyncio.wait((task,))
        for task in (duty, campaign):
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
                    pause = await self._sync()
                except (ApiError, ConnectionLostError, DecodeError) as error:
                    log.warning("the office must wait", extra={"error": str(error)})
                    pause = self._backoff.next_delay()
                await self._wait(min(pause, _MAX_SYNC_INTERVAL))

    async def _sync(self) -> float:
        trusted = self._certificates.ca_bundle
        if trusted:
            await self._ca_injector.inject(trusted)
        return await self._certificates.renew(
            propagated_for=self._ca_injector.propagated_for(trusted)
        )

    async def _wait(self, seconds: float) -> None:
        timer = self._clock.call_later(seconds, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            timer.cancel()
