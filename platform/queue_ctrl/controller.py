"""Queue controller: watches queues, PodGroups and Commands, and executes decisions.

It owns a queue's state, counts and parent, and creates the root queue and the default queue.
:mod:`.decide` computes the changes. A Command is a pending item of its queue until it is executed
and deleted, in that order: executing it again has no effect.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..kube.client.client import Client
from ..kube.client.events import EventType
from ..kube.errors import UNAVAILABLE_ERRORS, AlreadyExistsError, ConflictError, NotFoundError
from ..kube.informer.factory import InformerFactory, NewInformers
from ..kube.informer.informer import Informer, KindSource
from ..kube.informer.reflector import InformerOptions
from ..machinery.clock import Clock, SystemClock
from ..machinery.controller import (
    RECONCILE_TIMEOUT,
    RequeueError,
    ShardedQueue,
    WorkerSettings,
    requeue_on_conflict,
    run_workers,
)
from ..machinery.event_recorder import Recorder, object_reference
from ..machinery.lifecycle import Source, run_controller
from ..machinery.metrics import WorkQueueMetrics
from ..machinery.shards import WHOLE, Shard
from ..model.command import Command, target_name_error
from ..model.job import Action
from ..model.names import COMMANDS, DEFAULT_QUEUE, PODGROUPS, PODS, QUEUES, ROOT_QUEUE
from ..model.podgroup import PodGroup
from ..model.queue import Queue, QueueSpec
from .counts import PodGroupCounts, QueueCounts, queue_of
from .decide import (
    CLOSED_BY_PARENT,
    Change,
    QueueView,
    RecordEvent,
    Requeue,
    SetClosedByParent,
    SetParent,
    SetStatus,
    decide,
)
from .described_podgroups import SELECTOR, DescribedCounts, Pod, queue_of_pod
from .metrics import QueueMetrics

log = logging.getLogger(__name__)

_PARENT = "parent"
"""Index of queues by parent."""

INVALID_TARGET = "InvalidTarget"
"""Reason of the event on a Command with an invalid target."""

RESYNC_AFTER_GIVE_UP = 60.0
"""Seconds after which a queue that exceeded its requeues is added again: there may never be another
event for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """Options of the queue controller."""

    workers: int = 5
    """Concurrent reconciles."""

    max_requeues: int = 15
    """Retries before a queue is dropped for a while, and a failing Command is deleted; negative:
    unlimited."""

    count_interval: float = 1.0
    """Minimum seconds between two writes of a queue's counts; states are written at once."""

    reconcile_timeout: float = RECONCILE_TIMEOUT
    """Timeout of one reconcile in seconds."""

    default_queue: str = DEFAULT_QUEUE
    """Queue of jobs without a queue."""

    count_described: bool = False
    """Whether PodGroups that are only described by their pod are counted, too."""

    metrics: QueueMetrics | None = None
    """Metrics of queues, if any; several controllers may share them."""

    work_metrics: WorkQueueMetrics | None = None
    """Metrics of the work queue, if any."""


class QueueController:
    """Controller of queues; see :meth:`run`."""

    def __init__(
        self,
        client: Client,
        *,
        settings: QueueSettings | None = None,
        clock: Clock | None = None,
        recorder: Recorder | None = None,
        podgroups: Informer[PodGroup] | None = None,
        informers: InformerFactory | None = None,
        shard: Shard = WHOLE,
    ) -> None:
        """*podgroups*: informer of all PodGroups; may be used and run by several controllers.

        Only the queues of *shard* are reconciled, whose objects the other *informers* deliver.
        """
        self._client = client
        self._settings = settings or QueueSettings()
        self._clock = clock if clock is not None else SystemClock()
        self._recorder = recorder
        self._workqueue = ShardedQueue(
            name="queue",
            shards=self._settings.workers,
            clock=self._clock,
            metrics=self._settings.work_metrics,
            owned=shard,
        )
        self._shard = shard
        self.default_queue_ready = asyncio.Event()
        """Set when the default queue exists."""
        self._counts = QueueCounts()
        factory = informers or NewInformers(client)
        # All queues: a queue depends on its parent.
        self._queues = factory.informer(QUEUES, Queue, indexes={_PARENT: _parent_index})
        if podgroups is None:
            podgroups = factory.informer(PODGROUPS, PodGroup, owner_key=queue_of)
        self._podgroups = podgroups
        self._described = DescribedCounts(self._counts, self._is_stored)
        self._described_pods = self._described_pod_informer(factory)
        self._commands = factory.informer(
            COMMANDS,
            Command,
            owner_key=_queue_of_command,
            options=InformerOptions(ordered=True),
        )
        # Commands of the initial list, which is not ordered by creation.
        self._initial_commands: list[Command] | None = []
        # Queues as last written, until the informer has that version or a later one.
        self._last_written: dict[str, Queue] = {}
        self._counts_written_at: dict[str, float] = {}
        # Uids of Commands that have failed and only need to be deleted.
        self._rejected_commands: set[str] = set()
        self._required_queues = {
            ROOT_QUEUE: QueueSpec(weight=1, reclaimable=False),
            self._settings.default_queue: QueueSpec(weight=1, reclaimable=True, parent=ROOT_QUEUE),
        }
        if self._settings.metrics is not None:
            self._settings.metrics.add(self._counts_by_queue)

    def _described_pod_informer(self, factory: InformerFactory) -> Informer[Pod] | None:
        if not self._settings.count_described:
            return None
        return factory.informer(PODS, Pod, owner_key=queue_of_pod, label_selector=SELECTOR)

    def _is_stored(self, podgroup: str) -> bool:
        return self._podgroups.get(podgroup) is not None

    async def run(
        self, *, ready: asyncio.Event | None = None, elected: asyncio.Event | None = None
    ) -> None:
        """Sync the informers and run the workers until cancelled, as `run_controller` does.

        When cancelled, it finishes keys in processing and queued, and writes nothing after that.
        """
        try:
            await self._run(ready=ready, elected=elected)
        finally:
            if self._settings.metrics is not None and self._shard.count > 1:
                self._settings.metrics.remove(self._counts_by_queue)  # another replica has it now

    async def _run(self, *, ready: asyncio.Event | None, elected: asyncio.Event | None) -> None:
        sources: list[Source] = [
            KindSource(self._queues, self._on_queue),
            KindSource(self._podgroups, self._on_podgroup),
            KindSource(self._commands, self._on_command),
        ]
        if self._described_pods is not None:
            sources.append(KindSource(self._described_pods, self._on_described_pod))
        await run_controller(
            sources, self._run_workers, on_synced=self._on_synced, ready=ready, elected=elected
        )

    async def _run_workers(self) -> None:
        settings = WorkerSettings(
            max_requeues=self._settings.max_requeues,
            on_give_up=self._on_give_up,
            timeout=self._settings.reconcile_timeout,
        )
        await run_workers(self._workqueue, self._reconcile, settings=settings)

    def _on_synced(self) -> None:
        for name in self._required_queues:
            self._workqueue.add(name)
        commands, self._initial_commands = self._initial_commands or [], None
        for command in sorted(commands, key=lambda command: command.sort_key):
            self._on_command(None, command)

    # Event handlers

    def _on_queue(self, old: Queue | None, new: Queue | None) -> None:
        either = new or old
        if either is None or (old and new and _relevant_fields(old) == _relevant_fields(new)):
            return
        name = either.metadata.name
        if new is not None and name == self._settings.default_queue:
            self.default_queue_ready.set()
        self._workqueue.add(name)
        if old is None or new is None or old.status.state != new.status.state:
            for child in self._queues.by_index(_PARENT, name):
                self._workqueue.add(child.metadata.name)

    def _on_podgroup(self, old: PodGroup | None, new: PodGroup | None) -> None:
        changed = self._counts.observe(old, new)
        if old is None or new is None:
            changed |= self._described.update((new or old or PodGroup()).metadata.key)
        for queue in changed:
            self._workqueue.add(queue)

    def _on_described_pod(self, old: Pod | None, new: Pod | None) -> None:
        for queue in self._described.observe_pod(old, new):
            self._workqueue.add(queue)

    def _on_command(self, old: Command | None, new: Command | None) -> None:
        if old is not None or new is None or new.target is None or not new.targets_kind(QUEUES):
            return
        if self._initial_commands is not None:
            self._initial_commands.append(new)
        else:
            self._workqueue.add_item(new.target.name, new)

    def _on_give_up(self, key: str, error: Exception) -> None:
        """Record an event for a dropped key, and mark a failing Command for deletion."""
        conflict = isinstance(error.__cause__, ConflictError)
        if conflict or not isinstance(error, RequeueError):  # no event is certain to follow
            self._workqueue.add_after(key, RESYNC_AFTER_GIVE_UP)
        command = self._command(key)
        if command is not None and not isinstance(error, UNAVAILABLE_ERRORS):
            if command.metadata.uid in self._rejected_commands:
                return
            self._rejected_commands.add(command.metadata.uid)
            self._workqueue.add(key)
        action = command.action if command is not None else Action.SYNC_QUEUE
        queue = self._latest(key)
        if queue is not None:
            self._record_event(queue, "Warning", action, f"{action} failed: {error}")

    def _counts_by_queue(self) -> Iterator[tuple[str, PodGroupCounts]]:
        """Yield the counts of each queue; none on a standby, which has not counted."""
        for queue in self._queues if self._initial_commands is None else ():
            if self._shard.owns(queue.metadata.name):
                yield queue.metadata.name, self._counts.get(queue.metadata.name)

    # Reconciling

    async def _reconcile(self, key: str) -> float | None:
        command = self._command(key)
        if command is not None and not self._is_current(command):
            await self._delete_command(key, command)
            command = self._command(key)
        queue = self._latest(key)
        if queue is None:
            await self._queue_not_found(key, command)
            return None
        parent = self._latest(queue.spec.parent or ROOT_QUEUE)
        view = QueueView(queue=queue, parent=parent, counts=self._counts.get(key))
        changes = decide(view, command.action if command is not None else None)
        try:
            with requeue_on_conflict("queue"):
                requeue_after = await self._execute(queue, changes)
        except NotFoundError:
            return None  # the DELETED event triggers the next sync
        if command is not None:
            await self._delete_command(key, command)
        return requeue_after

    async def _execute(self, queue: Queue, changes: Iterable[Change]) -> float | None:
        """Execute *changes* in order; return the seconds until a delayed write of counts, if any.

        Raises:
            ConflictError: the queue was modified concurrently; the other changes are skipped.
            RequeueError: all changes are executed, and a precondition is not met.
        """
        requeue_after = None
        for change in changes:
            match change:
                case SetParent(parent):
                    queue = await self._patch(queue, {"spec": {"parent": parent}})
                case SetClosedByParent(closed_by_parent):
                    value = "true" if closed_by_parent else "false"
                    queue = await self._patch(queue, {}, annotations={CLOSED_BY_PARENT: value})
                case SetStatus():
                    requeue_after = self._count_delay(queue, change)
                    if requeue_after is None:
                        previous = queue.status.state
                        queue = await self._patch(queue, _status_body(queue, change), "status")
                        if change.state != previous:
                            fields = {"queue": queue.metadata.name, "from": previous}
                            log.info("queue state changed", extra={**fields, "state": change.state})
                        self._counts_written_at[queue.metadata.name] = self._clock.monotonic()
                case RecordEvent(reason, message, warning):
                    self._record_event(queue, "Warning" if warning else "Normal", reason, message)
                case Requeue(message):
                    if requeue_after is not None:  # counts need not wait for the backoff
                        self._workqueue.add_after(queue.metadata.name, requeue_after)
                    raise RequeueError(message)
        return requeue_after

    def _count_delay(self, queue: Queue, change: SetStatus) -> float | None:
        """Return for how many seconds a write of counts alone must be delayed, if any."""
        last = self._counts_written_at.get(queue.metadata.name)
        if last is None or queue.status.state != change.state:
            return None
        wait = last + self._settings.count_interval - self._clock.monotonic()
        return wait if wait > 0 else None

    async def _patch(
        self,
        queue: Queue,
        body: dict[str, object],
        subresource: str = "",
        *,
        annotations: dict[str, str] | None = None,
    ) -> Queue:
        """Patch the queue if it is unmodified; return the result."""
        metadata: dict[str, object] = {"resourceVersion": queue.metadata.resource_version}
        if annotations:
            metadata["annotations"] = annotations
        name = queue.metadata.name
        written = await self._client.patch(
            QUEUES, name, {"metadata": metadata, **body}, subresource=subresource, view=Queue
        )
        self._last_written[name] = written
        return written

    async def _queue_not_found(self, key: str, command: Command | None) -> None:
        """Create a missing queue if it is required; else delete its Commands."""
        self._counts_written_at.pop(key, None)
        spec = self._required_queues.get(key)
        if spec is not None:
            body = {"metadata": {"name": key}, "spec": spec}
            try:
                await self._client.create(QUEUES, body)
            except AlreadyExistsError:
                log.debug("queue already exists", extra={"key": key})
        elif command is not None:
            if problem := target_name_error(key):
                self._reject_command(command, problem)
                await self._delete_command(key, command)
                return
            try:
                await self._client.get(QUEUES, key, view=Queue)
            except NotFoundError:
                await self._delete_command(key, command)
            else:
                raise RequeueError("queue is not in the informer yet")

    def _reject_command(self, command: Command, problem: str) -> None:
        """Record an event on a Command with an invalid target."""
        fields = {"command": command.metadata.key, "action": command.action, "reason": problem}
        log.warning("rejecting Command", extra=fields)
        if self._recorder is not None:
            self._recorder.record(
                object_reference(COMMANDS, command.metadata),
                type="Warning",
                reason=INVALID_TARGET,
                message=problem,
            )

    async def _delete_command(self, key: str, command: Command) -> None:
        """Delete an executed or obsolete Command, then pop it from the queue's pending items.

        Raises:
            RequeueError: the Command was modified concurrently and may still exist.
        """
        meta = command.metadata
        try:
            with requeue_on_conflict("Command"):
                await self._client.delete(
                    COMMANDS, meta.name, namespace=meta.namespace, uid=meta.uid
                )
        except NotFoundError:
            log.debug("Command already deleted", extra={"key": meta.key})
        self._workqueue.pop_item(key)
        self._rejected_commands.discard(meta.uid)

    # Helpers

    def _command(self, key: str) -> Command | None:
        item = self._workqueue.peek_item(key)
        return item if isinstance(item, Command) else None

    def _is_current(self, command: Command) -> bool:
        """Return whether the Command still exists and has not failed."""
        cached = self._commands.get(command.metadata.key)
        uid = command.metadata.uid
        return (
            cached is not None and cached.metadata.uid == uid and uid not in self._rejected_commands
        )

    def _latest(self, name: str) -> Queue | None:
        """Return the queue as in the informer, or as last written if that is newer."""
        cached, written = self._queues.get(name), self._last_written.get(name)
        if written is None:
            return cached
        same = cached is not None and cached.metadata.uid == written.metadata.uid
        if cached is not None and same and _resource_version(cached) < _resource_version(written):
            return written
        del self._last_written[name]
        return cached

    def _record_event(self, queue: Queue, kind: EventType, reason: str, message: str) -> None:
        if self._recorder is not None:
            regarding = object_reference(QUEUES, queue.metadata)
            self._recorder.record(regarding, type=kind, reason=reason, message=message)


def _queue_of_command(command: Command) -> str | None:
    target = command.target
    return target.name if target is not None and command.targets_kind(QUEUES) else None


def _parent_index(queue: Queue) -> tuple[str, ...]:
    return () if queue.metadata.name == ROOT_QUEUE else (queue.spec.parent or ROOT_QUEUE,)


def _relevant_fields(queue: Queue) -> tuple[object, ...]:
    """Return the fields that the controller depends on; the scheduler's *allocated* is not one."""
    closed_by_parent = queue.metadata.annotations.get(CLOSED_BY_PARENT)
    status = queue.status
    return queue.spec.parent, closed_by_parent, status.state, PodGroupCounts.from_status(status)


def _resource_version(queue: Queue) -> int:
    return int(queue.metadata.resource_version or 0)


def _status_body(queue: Queue, change: SetStatus) -> dict[str, object]:
    """Return a merge patch of what differs; zero counts are omitted, as Volcano does."""
    status: dict[str, object] = {"state": change.state}
    counts = change.counts
    for field in ("pending", "inqueue", "running", "unknown", "completed"):
        count: int = getattr(counts, field)
        if count != getattr(queue.status, field):
            status[field] = count or None
    return {"status": status}
