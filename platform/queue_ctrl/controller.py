"""Queue controller: event handlers of queues, PodGroups and Commands; what is known of a queue.

It owns a queue's state, counts and parent, and creates the root queue and the default queue.
:mod:`.decide` computes the effects, :mod:`.executor` executes them.
"""

import asyncio
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..kube.client.client import Client
from ..kube.errors import UNAVAILABLE_ERRORS, ConflictError
from ..kube.informer.factory import InformerFactory, NewInformers
from ..kube.informer.informer import Informer, KindSource
from ..kube.informer.reflector import InformerOptions
from ..machinery.clock import Clock
from ..machinery.controller import RequeueError
from ..machinery.event_recorder import Recorder
from ..machinery.lifecycle import Source
from ..machinery.reconcile.cache import WriteThroughCache
from ..machinery.reconcile.commands import Commands, target_key
from ..machinery.reconcile.controller import Controller, ControllerSettings, Sync
from ..machinery.reconcile.events import Events
from ..machinery.reconcile.state import CountThrottle
from ..machinery.shards import WHOLE, Shard
from ..model.command import Command
from ..model.job import Action
from ..model.names import COMMANDS, DEFAULT_QUEUE, PODGROUPS, PODS, QUEUES, ROOT_QUEUE
from ..model.podgroup import PodGroup
from ..model.queue import Queue, QueueSpec
from .counts import PodGroupCounts, QueueCounts, queue_of
from .decide import CLOSED_BY_PARENT, Effect, MissingQueue, QueueView, decide
from .described_podgroups import SELECTOR, DescribedCounts, Pod, queue_of_pod
from .executor import QueueExecutor
from .metrics import QueueMetrics

_PARENT = "parent"
"""Index of queues by parent."""

RESYNC_AFTER_DROP = 60.0
"""Seconds after which a queue that exceeded its requeues is added again: there may never be another
event for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings(ControllerSettings):
    """Options of the queue controller."""

    max_requeues: int = 15
    """Retries before a queue is dropped for a while, and a failing Command is deleted; negative:
    unlimited."""

    count_interval: float = 1.0
    """Minimum seconds between two writes of a queue's counts; states are written at once."""

    default_queue: str = DEFAULT_QUEUE
    """Queue of jobs without a queue."""

    count_described: bool = False
    """Whether PodGroups that are only described by their pod are counted, too."""

    metrics: QueueMetrics | None = None
    """Metrics of queues, if any; several controllers may share them."""


class QueueController(Controller[QueueView | MissingQueue, Effect]):
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
        self._settings = settings = settings or QueueSettings()
        super().__init__("queue", settings, clock=clock, shard=shard)
        self._shard = shard
        self.default_queue_ready = asyncio.Event()
        """Set when the default queue exists."""
        self._counts = QueueCounts()
        self._create_informers(client, informers or NewInformers(client), podgroups, recorder)
        self._events = Events(recorder, QUEUES)
        throttle = CountThrottle(self.clock)
        self.keep(self._queues, throttle)
        self._executor = QueueExecutor(
            queues=self._queues,
            commands=self._commands,
            events=self._events,
            throttle=throttle,
            count_interval=settings.count_interval,
        )
        self._required_queues = {
            ROOT_QUEUE: QueueSpec(weight=1, reclaimable=False),
            settings.default_queue: QueueSpec(weight=1, reclaimable=True, parent=ROOT_QUEUE),
        }
        if settings.metrics is not None:
            settings.metrics.add(self._counts_by_queue)

    def _create_informers(
        self,
        client: Client,
        factory: InformerFactory,
        podgroups: Informer[PodGroup] | None,
        recorder: Recorder | None,
    ) -> None:
        # All queues: a queue depends on its parent.
        queues = factory.informer(QUEUES, Queue, indexes={_PARENT: _parent_index})
        self._queues = WriteThroughCache(client, QUEUES, Queue, queues, clock=self.clock)
        if podgroups is None:
            podgroups = factory.informer(PODGROUPS, PodGroup, owner_key=queue_of)
        self._described = DescribedCounts(self._counts, lambda key: key in podgroups)
        commands = factory.informer(
            COMMANDS, Command, owner_key=target_key, options=InformerOptions(ordered=True)
        )
        self._commands = Commands(client, commands, self.queue, kind=QUEUES, recorder=recorder)
        sources: list[Source] = [
            KindSource(queues, self._on_queue),
            KindSource(podgroups, self._on_podgroup),
            KindSource(commands, self._commands.on_command),
        ]
        if self._settings.count_described:
            pods = factory.informer(PODS, Pod, owner_key=queue_of_pod, label_selector=SELECTOR)
            sources.append(KindSource(pods, self._on_described_pod))
        self.sources = sources

    async def work(self) -> None:
        """Run the workers until cancelled."""
        try:
            await super().work()
        finally:
            if self._settings.metrics is not None and self._shard.count > 1:
                self._settings.metrics.remove(self._counts_by_queue)  # another replica has it now

    def on_synced(self) -> None:
        """Add the required queues, which may not exist, and the Commands."""
        for name in self._required_queues:
            self.queue.add(name)
        self._commands.on_synced()

    # Event handlers.

    def _on_queue(self, old: Queue | None, new: Queue | None) -> None:
        either = new or old
        if either is None or (old and new and _relevant_fields(old) == _relevant_fields(new)):
            return
        name = either.metadata.name
        if new is not None and name == self._settings.default_queue:
            self.default_queue_ready.set()
        self.queue.add(name)
        if old is None or new is None or old.status.state != new.status.state:
            for child in self._queues.informer.by_index(_PARENT, name):
                self.queue.add(child.metadata.name)

    def _on_podgroup(self, old: PodGroup | None, new: PodGroup | None) -> None:
        changed = self._counts.observe(old, new)
        if old is None or new is None:
            changed |= self._described.update((new or old or PodGroup()).metadata.key)
        for queue in changed:
            self.queue.add(queue)

    def _on_described_pod(self, old: Pod | None, new: Pod | None) -> None:
        for queue in self._described.observe_pod(old, new):
            self.queue.add(queue)

    def on_dropped(self, key: str, error: Exception) -> None:
        """Record an event on a dropped queue, and have a failing Command deleted."""
        conflict = isinstance(error.__cause__, ConflictError)
        if conflict or not isinstance(error, RequeueError):  # no event is certain to follow
            self.queue.add_after(key, RESYNC_AFTER_DROP)
        command = self._commands.pending(key)
        failed = command is not None and not isinstance(error, UNAVAILABLE_ERRORS)
        if failed and not self._commands.fail(key):
            return
        action = command.action if command is not None else Action.SYNC_QUEUE
        if (queue := self._queues.get(key)) is not None:
            self._events.warning(queue.metadata, action, f"{action} failed: {error}")

    def _counts_by_queue(self) -> Iterator[tuple[str, PodGroupCounts]]:
        """Yield the counts of each queue; none on a standby, which has not counted."""
        for queue in self._queues.informer if self._commands.synced else ():
            if self._shard.owns(queue.metadata.name):
                yield queue.metadata.name, self._counts.get(queue.metadata.name)

    # Reconcile.

    async def observe(self, sync: Sync) -> QueueView | MissingQueue | None:
        """Return the queue, its parent, its counts and the Command to execute."""
        key = sync.key
        command, queue = await self._commands.next(key), self._queues.get(key)
        if queue is None:
            required = self._required_queues.get(key)
            if required is None and command is None:
                return None
            return MissingQueue(name=key, required=required, command=command)
        return QueueView(
            queue=queue,
            parent=self._queues.get(queue.spec.parent or ROOT_QUEUE),
            counts=self._counts.get(key),
            command=command,
        )

    def decide(self, view: QueueView | MissingQueue) -> Iterable[Effect]:
        """Return what the queue needs; see :func:`.decide.decide`."""
        return decide(view)

    async def execute(self, sync: Sync, view: QueueView | MissingQueue, effect: Effect) -> None:
        """Execute one effect; see :class:`.executor.QueueExecutor`."""
        await self._executor.execute(sync, view.name, effect)


def _parent_index(queue: Queue) -> tuple[str, ...]:
    return () if queue.metadata.name == ROOT_QUEUE else (queue.spec.parent or ROOT_QUEUE,)


def _relevant_fields(queue: Queue) -> tuple[object, ...]:
    """Return the fields that the controller depends on; the scheduler's *allocated* is not one."""
    closed_by_parent = queue.metadata.annotations.get(CLOSED_BY_PARENT)
    status = queue.status
    return queue.spec.parent, closed_by_parent, status.state, PodGroupCounts.from_status(status)
