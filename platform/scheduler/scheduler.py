"""The scheduler as it runs: caches in, decisions out.

1. Watch caches put each change into an inbox; nothing else touches the cluster's picture.
2. Whenever something lies there, a burst is let come in, applied, and one cycle is decided. There
   is no clock: a job that finds room is placed within the same breath.
3. Small decisions are made on the spot; a large one in a thread beside the loop, which goes on
   taking in events and sending bindings meanwhile.
4. Bindings go to the ``binder``, statuses to the ``scribe``; their outcome comes back by watch, or
   as one more entry of the inbox.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from prometheus_client import CollectorRegistry

from ..kube.client.client import Client
from ..kube.informer.informer import Informer, KindSource
from ..kube.supervision import supervise
from ..machinery.change_rate import ChangeRate
from ..machinery.clock import Clock, SystemClock
from ..machinery.delay_heap import DelayHeap
from ..machinery.event_recorder import Recorder
from ..machinery.lifecycle import run_controller
from ..machinery.metrics import WorkQueueMetrics
from ..model import names
from ..model.log_fields import belonging
from ..model.meta import HasMeta
from ..model.names import Resource
from ..model.podgroup import PodGroup
from ..model.queue import Queue
from . import conf
from .framework.framework import Rules
from .framework.session import Core, Decision
from .metrics import SchedulerMetrics
from .state.cache import Cluster
from .state.core_types import Claim, Node, Pod, PriorityClass
from .state.gangs import Gang
from .writers.binder import Binder
from .writers.pod_versions import Standing
from .writers.podgroup_status import report
from .writers.scheduling_gates import Usher
from .writers.status_updater import Pauses, Scribe

log = logging.getLogger(__name__)

T = TypeVar("T", bound=HasMeta)

_BUSY_PAUSE = 0.02
"""Seconds for which changes are collected before a cycle while much is going on: several make one
cycle then, for a delay that nobody notices."""

_SLICE = 200
"""Events applied before others on the loop get a turn: some 5 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """What can be set on a scheduler."""

    conf: str = conf.DEFAULT
    """Text of the scheduler configuration."""

    gang_names: tuple[str, ...] = (names.SCHEDULER_NAME,)
    """``schedulerName`` of pods that are placed by their PodGroup."""

    single_names: tuple[str, ...] = ()
    """``schedulerName`` of pods that are placed one by one."""

    default_queue: str = names.DEFAULT_QUEUE
    """Queue of groups that name none."""

    queue_gates: bool = False
    """Whether pods lose the gate of their queue when that has room for them."""

    bindings: int = 64
    """Bindings under way at once, and gates that are being lifted."""

    status_writes: int = 16
    """Status writes under way at once."""

    inline_tasks: int = 200
    """Up to so many waiting pods a cycle is decided on the loop itself: it takes less than a few
    milliseconds then, and a thread would cost as much again in switching."""

    pauses: Pauses = field(default_factory=Pauses)
    """How often statuses are refreshed."""

    registry: CollectorRegistry | None = None
    """Where metrics are registered, if anywhere."""

    work_metrics: WorkQueueMetrics | None = None
    """Where the work queues report, if anywhere."""


class Scheduler:
    """Places pods of the cluster behind a client. To be run once."""

    def __init__(
        self,
        client: Client,
        *,
        settings: SchedulerSettings | None = None,
        clock: Clock | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """Prepare to schedule by *settings*; without a *recorder* no events are written.

        Raises:
            ConfError: the configuration cannot be used.
        """
        self._settings = settings or SchedulerSettings()
        read = conf.load(self._settings.conf)
        self._client = client
        self._clock = clock or SystemClock()
        self._cluster = Cluster(
            gang_names=self._settings.gang_names,
            single_names=self._settings.single_names,
            default_queue=self._settings.default_queue,
            queue_gates=self._settings.queue_gates,
        )
        self._core = Core(self._cluster, Rules(read), read.actions)
        self._metrics = SchedulerMetrics(self._settings.registry, self._cluster, clock=self._clock)
        self._core.timed = self._metrics.action
        self._inbox: list[Callable[[], object]] = []
        self._wake = asyncio.Event()
        self._later = DelayHeap(self._clock, self._see_again)
        self._pods = Informer(client, names.PODS, Pod)
        self._standing = Standing(self._pods.get)
        self._bustle = ChangeRate(self._clock)
        self._binder = Binder(
            client,
            recorder=recorder,
            clock=self._clock,
            at_once=self._settings.bindings,
            forget=lambda uid: self._put(lambda: self._cluster.forget_placement(uid)),
            about=self._about,
            standing=self._standing,
        )
        self._usher = Usher(
            client, clock=self._clock, at_once=self._settings.bindings, standing=self._standing
        )
        self._scribe = Scribe(
            client,
            recorder=recorder,
            clock=self._clock,
            standing=self._standing,
            at_once=self._settings.status_writes,
            pauses=self._settings.pauses,
            bustle=self._bustle,
        )
        if self._settings.work_metrics is not None:
            for queue in (self._binder.queue, self._scribe.queue, self._usher.queue):
                self._settings.work_metrics.register(queue)

    async def run(
        self, *, ready: asyncio.Event | None = None, lead: asyncio.Event | None = None
    ) -> None:
        """Schedule (not before *lead*) until cancelled; what is under way then is finished first.

        *ready* is set once the first picture of the cluster is complete.
        """
        cluster = self._cluster
        sources = (
            self._feed(self._cache(names.PRIORITYCLASSES, PriorityClass), cluster.priority_class),
            self._feed(self._cache(names.QUEUES, Queue), self._hear_of_queue),
            self._feed(self._cache(names.NODES, Node), cluster.node),
            self._feed(self._cache(names.PERSISTENTVOLUMECLAIMS, Claim), cluster.claim),
            self._feed(self._cache(names.PODGROUPS, PodGroup), self._hear_of_group),
            self._feed(self._pods, self._hear_of_pod),
        )
        await run_controller(sources, self._work, ready=ready, elected=lead)

    async def _work(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._binder.run())
            tasks.create_task(self._scribe.run())
            tasks.create_task(self._usher.run())
            # A cycle that fails ends the process: what it has half decided must not stay in memory.
            await supervise("scheduling cycle", self._cycle, fatal=(Exception,))

    async def _cycle(self) -> None:
        while True:
            await self._wake.wait()
            await self._round()

    # -- in ------------------------------------------------------------------------------------

    def _cache(self, resource: Resource, view: type[T]) -> Informer[T]:
        return Informer(self._client, resource, view)

    def _feed(
        self, cache: Informer[T], hear: Callable[[T | None, T | None], object]
    ) -> KindSource[T]:
        return KindSource(cache, lambda old, new: self._put(lambda: hear(old, new)))

    def _put(self, change: Callable[[], object]) -> None:
        self._inbox.append(change)
        self._wake.set()

    def _hear_of_pod(self, old: Pod | None, new: Pod | None) -> None:
        self._cluster.pod(old, new)
        self._bustle.observe()
        pod = new or old
        if pod is not None and (new is None or new.spec.node_name):
            self._scribe.forget_pod(pod.metadata.uid)
            self._binder.settled(pod.metadata.uid)
            self._standing.forget(pod.metadata.uid)

    def _hear_of_group(self, old: PodGroup | None, new: PodGroup | None) -> None:
        self._cluster.group(old, new)
        self._bustle.observe()

    def _hear_of_queue(self, old: Queue | None, new: Queue | None) -> None:
        self._cluster.queue(old, new)
        if new is None and old is not None:
            self._scribe.forget_queue(old.metadata.name)
        if new is not None:
            self._scribe.seen_queue(new)

    # -- out -----------------------------------------------------------------------------------

    async def _round(self) -> None:
        """Let a burst come in, apply it, decide, and hand the decision on."""
        await self._clock.sleep(_BUSY_PAUSE if self._bustle.quiet_in() else 0)
        self._wake.clear()
        await self._apply()
        if not self._cluster.has_news():
            return
        with self._metrics.cycle():
            if self._cluster.backlog() > self._settings.inline_tasks:
                decision = await asyncio.to_thread(self._core.decide)
            else:
                decision = self._core.decide()
        self._metrics.decided(decision)
        self._hand_on(decision)

    async def _apply(self) -> None:
        while self._inbox:
            changes, self._inbox = self._inbox[:_SLICE], self._inbox[_SLICE:]
            for change in changes:
                try:
                    change()
                except Exception:  # as any other handler of a cache: the other objects count on
                    log.exception("cannot take note of a change")
            await asyncio.sleep(0)

    def _hand_on(self, decision: Decision) -> None:
        for gang in decision.admitted:
            log.info("gang admitted", extra=self._about(gang.key))
        for placement in decision.placements:
            self._scribe.forget_pod(placement.uid)
        self._binder.bind(decision.placements)
        self._usher.let_in(decision.lifted)
        for gang in decision.gangs:
            self._tell(gang)
        for name, amounts in decision.queues.items():
            queue = self._cluster.queue_named(name).object
            if queue is not None:
                self._scribe.allocated(queue, amounts)

    def _about(self, key: str) -> dict[str, str]:
        """How the log names a gang."""
        gang = self._cluster.gangs.get(key)
        if gang is None or gang.group is None:
            return {"podgroup": key}
        return belonging("podgroup", gang.group.metadata)

    def _tell(self, gang: Gang) -> None:
        entered = not gang.is_pending
        busy = self._bustle.quiet_in() > 0
        told = report(gang, now=self._clock.monotonic(), busy=busy)
        self._scribe.tell(told, {note.uid: gang.tasks[note.uid].told for note in told.notes})
        if entered and gang.is_pending:
            self._put(lambda: self._cluster.touch(gang))
        elif told.again_in is not None:
            self._later.add(gang.key, told.again_in)

    def _see_again(self, key: str) -> None:
        gang = self._cluster.gangs.get(key)
        if gang is not None:
            self._put(lambda: self._cluster.touch(gang))
