"""Informers of the REST API: jobs of all kinds, queues and PodGroups.

Routes that read from them authorize the caller by a SubjectAccessReview first.
"""

import asyncio
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from ..kube.client.client import Client
from ..kube.informer.informer import Informer
from ..kube.supervision import supervise
from ..machinery.clock import SystemClock
from ..machinery.served import INTERVAL, ServedResources, run_while
from ..model.meta import ObjectMeta
from ..model.names import DEFAULT_QUEUE, PODGROUPS, QUEUES
from ..model.podgroup import PodGroup
from ..model.queue import Queue
from ..wire.jobs import JobKindName
from .jobs.index import JobIndex
from .jobs.kinds import KINDS, VOLCANO, JobKind
from .jobs.views import CachedJob, without_manifest

__all__ = ["CachedJob", "Caches", "KindCache"]

_OWNER, _QUEUE = "owner", "queue"


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheScope:
    """What the informers read."""

    namespace: str = ""
    """Empty for all."""
    may_be_refused: bool = False
    """Whether they have the rights of a user, who need not be allowed to read everything."""

    async def wait_synced(self, informer: Informer[Any]) -> None:
        """Wait until *informer* is synced, or is refused what it may be."""
        if self.may_be_refused:
            await informer.wait_synced_or_refused()
        else:
            await informer.wait_synced()


EVERYTHING = CacheScope()


class KindCache:
    """The jobs of one kind, while the cluster serves it."""

    def __init__(
        self,
        kind: JobKind,
        informer: Informer[Any],
        served: ServedResources,
        scope: CacheScope = EVERYTHING,
    ) -> None:
        self.kind = kind
        self._scope = scope
        self.informer = informer
        """This informer exists as long as the process. It is empty while the cluster does not serve
        the kind."""
        self.index = JobIndex(kind.summarize)
        informer.add_event_handler(self.index.on_event)
        self._served = served

    @property
    def is_served(self) -> bool:
        """Whether the cluster serves this kind. Volcano's jobs are assumed to be always served."""
        return self.kind.is_volcano or self._served.has(self.kind.resource)

    async def run(self) -> None:
        """List and watch while the kind is served, until cancelled."""
        if self.kind.is_volcano:
            await self.informer.run()
        while True:
            await self._served.wait_until(lambda: self.is_served)
            await run_while(
                self.informer.run(), self._served.wait_until(lambda: not self.is_served)
            )

    async def wait_synced(self) -> None:
        """Wait until the jobs are listed, unless the cluster has none or refuses them."""
        if self.kind.is_volcano:
            await self._scope.wait_synced(self.informer)
            return
        await self._served.wait_until(lambda: self._served.known)
        if self.is_served:
            await self.informer.wait_synced_or_refused()


class Caches:
    """The informers that routes, streams and the recorder share."""

    def __init__(self, client: Client, *, scope: CacheScope = EVERYTHING) -> None:
        """Read what *scope* selects through *client*."""
        self.scope = scope
        namespace = scope.namespace
        optional = [kind.resource for kind in KINDS.values() if not kind.is_volcano]
        self._served = ServedResources(client, optional, clock=SystemClock(), interval=INTERVAL)
        self.jobs = Informer(
            client, VOLCANO.resource, CachedJob, transform=without_manifest, namespace=namespace
        )
        self.kinds = {
            name: KindCache(
                kind,
                self.jobs
                if kind is VOLCANO
                else Informer(
                    client,
                    kind.resource,
                    kind.view,
                    transform=without_manifest,
                    namespace=namespace,
                ),
                self._served,
                scope,
            )
            for name, kind in KINDS.items()
        }
        """The jobs of all kinds; ``jobs`` is the informer of the first."""
        self.queues = Informer(client, QUEUES, Queue)
        indexes = {_OWNER: _owners, _QUEUE: _queue_names}
        self.podgroups = Informer(client, PODGROUPS, PodGroup, indexes=indexes, namespace=namespace)
        self._is_synced = False

    def of(self, kind: JobKind | JobKindName) -> KindCache:
        """Return the jobs of a kind."""
        return self.kinds[kind if isinstance(kind, JobKindName) else kind.name]

    def podgroups_of(self, job: ObjectMeta) -> Collection[PodGroup]:
        """Return the PodGroups that a job, of any kind, owns."""
        return self.podgroups.by_index(_OWNER, job.identity)

    def podgroups_in_queue(self, queue: str) -> Collection[PodGroup]:
        """Return the PodGroups of a queue."""
        return self.podgroups.by_index(_QUEUE, queue)

    async def run(self) -> None:
        """List and watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(supervise("check of kinds", self._served.run))
            for each in self.kinds.values():
                tasks.create_task(each.run())
            tasks.create_task(self.queues.run())
            tasks.create_task(self.podgroups.run())
            await self.wait_synced()
            self._is_synced = True

    async def wait_synced(self) -> None:
        """Wait until all are listed."""
        await asyncio.gather(
            *(each.wait_synced() for each in self.kinds.values()),
            self.scope.wait_synced(self.queues),
            self.scope.wait_synced(self.podgroups),
        )

    @property
    def synced(self) -> bool:
        """Whether all have been listed."""
        return self._is_synced


def _queue_names(podgroup: PodGroup) -> Iterator[str]:
    yield podgroup.spec.queue or DEFAULT_QUEUE


def _owners(podgroup: PodGroup) -> Iterator[str]:
    for owner in podgroup.metadata.owner_references:
        yield podgroup.metadata.owner_identity(owner)
