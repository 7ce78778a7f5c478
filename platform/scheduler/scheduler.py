"""The scheduler: informers in, scheduling cycles, binder and status updater out.

1. Informers put events into the inbox; nothing else changes the scheduler cache.
2. When the inbox has events, a batch of them is applied and one cycle is run. Cycles have no
   period: a gang that fits is scheduled at once.
3. A small cycle runs on the event loop; a large one in a thread, while the loop receives events
   and writes bindings. The loop does not use the scheduler cache until the cycle has finished.
4. The decision of the cycle is immutable. It goes to the binder, the gate manager, the status
   updater and the metrics; their results arrive by watch or as another event.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from prometheus_client import CollectorRegistry

from ..kube.client.client import Client
from ..kube.informer.informer import Informer, KindSource
from ..kube.supervision import supervise
from ..machinery.change_rate import ChangeRate
from ..machinery.clock import Clock, SystemClock
from ..machinery.delay_heap import DelayHeap
from ..machinery.event_recorder import Recorder, object_reference
from ..machinery.lifecycle import run_controller
from ..machinery.metrics import WorkQueueMetrics
from ..model import names
from ..model.meta import HasMeta
from ..model.names import Resource
from ..model.podgroup import PodGroup
from ..model.queue import Queue
from . import conf
from .conf_reload import ConfReloader
from .cycle_runner import CycleRunner
from .framework.decision import Decision
from .framework.framework import Framework
from .metrics import ReloadMetrics, SchedulerMetrics
from .state.cache import SchedulerCache
from .state.core_types import Node, PersistentVolumeClaim, Pod, PriorityClass
from .state.events import (
    CacheEvent,
    NodeEvent,
    PlacementForgotten,
    PodEvent,
    PodGroupEvent,
    PriorityClassEvent,
    PVCEvent,
    QueueEvent,
    Recheck,
)
from .writers.binder import Binder
from .writers.pod_versions import PodVersions
from .writers.scheduling_gates import SchedulingGateManager
from .writers.status_updater import StatusUpdater, WriteIntervals

log = logging.getLogger(__name__)

T = TypeVar("T", bound=HasMeta)

_BATCH_DELAY = 0.02
"""Seconds for which events are collected before a cycle while the change rate is high, so that one
cycle handles several."""

_EVENT_BATCH_SIZE = 200
"""Events applied before the scheduler yields to the event loop: some 5 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """Settings of a scheduler."""

    conf: str = conf.DEFAULT
    """Text of the scheduler configuration."""

    conf_file: Path | None = None
    """File that *conf* was read from, to be read again when it changes."""

    gang_scheduler_names: tuple[str, ...] = (names.SCHEDULER_NAME,)
    """``schedulerName`` of pods that are scheduled with their PodGroup."""

    pod_scheduler_names: tuple[str, ...] = ()
    """``schedulerName`` of pods that are scheduled one by one."""

    default_queue: str = names.DEFAULT_QUEUE
    """Queue of PodGroups that name none."""

    queue_gates: bool = False
    """Whether the scheduler removes queue gates."""

    max_bindings_in_flight: int = 64
    """Concurrent bindings, and concurrent removals of gates."""

    max_status_writes_in_flight: int = 16
    """Concurrent status writes."""

    inline_cycle_max_tasks: int = 200
    """Pending tasks up to which a cycle runs on the event loop: it takes a few milliseconds at most
    then, and a thread would cost as much again in switching."""

    write_intervals: WriteIntervals = field(default_factory=WriteIntervals)
    """How often statuses are written."""

    registry: CollectorRegistry | None = None
    """Registry of the scheduler's metrics, if any."""

    work_metrics: WorkQueueMetrics | None = None
    """Metrics of the work queues, if any."""


class Scheduler:
    """Schedules the pods of one cluster. To be run once."""

    def __init__(
        self,
        client: Client,
        *,
        settings: SchedulerSettings | None = None,
        clock: Clock | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        """Create a scheduler; without a *recorder* it records no events.

        Raises:
            ConfError: the configuration is invalid.
        """
        self._settings = settings or SchedulerSettings()
        loaded = conf.load(self._settings.conf)
        self._client = client
        self._clock = clock or SystemClock()
        self._recorder = recorder
        self._scheduler_cache = _new_cache(self._settings)
        self._metrics = SchedulerMetrics(self._settings.registry, clock=self._clock)
        self._cycle_runner = CycleRunner(
            self._scheduler_cache, Framework(loaded.tiers), loaded.actions
        )
        self._cycle_runner.action_timer = self._metrics.action
        self._events: list[CacheEvent] = []
        self._wake = asyncio.Event()
        self._new_conf: conf.Conf | None = None
        self._reloader = self._conf_reloader()
        self._delayed_rechecks = DelayHeap(
            self._clock, lambda key: self._enqueue_event(Recheck(key))
        )
        self._pod_informer = Informer(client, names.PODS, Pod)
        self._pod_versions = PodVersions(self._pod_informer.get)
        self._change_rate = ChangeRate(self._clock)
        self._binder = Binder(
            client,
            recorder=recorder,
            clock=self._clock,
            max_in_flight=self._settings.max_bindings_in_flight,
            forget=lambda uid: self._enqueue_event(PlacementForgotten(uid)),
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
        """Schedule (not before *elected*) until cancelled; writes in flight are finished first.

        *ready* is set once all informers are synced.
        """
        sources = (
            self._source(self._informer(names.PRIORITYCLASSES, PriorityClass), PriorityClassEvent),
            self._source(self._informer(names.QUEUES, Queue), QueueEvent),
            self._source(self._informer(names.NODES, Node), NodeEvent),
            self._source(
                self._informer(names.PERSISTENTVOLUMECLAIMS, PersistentVolumeClaim), PVCEvent
            ),
            self._source(self._informer(names.PODGROUPS, PodGroup), PodGroupEvent),
            self._source(self._pod_informer, PodEvent),
        )
        await run_controller(sources, self._run_workers, ready=ready, elected=elected)

    async def _run_workers(self) -> None:
        if self._reloader is not None:
            await self._reloader.poll()  # it may have changed while this replica was waiting
        async with asyncio.TaskGroup() as tasks:
            if self._reloader is not None:
                tasks.create_task(supervise("configuration reload", self._reloader.run))
            tasks.create_task(self._binder.run())
            tasks.create_task(self._status_updater.run())
            tasks.create_task(self._gate_manager.run())
            # A failed cycle ends the process: it may leave the scheduler cache half changed.
            await supervise("scheduling cycle", self._run_cycles, fatal=(Exception,))

    async def _run_cycles(self) -> None:
        while True:
            await self._wake.wait()
            await self._run_cycle()

    # -- configuration -------------------------------------------------------------------------

    def _conf_reloader(self) -> ConfReloader | None:
        if self._settings.conf_file is None:
            return None
        return ConfReloader(
            self._settings.conf_file,
            loaded=self._settings.conf,
            use=self._use_conf,
            report=self._report_invalid_conf,
            clock=self._clock,
            metrics=ReloadMetrics(self._settings.registry, clock=self._clock),
        )

    def _use_conf(self, loaded: conf.Conf) -> None:
        """Use *loaded* from the next cycle on."""
        self._new_conf = loaded
        self._wake.set()

    def _report_invalid_conf(self, problem: str) -> None:
        root = self._scheduler_cache.queues.get(names.ROOT_QUEUE)
        if self._recorder is not None and root is not None and root.object is not None:
            self._recorder.record(
                object_reference(names.QUEUES, root.object.metadata),
                type="Warning",
                reason="InvalidSchedulerConfiguration",
                message=f"the previous scheduler configuration stays in use: {problem}",
            )

    def _switch_conf(self) -> None:
        """Switch to a new configuration, if there is one; rejected gangs are tried again."""
        if self._new_conf is not None:
            loaded, self._new_conf = self._new_conf, None
            self._cycle_runner.configure(Framework(loaded.tiers), loaded.actions)
            self._scheduler_cache.capacity_generation += 1

    # -- events --------------------------------------------------------------------------------

    def _informer(self, resource: Resource, view: type[T]) -> Informer[T]:
        return Informer(self._client, resource, view)

    def _source(
        self, informer: Informer[T], event: Callable[[T | None, T | None], CacheEvent]
    ) -> KindSource[T]:
        return KindSource(informer, lambda old, new: self._enqueue_event(event(old, new)))

    def _enqueue_event(self, event: CacheEvent) -> None:
        self._events.append(event)
        self._wake.set()

    async def _apply_events(self) -> None:
        while self._events:
            events, self._events = (
                self._events[:_EVENT_BATCH_SIZE],
                self._events[_EVENT_BATCH_SIZE:],
            )
            for event in events:
                try:
                    self._handle_event(event)
                except Exception:  # as in an informer: a failed handler does not affect the others
                    log.exception("cannot handle event", extra={"event": type(event).__name__})
            await asyncio.sleep(0)

    def _handle_event(self, event: CacheEvent) -> None:
        """Apply *event* to the cache, and drop what writers hold about deleted or bound objects."""
        self._scheduler_cache.apply(event)
        match event:
            case PodEvent(old, new):
                self._change_rate.observe()
                pod = new or old
                if pod is not None and (new is None or new.spec.node_name):
                    self._status_updater.forget_pod(pod.metadata.uid)
                    self._binder.forget_backoff(pod.metadata.uid)
                    self._pod_versions.forget(pod.metadata.uid)
            case PodGroupEvent():
                self._change_rate.observe()
            case QueueEvent(_, Queue() as queue):
                self._status_updater.observe_queue(queue)
            case QueueEvent(Queue() as deleted, None):
                self._status_updater.forget_queue(deleted.metadata.name)

    # -- cycles --------------------------------------------------------------------------------

    async def _run_cycle(self) -> None:
        """Collect and apply a batch of events, run a cycle, and dispatch its decision."""
        await self._clock.sleep(_BATCH_DELAY if self._change_rate.quiet_in() else 0)
        self._wake.clear()
        self._switch_conf()
        await self._apply_events()
        if not self._scheduler_cache.has_changes():
            return
        with self._metrics.cycle():
            decision = await self._decide()
        self._metrics.record_decision(decision)
        self._dispatch(decision)

    async def _decide(self) -> Decision:
        now, busy = self._clock.monotonic(), self._change_rate.quiet_in() > 0
        if self._scheduler_cache.pending_task_count() > self._settings.inline_cycle_max_tasks:
            return await asyncio.to_thread(self._cycle_runner.run_once, now=now, busy=busy)
        return self._cycle_runner.run_once(now=now, busy=busy)

    def _dispatch(self, decision: Decision) -> None:
        for gang in decision.enqueued:
            log.info("gang admitted", extra=gang.log_fields())
        for placement in decision.placements:
            self._status_updater.forget_pod(placement.uid)
        self._binder.bind(decision.placements)
        self._gate_manager.remove_gates(decision.ungated)
        for report in decision.reports:
            self._status_updater.submit(report)
            if report.requeue_after == 0:
                self._enqueue_event(Recheck(report.key))
            elif report.requeue_after is not None:
                self._delayed_rechecks.add(report.key, report.requeue_after)
        for allocation in decision.queue_allocations:
            self._status_updater.set_allocated(allocation.queue, allocation.allocated)


def _new_cache(settings: SchedulerSettings) -> SchedulerCache:
    return SchedulerCache(
        gang_scheduler_names=settings.gang_scheduler_names,
        pod_scheduler_names=settings.pod_scheduler_names,
        default_queue=settings.default_queue,
        queue_gates=settings.queue_gates,
    )
