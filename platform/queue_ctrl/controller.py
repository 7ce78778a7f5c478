"""The queue controller's shell: watches queues, PodGroups and Commands, and carries out decisions.

It owns a queue's state, counts and place in the tree, and sees to it that the root queue and the
default queue exist. What it decides is in ``decide``. A Command waits in the queue's mailbox until
it is carried out and deleted, in that order: carrying one out twice changes nothing.
"""

import asyncio
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry

from ..kube.client.client import Client
from ..kube.client.events import EventType
from ..kube.errors import UNAVAILABLE_ERRORS, AlreadyExistsError, ConflictError, NotFoundError
from ..kube.informer.informer import Informer, KindSource
from ..kube.informer.reflector import InformerOptions
from ..machinery.clock import Clock, SystemClock
from ..machinery.controller import (
    RECONCILE_TIMEOUT,
    RequeueError,
    ShardedQueue,
    WorkerSettings,
    run_workers,
)
from ..machinery.event_recorder import Recorder, object_reference
from ..machinery.lifecycle import Source, run_controller
from ..machinery.metrics import WorkQueueMetrics
from ..model.command import Command, target_name_error
from ..model.job import Action
from ..model.names import COMMANDS, DEFAULT_QUEUE, PODGROUPS, QUEUES, ROOT_QUEUE
from ..model.podgroup import PodGroup
from ..model.queue import Queue, QueueSpec
from .counts import PodGroupCounts, QueueCounts
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
from .metrics import QueueMetrics

log = logging.getLogger(__name__)

_PARENT = "parent"
"""Index of queues by the parent that they name."""

INVALID_TARGET = "InvalidTarget"
"""Reason of the event on a Command that can never be obeyed."""

RESYNC_AFTER_GIVE_UP = 60.0
"""Seconds after which a queue whose retries have run out is looked at all the same: nothing else
may ever happen to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """How the queue controller works."""

    workers: int = 5
    """Queues worked on at the same time."""

    max_requeues: int = 15
    """Retries before a queue is left alone for a while, and a Command that is refused for good;
    negative: no limit."""

    count_interval: float = 1.0
    """Seconds at least between two writes of a queue's counts; states are written at once."""

    reconcile_timeout: float = RECONCILE_TIMEOUT
    """Seconds that one look at a queue may take before it is cancelled and tried again."""

    default_queue: str = DEFAULT_QUEUE
    """Queue of jobs that name none."""

    registry: CollectorRegistry | None = None
    """Where metrics are registered, if anywhere."""

    work_metrics: WorkQueueMetrics | None = None
    """Where the work queue reports, if anywhere."""


class QueueController:
    """Runs until cancelled; see :meth:`run_in_thread`."""

    def __init__(
        self,
        client: Client,
        *,
        settings: QueueSettings | None = None,
        clock: Clock | None = None,
        recorder: Recorder | None = None,
        podgroups: Informer[PodGroup] | None = None,
    ) -> None:
        """*podgroups* holds all PodGroups; several controllers may share it, each running it."""
        self._client = client
        self._settings = settings or QueueSettings()
        self._clock = clock if clock is not None else SystemClock()
        self._recorder = recorder
        self._workqueue = ShardedQueue(
            name="queue",
            shards=self._settings.workers,
            clock=self._clock,
            metrics=self._settings.work_metrics,
        )
        self.default_queue_ready = asyncio.Event()
        """Set when there is the queue that jobs go to which name none."""
        self._counts = QueueCounts()
        self._queues = Informer(client, QUEUES, Queue, indexes={_PARENT: _parent_index})
        self._podgroups = Informer(client, PODGROUPS, PodGroup) if podgroups is None else podgroups
        self._commands = Informer(client, COMMANDS, Command, options=InformerOptions(ordered=True))
        # Commands of the first list, which comes in no useful order.
        self._initial_commands: list[Command] | None = []
        # Queues as our last write left them, until the cache shows that or something later.
        self._last_written: dict[str, Queue] = {}
        self._counts_written_at: dict[str, float] = {}
        # Commands that are given up and only need deleting, by uid.
        self._rejected_commands: set[str] = set()
        self._required_queues = {
            ROOT_QUEUE: QueueSpec(weight=1, reclaimable=False),
            self._settings.default_queue: QueueSpec(weight=1, reclaimable=True, parent=ROOT_QUEUE),
        }
        if self._settings.registry is not None:
            self._settings.registry.register(QueueMetrics(self._counts_by_queue))

    async def run(
        self, *, ready: asyncio.Event | None = None, elected: asyncio.Event | None = None
    ) -> None:
        """Watch, then work (not before *lead*), until cancelled; *ready* is set in between.

        When cancelled, it finishes what is in hand and queued, and writes nothing after.
        """
        sources: list[Source] = [
            KindSource(self._queues, self._on_queue),
            KindSource(self._podgroups, self._on_podgroup),
            KindSource(self._commands, self._on_command),
        ]
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
        early, self._initial_commands = self._initial_commands or [], None
        for command in sorted(early, key=lambda command: command.sort_key):
            self._on_command(None, command)

    # What is seen

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
        for queue in self._counts.observe(old, new):
            self._workqueue.add(queue)

    def _on_command(self, old: Command | None, new: Command | None) -> None:
        if old is not None or new is None or new.target is None or not new.targets_kind(QUEUES):
            return
        if self._initial_commands is not None:
            self._initial_commands.append(new)
        else:
            self._workqueue.add_item(new.target.name, new)

    def _on_give_up(self, key: str, error: Exception) -> None:
        """Retries have run out: say so, and leave a Command that is refused to be deleted."""
        waits = isinstance(error, RequeueError) and not isinstance(error.__cause__, ConflictError)
        if not waits:  # for what the watch will tell, which need not be so of a conflict's cause
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
        """Of each queue; nothing from a standby, which has not counted."""
        for queue in self._queues if self._initial_commands is None else ():
            yield queue.metadata.name, self._counts.get(queue.metadata.name)

    # What is done

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
            again_in = await self._execute(queue, changes)
        except ConflictError as error:
            raise RequeueError("the queue has changed meanwhile") from error
        except NotFoundError:
            return None  # the watch will say so
        if command is not None:
            await self._delete_command(key, command)
        return again_in

    async def _execute(self, queue: Queue, changes: Iterable[Change]) -> float | None:
        """Make *changes* in order; seconds until counts may be written, if they must wait.

        Raises:
            ConflictError: somebody else has written; the rest is not done.
            TryAgainError: all is done that could be, and something must happen first.
        """
        again_in = None
        for change in changes:
            match change:
                case SetParent(parent):
                    queue = await self._patch(queue, {"spec": {"parent": parent}})
                case SetClosedByParent(closed_by_parent):
                    value = "true" if closed_by_parent else "false"
                    queue = await self._patch(queue, {}, annotations={CLOSED_BY_PARENT: value})
                case SetStatus():
                    again_in = self._count_delay(queue, change)
                    if again_in is None:
                        was = queue.status.state
                        queue = await self._patch(queue, _status_body(queue, change), "status")
                        if change.state != was:
                            note = {"queue": queue.metadata.name, "was": was}
                            log.info("queue state", extra={**note, "state": change.state})
                        self._counts_written_at[queue.metadata.name] = self._clock.monotonic()
                case RecordEvent(reason, message, warning):
                    self._record_event(queue, "Warning" if warning else "Normal", reason, message)
                case Requeue(message):
                    if again_in is not None:  # counts need not wait for what this waits for
                        self._workqueue.add_after(queue.metadata.name, again_in)
                    raise RequeueError(message)
        return again_in

    def _count_delay(self, queue: Queue, change: SetStatus) -> float | None:
        """Seconds that a write of nothing but counts must wait, if any."""
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
        """Write to the queue as we know it, or not at all; the queue after it."""
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
        """There is no such queue: make it if it must exist, and have done with its Commands."""
        self._counts_written_at.pop(key, None)
        seed = self._required_queues.get(key)
        if seed is not None:
            body = {"metadata": {"name": key}, "spec": seed}
            try:
                await self._client.create(QUEUES, body)
            except AlreadyExistsError:
                log.debug("the queue is there already", extra={"key": key})
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
                raise RequeueError("the queue is not in the cache yet")

    def _reject_command(self, command: Command, problem: str) -> None:
        """Say on a Command why it can never be obeyed."""
        about = {"command": command.metadata.key, "action": command.action, "why": problem}
        log.warning("command refused", extra=about)
        if self._recorder is not None:
            self._recorder.record(
                object_reference(COMMANDS, command.metadata),
                type="Warning",
                reason=INVALID_TARGET,
                message=problem,
            )

    async def _delete_command(self, key: str, command: Command) -> None:
        """Delete a Command that is carried out or void, then drop it from the mailbox.

        Raises:
            TryAgainError: a conflict; the Command may be there still.
        """
        meta = command.metadata
        try:
            await self._client.delete(COMMANDS, meta.name, namespace=meta.namespace, uid=meta.uid)
        except NotFoundError:
            log.debug("the command is gone already", extra={"key": meta.key})
        except ConflictError as error:
            raise RequeueError("the Command could not be deleted just now") from error
        self._workqueue.pop_item(key)
        self._rejected_commands.discard(meta.uid)

    # Helpers

    def _command(self, key: str) -> Command | None:
        mail = self._workqueue.peek_item(key)
        return mail if isinstance(mail, Command) else None

    def _is_current(self, command: Command) -> bool:
        """Nobody has taken the Command back, and we have not given it up."""
        seen = self._commands.get(command.metadata.key)
        uid = command.metadata.uid
        return seen is not None and seen.metadata.uid == uid and uid not in self._rejected_commands

    def _latest(self, name: str) -> Queue | None:
        """The queue as the cache shows it, or as our own write left it if that is newer."""
        seen, written = self._queues.get(name), self._last_written.get(name)
        if written is None:
            return seen
        same = seen is not None and seen.metadata.uid == written.metadata.uid
        if seen is not None and same and _resource_version(seen) < _resource_version(written):
            return written
        del self._last_written[name]
        return seen

    def _record_event(self, queue: Queue, kind: EventType, reason: str, message: str) -> None:
        if self._recorder is not None:
            about = object_reference(QUEUES, queue.metadata)
            self._recorder.record(about, type=kind, reason=reason, message=message)


def _parent_index(queue: Queue) -> tuple[str, ...]:
    return () if queue.metadata.name == ROOT_QUEUE else (queue.spec.parent or ROOT_QUEUE,)


def _relevant_fields(queue: Queue) -> tuple[object, ...]:
    """What of a queue we act upon; the scheduler's *allocated* is not among it."""
    mark = queue.metadata.annotations.get(CLOSED_BY_PARENT)
    status = queue.status
    return queue.spec.parent, mark, status.state, PodGroupCounts.from_status(status)


def _resource_version(queue: Queue) -> int:
    return int(queue.metadata.resource_version or 0)


def _status_body(queue: Queue, change: SetStatus) -> dict[str, object]:
    """A merge patch of what differs; a count of none is left out, as Volcano leaves it."""
    status: dict[str, object] = {"state": change.state}
    counts = change.counts
    for field in ("pending", "inqueue", "running", "unknown", "completed"):
        count: int = getattr(counts, field)
        if count != getattr(queue.status, field):
            status[field] = count or None
    return {"status": status}
