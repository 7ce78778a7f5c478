"""Executes effects: every write of the queue controller is here."""

import logging
from dataclasses import dataclass
from typing import assert_never

from ..kube.errors import AlreadyExistsError
from ..machinery.controller import RequeueError
from ..machinery.reconcile.cache import WriteThroughCache
from ..machinery.reconcile.commands import Commands
from ..machinery.reconcile.controller import Sync
from ..machinery.reconcile.events import Event, Events
from ..machinery.reconcile.state import CountThrottle
from ..model.queue import Queue
from .decide import (
    CLOSED_BY_PARENT,
    ConfirmVersion,
    CreateQueue,
    DeleteCommand,
    Effect,
    Requeue,
    SetClosedByParent,
    SetParent,
    SetStatus,
    TargetNotFound,
)

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueExecutor:
    """Executes the effects on one queue in their order."""

    queues: WriteThroughCache[Queue]
    commands: Commands
    events: Events
    throttle: CountThrottle
    count_interval: float
    """Minimum seconds between two writes of a queue's counts."""

    async def execute(  # noqa: C901 - one branch per effect
        self, sync: Sync, name: str, effect: Effect
    ) -> None:
        """Execute one effect on the queue *name*.

        Raises:
            RequeueError: the queue was modified concurrently, or a precondition is not met.
            ApiError, ConnectionLostError: a write was rejected, or may not have arrived.
        """
        match effect:
            case CreateQueue(spec):
                body = {"metadata": {"name": name}, "spec": spec}
                try:
                    await self.queues.create(body)
                except AlreadyExistsError:
                    log.debug("queue already exists", extra={"queue": name})
            case SetParent(parent):
                await self._patch(name, {"spec": {"parent": parent}})
            case SetClosedByParent(closed_by_parent):
                value = "true" if closed_by_parent else "false"
                await self._patch(name, {"metadata": {"annotations": {CLOSED_BY_PARENT: value}}})
            case SetStatus():
                await self._set_status(sync, name, effect)
            case ConfirmVersion():
                await self._patch(name, {})
            case Event():
                self.events.record(self._latest(name).metadata, effect)
            case DeleteCommand(command):
                await self.commands.delete(name, command)
            case TargetNotFound(command):
                await self.commands.target_not_found(name, command)
            case Requeue(message):
                raise RequeueError(message)
            case _:
                assert_never(effect)

    async def _set_status(self, sync: Sync, name: str, effect: SetStatus) -> None:
        queue = self._latest(name)
        if effect.state == queue.status.state:
            delay = self.throttle.delay(name, self.count_interval)
            if delay is not None:
                sync.after(delay)
                return
        await self._patch(name, {"status": _status_patch(queue, effect)}, subresource="status")
        if effect.state != queue.status.state:
            fields = {"queue": name, "from": queue.status.state, "state": effect.state}
            log.info("queue state changed", extra=fields)
        self.throttle.wrote(name)

    async def _patch(self, name: str, body: dict[str, object], *, subresource: str = "") -> None:
        await self.queues.patch(self._latest(name).metadata, body, subresource=subresource)

    def _latest(self, name: str) -> Queue:
        """Return the queue with what earlier effects have written.

        Raises:
            RequeueError: it was deleted.
        """
        queue = self.queues.get(name)
        if queue is None:
            raise RequeueError("queue was deleted concurrently")
        return queue


def _status_patch(queue: Queue, effect: SetStatus) -> dict[str, object]:
    """Return a merge patch of what differs; zero counts are omitted, as Volcano does."""
    status: dict[str, object] = {"state": effect.state}
    for field in ("pending", "inqueue", "running", "unknown", "completed"):
        count: int = getattr(effect.counts, field)
        if count != getattr(queue.status, field):
            status[field] = count or None
    return status
