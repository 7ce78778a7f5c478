"""Informers of the REST API: Jobs, queues and PodGroups.

Routes that answer from them authorize the caller by a SubjectAccessReview first.
"""

import asyncio

from ..kube.client.client import Client
from ..kube.informer.informer import Informer
from ..model.base import ApiStruct
from ..model.job import JobStatus
from ..model.meta import ObjectMeta
from ..model.names import JOBS, PODGROUPS, QUEUES
from ..model.podgroup import PodGroup
from ..model.queue import Queue


class CachedTask(ApiStruct, frozen=True):
    """A task without its pod template."""

    name: str = ""
    replicas: int = 0
    min_available: int | None = None


class CachedJobSpec(ApiStruct, frozen=True):
    """The spec of a job without what its pods are made of."""

    queue: str = ""
    min_available: int = 0
    priority_class_name: str = ""
    scheduler_name: str = ""
    suspend: bool = False
    ttl_seconds_after_finished: int | None = None
    tasks: tuple[CachedTask, ...] = ()


class CachedJob(ApiStruct, frozen=True):
    """A Volcano job as it is cached."""

    metadata: ObjectMeta = ObjectMeta()
    spec: CachedJobSpec = CachedJobSpec()
    status: JobStatus = JobStatus()


class Caches:
    """The informers that routes, streams and the recorder share."""

    def __init__(self, client: Client) -> None:
        """Read through *client*."""
        self.jobs = Informer(client, JOBS, CachedJob)
        self.queues = Informer(client, QUEUES, Queue)
        self.podgroups = Informer(client, PODGROUPS, PodGroup)

    async def run(self) -> None:
        """List and watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.jobs.run())
            tasks.create_task(self.queues.run())
            tasks.create_task(self.podgroups.run())

    async def wait_synced(self) -> None:
        """Wait until all are listed."""
        await asyncio.gather(
            self.jobs.wait_synced(), self.queues.wait_synced(), self.podgroups.wait_synced()
        )

    @property
    def synced(self) -> bool:
        """Whether all are listed."""
        return self.jobs.synced and self.queues.synced and self.podgroups.synced
