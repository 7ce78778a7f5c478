"""Pretended nodes: pods live by timers instead of processes, through the same life cycle.

One watch sees the pods of all nodes; one heap holds what is due; a fixed number of writers sends
what changed, each time the newest. From binding to running is one write, the end another.
"""

import asyncio
import heapq
import itertools
import logging
import math
import zlib
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec

from ...kube.client.client import Client, PatchKind
from ...kube.errors import ApiError, ConnectionLostError, NotFoundError
from ...kube.informer.informer import Cache
from ...kube.supervision import RESTARTS, supervise
from ...kube.timing import Timing
from ...machinery.clock import Clock, SteadyTime, Timer
from ...model.base import Part
from ...model.log_fields import belonging
from ...model.names import PODS
from ..node_status import NodeFacts, NodeKeeper
from ..pods.recovery import dated
from ..pods.status_manager import after, status_patch
from ..real_node import until_done
from ..settings import AgentSettings, Simulation, Stop
from ..state import pod_actions, status
from ..state.core_types import Pod, PodStatus
from ..state.status import Accepted, Ending, Event, Exited, PodState, Prepared, Started
from .plan import Plan, plan_pod, plan_run

log = logging.getLogger(__name__)

_SLICE = 200
_RETRY_FIRST, _RETRY_CAP = 0.2, 10.0
_TERM_CODE, _KILL_CODE = 143, 137


@dataclass(slots=True)
class Record:
    """One simulated pod."""

    pod: Pod
    state: PodState
    plan: Plan
    starting: set[str] = field(default_factory=set)
    stopping: dict[str, datetime] = field(default_factory=dict)
    queued: bool = False
    writing: bool = False
    finished: bool = False
    failures: int = 0
    shown: PodState | None = None
    """What was written last."""


@dataclass(frozen=True, slots=True)
class _Look:
    """Nothing happened, but it is time to decide again."""


class _Answer(Part, frozen=True):
    """What we need of the server's answer to a status."""

    status: PodStatus = PodStatus()


Due = tuple[datetime, int, str, Event | _Look]


class Simulator:
    """All pretended nodes of this process."""

    def __init__(
        self, client: Client, *, settings: AgentSettings, simulation: Simulation, clock: Clock
    ) -> None:
        self._client = client
        self._clock = clock
        self._time = SteadyTime(clock)
        self._back_off = settings.back_off
        self._simulation = simulation
        self._nodes = [_facts(settings, simulation, number) for number in range(simulation.nodes)]
        self._names = frozenset(facts.name for facts in self._nodes)
        self._records: dict[str, Record] = {}
        self._due: list[Due] = []
        self._order = itertools.count()
        self._timer: tuple[datetime, Timer] | None = None
        self._to_write: asyncio.Queue[str] = asyncio.Queue()
        self._pods = Cache(client, PODS, Pod)

    async def run(self, ready: asyncio.Event, stop: Stop) -> None:
        """Pretend until *stop* is asked for; there is nothing to be ended."""
        keeper = NodeKeeper(self._client, self._nodes, clock=self._clock)
        await until_done(keeper.register, clock=self._clock)
        async with asyncio.TaskGroup() as group:
            tasks = [self._keep(group, "cache of pods", self._pods.run)]
            await self._pods.wait_synced()
            self._pods.add_handler(self._pod_changed)
            tasks.append(self._keep(group, "node heartbeat", keeper.keep_alive))
            for _ in range(self._simulation.writers):
                tasks.append(self._keep(group, "status writer", self._write))  # noqa: PERF401
            ready.set()
            await stop.asked.wait()
            for task in tasks:
                task.cancel()
        self._disarm()

    def _keep(
        self, group: asyncio.TaskGroup, name: str, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> asyncio.Task[None]:
        timing = Timing(monotonic=self._clock.monotonic, sleep=self._clock.sleep)
        return group.create_task(supervise(name, work, timing=timing))

    # --- what the API says --------------------------------------------------------------------

    def _pod_changed(self, old: Pod | None, new: Pod | None) -> None:
        if new is None:
            if old is not None:
                self._records.pop(old.metadata.uid, None)
            return
        record = self._records.get(new.metadata.uid)
        if record is not None:
            before = record.pod.metadata.deletion_timestamp
            record.pod = new
            if new.metadata.deletion_timestamp not in (None, before):
                self._tell(record, self._ending(new))
        elif new.spec.node_name in self._names and _needs_work(new):
            self._take_on(new)

    def _ending(self, pod: Pod) -> Ending:
        return Ending(at=self._time.now(), grace=pod.grace)

    def _take_on(self, pod: Pod) -> None:
        delay = self._simulation.start_delay
        plan = plan_pod(pod, default_delay=delay, seed=pod.metadata.uid)
        state = PodState()
        if pod.status.start_time:
            state = dated(status.restore(pod), self._time)
        record = self._records[pod.metadata.uid] = Record(pod, state, plan, shown=state)
        for name, container in state.containers.items():
            if container.running and container.started_at and name in pod.containers:
                self._plan_exit(record, name, self._time.of(container.started_at))
        self._tell(record, Accepted(self._clock.now(), self._time.now()))
        if pod.metadata.deletion_timestamp is not None:
            self._tell(record, self._ending(pod))

    # --- the life of a pod --------------------------------------------------------------------

    def _tell(self, record: Record, event: Event | _Look) -> None:
        """Something happened to the pod: what follows from it?"""
        if not isinstance(event, _Look):
            record.state = status.apply(record.state, event, self._back_off)
        again = True
        while again and not record.finished:
            now = self._time.now()
            decision = pod_actions.decide(
                record.pod, record.state, now=now, back_off=self._back_off
            )
            again = False
            for command in decision.commands:
                again |= self._carry_out(record, command, now)
            if decision.wake_at and decision.wake_at > now and not again:
                self._at(decision.wake_at, record, _Look())
        self._show(record)

    def _carry_out(self, record: Record, command: pod_actions.Command, now: datetime) -> bool:
        """Do one command; whether the state changed at once."""
        match command:
            case pod_actions.Prepare():
                if record.plan.never_starts:
                    return False
                ip = _address(record.pod.metadata.uid)
                ready = Prepared(ip, "127.0.0.1")
                record.state = status.apply(record.state, ready, self._back_off)
                return True
            case pod_actions.Expire():
                record.state = status.apply(record.state, command.ending, self._back_off)
                return True
            case pod_actions.Start():
                self._start(record, command.name, now)
            case pod_actions.Stop():
                self._stop(record, command.name, command.kill_at, now)
            case pod_actions.Finish():
                record.finished = True
        return False

    def _start(self, record: Record, name: str, now: datetime) -> None:
        if name in record.starting:
            return
        record.starting.add(name)
        first = not any(c.was_tried for c in record.state.containers.values())
        delay = record.plan.start_delay if first else 0.0
        self._at(now + timedelta(seconds=delay), record, Started(name, now))

    def _stop(self, record: Record, name: str, kill_at: datetime, now: datetime) -> None:
        if record.plan.ignores_term:
            at, code = kill_at, _KILL_CODE
        else:
            at = min(now + timedelta(seconds=self._simulation.stop_delay), kill_at)
            code = _TERM_CODE
        if name in record.stopping and record.stopping[name] <= at:
            return
        record.stopping[name] = at
        self._at(max(at, now), record, Exited(name, at, code))

    def _plan_exit(self, record: Record, name: str, started: datetime) -> None:
        restarts = record.state.of(name).restarts
        seed = f"{record.pod.metadata.uid} {name} {restarts}"
        run = plan_run(record.pod, record.pod.containers[name], seed)
        if not math.isinf(run.seconds):
            at = started + timedelta(seconds=max(run.seconds, self._simulation.least_run))
            self._at(at, record, Exited(name, at, run.code))

    # --- time ---------------------------------------------------------------------------------

    def _at(self, when: datetime, record: Record, event: Event | _Look) -> None:
        entry = (when, next(self._order), record.pod.metadata.uid, event)
        heapq.heappush(self._due, entry)
        self._arm()

    def _arm(self) -> None:
        if not self._due:
            return
        when = self._due[0][0]
        if self._timer is not None:
            if self._timer[0] <= when:
                return
            self._timer[1].cancel()
        wait = max((when - self._time.now()).total_seconds(), 0.0)
        self._timer = (when, self._clock.call_later(wait, self._tick))

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer[1].cancel()

    def _tick(self) -> None:
        """Let happen what is due, some at a time so that others get their turn."""
        self._timer = None
        now = self._time.now()
        for _ in range(_SLICE):
            if not self._due or self._due[0][0] > now:
                break
            _, _, uid, event = heapq.heappop(self._due)
            record = self._records.get(uid)
            if record is not None and not record.finished:
                try:
                    self._happen(record, event, now)
                except Exception:  # the others live on
                    RESTARTS["simulated pod"] += 1
                    log.exception("a pod failed", extra={"pod": record.pod.metadata.key})
        self._arm()

    def _happen(self, record: Record, event: Event | _Look, now: datetime) -> None:
        if isinstance(event, Started):
            record.starting.discard(event.name)
            if record.state.ending is not None or record.state.of(event.name).running:
                return
            event = Started(event.name, self._clock.now(), seen=now)
            self._tell(record, event)
            self._plan_exit(record, event.name, now)
            return
        if isinstance(event, Exited):
            if not record.state.of(event.name).running:
                return  # it was stopped before its time, or is over already
            record.stopping.pop(event.name, None)
            jumped = self._clock.now() - now
            event = replace(event, at=event.at + jumped, seen=event.at)
        self._tell(record, event)

    # --- writing ------------------------------------------------------------------------------

    def _show(self, record: Record) -> None:
        """Have the pod written if it shows something new, or is at its end."""
        tried = any(c.was_tried for c in record.state.containers.values())
        changed = record.shown != record.state and (tried or record.state.ending is not None)
        if (changed or record.finished) and not record.queued and not record.writing:
            record.queued = True
            self._to_write.put_nowait(record.pod.metadata.uid)

    async def _write(self) -> None:
        """Write one pod after the other, until cancelled."""
        while True:
            record = self._records.get(await self._to_write.get())
            if record is None:
                continue
            record.queued, record.writing = False, True
            try:
                await self._write_one(record)
                record.failures = 0
            except (ApiError, ConnectionLostError) as error:
                again, reread = await after(error, self._client, record.pod)
                if again:
                    if reread is not None:
                        record.pod = reread
                    self._write_later(record)
                    continue
                key = record.pod.metadata.key
                log.info("a status was refused", extra={"pod": key, "error": str(error)})
                record.shown = record.state
                if record.finished:
                    self._records.pop(record.pod.metadata.uid, None)
            except BaseException:
                self._write_later(record)
                raise
            record.writing = False
            if record.pod.metadata.uid in self._records:
                self._show_rest(record)

    def _show_rest(self, record: Record) -> None:
        """What came while the pod was being written."""
        if record.shown != record.state:
            self._show(record)

    def _write_later(self, record: Record) -> None:
        wait = min(_RETRY_FIRST * 2.0 ** min(record.failures, 10), _RETRY_CAP)
        record.failures += 1

        def again() -> None:
            record.writing, record.queued = False, True
            self._to_write.put_nowait(record.pod.metadata.uid)

        self._clock.call_later(wait, again)

    async def _write_one(self, record: Record) -> None:
        pod, state, finished = record.pod, record.state, record.finished
        meta = pod.metadata
        if record.shown != state and not pod.is_over:
            shown = status.render(pod, state, now=self._clock.now(), back_off=self._back_off)
            answer = await self._client.patch(
                PODS,
                meta.name,
                status_patch(meta.uid, shown),
                namespace=meta.namespace,
                subresource="status",
                kind=PatchKind.STRATEGIC,
                view=_Answer,
            )
            if answer.status.phase != pod.status.phase:
                # Thousands of pods are pretended at once: not for everyday logs.
                note = {**belonging("pod", meta), "phase": answer.status.phase}
                log.debug("pod phase", extra=note)
            record.pod = msgspec.structs.replace(record.pod, status=answer.status)
        record.shown = state
        if finished:
            await self._close(record)

    async def _close(self, record: Record) -> None:
        """At the end: confirm a deletion, forget the pod."""
        meta = record.pod.metadata
        if meta.deletion_timestamp is not None:
            try:
                await self._client.delete(
                    PODS, meta.name, namespace=meta.namespace, uid=meta.uid, grace_period=0
                )
            except NotFoundError:
                log.debug("gone already", extra={"pod": meta.key})
        self._records.pop(meta.uid, None)
        now = self._pods.get(meta.key)
        late = now is not None and now.metadata.uid == meta.uid and meta.deletion_timestamp is None
        if late and now is not None and now.metadata.deletion_timestamp is not None:
            self._take_on(now)


def _needs_work(pod: Pod) -> bool:
    return not pod.is_over or pod.metadata.deletion_timestamp is not None


def _facts(settings: AgentSettings, simulation: Simulation, number: int) -> NodeFacts:
    return NodeFacts(
        name=f"{simulation.prefix}-{number}",
        cpus=simulation.cpus,
        memory=simulation.memory,
        pods=simulation.pods,
        runtime="simulated",
        labels=settings.labels,
    )


def _address(uid: str) -> str:
    """An address that nobody listens at."""
    number = zlib.crc32(uid.encode()) & 0xFFFFFF
    return f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"
