"""Pod worker of a real node: executes the actions of `pod_actions`, and reports the results.

A worker may die at any point: the next one recovers the pod from its directory (`recovery`). The
worker owns the pod's state; `pod_setup` prepares what containers need, `containers` runs them,
`status_manager` writes the status.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from ....model import times
from ....model.pod import FINISHED
from ..images.puller import ImagePullingError
from ..runtime import cgroups
from ..runtime.runs import RunDir
from ..state import pod_actions, rendering, status
from ..state.core_types import RESTART_ALL, Pod
from ..state.environment import ContainerConfigError
from ..state.hosts import Peer
from ..state.resizes import shows_resize
from ..state.status import (
    Accepted,
    AllRestarted,
    Event,
    Exited,
    PodState,
    PodTermination,
    Prepared,
    StartFailed,
)
from . import recovery, volume_manager
from .admission import Rejection
from .container_worker import PodContext
from .containers import PodContainers, failure_events
from .node_context import NodeContext
from .pod_setup import PodSetup
from .records import PodDir
from .resizer import PodResizer
from .status_manager import PodStatusManager, confirm_deletion
from .storage_limits import EVICTED, GRACE_PERIOD

log = logging.getLogger(__name__)

REJECTED = "UnexpectedAdmissionError"
"""The reason of a pod that the node could not prepare."""

_PULL_TIMEOUT = 600.0
"""Seconds between checks of a pull."""

_MAX_GRACE_OF_DELETED = 30.0
_RESIZE_RETRY = 1.0
"""Seconds after which resources are applied again that could not be."""

_MIN_WAIT = 0.01
"""Minimum wait in seconds, for actions that are due but still in progress."""


class PodWorker:
    """Runs one pod until it is terminated."""

    def __init__(self, pod: Pod, node: NodeContext, *, rejection: Rejection | None = None) -> None:
        """With a *rejection*, the pod only fails."""
        self.rejection = rejection
        self.state = PodState()
        self.pod_dir = PodDir.of(node.settings.data_dir, pod)
        self._resizer = PodResizer(
            node, pod, self.pod_dir, state=lambda: self.state, apply=self._apply
        )
        self.pod = self._resizer.update(pod)
        """The pod with the resources that are allocated to it."""

        self._node = node
        self._clock = node.clock
        self._time = node.steady_time
        self._back_off = node.settings.back_off
        self._events: deque[Event] = deque()
        self._wake = asyncio.Event()
        self._context = PodContext(
            node=node,
            pod_dir=self.pod_dir,
            pod=lambda: self.pod,
            report=self._enqueue,
            spawn=self._spawn,
        )
        self.containers = PodContainers(
            self._context,
            on_started=self._apply,
            on_exited=self._on_container_exited,
            on_pulled=lambda name: self._setup.retry(name),
        )
        self._setup = PodSetup(
            node,
            self.pod_dir,
            pod=lambda: self.pod,
            on_change=self._wake.set,
            on_rejected=lambda message: self._reject(Rejection(REJECTED, message)),
        )
        self._status_manager = PodStatusManager(
            node.client,
            clock=node.clock,
            render=self._render,
            on_written=self._on_status_written,
            on_forbidden=self._wake.set,
        )
        self._group = asyncio.TaskGroup()
        self._tasks: set[asyncio.Task[None]] = set()
        self._deleted = self._suspended = self._terminated = False
        self.has_run = False
        """Whether `run` was called; a worker runs once, and another one replaces it."""
        self._finished = self._confirmed = False
        self._terminal_by_us = False
        """This worker reported the pod's final phase."""

    def update(self, pod: Pod) -> None:
        """Handle an update of the pod."""
        old, self.pod = self.pod, self._resizer.update(pod)
        self._setup.pod_changed(old)
        self._publish_peer()
        changed = old.unready_gates != pod.unready_gates
        changed |= old.metadata.generation != pod.metadata.generation
        changed |= shows_resize(pod)
        if changed and not self._deleted and not self._suspended:
            self._status_manager.mark_dirty(promptly=True)
        if _deletion_of(pod) != _deletion_of(old):
            self._terminate()
        self._wake.set()

    def _terminate(self) -> None:
        """Terminate the pod, whose deletion is requested.

        Once for each request: its deadline, which is computed from the time of the machine, would
        differ by some microseconds.
        """
        if self.pod.metadata.deletion_timestamp is not None:
            at = self._deleted_at(self.pod)
            self._events.append(PodTermination(at=at, grace_period=self.pod.grace_period))

    def pod_deleted(self) -> None:
        """Handle the deletion of the pod's object: stop its containers, write no status."""
        self._deleted = True
        grace = min(float(self.pod.grace_period), _MAX_GRACE_OF_DELETED)
        self._enqueue(PodTermination(at=self._time.now(), grace_period=grace))

    def _reject(self, rejection: Rejection) -> None:
        """Fail the pod: no container of it can run here."""
        reason, message = rejection
        self._context.record_event(reason, message)
        message = f"Pod was rejected: {message}"
        self._enqueue(
            PodTermination(at=self._time.now(), grace_period=0.0, reason=reason, message=message)
        )

    def evict(self, message: str) -> None:
        """Terminate the pod, unless it is terminating already: it exceeds a limit."""
        if self.state.termination is not None or self._finished:
            return
        self._context.record_event(EVICTED, message)
        self._enqueue(
            PodTermination(
                at=self._time.now(), grace_period=GRACE_PERIOD, reason=EVICTED, message=message
            )
        )

    def _enqueue(self, event: Event) -> None:
        self._events.append(event)
        self._wake.set()

    def _deleted_at(self, pod: Pod) -> datetime:
        """Return when the deletion was requested; the object's timestamp is its deadline."""
        now = self._clock.now()
        due = status.parse_time(pod.metadata.deletion_timestamp) or now
        # At most the resolution of the timestamp ago, because a delayed agent still grants the
        # grace period, and not in the future, because the clocks of the two machines may differ.
        ago = now - (due - timedelta(seconds=pod.grace_period))
        return self._time.now() - min(max(ago, timedelta()), timedelta(seconds=1))

    @property
    def is_resize_deferred(self) -> bool:
        """Whether the node lacks resources that the pod asks for."""
        return self._resizer.is_deferred and self.state.termination is None

    def review_resize(self) -> None:
        """Allocate the resources that the spec asks for, if the node has them."""
        if self.state.termination is not None or self._finished or self._suspended:
            return
        resized = self._resizer.review()
        if resized is not None:
            self.pod = msgspec.structs.replace(resized, status=self.pod.status)
            self._wake.set()
            self._node.on_resized()

    def suspend(self) -> None:
        """Start no more containers and write no more statuses."""
        self._suspended = True
        self.containers.close()

    def missed_deletion(self, pod: Pod) -> bool:
        """Return whether *pod* is being deleted, and this worker ended without confirming it."""
        return pod.metadata.deletion_timestamp is not None and not self._confirmed

    @property
    def is_terminated(self) -> bool:
        """Whether no container runs any more, and none will start."""
        return self._terminated

    @property
    def is_finished(self) -> bool:
        """Whether the pod is terminated, and that is reported."""
        return self._finished

    # --- run loop ---------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the pod until it is terminated; a cancellation leaves the containers running.

        Raises:
            ExceptionGroup: an unexpected error; a new worker can recover the pod.
        """
        self.has_run = True
        try:
            async with self._group:
                try:
                    await self._sync_loop()
                finally:
                    self._detach()
        finally:
            await self._setup.close()

    async def _sync_loop(self) -> None:
        self._spawn(self._status_manager.run())
        self._recover()
        if self.rejection is not None:
            self._reject(self.rejection)
        self._terminate()
        while not self._finished:
            while self._events:
                self._apply(self._events.popleft())
            wake_at = None if self._suspended else await self._sync()
            if not self._finished and not self._events:
                await self._wait(wake_at)

    def _detach(self) -> None:
        self.containers.detach()
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
        if not self._deleted and not self._suspended:
            if isinstance(event, Accepted | Prepared):
                self._status_manager.mark_set_up()
            else:
                self._status_manager.mark_dirty(promptly=self._is_ready())
        self._publish_peer()

    def _publish_peer(self) -> None:
        """Publish the pod's address and readiness to its peers."""
        if self.state.pod_ip and not self._terminated:
            peer = Peer(self.pod, self.state.pod_ip, ready=self._is_ready())
            self._node.hosts_files.set(peer, self.pod_dir.path / "hosts")

    def _is_ready(self) -> bool:
        ready = all(self.state.of(c.name).ready for c in self.pod.spec.containers)
        return ready and not self.pod.unready_gates

    async def _wait(self, wake_at: datetime | None) -> None:
        waits = self._setup.pending_backoffs
        if wake_at is not None:
            waits.append((wake_at - self._time.now()).total_seconds())
        timer = (
            self._clock.call_later(max(min(waits), _MIN_WAIT), self._wake.set) if waits else None
        )
        await self._wake.wait()
        self._wake.clear()
        if timer:
            timer.cancel()

    async def _sync(self) -> datetime | None:
        """Execute the actions that are due; return when to sync again."""
        await self._resize()
        now = self._time.now()
        decision = pod_actions.compute_pod_actions(
            self.pod, self.state, now=now, back_off=self._back_off
        )
        for command in decision.actions:
            match command:
                case pod_actions.SetUpPod():
                    await self._set_up_and_sync()
                case pod_actions.StartContainer():
                    await self._start(command.name)
                case pod_actions.StopContainer():
                    self.containers.stop(command.name, command.kill_at)
                case pod_actions.DeadlineExceeded():
                    self._node.record_event(
                        self.pod, "DeadlineExceeded", command.termination.message
                    )
                    self._events.append(command.termination)
                case pod_actions.RestartAll():
                    await asyncio.to_thread(self._mark_restarts, command.triggers)
                    self._events.append(AllRestarted())
                case pod_actions.FinalizePod():
                    await self._finalize()
        if self.state.resize_error:
            again = now + timedelta(seconds=_RESIZE_RETRY)
            return min(again, decision.wake_at or again)
        return decision.wake_at

    async def _resize(self) -> None:
        self.review_resize()
        if self.state.termination is None:
            await self._resizer.actuate(self.pod, self.containers)

    # --- actions ------------------------------------------------------------------------------

    def _recover(self) -> None:
        """Restore from disk the state that an earlier agent left."""
        record = self.pod_dir.read_record()
        if record is None:
            now = self._clock.now()
            self.state, exits = recovery.recover_from_status(self.pod, now=now, time=self._time)
            for exited in exits:
                self._apply(exited)
            self._apply(Accepted(now, self._time.now()))
            return
        ip = self._node.ip_of(self.pod)
        self._apply(
            Accepted(times.parse(record.accepted_at), self._node.accepted_steady_at(record))
        )
        for name in self.pod_dir.containers():
            for run in self.pod_dir.runs(name) if name in self.pod.containers else []:
                self._recover_run(run)
        if self.state.containers:
            self._apply(Prepared(ip, self._node.host_ip))
            self._spawn(self._setup.sync_volumes(ip))

    def _recover_run(self, run: RunDir) -> None:
        found = recovery.recover_run(self._context, run)
        if found is None:
            return
        self._apply(found.started)
        if found.process is not None:
            self.containers.adopt(found.process, has_started=found.started.started)
            fields = {"pod": self.pod.metadata.key, "container": run.container_name}
            log.info("adopted container", extra=fields)
        if found.exited is not None:
            self._apply(found.exited)
            if group := run.cgroup:  # it may contain processes that the container has left
                self._spawn(self._remove_group(Path(group)))

    async def _remove_group(self, group: Path) -> None:
        await asyncio.to_thread(cgroups.remove_group, group)

    async def _set_up_pod(self) -> volume_manager.PodVolumes | None:
        accepted = Accepted(self.state.started_at or self._clock.now(), self.state.steady_at)
        return await self._setup.ensure(accepted=accepted, ready=self._is_ready())

    async def _set_up_and_sync(self) -> None:
        if not self._setup.can_start():
            return
        prepared = await self._set_up_pod()
        if prepared is not None:
            self._events.append(Prepared(prepared.ip, self._node.host_ip))
            self._spawn(self._setup.sync_volumes(prepared.ip))

    async def _start(self, name: str) -> None:
        if not self._setup.can_start(name):
            return
        prepared = await self._set_up_pod()
        if prepared is None:
            return
        try:
            await self.containers.start(name, prepared)
        except ImagePullingError:
            self._setup.back_off(name, _PULL_TIMEOUT)  # or until it is pulled
        except ContainerConfigError as error:
            self._setup.back_off(name, error.retry_after)
            self._context.record_event("Failed", f"Error: {error.summary}")
            self._events.append(StartFailed(name, error.reason, str(error)))

    def _mark_restarts(self, triggers: tuple[str, ...]) -> None:
        """Mark the last runs of all containers, those of *triggers* last of all.

        As long as these are not marked, the next agent does the same again.
        """
        for name in sorted(self.pod_dir.containers(), key=lambda each: each in triggers):
            for run in self.pod_dir.runs(name)[-1:]:
                run.mark_restart(RESTART_ALL)

    def _on_container_exited(self, exited: Exited, log_file: Path) -> None:
        for reason, message in failure_events(
            self.pod,
            self.state,
            exited,
            log_file=log_file,
            back_off=self._back_off,
            own_network=bool(self._node.namespace_of(self.pod)),
        ):
            self._context.record_event(reason, message)
        self._enqueue(exited)

    async def _finalize(self) -> None:
        """No container runs: write the final status, and confirm a deletion."""
        self._terminated = True
        # Before the API server shows its end: the next pod may be bound then.
        self._node.devices.release(self.pod.metadata.uid)
        self._node.hosts_files.remove(self.pod.metadata.uid)
        if not self._deleted and (self._terminal_by_us or not self.pod.is_terminal):
            self._status_manager.mark_dirty(promptly=True)
            # The deletion of a pod does not wait for the permission to write its status.
            await self._wait_unless_deleted(
                self._status_manager.wait_written(), is_obsolete=self._is_status_forbidden
            )
        if not self._deleted and self.pod.metadata.deletion_timestamp is not None:
            work = confirm_deletion(self._node.client, self.pod, clock=self._clock)
            await self._wait_unless_deleted(work)
            self._confirmed = True
        self._finished = True

    def _is_status_forbidden(self) -> bool:
        return (
            self._status_manager.is_forbidden and self.pod.metadata.deletion_timestamp is not None
        )

    async def _wait_unless_deleted(
        self, work: Coroutine[Any, Any, None], *, is_obsolete: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait for *work*, until the object is deleted or *is_obsolete* returns true."""
        task = self._spawn(work)
        while not task.done() and not self._deleted and not is_obsolete():
            wake = asyncio.create_task(self._wake.wait())
            try:
                await asyncio.wait({task, wake}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                wake.cancel()
            self._wake.clear()
        if task.done():
            await task
        task.cancel()

    def _render(self) -> tuple[Pod, dict[str, Any]]:
        now = self._clock.now()
        rendered = rendering.render(self.pod, self.state, now=now, back_off=self._back_off)
        # Set before the write: the watch may deliver the update before the response arrives.
        self._terminal_by_us |= rendered["phase"] in FINISHED and not self.pod.is_terminal
        return self.pod, rendered

    def _on_status_written(self, response: Pod) -> None:
        if response.metadata.uid == self.pod.metadata.uid:
            self.pod = msgspec.structs.replace(self.pod, status=response.status)


def _deletion_of(pod: Pod) -> tuple[str | None, int]:
    """Return when the deletion of a pod is due, and its grace period."""
    return pod.metadata.deletion_timestamp, pod.grace_period
