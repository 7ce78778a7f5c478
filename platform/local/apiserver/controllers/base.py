"""Base class of the server's own controllers.

They run in the server's process, observe every committed change at once and write by the same
rules as users. Each has a work queue, and one worker unless its reconciles often wait for the disk.
"""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from ....kube.supervision import TASK_RESTARTS, supervise
from ....machinery.clock import Clock, SystemClock
from ....machinery.controller import ShardedQueue, run_workers
from ....model.names import Resource
from ..current_time import use_clock
from ..discovery.catalog import Catalog
from ..http.requests import Json, ObjectPath
from ..kinds.info import KindInfo
from ..storage.resource_store import ResourceStore
from ..storage.stored_objects import WatchEvent
from ..verbs.deletes import Deleter
from ..verbs.planned_writes import WriteResult
from ..verbs.write_requests import WriteRequest
from ..verbs.writes import UpdateFunc, Writer

log = logging.getLogger(__name__)

RESYNC_DELAY = 1.0
"""Seconds after which a controller that missed a change enqueues everything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerContext:
    """What controllers read and write with."""

    writer: Writer
    deleter: Deleter
    catalog: Catalog
    clock: Clock = field(default_factory=SystemClock)

    def resource_store(self, resource: Resource) -> ResourceStore:
        """Return the store of a built-in resource."""
        return self.writer.store.resource_store(self.catalog.require(resource))

    def create(self, resource: Resource, namespace: str, obj: Json) -> WriteResult:
        """Create an object of a built-in resource."""
        target = ObjectPath(namespace=namespace)
        return self.writer.create(
            WriteRequest(kind=self.catalog.require(resource), object_path=target), obj
        )

    def update_unchecked(
        self, kind: KindInfo, key: tuple[str, str], change: UpdateFunc
    ) -> WriteResult:
        """Change a stored object without checks, its status and finalizers included."""
        return self.writer.update_unchecked(internal_request(kind, key), change)


class Controller(ABC):
    """A controller of the server."""

    name: str
    workers = 1
    observed: Sequence[ResourceStore] | None = None
    """The stores whose changes the controller observes; ``None``: all of them."""

    def __init__(self, context: ControllerContext) -> None:
        self.context = context
        self.queue = ShardedQueue(name=self.name, shards=self.workers, clock=context.clock)

    @abstractmethod
    def on_event(self, resource_store: ResourceStore, event: WatchEvent) -> None:
        """Observe a committed change; only enqueues keys."""

    @abstractmethod
    async def reconcile(self, key: str) -> float | None:
        """Reconcile one key; return the delay of a requeue, if any."""

    @abstractmethod
    def enqueue_all(self) -> None:
        """Enqueue every key that may need work after a restart."""

    def handle_event(self, resource_store: ResourceStore, event: WatchEvent) -> None:
        """Observe a committed change; after an error, enqueue everything."""
        try:
            self.on_event(resource_store, event)
        except Exception:
            log.exception("cannot observe a change", extra={"controller": self.name})
            TASK_RESTARTS[self.name] += 1
            asyncio.get_running_loop().call_later(RESYNC_DELAY, self._resync)

    def _resync(self) -> None:
        try:
            self.enqueue_all()
        except Exception:
            log.exception("cannot enqueue stored objects", extra={"controller": self.name})
            asyncio.get_running_loop().call_later(RESYNC_DELAY, self._resync)

    async def run(self) -> None:
        """Run until cancelled."""
        use_clock(self.context.clock)
        await supervise(self.name, lambda: run_workers(self.queue, self.reconcile))


def internal_request(kind: KindInfo, key: tuple[str, str]) -> WriteRequest:
    """Return the controllers' own request for one object."""
    return WriteRequest(kind=kind, object_path=ObjectPath(namespace=key[0], name=key[1]))


def without_finalizer(obj: Json, finalizer: str) -> Json:
    """Return *obj* without *finalizer*."""
    metadata = dict(obj["metadata"])
    metadata["finalizers"] = [n for n in metadata.get("finalizers") or () if n != finalizer]
    if not metadata["finalizers"]:
        del metadata["finalizers"]
    return {**obj, "metadata": metadata}
