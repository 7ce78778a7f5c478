"""Simulated nodes: pods run by timers instead of processes, with the same state machine.

One informer has the pods of all nodes, one heap the scheduled events. A fixed number of writers
writes the latest status of changed pods: one write when a pod runs, another when it exits.
"""

import asyncio
import heapq
import itertools
import logging
import math
import zlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec

from ....kube.client.client import Client, PatchType
from ....kube.errors import ApiError, ConnectionLostError, NotFoundError
from ....kube.informer.informer import Informer
from ....kube.supervision import TASK_RESTARTS, supervise
from ....kube.timing import Timing
from ....machinery.clock import Clock, SteadyClock, Timer
from ....model.base import ApiStruct
from ....model.log_fields import object_fields
from ....model.names import PODS
from ....model.service_network import HOST_RANGES
from ..node_status import NodeConfig, NodeStatusManager
from ..retry import retry_delay, retry_until_done
from ..settings import AgentSettings, ShutdownRequest, SimulationSettings
from ..state import pod_actions, rendering, status
from ..state.core_types import Pod, PodStatus
from ..state.resizes import shows_resize
from ..state.status import (
    RESIZE,
    SIGKILL_EXIT_CODE,
    SIGTERM_EXIT_CODE,
    Accepted,
    AllRestarted,
    Event,
    Exited,
    PodState,
    PodTermination,
    Prepared,
    Started,
)
from ..state.status_reader import state_from_status, with_steady_times
from ..status_writes import handle_write_error, status_patch
from .plan import plan_pod, plan_run
from .resizer import SimulatedPod, SimulatedResizer

log = logging.getLogger(__name__)

_MAX_EVENTS_PER_TICK = 200
_INITIAL_BACKOFF, _MAX_BACKOFF = 0.2, 10.0


@dataclass(frozen=True, slots=True)
class _Tick:
    """No event, but time to compute the pod's actions again."""


class _PodResponse(ApiStruct, frozen=True):
    """The fields of the response to a status write that the simulator reads."""

    status: PodStatus = PodStatus()


ScheduledEvent = tuple[datetime, int, str, Event | _Tick]


class Simulator:
    """All simulated nodes of this process."""

    def __init__(
        self,
        client: Client,
        *,
        settings: AgentSettings,
        simulation: SimulationSettings,
        clock: Clock,
    ) -> None:
        self._client = client
        self._clock = clock
        self._time = SteadyClock(clock)
        self._back_off = settings.back_off
        self._simulation = simulation
        self._nodes = [
            _node_config(settings, simulation, number) for number in range(simulation.nodes)
        ]
        self._node_names = frozenset(config.name for config in self._nodes)
        self._stopped_nodes: set[str] = set()
        self._records: dict[str, SimulatedPod] = {}
        self._schedule: list[ScheduledEvent] = []
        self._sequence = itertools.count()
        self._timer: tuple[datetime, Timer] | None = None
        self._write_queue: asyncio.Queue[str] = asyncio.Queue()
        self._pods = Informer(client, PODS, Pod)
        self._resizer = SimulatedResizer(
            self._records,
            {config.name: config.capacity for config in self._nodes},
            handle=self._handle_event,
            restart=self._restart_for_resize,
        )

    async def run(self, ready: asyncio.Event, stop: ShutdownRequest) -> None:
        """Simulate until *stop* is requested."""
        node_status = NodeStatusManager(
            self._client,
            self._nodes,
            clock=self._clock,
            on_stop=self._on_stop,
            lease_seconds=self._simulation.lease_seconds,
        )
        await retry_until_done(node_status.register, clock=self._clock)
        async with asyncio.TaskGroup() as group:
            tasks = [self._supervise(group, "cache of pods", self._pods.run)]
            await self._pods.wait_synced()
            self._pods.add_event_handler(self._on_pod_event)
            tasks.append(self._supervise(group, "node heartbeat", node_status.run))
            for _ in range(self._simulation.writers):
                tasks.append(self._supervise(group, "status writer", self._run_writer))  # noqa: PERF401
            ready.set()
            await stop.requested.wait()
            for task in tasks:
                task.cancel()
        self._cancel_timer()

    def _supervise(
        self, group: asyncio.TaskGroup, name: str, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> asyncio.Task[None]:
        timing = Timing(monotonic=self._clock.monotonic, sleep=self._clock.sleep)
        return group.create_task(supervise(name, work, timing=timing))

    # --- pod events ---------------------------------------------------------------------------

    def _on_pod_event(self, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            if old is not None:
                self._remove(old)
            return
        record = self._records.get(new.metadata.uid)
        if record is not None:
            before = record.pod.metadata.deletion_timestamp
            is_observed = record.pod.metadata.generation == new.metadata.generation
            self._resizer.update(record, new)
            if not is_observed or shows_resize(new):
                record.last_status = None
                self._enqueue_write(record)
            if new.metadata.deletion_timestamp not in (None, before):
                self._handle_event(record, self._termination_of(new))
        elif new.spec.node_name in self._node_names and new.needs_work:
            self._add_pod(new)

    def _remove(self, pod: Pod) -> None:
        """Remove the record of a pod, which frees resources of its node."""
        if self._records.pop(pod.metadata.uid, None) is not None:
            self._resizer.review_deferred(pod.spec.node_name)

    def _restart_for_resize(self, record: SimulatedPod, name: str) -> None:
        now = self._time.now()
        kill_at = now + timedelta(seconds=record.pod.grace_period)
        self._stop(record, name, kill_at, now, restart=RESIZE)

    def _termination_of(self, pod: Pod) -> PodTermination:
        return PodTermination(at=self._time.now(), grace_period=pod.grace_period)

    def _add_pod(self, pod: Pod) -> None:
        delay = self._simulation.start_delay
        plan = plan_pod(pod, default_delay=delay, seed=pod.metadata.uid)
        state = PodState()
        if pod.status.start_time:
            state = with_steady_times(state_from_status(pod), self._time.from_wall)
        record = self._records[pod.metadata.uid] = SimulatedPod(pod, state, plan, last_status=state)
        self._resizer.update(record, pod)
        for name, container in state.containers.items():
            if container.running and container.started_at and name in pod.containers:
                self._plan_exit(record, name, self._time.from_wall(container.started_at))
        self._handle_event(record, Accepted(self._clock.now(), self._time.now()))
        if pod.metadata.deletion_timestamp is not None:
            self._handle_event(record, self._termination_of(pod))

    def _on_stop(self, node: str, stopped: bool) -> None:
        """Stop or resume the status writes of the pods of *node*."""
        if stopped:
            self._stopped_nodes.add(node)
            return
        self._stopped_nodes.discard(node)
        for record in list(self._records.values()):
            if record.pod.spec.node_name == node:
                self._enqueue_write(record)

    # --- pod actions --------------------------------------------------------------------------

    def _handle_event(self, record: SimulatedPod, event: Event | _Tick) -> None:
        """Apply *event*, and execute the actions that follow."""
        if not isinstance(event, _Tick):
            record.state = status.apply(record.state, event, self._back_off)
        changed = True
        while changed and not record.finished:
            now = self._time.now()
            decision = pod_actions.compute_pod_actions(
                record.pod, record.state, now=now, back_off=self._back_off
            )
            changed = False
            for action in decision.actions:
                changed |= self._execute(record, action, now)
            if decision.wake_at and decision.wake_at > now and not changed:
                self._schedule_event(decision.wake_at, record, _Tick())
        self._enqueue_write(record)

    def _execute(self, record: SimulatedPod, action: pod_actions.PodAction, now: datetime) -> bool:
        """Execute one action; return whether it changed the state immediately."""
        match action:
            case pod_actions.SetUpPod():
                if record.plan.never_starts:
                    return False
                ip = _address(record.pod.metadata.uid)
                prepared = Prepared(ip, HOST_RANGES.node_ip)
                record.state = status.apply(record.state, prepared, self._back_off)
                return True
            case pod_actions.DeadlineExceeded():
                record.state = status.apply(record.state, action.termination, self._back_off)
                return True
            case pod_actions.StartContainer():
                self._start(record, action.name, now)
            case pod_actions.StopContainer():
                self._stop(record, action.name, action.kill_at, now)
            case pod_actions.RestartAll():
                record.state = status.apply(record.state, AllRestarted(), self._back_off)
                return True
            case pod_actions.FinalizePod():
                record.finished = True
        return False

    def _start(self, record: SimulatedPod, name: str, now: datetime) -> None:
        if name in record.starting:
            return
        record.starting.add(name)
        first = not any(c.was_attempted for c in record.state.containers.values())
        delay = record.plan.start_delay if first else 0.0
        self._schedule_event(now + timedelta(seconds=delay), record, Started(name, now))

    def _stop(
        self,
        record: SimulatedPod,
        name: str,
        kill_at: datetime,
        now: datetime,
        *,
        restart: str = "",
    ) -> None:
        if record.plan.ignores_term:
            at, code = kill_at, SIGKILL_EXIT_CODE
        else:
            at = min(now + timedelta(seconds=self._simulation.stop_delay), kill_at)
            code = SIGTERM_EXIT_CODE
        if name in record.stopping and record.stopping[name] <= at:
            return
        record.stopping[name] = at
        exited = Exited(name, at, code, restart=restart)
        self._schedule_event(max(at, now), record, exited)

    def _plan_exit(self, record: SimulatedPod, name: str, started: datetime) -> None:
        restarts = record.state.of(name).restarts
        seed = f"{record.pod.metadata.uid} {name} {restarts}"
        run = plan_run(record.pod, record.pod.containers[name], seed)
        if not math.isinf(run.seconds):
            at = started + timedelta(seconds=max(run.seconds, self._simulation.min_run))
            self._schedule_event(at, record, Exited(name, at, run.exit_code))

    # --- scheduled events ---------------------------------------------------------------------

    def _schedule_event(self, when: datetime, record: SimulatedPod, event: Event | _Tick) -> None:
        entry = (when, next(self._sequence), record.pod.metadata.uid, event)
        heapq.heappush(self._schedule, entry)
        self._set_timer()

    def _set_timer(self) -> None:
        if not self._schedule:
            return
        when = self._schedule[0][0]
        if self._timer is not None:
            if self._timer[0] <= when:
                return
            self._timer[1].cancel()
        delay = max((when - self._time.now()).total_seconds(), 0.0)
        self._timer = (when, self._clock.call_later(delay, self._tick))

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer[1].cancel()

    def _tick(self) -> None:
        """Dispatch the events that are due, in batches so that other tasks of the loop can run."""
        self._timer = None
        now = self._time.now()
        for _ in range(_MAX_EVENTS_PER_TICK):
            if not self._schedule or self._schedule[0][0] > now:
                break
            _, _, uid, event = heapq.heappop(self._schedule)
            record = self._records.get(uid)
            if record is not None and not record.finished:
                try:
                    self._dispatch(record, event, now)
                except Exception:  # does not affect the other pods
                    TASK_RESTARTS["simulated pod"] += 1
                    log.exception("simulated pod failed", extra={"pod": record.pod.metadata.key})
        self._set_timer()

    def _dispatch(self, record: SimulatedPod, event: Event | _Tick, now: datetime) -> None:
        if isinstance(event, Started):
            record.starting.discard(event.name)
            if record.state.termination is not None or record.state.of(event.name).running:
                return
            resources = record.pod.containers[event.name].resources
            event = Started(event.name, self._clock.now(), steady_at=now, resources=resources)
            self._handle_event(record, event)
            self._plan_exit(record, event.name, now)
            return
        if isinstance(event, Exited):
            if not record.state.of(event.name).running:
                return  # it was stopped first, or has already exited
            record.stopping.pop(event.name, None)
            clock_offset = self._clock.now() - now
            event = replace(event, at=event.at + clock_offset, steady_at=event.at)
        self._handle_event(record, event)

    # --- status writes ------------------------------------------------------------------------

    def _enqueue_write(self, record: SimulatedPod) -> None:
        """Queue a write if the status changed, or the pod is terminated; not of a stopped node."""
        if record.pod.spec.node_name in self._stopped_nodes:
            return
        attempted = any(c.was_attempted for c in record.state.containers.values())
        changed = record.last_status != record.state and (
            attempted or record.state.termination is not None
        )
        if (changed or record.finished) and not record.queued and not record.writing:
            record.queued = True
            self._write_queue.put_nowait(record.pod.metadata.uid)

    async def _run_writer(self) -> None:
        """Write queued pods, until cancelled."""
        while True:
            record = self._records.get(await self._write_queue.get())
            if record is None:
                continue
            record.queued, record.writing = False, True
            try:
                await self._write_one(record)
                record.failures = 0
            except (ApiError, ConnectionLostError) as error:
                retry, reread = await handle_write_error(error, self._client, record.pod)
                if retry:
                    if reread is not None:
                        record.pod = reread
                    self._requeue_after_backoff(record)
                    continue
                key = record.pod.metadata.key
                log.info("cannot write pod status", extra={"pod": key, "error": str(error)})
                record.last_status = record.state
                if record.finished:
                    self._remove(record.pod)
            except BaseException:
                self._requeue_after_backoff(record)
                raise
            record.writing = False
            if record.pod.metadata.uid in self._records:
                self._requeue_if_changed(record)

    def _requeue_if_changed(self, record: SimulatedPod) -> None:
        """Queue a write for changes during the last write."""
        if record.last_status != record.state:
            self._enqueue_write(record)

    def _requeue_after_backoff(self, record: SimulatedPod) -> None:
        record.failures += 1
        delay = retry_delay(record.failures, initial=_INITIAL_BACKOFF, maximum=_MAX_BACKOFF)

        def requeue() -> None:
            record.writing, record.queued = False, True
            self._write_queue.put_nowait(record.pod.metadata.uid)

        self._clock.call_later(delay, requeue)

    async def _write_one(self, record: SimulatedPod) -> None:
        pod, state, finished = record.pod, record.state, record.finished
        meta = pod.metadata
        if record.last_status != state and not pod.is_terminal:
            rendered = rendering.render(pod, state, now=self._clock.now(), back_off=self._back_off)
            response = await self._client.patch(
                PODS,
                meta.name,
                status_patch(meta.uid, rendered),
                namespace=meta.namespace,
                subresource="status",
                kind=PatchType.STRATEGIC,
                view=_PodResponse,
            )
            if response.status.phase != pod.status.phase:
                # Level debug: there may be thousands of simulated pods.
                fields = {**object_fields("pod", meta), "phase": response.status.phase}
                log.debug("pod phase", extra=fields)
            record.pod = msgspec.structs.replace(record.pod, status=response.status)
        record.last_status = state
        if finished:
            await self._finalize(record)

    async def _finalize(self, record: SimulatedPod) -> None:
        """Confirm a deletion, and remove the pod's record."""
        meta = record.pod.metadata
        if meta.deletion_timestamp is not None:
            try:
                await self._client.delete(
                    PODS, meta.name, namespace=meta.namespace, uid=meta.uid, grace_period=0
                )
            except NotFoundError:
                log.debug("pod already deleted", extra={"pod": meta.key})
        self._remove(record.pod)
        current = self._pods.get(meta.key)
        if current is None or current.metadata.uid != meta.uid:
            return
        # A deletion during the last write needs its own confirmation.
        if meta.deletion_timestamp is None and current.metadata.deletion_timestamp is not None:
            self._add_pod(current)


def _node_config(
    settings: AgentSettings, simulation: SimulationSettings, number: int
) -> NodeConfig:
    return NodeConfig(
        name=f"{simulation.prefix}-{number}",
        cpus=simulation.cpus,
        memory=simulation.memory,
        pods=simulation.pods,
        runtime="simulated",
        labels=settings.labels,
    )


def _address(uid: str) -> str:
    """Return an address for display; nothing listens on it."""
    number = zlib.crc32(uid.encode()) & 0xFFFFFF
    return f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
