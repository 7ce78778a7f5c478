"""A source of events that a cluster may lack: the kind is not served, or may not be read.

The scheduler starts without it, and asks again from time to time.
"""

import asyncio
import logging

import msgspec

from ..kube.client.client import Client
from ..kube.errors import UNAVAILABLE_ERRORS, ForbiddenError, NotFoundError
from ..machinery.clock import Clock
from ..machinery.lifecycle import Source
from ..model.names import Resource

log = logging.getLogger(__name__)

RETRY_DELAY = 60.0
"""Seconds between two questions whether the kind may be read now."""


class OptionalSource:
    """Runs a source once its kind may be read; the start does not wait for that."""

    def __init__(self, client: Client, resource: Resource, source: Source, clock: Clock) -> None:
        """Run *source*, which is of *resource*."""
        self._client = client
        self._resource = resource
        self._source = source
        self._clock = clock
        self._decided = asyncio.Event()
        self._readable = False

    async def run(self) -> None:
        """List and watch until cancelled, once that is possible."""
        while not await self._is_readable():
            self._decided.set()
            await self._clock.sleep(RETRY_DELAY)
        self._readable = True
        self._decided.set()
        await self._source.run()

    async def wait_synced(self) -> None:
        """Return once the initial list is complete, or known to be impossible."""
        await self._decided.wait()
        if self._readable:
            await self._source.wait_synced()

    async def attach(self) -> None:
        """Add the event handler."""
        await self._source.attach()

    async def _is_readable(self) -> bool:
        try:
            await self._client.list(self._resource, view=msgspec.Raw, limit=1)
        except (NotFoundError, ForbiddenError) as error:
            if not self._decided.is_set():
                extra = {"resource": self._resource.plural, "why": str(error)}
                log.warning("cannot watch resource", extra=extra)
            return False
        except UNAVAILABLE_ERRORS:
            pass  # the informer retries
        return True
