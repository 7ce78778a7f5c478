"""One pod on a real node: carries out what `lifecycle` decides, and tells what came of it.

A worker may die at any line: the next one reads the pod's folder and goes on (`_adopt`).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from ...kube.errors import ApiError, ConnectionLostError, NotFoundError
from ...machinery.clock import Timer
from ...model import times
from ...model.names import PODS
from . import lifecycle, memory, status
from .checking import Checker, as_it_runs
from .environment import ConfigError
from .handlers import HandlerError, Target, carry_out
from .hosts import Peer
from .launching import Launcher, found_port_taken, termination_message
from .machine import HOST_IP, Machine
from .objects import Pod
from .preparing import PROBLEMS, Prepared, Preparer, retry_delay
from .records import PodFolder, PodRecord
from .reporter import Reporter, after
from .runner import Ended, Level, Process, RunFolder, lost, start_claimed, sweep
from .status import (
    Accepted,
    Blocked,
    Checked,
    Ending,
    Event,
    Exited,
    PodState,
    Started,
    Unwell,
)

log = logging.getLogger(__name__)

_CONFIG_RETRY = 10.0
_LONGEST_GRACE_OF_GONE = 30.0
_LEAST_AFTER_HOOK = 2.0
"""Seconds that a container has to end after its hook, even if that used up the grace."""

_KILLED = 137
_GRAIN = 0.01
"""Seconds that are waited at least, for what is due already but takes its time."""

_PLAIN_NOTE = (
    "There is no sandbox on this machine: volumes lie under $BATHOLITH_ROOT, "
    "the hosts file at $BATHOLITH_HOSTS"
)

_PORT_NOTE = (
    "A port is taken, says the log. Pods share the machine's network: choose another port, or "
    "listen at the pod's own address (status.podIP), which is"
)


class PodWorker:
    """Brings one pod to its end."""

    def __init__(self, pod: Pod, machine: Machine) -> None:
        self.pod = pod
        self.state = PodState()
        self.folder = PodFolder.of(machine.settings.data_dir, pod)
        self._machine = machine
        self._clock = machine.clock
        self._events: deque[Event] = deque()
        self._news = asyncio.Event()
        self._processes: dict[str, Process] = {}
        self._kills: dict[str, tuple[datetime, Timer]] = {}
        self._checks: dict[str, asyncio.Task[None]] = {}
        self._not_before: dict[str, float] = {}
        """Monotonic time before which a container (or "" for the volumes) isn't tried again."""

        self._files = Preparer(
            machine, self.folder.path, pod=lambda: self.pod, changed=self._try_again
        )
        self._tries = 0
        self._gone = False
        self._paused = False
        self._over = False
        self._finished = False
        self._confirmed = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._reporter = Reporter(
            machine.client, clock=machine.clock, render=self._render, told=self._told
        )

    # --- what the agent tells us ------------------------------------------------------------

    def update(self, pod: Pod) -> None:
        """The pod's object changed."""
        old, self.pod = self.pod, pod
        self._files.pod_changed(old)
        self._publish()
        if pod.metadata.deletion_timestamp is not None:
            self._events.append(Ending(at=self._deleted_at(pod), grace=pod.grace))
        self._news.set()

    def vanish(self) -> None:
        """The pod's object is gone: end what runs, and tell nobody."""
        self._gone = True
        grace = min(float(self.pod.grace), _LONGEST_GRACE_OF_GONE)
        self._events.append(Ending(at=self._clock.now(), grace=grace))
        self._news.set()

    def _deleted_at(self, pod: Pod) -> datetime:
        """When the end was asked for: the object's timestamp is when it must be over."""
        due = status.moment(pod.metadata.deletion_timestamp) or self._clock.now()
        # Never before now by more than the clocks' grain: a late agent still gives the grace.
        return max(due - timedelta(seconds=pod.grace), self._clock.now() - timedelta(seconds=1))

    def missed(self, pod: Pod) -> bool:
        """Whether *pod* asks for an end that came too late for this worker."""
        return pod.metadata.deletion_timestamp is not None and not self._confirmed

    @property
    def is_finished(self) -> bool:
        """The pod is at its end, and that was told."""
        return self._finished

    @property
    def open_logs(self) -> list[Path]:
        """The logs that are being written."""
        return [self.folder.log_of(process.folder) for process in self._processes.values()]

    # --- life -------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run the pod to its end; cancelled, it leaves the containers running."""
        reports = asyncio.create_task(self._reporter.run())
        try:
            self._adopt()
            if self.pod.metadata.deletion_timestamp is not None:
                self.update(self.pod)
            while not self._finished:
                self._take_news()
                wake_at = None if self._paused else await self._step()
                if not self._finished and not self._events:
                    await self._wait(wake_at)
        finally:
            self._let_go(reports)
            await asyncio.gather(reports, *self._tasks, return_exceptions=True)
            await self._files.close()

    def _let_go(self, reports: asyncio.Task[None]) -> None:
        for _, timer in self._kills.values():
            timer.cancel()
        for task in (reports, *self._tasks):
            task.cancel()
        for process in self._processes.values():
            process.let_go()

    def _take_news(self) -> None:
        while self._events:
            self._apply(self._events.popleft())

    def _apply(self, event: Event) -> None:
        before = self.state
        self.state = status.apply(before, event, self._machine.settings.back_off)
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
        now = self._clock.monotonic()
        waits = [at - now for at in self._not_before.values() if at > now]
        if wake_at is not None:
            waits.append((wake_at - self._clock.now()).total_seconds())
        timer = self._clock.call_later(max(min(waits), _GRAIN), self._news.set) if waits else None
        await self._news.wait()
        self._news.clear()
        if timer:
            timer.cancel()

    async def _step(self) -> datetime | None:
        """Carry out what is due now; says when to look again."""
        decision = lifecycle.decide(
            self.pod,
            self.state,
            now=self._clock.now(),
            back_off=self._machine.settings.back_off,
        )
        for command in decision.commands:
            match command:
                case lifecycle.Prepare():
                    await self._prepare()
                case lifecycle.Start():
                    await self._start(command.name)
                case lifecycle.Stop():
                    self._stop(command.name, command.kill_at)
                case lifecycle.Expire():
                    self._machine.tell(self.pod, "DeadlineExceeded", command.ending.message)
                    self._events.append(command.ending)
                case lifecycle.Finish():
                    await self._finish()
        return decision.wake_at

    # --- taking on and taking over ------------------------------------------------------------

    def _adopt(self) -> None:
        """Learn from disk what an earlier agent did with the pod."""
        record = self.folder.record()
        if record is None:
            self._restore()
            return
        self._machine.addresses[record.uid] = record.ip
        self._apply(Accepted(times.parse(record.accepted_at)))
        for name in self.folder.containers():
            for run in self.folder.runs(name):
                self._adopt_run(name, run)
        if self.state.containers:
            self._apply(status.Prepared(record.ip, HOST_IP))
            self._spawn(self._files.keep(record.ip))

    def _restore(self) -> None:
        """Without a record: what the object shows as running is lost."""
        if self.pod.status.start_time is not None:
            self.state = status.restore(self.pod)
            self.state = replace(self.state, prepared=False)
            for name, container in self.state.containers.items():
                if container.running:
                    self._apply(
                        Exited(
                            name, self._clock.now(), 137, status.LOST_REASON, status.LOST_MESSAGE
                        )
                    )
        self._apply(Accepted(self._clock.now()))

    def _adopt_run(self, name: str, run: RunFolder) -> None:
        if name not in self.pod.containers or not run.was_intended():
            return
        claim = run.claim()
        if claim is None and run.call_off():
            return
        claim = run.claim()
        if claim is None or claim.pid == 0:
            return
        identity = self._identity(run)
        checker, (begun, ready) = self._checker(name, run), self._was_shown(name, identity)
        begun, ready = begun or checker.starts_well, ready or checker.is_ready_at_once
        at = datetime.fromtimestamp(claim.at, UTC)
        self._apply(Started(name, at, identity, started=begun, ready=ready))
        pid = run.process()
        if pid is not None:
            with suppress(ProcessLookupError):
                process = Process(run, pid, clock=self._clock)
                if run.process() is not None:
                    self._follow(name, run, process)
                    self._watch_over(name, run, begun=begun)
                    log.info("adopted", extra={"pod": self.pod.metadata.key, "container": name})
                    return
                process.let_go()  # it ended between two looks: the number may be another's
        ended = run.ended()
        if ended is None:
            sweep(run.name)
            ended = lost(run)
        self._apply(self._exited(name, run, ended))

    def _was_shown(self, name: str, identity: str) -> tuple[bool, bool]:
        """Whether a run was said to have started well, and to be ready."""
        shown = (*self.pod.status.init_container_statuses, *self.pod.status.container_statuses)
        for one in shown:
            if one.name == name and one.container_id.endswith(f"//{identity}"):
                return bool(one.started), one.ready
        return False, False

    def _identity(self, run: RunFolder) -> str:
        return f"{self.pod.metadata.uid}-{run.path.parent.name}-{run.path.name}"

    # --- carrying out -------------------------------------------------------------------------

    def _may_try(self, what: str) -> bool:
        return self._not_before.get(what, 0.0) <= self._clock.monotonic()

    async def _prepare(self) -> None:
        if not self._may_try(""):
            return
        prepared = await self._make_ready()
        if prepared is not None:
            self._events.append(status.Prepared(prepared.ip, HOST_IP))
            self._spawn(self._files.keep(prepared.ip))

    async def _make_ready(self) -> Prepared | None:
        """Make address, names and volumes; on failure say why and try again later."""
        if self._files.prepared is not None:
            return self._files.prepared
        host_network = self.pod.spec.host_network
        ip = HOST_IP if host_network else self._machine.take_address(self.pod.metadata.uid)
        try:
            self._accept(ip)
            return await self._files.make(ip)
        except PROBLEMS as error:
            self._machine.tell(self.pod, "FailedMount", str(error), warning=True)
            self._tries += 1
            self._not_before[""] = self._clock.monotonic() + retry_delay(self._tries)
            return None

    def _try_again(self) -> None:
        """What failed for want of something may succeed now."""
        self._tries = 0
        self._not_before.clear()
        self._news.set()

    def _accept(self, ip: str) -> None:
        meta = self.pod.metadata
        if self.folder.record() is None:
            accepted = self.state.started_at or self._clock.now()
            record = PodRecord(
                uid=meta.uid,
                namespace=meta.namespace,
                name=meta.name,
                ip=ip,
                accepted_at=times.format_micros(accepted),
            )
            self.folder.accept(record)
            if self._machine.level is Level.PLAIN:
                self._machine.tell(self.pod, "NoSandbox", _PLAIN_NOTE)
        (self.folder.path / "hostname").write_text(f"{self.pod.host_name}\n")
        peer = Peer(self.pod, ip, ready=self._is_ready())
        hosts_file = self.folder.path / "hosts"
        hosts_file.touch()
        self._machine.names.set(peer, hosts_file)
        self._machine.names.touch(meta.namespace)

    async def _start(self, name: str) -> None:
        if not self._may_try(name) or not self._may_try(""):
            return
        prepared = await self._make_ready()
        if prepared is None:
            return
        container = self.pod.containers[name]
        run = self.folder.new_run(name)
        try:
            launcher = Launcher(self.pod, self._machine, prepared)
            launch, complaint = launcher.launch(container, run, self.folder.log_of(run))
        except (ConfigError, OSError) as error:
            self._not_before[name] = self._clock.monotonic() + _CONFIG_RETRY
            self._machine.tell(self.pod, "Failed", f"Error: {error}", warning=True)
            self._events.append(Blocked(name, "CreateContainerConfigError", str(error)))
            return
        if complaint:
            self._machine.tell(self.pod, "Failed", f"Error: {complaint}", warning=True)
        await asyncio.to_thread(run.prepare, launch)
        self._follow(name, run, Process(run, await start_claimed(run), clock=self._clock))
        checker = self._checker(name, run)
        begun, ready = checker.starts_well, checker.is_ready_at_once
        identity = self._identity(run)
        self._apply(Started(name, self._clock.now(), identity, started=begun, ready=ready))
        self._machine.tell(self.pod, "Started", f"Started container {name}")
        self._watch_over(name, run, begun=begun)

    def _follow(self, name: str, run: RunFolder, process: Process) -> None:
        self._processes[name] = process
        self._spawn(self._watch(name, run, process))

    def _target(self, name: str, run: RunFolder) -> Target:
        meta, host = self.pod.metadata, self.pod.spec.host_network
        ip = HOST_IP if host else self._machine.take_address(meta.uid)
        container = as_it_runs(self.pod.containers[name], run)
        return Target(container=container, run=run, ip=ip, clock=self._clock)

    def _checker(self, name: str, run: RunFolder) -> Checker:
        return Checker(
            pod=self.pod, target=self._target(name, run), report=self._found, tell=self._warn
        )

    def _watch_over(self, name: str, run: RunFolder, *, begun: bool) -> None:
        checker = self._checker(name, run)
        if checker.is_needed:
            self._checks[name] = self._spawn(checker.run(started=begun))

    def _found(self, event: Checked | Unwell) -> None:
        """A probe has news."""
        self._events.append(event)
        self._news.set()

    def _warn(self, reason: str, message: str) -> None:
        self._machine.tell(self.pod, reason, message, warning=reason != "Killing")

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _watch(self, name: str, run: RunFolder, process: Process) -> None:
        ended = await process.wait()
        if self._processes.get(name) is process:
            del self._processes[name]
        self._check_no_more(name)
        told = self._exited(name, run, ended)
        self._comment(told, self.folder.log_of(run))
        self._events.append(told)
        kill = self._kills.pop(name, None)
        if kill:
            kill[1].cancel()
        self._news.set()

    def _exited(self, name: str, run: RunFolder, ended: Ended) -> Exited:
        container, log_file = self.pod.containers[name], self.folder.log_of(run)
        failed = ended.code != 0
        message = ended.message or termination_message(container, run, log_file, failed=failed)
        killed = ended.code == _KILLED and memory.was_condemned(run)
        reason = memory.REASON if killed else ended.reason
        return Exited(name, ended.moment, ended.code, reason, message)

    async def check_memory(self) -> None:
        """Kill the containers that use more memory than they may."""
        for name, process in list(self._processes.items()):
            limit = memory.limit_of(self.pod.containers[name])
            if limit is None or not await asyncio.to_thread(memory.exceeds, process.pid, limit):
                continue
            if self._processes.get(name) is process:
                memory.condemn(process.folder)
                self._warn("OOMKilling", f"Container {name} uses more memory than its limit")
                self._spawn(process.kill())

    def _comment(self, told: Exited, log_file: Path) -> None:
        """Say why the container may have failed, and that it waits before it runs again."""
        back_off, pod = self._machine.settings.back_off, self.pod
        if told.code and found_port_taken(log_file):
            self._warn("PortTaken", f"{_PORT_NOTE} {self.state.pod_ip}")
        after_it = status.apply(self.state, told, back_off).of(told.name)
        again = after_it.exit and status.restarts(pod, pod.containers[told.name], after_it.exit)
        if again and not self.state.ending and back_off.delay(after_it.streak) > 0:
            meta = pod.metadata
            where = f"in pod {meta.name}_{meta.namespace}({meta.uid})"
            words = f"Back-off restarting failed container {told.name} {where}"
            self._warn("BackOff", words)

    def _stop(self, name: str, kill_at: datetime) -> None:
        process = self._processes.get(name)
        if process is None:
            return
        known = self._kills.get(name)
        if known is None:
            self._check_no_more(name)
            self._machine.tell(self.pod, "Killing", f"Stopping container {name}")
            if self._has_last_wish(name) and kill_at > self._clock.now():
                self._kill_at(name, process, kill_at, later=_LEAST_AFTER_HOOK)
                self._spawn(self._end_after_hook(name, process, kill_at))
                return
            process.ask_to_end()
        elif known[0] <= kill_at:
            return
        self._kill_at(name, process, kill_at)

    def _kill_at(
        self, name: str, process: Process, kill_at: datetime, *, later: float = 0.0
    ) -> None:
        """Kill the container so many seconds *later* than was asked for, and not before."""
        known = self._kills.get(name)
        if known is not None:
            known[1].cancel()
        left = max((kill_at - self._clock.now()).total_seconds(), 0.0) + later
        timer = self._clock.call_later(left, lambda: self._spawn(process.kill()))
        self._kills[name] = (kill_at, timer)

    def _check_no_more(self, name: str) -> None:
        check = self._checks.pop(name, None)
        if check is not None:
            check.cancel()

    def _has_last_wish(self, name: str) -> bool:
        return self.pod.containers[name].lifecycle.pre_stop is not None

    async def _end_after_hook(self, name: str, process: Process, kill_at: datetime) -> None:
        await self._grant_last_wish(name, process, (kill_at - self._clock.now()).total_seconds())
        known = self._kills.get(name)
        if self._processes.get(name) is not process or known is None or known[0] != kill_at:
            return  # it ended, or has to end sooner
        short = _LEAST_AFTER_HOOK - (kill_at - self._clock.now()).total_seconds()
        self._kill_at(name, process, kill_at, later=min(max(short, 0.0), _LEAST_AFTER_HOOK))
        process.ask_to_end()

    async def _grant_last_wish(self, name: str, process: Process, seconds: float) -> None:
        """Carry out the hook before the stop, if there is one, for so long at most."""
        hook = self.pod.containers[name].lifecycle.pre_stop
        if hook is None or seconds <= 0:
            return
        try:
            await carry_out(hook, self._target(name, process.folder), timeout=seconds)
        except HandlerError as error:
            self._warn("FailedPreStopHook", f"PreStopHook failed: {error}")

    async def _finish(self) -> None:
        """Nothing runs: tell the end, confirm a deletion, tidy up."""
        meta = self.pod.metadata
        self._over = True
        self._machine.names.drop(meta.uid)
        if not self._gone and not self.pod.is_over:
            self._reporter.touch(promptly=True)
            await self._until_gone_or(self._reporter.settled())
        if not self._gone and self.pod.metadata.deletion_timestamp is not None:
            await self._until_gone_or(self._confirm_deletion())
            self._confirmed = True
        self._finished = True

    async def _until_gone_or(self, work: Coroutine[Any, Any, None]) -> None:
        """Wait for *work*, but not when the object is gone."""
        task = asyncio.create_task(work)
        while not task.done() and not self._gone:
            news = asyncio.create_task(self._news.wait())
            await asyncio.wait({task, news}, return_when=asyncio.FIRST_COMPLETED)
            news.cancel()
            self._news.clear()
        task.cancel()

    async def _confirm_deletion(self) -> None:
        meta = self.pod.metadata
        while True:
            try:
                await self._machine.client.delete(
                    PODS, meta.name, namespace=meta.namespace, uid=meta.uid, grace_period=0
                )
                return
            except NotFoundError:
                return
            except (ApiError, ConnectionLostError) as error:
                again, _ = await after(error, self._machine.client, self.pod)
                if not again:
                    log.info("not deleted", extra={"pod": meta.key, "error": str(error)})
                    return
            await self._clock.sleep(1.0)

    # --- ending with the machine --------------------------------------------------------------

    def pause(self) -> None:
        """Start and report nothing any more."""
        self._paused = True

    async def end_processes(self) -> None:
        """End the containers in order, each with the pod's grace; nothing is reported."""
        for names in self._in_order():
            running = [name for name in names if name in self._processes]
            await asyncio.gather(*(self._end_process(name) for name in running))

    def _in_order(self) -> list[list[str]]:
        mains = [c.name for c in self.pod.spec.containers]
        return [mains, *([c.name] for c in reversed(self.pod.spec.init_containers))]

    async def _end_process(self, name: str) -> None:
        process, grace = self._processes[name], float(self.pod.grace)
        self._check_no_more(name)
        most = grace + (_LEAST_AFTER_HOOK if self._has_last_wish(name) else 0.0)
        kill = asyncio.create_task(self._kill_after(process, most))
        await self._grant_last_wish(name, process, grace)
        process.ask_to_end()
        await process.wait()
        kill.cancel()

    async def _kill_after(self, process: Process, seconds: float) -> None:
        await self._clock.sleep(seconds)
        await process.kill()

    # --- telling ------------------------------------------------------------------------------

    def _render(self) -> tuple[Pod, dict[str, Any]]:
        back_off = self._machine.settings.back_off
        now = self._clock.now()
        return self.pod, status.render(self.pod, self.state, now=now, back_off=back_off)

    def _told(self, answer: Pod) -> None:
        if answer.metadata.uid == self.pod.metadata.uid:
            self.pod = msgspec.structs.replace(self.pod, status=answer.status)
