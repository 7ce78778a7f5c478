"""Supervisor of an embedded cluster: one child process per component.

A component reports readiness by writing a byte to the descriptor named in its environment. A
component that exits is restarted with backoff. ``up.json`` records the processes, so that
``batholith status`` and ``down`` find them, and the next ``up`` kills those that a killed
supervisor left running.
"""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ...kube.private_files import (
    GROUP_OTHER_WRITE,
    open_private,
    read_private,
    write_private,
)
from ...kube.supervision import supervise
from ..agent.runtime.process_id import ProcessId, identify, terminate
from .child_process import Entry, Process, ProcessOptions, fork, spawn
from .datadir import DataDir

log = logging.getLogger(__name__)

PARENT = "BATHOLITH_SUPERVISOR"
"""Environment: process id of the supervisor, in its children."""
READY_FD = "BATHOLITH_READY_FD"
"""Environment: descriptor on which a child reports readiness."""

INITIAL_BACKOFF, MAX_BACKOFF, BACKOFF_RESET_AFTER = 0.1, 10.0, 10.0
"""Seconds: first delay before a restart, maximum delay, and run time that resets the delay."""
MAX_START_ATTEMPTS = 3
"""Restarts of a component that has never been ready before the supervisor fails."""
SAVE_RETRY_INTERVAL = 1.0
"""Seconds between attempts to write ``up.json``."""
LOG_TAIL_LINES = 15
"""Lines of a log that an error shows."""
MAX_LOG_BYTES = 10 * 2**20
"""Size of a component's log above which it is rotated when the component starts."""


class ComponentFailedError(Exception):
    """A component does not start; the text shows the end of its log."""

    def __init__(self, name: str, data: DataDir) -> None:
        super().__init__(_log_tail(data, name, "does not start"))


def _log_tail(data: DataDir, name: str, problem: str) -> str:
    log_file = data.logs / f"{name}.log"
    lines = log_file.read_text(errors="replace").splitlines() if log_file.exists() else []
    return "\n".join([f"{name} {problem}; the end of {log_file}:", *lines[-LOG_TAIL_LINES:]])


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentSpec:
    """One child process."""

    name: str
    arguments: Sequence[str]
    """Arguments after the program, which is the same for all components."""
    descriptors: Sequence[int] = ()
    """Open files that the child inherits under the same numbers."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables in addition to those of the supervisor."""
    stop_timeout: float = 10.0
    """Seconds between SIGTERM and SIGKILL."""


class ComponentStatus(msgspec.Struct, kw_only=True):
    """One component in ``up.json``."""

    process: ProcessId | None = None
    restarts: int = 0
    ready: bool = False


class UpState(msgspec.Struct, kw_only=True):
    """The content of ``up.json``."""

    version: str
    supervisor: ProcessId
    ports: dict[str, int]
    mounts: list[str] = msgspec.field(default_factory=list)
    """Directories that pods may mount, as the values of ``up --mount``."""
    ready: bool = False
    components: dict[str, ComponentStatus] = msgspec.field(name="parts", default_factory=dict)


class DamagedStateError(Exception):
    """A cluster is up, but its ``up.json`` is malformed."""

    def __init__(self, data: DataDir) -> None:
        super().__init__(
            f"a cluster is up in {data.root}, but {data.up_json} is malformed and does not name "
            "its supervisor: stop `batholith up` manually"
        )


def read_state(data: DataDir) -> UpState | None:
    """Return the content of ``up.json``; ``None`` if it is missing, or malformed and not in use.

    Raises:
        DamagedStateError: it is malformed, and another process holds the directory.
        UnsafePathError: other users control the directory or the file.
    """
    try:
        if not data.check():
            return None
        content = read_private(data.up_json, forbidden=GROUP_OTHER_WRITE)
        return msgspec.json.decode(content, type=UpState)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except msgspec.DecodeError:
        if data.is_locked_by_other():
            raise DamagedStateError(data) from None
        return None


def unready_components(data: DataDir) -> str:
    """Return which components are not ready, each with the end of its log."""
    state = read_state(data)
    unready = [] if state is None else [n for n, each in state.components.items() if not each.ready]
    return "\n".join(_log_tail(data, name, "is not ready") for name in unready)


def kill_orphans(data: DataDir) -> list[str]:
    """Kill the components that a killed supervisor left running; return their names."""
    state = read_state(data)
    if state is None or state.supervisor.is_alive:
        return []
    orphans = [
        (name, component.process)
        for name, component in state.components.items()
        if component.process is not None and component.process.is_alive
    ]
    for _, process in orphans:
        terminate(process, timeout=0)
    return [name for name, _ in orphans]


@dataclass(slots=True)
class _ManagedProcess:
    spec: ComponentSpec
    process: Process | None = None
    prefork_ready_fd: int | None = None
    """Descriptor on which a forked first child reports readiness."""
    stopping: bool = False
    ready: asyncio.Event = field(default_factory=asyncio.Event)


class Supervisor:
    """Runs *components* until cancelled; stops them in reverse order."""

    def __init__(
        self,
        data: DataDir,
        components: Sequence[ComponentSpec],
        *,
        program: Sequence[str],
        version: str,
        ports: Mapping[str, int],
        mounts: Sequence[str] = (),
    ) -> None:
        """*mounts* are the directories that pods may mount; ``up.json`` names them."""
        self._data = data
        self._program = program
        self._processes = [_ManagedProcess(spec) for spec in components]
        me = identify(os.getpid())
        if me is None:
            raise OSError("/proc is not mounted")
        self._state = UpState(
            version=version, supervisor=me, ports=dict(ports), mounts=list(mounts)
        )
        self._state.components = {spec.name: ComponentStatus() for spec in components}
        self._save_timer: asyncio.TimerHandle | None = None

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Start all components, call *on_ready* once all are ready, run them until cancelled.

        Raises:
            ComponentFailedError: a component exited repeatedly without ever being ready.
        """
        tasks = [asyncio.create_task(self._supervise(child)) for child in self._processes]
        waiting = asyncio.create_task(self._wait_ready(on_ready))
        try:
            # A supervising task ends only with an error: a component that cannot start.
            done, _ = await asyncio.wait({waiting, *tasks}, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            waiting.cancel()
            await self._stop(tasks)

    async def _wait_ready(self, on_ready: Callable[[], None]) -> None:
        for child in self._processes:
            await child.ready.wait()
        # Before the file: a reader of ``ready`` expects that the callback has run.
        on_ready()
        self._state.ready = True
        self._save()

    async def _supervise(self, child: _ManagedProcess) -> None:
        """Run a component; an exception fails the supervisor, a stray cancellation does not."""
        name = f"component {child.spec.name}"
        await supervise(
            name,
            lambda: self._restart_loop(child),
            may_end=lambda: child.stopping,
            fatal=(Exception,),
        )

    async def _restart_loop(self, child: _ManagedProcess) -> None:
        backoff = INITIAL_BACKOFF
        loop = asyncio.get_running_loop()
        while not child.stopping:
            started = loop.time()
            try:
                code = await self._run_once(child)
            except OSError as error:
                if not child.ready.is_set():
                    raise  # the first start: the supervisor fails
                fields = {"component": child.spec.name, "error": str(error)}
                log.error("cannot start component", extra=fields)
                code = -1
            if child.stopping:
                return
            log.warning("component exited", extra={"component": child.spec.name, "code": code})
            if (
                not child.ready.is_set()
                and self._state.components[child.spec.name].restarts >= MAX_START_ATTEMPTS
            ):
                raise ComponentFailedError(child.spec.name, self._data)
            if loop.time() - started > BACKOFF_RESET_AFTER:
                backoff = INITIAL_BACKOFF
            await asyncio.sleep(backoff)
            backoff = min(backoff * 2, MAX_BACKOFF)
            self._state.components[child.spec.name].restarts += 1

    def fork(self, entry: Entry) -> None:
        """Fork the first child of each component, which runs *entry*; before :meth:`run`."""
        for child in self._processes:
            with self._prepare_start(child.spec) as (start, readable):
                child.process, child.prefork_ready_fd = fork(entry, start), readable

    async def _run_once(self, child: _ManagedProcess) -> int:
        spec = child.spec
        if (
            child.process is not None
            and child.process.returncode is None
            and child.prefork_ready_fd is None
        ):
            return await child.process.wait()  # still running after its task was cancelled
        if child.prefork_ready_fd is None:
            with self._prepare_start(spec) as (start, readable):
                child.process = await spawn(self._program, start)
        else:
            readable, child.prefork_ready_fd = child.prefork_ready_fd, None
        if child.process is None:
            raise RuntimeError(f"{spec.name} was not started")
        self._set_process(spec.name, process=identify(child.process.pid))
        watch = asyncio.create_task(self._await_ready(child, readable))
        try:
            return await child.process.wait()
        finally:
            watch.cancel()
            self._set_process(spec.name, process=None)

    @contextlib.contextmanager
    def _prepare_start(self, spec: ComponentSpec) -> Iterator[tuple[ProcessOptions, int]]:
        """Yield the options of a child, and the descriptor on which it will report readiness."""
        readable, writable = os.pipe()
        try:
            with _open_log(self._data.logs / f"{spec.name}.log") as output:
                own = {PARENT: str(os.getpid()), READY_FD: str(writable)}
                start = ProcessOptions(
                    arguments=spec.arguments,
                    environment={**spec.environment, **own},
                    output=output,
                    descriptors=(writable, *spec.descriptors),
                )
                yield start, readable
        except BaseException:
            os.close(readable)
            raise
        finally:
            os.close(writable)

    async def _await_ready(self, child: _ManagedProcess, readable: int) -> None:
        loop = asyncio.get_running_loop()
        notified: asyncio.Future[None] = loop.create_future()
        loop.add_reader(readable, notified.set_result, None)
        try:
            await notified
            loop.remove_reader(readable)
            if os.read(readable, 1):  # end of file: it exited without being ready
                self._state.components[child.spec.name].ready = True
                self._save()
                child.ready.set()
        finally:
            loop.remove_reader(readable)
            os.close(readable)

    def _set_process(self, name: str, *, process: ProcessId | None) -> None:
        status = self._state.components[name]
        status.process, status.ready = process, False
        self._save()

    def _save(self) -> None:
        """Write ``up.json``; an error stops no component, and the write is retried."""
        try:
            write_private(self._data.up_json, msgspec.json.encode(self._state))
        except OSError as error:
            path = str(self._data.up_json)
            log.error("cannot write state, retrying", extra={"file": path, "error": str(error)})
            if self._save_timer is None:
                self._save_timer = asyncio.get_running_loop().call_later(
                    SAVE_RETRY_INTERVAL, self._retry_save
                )

    def _retry_save(self) -> None:
        self._save_timer = None
        self._save()

    async def _stop(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        for child in self._processes:
            child.stopping = True
        for child, task in reversed(list(zip(self._processes, tasks, strict=True))):
            await self._stop_one(child, task)
        if self._save_timer is not None:
            self._save_timer.cancel()
        self._data.up_json.unlink(missing_ok=True)

    async def _stop_one(self, child: _ManagedProcess, task: asyncio.Task[None]) -> None:
        process = child.process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            try:
                await asyncio.wait_for(process.wait(), child.spec.stop_timeout)
            except TimeoutError:
                log.warning(
                    "component did not stop, sent SIGKILL", extra={"component": child.spec.name}
                )
                process.kill()
                await process.wait()
        task.cancel()
        # run() raises its error, if any; the other components stop all the same.
        await asyncio.gather(task, return_exceptions=True)


@contextlib.contextmanager
def _open_log(path: Path) -> Iterator[int]:
    """Open an append-only log file for the block, after rotating a large one."""
    if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
        path.replace(path.with_suffix(".log.1"))
    handle = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, forbidden=GROUP_OTHER_WRITE)
    try:
        yield handle
    finally:
        os.close(handle)
