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
from .ca_injector import Trust

log = logging.getLogger(__name__)

_LONGEST = 3600.0
"""Seconds between two looks: the wall clock, which certificates go by, may jump."""


class Certificates(Protocol):
    """Where certificates come from."""

    @property
    def caches(self) -> Sequence[Informer[Any]]:
        """What must run and be synced first."""
        ...

    @property
    def trusted(self) -> bytes:
        """What configurations are to trust, PEM; empty while that is not known."""
        ...

    async def start(self) -> None:
        """See to it that there is a certificate, if nobody else does."""
        ...

    async def follow(self) -> None:
        """Take up changes until cancelled."""
        ...

    async def renew(self, *, spread_for: float) -> float:
        """Take a step towards the next certificate; the seconds until the next call."""
        ...


class Office:
    """Does the work of the office whenever *elector* makes a candidate that leads."""

    def __init__(
        self,
        trust: Trust,
        certificates: Certificates,
        *,
        clock: Clock,
        elector: Callable[[], LeaderElector] | None,
        changed: asyncio.Event,
    ) -> None:
        """Without *elector* it is always ours; *changed* is set when there may be work."""
        self._trust = trust
        self._certificates = certificates
        self._clock = clock
        self._elector = elector
        self._changed = changed
        self._backoff = Backoff()

    async def run(self) -> None:
        """Stand for office until cancelled."""
        while self._elector is not None:
            try:
                await self._stand(self._elector())
            except LeadershipLostError as error:
                log.warning("the office is lost, the reviews go on", extra={"error": str(error)})
        await self._hold()

    async def _stand(self, elector: LeaderElector) -> None:
        campaign = asyncio.create_task(elector.run())
        duty = asyncio.create_task(self._once_elected(elector))
        try:
            await asyncio.wait((campaign, duty), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (duty, campaign):  # no work is left when somebody else may lead
                task.cancel()
                await asyncio.wait((task,))
        for task in (duty, campaign):
            if not task.cancelled():
                task.result()

    async def _once_elected(self, elector: LeaderElector) -> None:
        await elector.elected.wait()
        await self._hold()

    async def _hold(self) -> None:
        async with running_sources(self._trust.caches):
            while True:
                self._changed.clear()
                try:
                    pause = await self._look()
                except (ApiError, ConnectionLostError, DecodeError) as error:
                    log.warning("the office must wait", extra={"error": str(error)})
                    pause = self._backoff.next_delay()
                await self._wait(min(pause, _LONGEST))

    async def _look(self) -> float:
        trusted = self._certificates.trusted
        if trusted:
            await self._trust.keep(trusted)
        return await self._certificates.renew(spread_for=self._trust.spread_for(trusted))

    async def _wait(self, seconds: float) -> None:
        timer = self._clock.call_later(seconds, self._changed.set)
        try:
            await self._changed.wait()
        finally:
            timer.cancel()
