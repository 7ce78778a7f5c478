"""The informer of Jobs, which runs from the first CronJob on."""

import asyncio
from collections.abc import Callable

from ..kube.client.client import Client
from ..kube.informer.informer import Informer, KindSource
from ..model.cronjob import CronJob
from .kind import J


class JobSource(KindSource[J]):
    """The Jobs, watched from the first CronJob on: most clusters have none, and many Jobs."""

    def __init__(
        self, client: Client, informer: Informer[J], handler: Callable[[J | None, J | None], None]
    ) -> None:
        super().__init__(informer, handler)
        self._wanted = asyncio.Event()
        # Until it runs, readiness does not depend on it.
        client.metrics.unregister_informer(informer)

    def want(self, old: CronJob | None, new: CronJob | None) -> None:
        """Watch the Jobs, since there is a CronJob."""
        self._wanted.set()

    async def run(self) -> None:
        """Run the informer, once it is wanted, until cancelled."""
        await self._wanted.wait()
        await super().run()

    async def wait_synced(self) -> None:
        """Wait until the Jobs are in the store, if they are wanted."""
        if self._wanted.is_set():
            await super().wait_synced()
