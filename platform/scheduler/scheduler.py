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
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from prometheus_client import CollectorRegistry

from ..kube.client.client import Client
from ..kube.informer.informer import Informer, KindSource, OptionalSource
from ..kube.supervision import supervise
from ..machinery.change_rate import ChangeRate
from ..machinery.clock import Clock, SystemClock, Timer
from ..machinery.delay_heap import DelayHeap
from ..machinery.event_recorder import Recorder, object_reference
from ..machinery.lifecycle import Source, run_controller
from ..machinery.metrics import WorkQueueMetrics
from ..model import names
from ..model.hypernode import HyperNode
from ..model.meta import HasMeta
from ..model.names import Resource
from ..model.podgroup import PodGroup
from ..model.queue import Queue
from . import conf
from .conf import Conf
from .conf_reload import ConfReloader
from .cycle_runner import CycleRunner
from .cycle_time_limit import CycleTimeLimit
from .framework.decision import Decision
from .framework.framework import Framework
from .framework.stranded_gangs import DEFAULT_TIMEOUT
from .metrics import ReloadMetrics, SchedulerMetrics
from .native_informers import NativeInformers
from .node_metrics import NodeMetricsReader
from .pod_owners import PodOwners
from .simulation.simulation import Simulations
from .state.cache.cache import SchedulerCache
from .state.cache.events import (
    CacheEvent,
    DeclarationsChanged,
    EvictionForgotten,
    HyperNodeEvent,
    NamespaceEvent,
    NativePodGroupEvent,
    NodeEvent,
    NumatopologyEvent,
    PlacementForgotten,
    PodDisruptionBudgetEvent,
    PodEvent,
    PodGroupEvent,
    PriorityClassEvent,
    QueueEvent,
    Recheck,
    ResourceQuotaEvent,
)
from .state.cache.resource_quotas import ResourceQuota
from .state.core_types import (
    Namespace,
    Node,
    Pod,
    PriorityClass,
)
from .state.gangs.disruption_budgets import PodDisruptionBudget
from .state.nodes.numa_topology import Numatopology
from .state.queue.scheduling_queue import ANY, ClusterEvent
from .storage_sources import StorageSources
from .writers.binder import Binder
from .writers.claim_binder import ClaimBinder
from .writers.evictor import Evictor
from .writers.kept_entries import kept_entries
from .writers.nominator import Nominator
from .writers.object_events import record_delay, record_ignored_budget, record_incomplete
from .writers.placement_check import PlacementCheck
from .writers.pod_versions import PodVersions
from .writers.pre_binder import PreBinder
from .writers.scheduling_gates import SchedulingGateManager
from .writers.status_updater import StatusUpdater, WriteIntervals
from .writers.volume_binder import VolumeBinder

log = logging.getLogger(__name__)

T = TypeVar("T", bound=HasMeta)

_BATCH_DELAY = 0.05
"""Seconds for which events are collected before a cycle while the change rate is high, so that one
cycle handles several."""

_MAX_STATUS_WRITES_IN_FLIGHT = 64
"""Concurrent status writes, among them admissions. With fewer than the writes of the job
controller, a busy API server serves those first, and gangs wait for their admission."""

_EVICTION_RETRY_DELAY = 300.0
"""Seconds for which a pod whose eviction was refused is not chosen again."""

_MIN_RETRY_DELAY = 0.01
"""Seconds until a cycle for gangs that are due, so that several are tried in one."""

_EVENT_BATCH_SIZE = 200
"""Events applied before the scheduler yields to the event loop: some 5 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """Settings of a scheduler."""

    conf: str = conf.DEFAULT
    """Text of the scheduler configuration."""

    strict_conf: bool = False
    """Whether a configuration with a plugin of Volcano that is not implemented is invalid; else the
    plugin is disabled and reported."""

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

    place_at_creation: bool = False
    """Whether members that the job controller describes are allocated before their pods exist."""

    max_bindings_in_flight: int = 64
    """Concurrent bindings, and concurrent removals of gates."""

    stranded_gang_timeout: float = DEFAULT_TIMEOUT
    """Seconds after which the bound members of a gang that was never complete are evicted."""

    inline_cycle_max_tasks: int = 200
    """Pending tasks up to which a cycle runs on the event loop: it takes a few milliseconds at most
    then, and a thread would cost as much again in switching."""

    write_intervals: WriteIntervals = field(default_factory=WriteIntervals)
    """How often statuses are written."""

    registry: CollectorRegistry | None = None
    """Registry of the scheduler's metrics, if any."""

    work_metrics: WorkQueueMetrics | None = None
    """Metrics of the work queues, if any."""

    def load_conf(self, text: str) -> Conf:
        """Return the scheduler configuration *text*, parsed.

        Raises:
            ConfError: it is invalid.
        """
        served = (*self.gang_scheduler_names, *self.pod_scheduler_names)
        return conf.load(text, strict=self.strict_conf, scheduler_names=served)


class Scheduler:
    """Schedules the pods of one cluster. To be run once."""

    _loop: asyncio.AbstractEventLoop | None = None
    """The event loop in which it runs, once it does."""

    restored: asyncio.Event | None = None
    """Set once what is kept over restarts is restored, if it will be."""

    _retry_timer: Timer | None = None
    _new_conf: conf.Conf | None = None

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
        loaded = self._settings.load_conf(self._settings.conf)
        self._client = client
        self._clock = clock or SystemClock()
        self._recorder = recorder
        self.cache = _new_cache(self._settings)
        self.kept_entries = kept_entries(self.cache, self._clock)
        self._metrics = SchedulerMetrics(self._settings.registry, clock=self._clock)
        self.cycle_runner = self._new_cycle_runner(loaded)
        self._time_limit = CycleTimeLimit(self._clock)
        self.pending_events: list[CacheEvent] = []  # the next cycle applies them to the cache
        self._published: set[ClusterEvent] = set()
        self._wake = asyncio.Event()
        self.simulations = Simulations(self._clock, self._wake.set)
        self._node_metrics = self._node_metrics_reader(loaded)
        self._set_disabled_plugins(loaded)
        self._reloader = self._conf_reloader()
        self._delayed_rechecks = DelayHeap(self._clock, self._recheck)
        self._pod_informer = Informer(client, names.PODS, Pod)
        self._node_informer = Informer(client, names.NODES, Node)
        self._podgroup_informer = Informer(client, names.PODGROUPS, PodGroup)
        self._storage = StorageSources(client, self._enqueue_event)
        self._native_informers = NativeInformers(client, self._enqueue_event)
        self._pod_owners = self._new_pod_owners(loaded)
        self._numa_sources = self._new_numa_sources(loaded)
        self._pod_versions = PodVersions(self._pod_informer.get)
        self._change_rate = ChangeRate(self._clock)
        self._volume_binder = self._new_volume_binder(client)
        self._claim_binder = ClaimBinder(
            client, clock=self._clock, claims=self._storage.device_claims.get
        )
        self.binder = self._new_binder(client, recorder)
        self._evictor = self._new_evictor(client, recorder)
        self._nominator = Nominator(
            client,
            clock=self._clock,
            max_in_flight=self._settings.max_bindings_in_flight,
            pod_versions=self._pod_versions,
        )
        self._gate_manager = SchedulingGateManager(
            client,
            clock=self._clock,
            max_in_flight=self._settings.max_bindings_in_flight,
            pod_versions=self._pod_versions,
        )
        self._status_updater = self._new_status_updater(client, recorder)
        self._register_queues()

    def _new_cycle_runner(self, loaded: conf.Conf) -> CycleRunner:
        runner = CycleRunner(
            self.cache,
            Framework(loaded.tiers, self._publish_from_thread),
            loaded.actions,
            stranded_timeout=self._settings.stranded_gang_timeout,
        )
        runner.action_timer = self._time_action
        return runner

    def _new_pod_owners(self, loaded: Conf) -> PodOwners | None:
        if not loaded.has_default_spread:
            return None
        return PodOwners(self._client, self._enqueue_event)

    def _new_numa_sources(self, loaded: Conf) -> tuple[OptionalSource[Numatopology], ...]:
        if not loaded.uses_numatopologies:
            return ()
        return (self._optional_source(names.NUMATOPOLOGIES, Numatopology, NumatopologyEvent),)

    def _register_queues(self) -> None:
        if self._settings.work_metrics is not None:
            pod_writers = (self.binder, self._gate_manager, self._evictor, self._nominator)
            for writer in (self._status_updater, *pod_writers):
                self._settings.work_metrics.register(writer.queue)

    def _new_status_updater(self, client: Client, recorder: Recorder | None) -> StatusUpdater:
        return StatusUpdater(
            client,
            recorder=recorder,
            clock=self._clock,
            pod_versions=self._pod_versions,
            max_in_flight=_MAX_STATUS_WRITES_IN_FLIGHT,
            write_intervals=self._settings.write_intervals,
            change_rate=self._change_rate,
        )

    def _new_evictor(self, client: Client, recorder: Recorder | None) -> Evictor:
        return Evictor(
            client,
            recorder=recorder,
            clock=self._clock,
            max_in_flight=self._settings.max_bindings_in_flight,
            forget=self._forget_eviction,
        )

    def _new_binder(self, client: Client, recorder: Recorder | None) -> Binder:
        return Binder(
            client,
            recorder=recorder,
            clock=self._clock,
            max_in_flight=self._settings.max_bindings_in_flight,
            forget=lambda uid: self._enqueue_event(PlacementForgotten(uid)),
            pod_versions=self._pod_versions,
            check=PlacementCheck(
                nodes=self._node_informer.get,
                pods=self._pod_informer.get,
                podgroups=self._podgroup_informer.get,
                native_podgroups=self._native_informers.get,
            ),
            count_stale=self._metrics.count_stale_placements,
            reserved=self.cycle_runner.reserved,
            pre_binder=PreBinder(
                self.cycle_runner.reserved,
                clock=self._clock,
                count_failures=self._metrics.count_plugin_failures,
            ),
            volume_binder=self._volume_binder,
            claim_binder=self._claim_binder,
        )

    def _new_volume_binder(self, client: Client) -> VolumeBinder:
        return VolumeBinder(
            client,
            clock=self._clock,
            pvcs=self._storage.pvcs.get,
            volumes=self._storage.volumes.get,
            nodes=self._node_informer.get,
            pods=self._pod_informer.get,
            timeout=lambda: self.cycle_runner.volume_bind_timeout,
        )

    async def run(
        self, *, ready: asyncio.Event | None = None, elected: asyncio.Event | None = None
    ) -> None:
        """Schedule (not before *elected*) until cancelled; writes in flight are finished first.

        *ready* is set once all informers are synced.
        """
        self._loop, api = asyncio.get_running_loop(), self._client
        sources: tuple[Source, ...] = (
            self._source(Informer(api, names.PRIORITYCLASSES, PriorityClass), PriorityClassEvent),
            self._optional_source(names.NAMESPACES, Namespace, NamespaceEvent),
            *self._storage,
            self._source(Informer(api, names.QUEUES, Queue), QueueEvent),
            self._source(self._node_informer, NodeEvent),
            self._optional_source(
                names.POD_DISRUPTION_BUDGETS, PodDisruptionBudget, PodDisruptionBudgetEvent
            ),
            self._optional_source(names.RESOURCEQUOTAS, ResourceQuota, ResourceQuotaEvent),
            self._optional_source(names.HYPERNODES, HyperNode, HyperNodeEvent),
            *self._numa_sources,
            self._source(self._podgroup_informer, PodGroupEvent),
            *self._native_informers.sources,
            *(self._pod_owners or ()),
            self._source(self._pod_informer, PodEvent),
        )
        await run_controller(sources, self._run_workers, ready=ready, elected=elected)

    async def _run_workers(self) -> None:
        if self._reloader is not None:
            await self._reloader.poll()  # it may have changed while this replica was waiting
        async with asyncio.TaskGroup() as tasks:
            if self._reloader is not None:
                tasks.create_task(supervise("configuration reload", self._reloader.run))
            tasks.create_task(supervise("measurement of nodes", self._node_metrics.run))
            tasks.create_task(self.binder.run())
            tasks.create_task(self._status_updater.run())
            tasks.create_task(self._gate_manager.run())
            tasks.create_task(self._evictor.run())
            tasks.create_task(self._nominator.run())
            # A failed cycle ends the process: it may leave the scheduler cache half changed.
            await supervise("scheduling cycle", self._run_cycles, fatal=(Exception,))

    async def _run_cycles(self) -> None:
        if self.restored is not None and self.cycle_runner.has_plugin("fairshare"):
            await self.restored.wait()
        while True:
            await self._wake.wait()
            await self._run_cycle()
            self.simulations.start_waiting(self.cache, self.cycle_runner)

    # -- configuration -------------------------------------------------------------------------

    def _node_metrics_reader(self, loaded: conf.Conf) -> NodeMetricsReader:
        reader = NodeMetricsReader(self._client, clock=self._clock, deliver=self._enqueue_event)
        reader.set_source(loaded.metrics_source)
        return reader

    def _conf_reloader(self) -> ConfReloader | None:
        if self._settings.conf_file is None:
            return None
        return ConfReloader(
            self._settings.conf_file,
            loaded=self._settings.conf,
            load=self._load_conf,
            use=self._use_conf,
            report=self._report_invalid_conf,
            clock=self._clock,
            metrics=ReloadMetrics(self._settings.registry, clock=self._clock),
        )

    def _load_conf(self, text: str) -> Conf:
        """Return a configuration that replaces the one in use.

        Raises:
            ConfError: it is invalid, or needs what is watched only if it is configured at the
                start.
        """
        loaded = self._settings.load_conf(text)
        if loaded.has_default_spread and self._pod_owners is None:
            raise conf.ConfError(
                "podtopologyspread.defaultConstraints and defaultingType: the scheduler has to be "
                "restarted for the first default constraints"
            )
        if loaded.uses_numatopologies and not self._numa_sources:
            raise conf.ConfError(
                "numa-aware: the scheduler has to be restarted to watch Numatopologies"
            )
        return loaded

    def _use_conf(self, loaded: conf.Conf) -> None:
        """Use *loaded* from the next cycle on."""
        self._new_conf = loaded
        self._wake.set()

    def _set_disabled_plugins(self, loaded: conf.Conf) -> None:
        self.disabled_plugins = loaded.disabled_text
        """Which configured plugins are disabled and why; empty if none is."""
        self._unreported_plugins = loaded.disabled_text
        self._metrics.set_disabled_plugins(loaded.disabled)
        for name, path in loaded.disabled.items():
            log.warning(
                "scheduler plugin is not implemented, disabled",
                extra={"plugin": name, "path": path},
            )

    def _report_disabled_plugins(self) -> None:
        """Record an event, as soon as the root queue is known."""
        if self._unreported_plugins and self._warn_on_root_queue(
            "DisabledSchedulerPlugins", self._unreported_plugins
        ):
            self._unreported_plugins = ""

    def _report_invalid_conf(self, problem: str) -> None:
        self._warn_on_root_queue(
            "InvalidSchedulerConfiguration",
            f"the previous scheduler configuration stays in use: {problem}",
        )

    def _warn_on_root_queue(self, reason: str, message: str) -> bool:
        """Record a Warning event on the root queue; return whether the queue exists."""
        root = self.cache.queues.by_name.get(names.ROOT_QUEUE)
        if root is None or root.object is None:
            return False
        if self._recorder is not None:
            reference = object_reference(names.QUEUES, root.object.metadata)
            self._recorder.record(reference, type="Warning", reason=reason, message=message)
        return True

    def _switch_conf(self) -> None:
        """Switch to a new configuration, if there is one; rejected gangs are tried again.

        To be called before events are applied, some of which may be of pods to be classified again.
        """
        if self._new_conf is not None:
            loaded, self._new_conf = self._new_conf, None
            defaults = self.cache.pod_classes.eq_classes.defaults
            before = (self.cache.pod_fields, defaults.spread)
            framework = Framework(loaded.tiers, self._publish_from_thread)
            self.cycle_runner.configure(framework, loaded.actions)
            if (framework.pod_fields, framework.default_spread) != before:
                self.pending_events += map(DeclarationsChanged, self._pod_informer)
            self._node_metrics.set_source(loaded.metrics_source)
            self._set_disabled_plugins(loaded)
            self.cache.scheduling_queue.publish(ANY)

    # -- events --------------------------------------------------------------------------------

    def _source(
        self, informer: Informer[T], event: Callable[[T | None, T | None], CacheEvent]
    ) -> KindSource[T]:
        return KindSource(informer, lambda old, new: self._enqueue_event(event(old, new)))

    def _optional_source(
        self,
        resource: Resource,
        view: type[T],
        event: Callable[[T | None, T | None], CacheEvent],
    ) -> OptionalSource[T]:
        """Return the source of a kind without which the scheduler works, too."""
        informer = Informer(self._client, resource, view)
        return OptionalSource(informer, lambda old, new: self._enqueue_event(event(old, new)))

    def _forget_eviction(self, uid: str) -> None:
        until = self._clock.now().timestamp() + _EVICTION_RETRY_DELAY
        self._enqueue_event(EvictionForgotten(uid, until))

    def _publish_from_thread(self, event: ClusterEvent) -> None:
        """Let the next cycle try the gangs that wait for *event*; callable from any thread."""
        if self._loop is not None:  # else all gangs will be tried
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._publish, event)

    def _publish(self, event: ClusterEvent) -> None:
        self._published.add(event)
        self._wake.set()

    def _recheck(self, key: str) -> None:
        self._enqueue_event(Recheck(key))

    def _enqueue_event(self, event: CacheEvent) -> None:
        self.pending_events.append(event)
        self._wake.set()

    async def _apply_events(self) -> None:
        while self._published:
            self.cache.scheduling_queue.publish(self._published.pop())
        if self._pod_owners is not None:
            self.pending_events += self._pod_owners.pop_events(self._pod_informer)
        while self.pending_events:
            events, self.pending_events = (
                self.pending_events[:_EVENT_BATCH_SIZE],
                self.pending_events[_EVENT_BATCH_SIZE:],
            )
            for event in events:
                try:
                    self._handle_event(event)
                except Exception:  # as in an informer: a failed handler does not affect the others
                    log.exception("cannot handle event", extra={"event": type(event).__name__})
            await asyncio.sleep(0)

    def _handle_event(self, event: CacheEvent) -> None:
        """Apply *event* to the cache, and drop what writers hold about deleted or bound objects."""
        self.cache.apply(event)
        self._volume_binder.observe(event)
        self._claim_binder.observe(event)
        match event:
            case PodEvent(old, new):
                self._change_rate.observe()
                pod = new or old
                if new is not None and self.cache.task(new.metadata.uid):
                    self._evictor.observe(new)
                elif pod is not None:
                    self._evictor.discard(pod.metadata.uid)
                if pod is not None and (new is None or new.spec.node_name):
                    self._status_updater.forget_pod(pod.metadata.uid)
                    self.binder.forget_backoff(pod.metadata.uid)
                    self._pod_versions.forget(pod.metadata.uid)
            case PodGroupEvent() | NativePodGroupEvent():
                self._change_rate.observe()
            case QueueEvent(former, Queue() as queue):
                self._status_updater.observe_queue(queue)
                if not self.cycle_runner.has_plugin("fairshare"):
                    record_ignored_budget(self._recorder, former, queue)
            case QueueEvent(Queue() as deleted, None):
                self._status_updater.forget_queue(deleted.metadata.name)

    # -- cycles --------------------------------------------------------------------------------

    async def _run_cycle(self) -> None:
        """Collect and apply a batch of events, run a cycle, and dispatch its decision.

        A cycle that takes long leaves the rest to the next one, which starts at once.
        """
        cache = self.cache
        if not cache.changes.is_unfinished:
            await self._clock.sleep(_BATCH_DELAY if self._change_rate.quiet_in() else 0)
        self._wake.clear()
        self._switch_conf()
        await self._apply_events()
        self._claim_binder.release(cache.pod_classes.device_claims.stale(cache.task))
        failures = self.cycle_runner.reserved.release_lost(cache.task)
        self._metrics.count_plugin_failures(failures)
        self._report_disabled_plugins()
        if not cache.has_changes() and not self._has_due_retries():
            self._schedule_retries()
            return
        with self._metrics.cycle():
            decision = await self._decide()
        self._metrics.record_decision(decision)
        self._dispatch(decision)
        self._schedule_retries()
        if cache.has_changes():
            self._wake.set()

    def _time_action(self, name: str) -> AbstractContextManager[object]:
        self._time_limit.start_action()
        return self._metrics.action(name)

    async def _decide(self) -> Decision:
        now, busy = self._clock.monotonic(), self._change_rate.quiet_in() > 0
        time, at_most = self._time(), self._settings.inline_cycle_max_tasks
        run = partial(
            self.cycle_runner.run_once,
            now=now,
            time=time,
            busy=busy,
            interrupted=self._time_limit.is_reached,
            prepared=True,
        )
        self._time_limit.start_cycle()
        if self.cycle_runner.tasks_to_try(time=time, at_most=at_most, now=now) > at_most:
            return await asyncio.to_thread(run)
        return run()

    def _time(self) -> float:
        return self._clock.now().timestamp()

    def _has_due_retries(self) -> bool:
        due = self._next_due()
        return due is not None and due <= self._time()

    def _next_due(self) -> float | None:
        """Return when a gang is to be tried again, a plan ends, nodes are not kept any more, or
        pods are to be evicted, in Unix time."""
        cache = self.cache
        due = (
            cache.scheduling_queue.next_due(),
            cache.planned.next_due(),
            cache.reservations.next_due(),
            self.cycle_runner.next_due(),
        )
        return min((each for each in due if each is not None), default=None)

    def _schedule_retries(self) -> None:
        """Let the next cycle run when a rejected gang is due."""
        due = self._next_due()
        if self._retry_timer is not None:
            self._retry_timer.cancel()
            self._retry_timer = None
        if due is not None:
            delay = max(due - self._time(), _MIN_RETRY_DELAY)
            self._retry_timer = self._clock.call_later(delay, self._wake.set)

    def _dispatch(self, decision: Decision) -> None:
        for gang in decision.enqueued:
            log.info("gang admitted", extra=gang.log_fields())
        for placement in decision.placements:
            self._status_updater.forget_pod(placement.uid)
        self.binder.bind(decision.placements)
        self._nominator.nominate(
            decision.nominations, partial(self._evictor.evict, decision.evictions)
        )
        self._gate_manager.remove_gates(decision.ungated)
        for report in decision.reports:
            self._status_updater.submit(report)
            if report.requeue_after == 0:
                self._enqueue_event(Recheck(report.key))
            elif report.requeue_after is not None:
                self._delayed_rechecks.add(report.key, report.requeue_after)
        for key, delay in decision.rechecks.items():
            self._delayed_rechecks.add(key, delay)
        for eviction in decision.incomplete:
            log.info("stranded gang evicted", extra=eviction.gang.log_fields())
            record_incomplete(self._recorder, eviction)
        for start_delay in decision.delays:
            record_delay(self._recorder, start_delay)
        for allocation in decision.queue_allocations:
            self._status_updater.set_allocated(allocation.queue, allocation.allocated)


def _new_cache(settings: SchedulerSettings) -> SchedulerCache:
    return SchedulerCache(
        gang_scheduler_names=settings.gang_scheduler_names,
        pod_scheduler_names=settings.pod_scheduler_names,
        default_queue=settings.default_queue,
        queue_gates=settings.queue_gates,
        place_at_creation=settings.place_at_creation,
    )
