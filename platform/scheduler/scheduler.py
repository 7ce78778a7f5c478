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
from ..model.log_fields import object_fields
from ..model.meta import HasMeta
from ..model.names import Resource
from ..model.podgroup import PodGroup
from ..model.queue import Queue
from . import conf
from .framework.framework import Framework
from .framework.session import CycleRunner, Decision
from .metrics import SchedulerMetrics
from .state.cache import SchedulerCache
from .state.core_types import Node, PersistentVolumeClaim, Pod, PriorityClass
from .state.gangs import Gang
from .writers.binder import Binder
from .writers.pod_versions import PodVersions
from .writers.podgroup_status import build_report
from .writers.scheduling_gates import SchedulingGateManager
from .writers.status_updater import StatusUpdater, WriteIntervals

log = logging.getLogger(__name__)

T = TypeVar("T", bound=HasMeta)

_BATCH_DELAY = 0.02
"""Seconds for which changes are collected before a cycle while much is going on: several make one
cycle then, for a delay that nobody notices."""

_EVENT_BATCH_SIZE = 200
"""Events applied before others on the loop get a turn: some 5 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """What can be set on a scheduler."""

    conf: str = conf.DEFAULT
    """Text of the scheduler configuration."""

    gang_scheduler_names: tuple[str, ...] = (names.SCHEDULER_NAME,)
    """``schedulerName`` of pods that are placed by their PodGroup."""

    pod_scheduler_names: tuple[str, ...] = ()
    """``schedulerName`` of pods that are placed one by one."""

    default_queue: str = names.DEFAULT_QUEUE
    """Queue of groups that name none."""

    queue_gates: bool = False
    """Whether pods lose the gate of their queue when that has room for them."""

    max_bindings_in_flight: int = 64
    """Bindings under way at once, and gates that are being lifted."""

    max_status_writes_in_flight: int = 16
    """Status writes under way at once."""

    inline_cycle_max_tasks: int = 200
    """Up to so many waiting pods a cycle is decided on the loop itself: it takes less than a few
    milliseconds then, and a thread would cost as much again in switching."""

    write_intervals: WriteIntervals = field(default_factory=WriteIntervals)
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
        loaded = conf.load(self._settings.conf)
        self._client = client
        self._clock = clock or SystemClock()
        self._scheduler_cache = SchedulerCache(
            gang_scheduler_names=self._settings.gang_scheduler_names,
            pod_scheduler_names=self._settings.pod_scheduler_names,
            default_queue=self._settings.default_queue,
            queue_gates=self._settings.queue_gates,
        )
        self._cycle_runner = CycleRunner(self._scheduler_cache, Framework(loaded), loaded.actions)
        self._metrics = SchedulerMetrics(
            self._settings.registry, self._scheduler_cache, clock=self._clock
        )
        self._cycle_runner.action_timer = self._metrics.action
        self._events: list[Callable[[], object]] = []
        self._wake = asyncio.Event()
        self._delayed_rechecks = DelayHeap(self._clock, self._recheck)
        self._pod_informer = Informer(client, names.PODS, Pod)
        self._pod_versions = PodVersions(self._pod_informer.get)
        self._change_rate = ChangeRate(self._clock)
        self._binder = Binder(
            client,
            recorder=recorder,
            clock=self._clock,
            max_in_flight=self._settings.max_bindings_in_flight,
            forget=lambda uid: self._enqueue_event(lambda: self._scheduler_cache.forget(uid)),
            log_fields=self._log_fields,
            pod_versions=self._pod_versions,
        )
        self._gate_manager = SchedulingGateManager(
            client,
            clock=self._clock,
            max_in_flight=self._settings.max_bindings_in_flight,
            pod_versions=self._pod_versions,
        )
        self._status_updater = StatusUpdater(
            client,
            recorder=recorder,
            clock=self._clock,
            pod_versions=self._pod_versions,
            max_in_flight=self._settings.max_status_writes_in_flight,
            write_intervals=self._settings.write_intervals,
            change_rate=self._change_rate,
        )
        if self._settings.work_metrics is not None:
            for queue in (self._binder.queue, self._status_updater.queue, self._gate_manager.queue):
                self._settings.work_metrics.register(queue)

    async def run(
        self, *, ready: asyncio.Event | None = None, elected: asyncio.Event | None = None
    ) -> None:
        """Schedule (not before *lead*) until cancelled; what is under way then is finished first.

        *ready* is set once the first picture of the cluster is complete.
        """
        cache = self._scheduler_cache
        sources = (
            self._source(
                self._informer(names.PRIORITYCLASSES, PriorityClass), cache.update_priority_class
            ),
            self._source(self._informer(names.QUEUES, Queue), self._on_queue),
            self._source(self._informer(names.NODES, Node), cache.update_node),
            self._source(
                self._informer(names.PERSISTENTVOLUMECLAIMS, PersistentVolumeClaim),
                cache.update_pvc,
            ),
            self._source(self._informer(names.PODGROUPS, PodGroup), self._on_podgroup),
            self._source(self._pod_informer, self._on_pod),
        )
        await run_controller(sources, self._run_workers, ready=ready, elected=elected)

    async def _run_workers(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._binder.run())
            tasks.create_task(self._status_updater.run())
            tasks.create_task(self._gate_manager.run())
            # A cycle that fails ends the process: what it has half decided must not stay in memory.
            await supervise("scheduling cycle", self._run_cycles, fatal=(Exception,))

    async def _run_cycles(self) -> None:
        while True:
            await self._wake.wait()
            await self._run_cycle()

    # -- in ------------------------------------------------------------------------------------

    def _informer(self, resource: Resource, view: type[T]) -> Informer[T]:
        return Informer(self._client, resource, view)

    def _source(
        self, informer: Informer[T], handler: Callable[[T | None, T | None], object]
    ) -> KindSource[T]:
        return KindSource(informer, lambda old, new: self._enqueue_event(lambda: handler(old, new)))

    def _enqueue_event(self, event: Callable[[], object]) -> None:
        self._events.append(event)
        self._wake.set()

    def _on_pod(self, old: Pod | None, new: Pod | None) -> None:
        self._scheduler_cache.update_pod(old, new)
        self._change_rate.observe()
        pod = new or old
        if pod is not None and (new is None or new.spec.node_name):
            self._status_updater.forget_pod(pod.metadata.uid)
            self._binder.forget_backoff(pod.metadata.uid)
            self._pod_versions.forget(pod.metadata.uid)

    def _on_podgroup(self, old: PodGroup | None, new: PodGroup | None) -> None:
        self._scheduler_cache.update_podgroup(old, new)
        self._change_rate.observe()

    def _on_queue(self, old: Queue | None, new: Queue | None) -> None:
        self._scheduler_cache.update_queue(old, new)
        if new is None and old is not None:
            self._status_updater.forget_queue(old.metadata.name)
        if new is not None:
            self._status_updater.observe_queue(new)

    # -- out -----------------------------------------------------------------------------------

    async def _run_cycle(self) -> None:
        """Let a burst come in, apply it, decide, and hand the decision on."""
        await self._clock.sleep(_BATCH_DELAY if self._change_rate.quiet_in() else 0)
        self._wake.clear()
        await self._apply_events()
        if not self._scheduler_cache.has_changes():
            return
        with self._metrics.cycle():
            if self._scheduler_cache.pending_task_count() > self._settings.inline_cycle_max_tasks:
                decision = await asyncio.to_thread(self._cycle_runner.run_once)
            else:
                decision = self._cycle_runner.run_once()
        self._metrics.record_decision(decision)
        self._dispatch(decision)

    async def _apply_events(self) -> None:
        while self._events:
            events, self._events = (
                self._events[:_EVENT_BATCH_SIZE],
                self._events[_EVENT_BATCH_SIZE:],
            )
            for event in events:
                try:
                    event()
                except Exception:  # as any other handler of a cache: the other objects count on
                    log.exception("cannot take note of a change")
            await asyncio.sleep(0)

    def _dispatch(self, decision: Decision) -> None:
        for gang in decision.enqueued:
            log.info("gang admitted", extra=self._log_fields(gang.key))
        for placement in decision.placements:
            self._status_updater.forget_pod(placement.uid)
        self._binder.bind(decision.placements)
        self._gate_manager.remove_gates(decision.ungated)
        for gang in decision.changed_gangs:
            self._submit_status(gang)
        for name, amounts in decision.allocated_by_queue.items():
            queue = self._scheduler_cache.queue_named(name).object
            if queue is not None:
                self._status_updater.set_allocated(queue, amounts)

    def _log_fields(self, key: str) -> dict[str, str]:
        """How the log names a gang."""
        gang = self._scheduler_cache.gangs.get(key)
        if gang is None or gang.podgroup is None:
            return {"podgroup": key}
        return object_fields("podgroup", gang.podgroup.metadata)

    def _submit_status(self, gang: Gang) -> None:
        was_enqueued = not gang.is_pending
        busy = self._change_rate.quiet_in() > 0
        podgroup_report = build_report(gang, now=self._clock.monotonic(), busy=busy)
        self._status_updater.submit(
            podgroup_report,
            {
                note.uid: gang.tasks[note.uid].reported_condition
                for note in podgroup_report.pod_conditions
            },
        )
        if was_enqueued and gang.is_pending:
            self._enqueue_event(lambda: self._scheduler_cache.mark_changed(gang))
        elif podgroup_report.requeue_after is not None:
            self._delayed_rechecks.add(gang.key, podgroup_report.requeue_after)

    def _recheck(self, key: str) -> None:
        gang = self._scheduler_cache.gangs.get(key)
        if gang is not None:
            self._enqueue_event(lambda: self._scheduler_cache.mark_changed(gang))
