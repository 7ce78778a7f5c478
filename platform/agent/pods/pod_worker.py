"""One pod on a real node: carries out what `lifecycle` decides, and tells what came of it.

A worker may die at any line: the next one reads the pod's folder and goes on (`adopting`). It owns
the pod's state and the order of things; `groundwork` has what containers need, `containers`
looks after those that run, `reporter` writes the status.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from ...model import times
from ...model.pod import FINISHED
from ..runtime.runs import RunFolder
from ..state import pod_actions, status
from ..state.core_types import Pod
from ..state.environment import ConfigError
from ..state.hosts import Peer
from ..state.status import Accepted, Blocked, Ending, Event, Exited, PodState, Prepared
from . import recovery, volume_manager
from .container_worker import PodContext
from .containers import Containers, remarks
from .node_context import HOST_IP, Machine
from .pod_setup import Groundwork
from .records import PodFolder
from .status_manager import Reporter, confirm_deletion

log = logging.getLogger(__name__)

_CONFIG_RETRY = 10.0
_LONGEST_GRACE_OF_GONE = 30.0
_GRAIN = 0.01
"""Seconds that are waited at least, for what is due already but takes its time."""


class PodWorker:
    """Brings one pod to its end."""

    def __init__(self, pod: Pod, machine: Machine) -> None:
        self.pod = pod
        self.state = PodState()
        self.folder = PodFolder.of(machine.settings.data_dir, pod)
        self._machine = machine
        self._clock = machine.clock
        self._time = machine.time
        self._back_off = machine.settings.back_off
        self._events: deque[Event] = deque()
        self._news = asyncio.Event()
        self._context = PodContext(
            machine=machine,
            folder=self.folder,
            pod=lambda: self.pod,
            report=self._hear,
            spawn=self._spawn,
        )
        self.containers = Containers(
            self._context, started=self._apply, ended=self._container_ended
        )
        self._ground = Groundwork(
            machine, self.folder, pod=lambda: self.pod, changed=self._news.set
        )
        self._reporter = Reporter(
            machine.client,
            clock=machine.clock,
            render=self._render,
            told=self._told,
            refused=self._news.set,
        )
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()
        self._gone = self._paused = self._over = False
        self.has_run = False
        """It has done what it could; another has to follow if that was not all."""
        self._finished = self._confirmed = False
        self._ended_by_us = False
        """That the pod is over was told by this worker."""

    def update(self, pod: Pod) -> None:
        """The pod's object changed."""
        old, self.pod = self.pod, pod
        self._ground.pod_changed(old)
        self._publish()
        if pod.metadata.deletion_timestamp is not None:
            self._events.append(Ending(at=self._deleted_at(pod), grace=pod.grace))
        self._news.set()

    def vanish(self) -> None:
        """The pod's object is gone: end what runs, and tell nobody."""
        self._gone = True
        grace = min(float(self.pod.grace), _LONGEST_GRACE_OF_GONE)
        self._hear(Ending(at=self._time.now(), grace=grace))

    def _hear(self, event: Event) -> None:
        self._events.append(event)
        self._news.set()

    def _deleted_at(self, pod: Pod) -> datetime:
        """When the end was asked for: the object's timestamp is when it must be over."""
        now = self._clock.now()
        due = status.moment(pod.metadata.deletion_timestamp) or now
        # By more than the clocks' grain neither before now, for a late agent still gives the
        # grace, nor after it: the two clocks may differ.
        ago = now - (due - timedelta(seconds=pod.grace))
        return self._time.now() - min(max(ago, timedelta()), timedelta(seconds=1))

    def pause(self) -> None:
        """Start and report nothing any more."""
        self._paused = True
        self.containers.close()

    def missed(self, pod: Pod) -> bool:
        """Whether *pod* asks for an end that came too late for this worker."""
        return pod.metadata.deletion_timestamp is not None and not self._confirmed

    @property
    def is_finished(self) -> bool:
        """The pod is at its end, and that was told."""
        return self._finished

    # --- life -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the pod to its end; cancelled, it leaves the containers running.

        Raises:
            ExceptionGroup: something unforeseen; another worker can take over from here.
        """
        self.has_run = True
        try:
            async with self._group:
                try:
                    await self._live()
                finally:
                    self._let_go()
        finally:
            await self._ground.close()

    async def _live(self) -> None:
        self._spawn(self._reporter.run())
        self._adopt()
        if self.pod.metadata.deletion_timestamp is not None:
            self.update(self.pod)
        while not self._finished:
            while self._events:
                self._apply(self._events.popleft())
            wake_at = None if self._paused else await self._step()
            if not self._finished and not self._events:
                await self._wait(wake_at)

    def _let_go(self) -> None:
        self.containers.let_go()
        for task in self._tasks:
            task.cancel()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = self._group.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def _apply(self, event: Event) -> None:
        before = self.state
        self.state = status.apply(before, event, self._back_off)
        if self.state == before:
            return
        if not self._gone and not self._paused:
            self._reporter.touch(promptly=self._is_ready())
        self._publish()

    def _publish(self) -> None:
        """Let peers find the pod."""
        if self.state.pod_ip and not self._over:
            peer = Peer(self.pod, self.state.pod_ip, ready=self._is_ready())
            self._machine.names.set(peer, self.folder.path / "hosts")

    def _is_ready(self) -> bool:
        return all(self.state.of(c.name).ready for c in self.pod.spec.containers)

    async def _wait(self, wake_at: datetime | None) -> None:
        waits = self._ground.waits
        if wake_at is not None:
            waits.append((wake_at - self._time.now()).total_seconds())
        timer = self._clock.call_later(max(min(waits), _GRAIN), self._news.set) if waits else None
        await self._news.wait()
        self._news.clear()
        if timer:
            timer.cancel()

    async def _step(self) -> datetime | None:
        """Carry out what is due now; says when to look again."""
        now = self._time.now()
        decision = pod_actions.decide(self.pod, self.state, now=now, back_off=self._back_off)
        for command in decision.commands:
            match command:
                case pod_actions.Prepare():
                    await self._prepare()
                case pod_actions.Start():
                    await self._start(command.name)
                case pod_actions.Stop():
                    self.containers.stop(command.name, command.kill_at)
                case pod_actions.Expire():
                    self._machine.tell(self.pod, "DeadlineExceeded", command.ending.message)
                    self._events.append(command.ending)
                case pod_actions.Finish():
                    await self._finish()
        return decision.wake_at

    # --- carrying out -------------------------------------------------------------------------

    def _adopt(self) -> None:
        """Learn from disk what an earlier agent did with the pod."""
        record = self.folder.record()
        if record is None:
            now = self._clock.now()
            self.state, ends = recovery.remembered(self.pod, now=now, time=self._time)
            for end in ends:
                self._apply(end)
            self._apply(Accepted(now, self._time.now()))
            return
        self._machine.addresses[record.uid] = record.ip
        self._apply(Accepted(times.parse(record.accepted_at), self._machine.seen(record)))
        for name in self.folder.containers():
            for run in self.folder.runs(name) if name in self.pod.containers else []:
                self._adopt_run(run)
        if self.state.containers:
            self._apply(Prepared(record.ip, HOST_IP))
            self._spawn(self._ground.keep(record.ip))

    def _adopt_run(self, run: RunFolder) -> None:
        found = recovery.find(self._context, run)
        if found is None:
            return
        self._apply(found.started)
        if found.process is not None:
            self.containers.adopt(found.process, begun=found.started.started)
            log.info("adopted", extra={"pod": self.pod.metadata.key, "container": run.container})
        if found.exited is not None:
            self._apply(found.exited)

    async def _lay_ground(self) -> volume_manager.Prepared | None:
        accepted = Accepted(self.state.started_at or self._clock.now(), self.state.seen)
        return await self._ground.lay(accepted=accepted, ready=self._is_ready())

    async def _prepare(self) -> None:
        if not self._ground.may_try():
            return
        prepared = await self._lay_ground()
        if prepared is not None:
            self._events.append(Prepared(prepared.ip, HOST_IP))
            self._spawn(self._ground.keep(prepared.ip))

    async def _start(self, name: str) -> None:
        if not self._ground.may_try(name):
            return
        prepared = await self._lay_ground()
        if prepared is None:
            return
        try:
            await self.containers.start(name, prepared)
        except ConfigError as error:
            self._ground.put_off(name, _CONFIG_RETRY)
            self._context.warn("Failed", f"Error: {error}")
            self._events.append(Blocked(name, "CreateContainerConfigError", str(error)))

    def _container_ended(self, told: Exited, log_file: Path) -> None:
        back_off = self._back_off
        for remark in remarks(self.pod, self.state, told, log_file=log_file, back_off=back_off):
            self._context.warn(*remark)
        self._hear(told)

    async def _finish(self) -> None:
        """Nothing runs: tell the end, confirm a deletion, tidy up."""
        self._over = True
        self._machine.names.drop(self.pod.metadata.uid)
        if not self._gone and (self._ended_by_us or not self.pod.is_over):
            self._reporter.touch(promptly=True)
            # A pod that is to go does not wait for the right to tell its end.
            await self._until_gone_or(self._reporter.settled(), enough=self._may_not_tell)
        if not self._gone and self.pod.metadata.deletion_timestamp is not None:
            work = confirm_deletion(self._machine.client, self.pod, clock=self._clock)
            await self._until_gone_or(work)
            self._confirmed = True
        self._finished = True

    def _may_not_tell(self) -> bool:
        return self._reporter.is_refused and self.pod.metadata.deletion_timestamp is not None

    async def _until_gone_or(
        self, work: Coroutine[Any, Any, None], *, enough: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait for *work*, but not once the object is gone, or it is *enough*."""
        task = self._spawn(work)
        while not task.done() and not self._gone and not enough():
            news = asyncio.create_task(self._news.wait())
            try:
                await asyncio.wait({task, news}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                news.cancel()
            self._news.clear()
        if task.done():
            await task
        task.cancel()

    def _render(self) -> tuple[Pod, dict[str, Any]]:
        now = self._clock.now()
        shown = status.render(self.pod, self.state, now=now, back_off=self._back_off)
        # Noted before it is sent: it may come back as news before the answer does.
        self._ended_by_us |= shown["phase"] in FINISHED and not self.pod.is_over
        return self.pod, shown

    def _told(self, answer: Pod) -> None:
        if answer.metadata.uid == self.pod.metadata.uid:
            self.pod = msgspec.structs.replace(self.pod, status=answer.status)
