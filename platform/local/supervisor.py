"""Keeps the parts of an embedded cluster running: one child process a part.

A part tells that it is ready by writing a byte to the descriptor that its environment names; a
part that ends is started again with back-off. What runs is written to ``up.json``, so that
``batholith status`` and ``down`` find it, and the next ``up`` ends what a killed supervisor left.
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

from ..agent.runtime.process_id import ProcessId, identify, terminate
from ..kube.private_files import GROUP_OTHER_WRITE, open_private, read_private
from ..kube.supervision import supervise
from .child_process import Entry, Process, ProcessOptions, fork, spawn
from .datadir import DataDir
from .files import write_private

log = logging.getLogger(__name__)

PARENT = "BATHOLITH_SUPERVISOR"
"""Environment: process id of the supervisor, in its children."""
READY_FD = "BATHOLITH_READY_FD"
"""Environment: descriptor on which a child tells that it is ready."""

INITIAL_BACKOFF, MAX_BACKOFF, BACKOFF_RESET_AFTER = 0.1, 10.0, 10.0
"""Seconds: back-off before a restart, its ceiling, and the life after which it starts anew."""
MAX_START_ATTEMPTS = 3
"""Restarts of a part that has never been ready before the whole start is given up."""
SAVE_RETRY_INTERVAL = 1.0
"""Seconds until a state that could not be written is written again."""
LOG_TAIL_LINES = 15
"""Lines of a log that an error shows."""
MAX_LOG_BYTES = 10 * 2**20
"""Bytes of a part's log that are kept when it starts; older ones go to a second file."""


class ComponentFailedError(Exception):
    """A part does not start; the text shows the end of its log."""

    def __init__(self, name: str, log_file: Path) -> None:
        lines = log_file.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        super().__init__("\n".join([f"{name} does not start; the end of {log_file}:", *lines]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ComponentSpec:
    """One child process."""

    name: str
    arguments: Sequence[str]
    """What follows the program that all parts have in common."""
    descriptors: Sequence[int] = ()
    """Open files that the child inherits under the same numbers."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables beside those of the supervisor."""
    stop_timeout: float = 10.0
    """Seconds that it gets to stop in order."""


class ComponentStatus(msgspec.Struct, kw_only=True):
    """A part as ``up.json`` tells it."""

    process: ProcessId | None = None
    restarts: int = 0
    ready: bool = False


class UpState(msgspec.Struct, kw_only=True):
    """The content of ``up.json``."""

    version: str
    supervisor: ProcessId
    ports: dict[str, int]
    ready: bool = False
    parts: dict[str, ComponentStatus] = {}


class DamagedStateError(Exception):
    """A cluster is up, and its ``up.json`` does not tell what runs."""

    def __init__(self, data: DataDir) -> None:
        super().__init__(
            f"a cluster is up in {data.root}, but {data.up_json} is damaged and does not tell "
            "which process runs it: end `batholith up` by hand"
        )


def read_state(data: DataDir) -> UpState | None:
    """What ``up.json`` says; ``None`` where there is none, or a damaged one of nobody who is up.

    Raises:
        DamagedStateError: it cannot be read, and another process holds the folder.
        UnsafePathError: others control the folder or the file.
    """
    try:
        if not data.check():
            return None
        told = read_private(data.up_json, forbidden=GROUP_OTHER_WRITE)
        return msgspec.json.decode(told, type=UpState)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except msgspec.DecodeError:
        if data.is_locked_by_other():
            raise DamagedStateError(data) from None
        return None


def kill_leftovers(data: DataDir) -> list[str]:
    """End the parts that a killed supervisor left; returns their names."""
    state = read_state(data)
    if state is None or state.supervisor.is_alive:
        return []
    left = [
        (name, part.process)
        for name, part in state.parts.items()
        if part.process is not None and part.process.is_alive
    ]
    for _, process in left:
        terminate(process, timeout=0)
    return [name for name, _ in left]


@dataclass(slots=True)
class _ManagedProcess:
    spec: ComponentSpec
    process: Process | None = None
    prefork_ready_fd: int | None = None
    """Descriptor on which a child that was forked before tells that it is ready."""
    stopping: bool = False
    ready: asyncio.Event = field(default_factory=asyncio.Event)


class Supervisor:
    """Runs *parts* until told to stop; stops them in the reverse of their order."""

    def __init__(
        self,
        data: DataDir,
        components: Sequence[ComponentSpec],
        *,
        program: Sequence[str],
        version: str,
        ports: Mapping[str, int],
    ) -> None:
        self._data = data
        self._program = program
        self._processes = [_ManagedProcess(part) for part in components]
        me = identify(os.getpid())
        if me is None:
            raise OSError("/proc is not mounted")
        self._state = UpState(version=version, supervisor=me, ports=dict(ports))
        self._state.parts = {part.name: ComponentStatus() for part in components}
        self._save_timer: asyncio.TimerHandle | None = None

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Start all parts, call *on_ready* once all are ready, keep them until cancelled.

        Raises:
            PartFailedError: a part ended again and again without ever being ready.
        """
        keepers = [asyncio.create_task(self._supervise(child)) for child in self._processes]
        waiting = asyncio.create_task(self._wait_ready(on_ready))
        try:
            # A keeper ends only by an error: a part that cannot start.
            done, _ = await asyncio.wait({waiting, *keepers}, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        finally:
            waiting.cancel()
            await self._stop(keepers)

    async def _wait_ready(self, on_ready: Callable[[], None]) -> None:
        for child in self._processes:
            await child.ready.wait()
        # Whoever reads of it in the file expects that it has been told.
        on_ready()
        self._state.ready = True
        self._save()

    async def _supervise(self, child: _ManagedProcess) -> None:
        """Keep a part, whatever its keeper meets; what it raises ends the whole."""
        name, over = f"part {child.spec.name}", lambda: child.stopping
        await supervise(name, lambda: self._restart_loop(child), may_end=over, fatal=(Exception,))

    async def _restart_loop(self, child: _ManagedProcess) -> None:
        pause = INITIAL_BACKOFF
        loop = asyncio.get_running_loop()
        while not child.stopping:
            started = loop.time()
            try:
                code = await self._run_once(child)
            except OSError as error:
                if not child.ready.is_set():
                    raise  # it never was: whoever started this should know
                log.error("part not started", extra={"part": child.spec.name, "error": str(error)})
                code = -1
            if child.stopping:
                return
            log.warning("part ended", extra={"part": child.spec.name, "code": code})
            if (
                not child.ready.is_set()
                and self._state.parts[child.spec.name].restarts >= MAX_START_ATTEMPTS
            ):
                raise ComponentFailedError(
                    child.spec.name, self._data.logs / f"{child.spec.name}.log"
                )
            if loop.time() - started > BACKOFF_RESET_AFTER:
                pause = INITIAL_BACKOFF
            await asyncio.sleep(pause)
            pause = min(pause * 2, MAX_BACKOFF)
            self._state.parts[child.spec.name].restarts += 1

    def fork(self, entry: Entry) -> None:
        """Fork a first child of each part that does *entry*, before :meth:`run_in_thread`."""
        for child in self._processes:
            with self._prepare_start(child.spec) as (start, readable):
                child.process, child.prefork_ready_fd = fork(entry, start), readable

    async def _run_once(self, child: _ManagedProcess) -> int:
        part = child.spec
        if (
            child.process is not None
            and child.process.returncode is None
            and child.prefork_ready_fd is None
        ):
            return await child.process.wait()  # it runs on from before its keeper failed
        if child.prefork_ready_fd is None:
            with self._prepare_start(part) as (start, readable):
                child.process = await spawn(self._program, start)
        else:
            readable, child.prefork_ready_fd = child.prefork_ready_fd, None
        if child.process is None:
            raise RuntimeError(f"{part.name} was not started")
        self._set_process(part.name, process=identify(child.process.pid))
        watch = asyncio.create_task(self._await_ready(child, readable))
        try:
            return await child.process.wait()
        finally:
            watch.cancel()
            self._set_process(part.name, process=None)

    @contextlib.contextmanager
    def _prepare_start(self, spec: ComponentSpec) -> Iterator[tuple[ProcessOptions, int]]:
        """How to start a child, and the descriptor on which it will tell that it is ready."""
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
        told: asyncio.Future[None] = loop.create_future()
        loop.add_reader(readable, told.set_result, None)
        try:
            await told
            loop.remove_reader(readable)
            if os.read(readable, 1):  # nothing to read: it ended without being ready
                self._state.parts[child.spec.name].ready = True
                self._save()
                child.ready.set()
        finally:
            loop.remove_reader(readable)
            os.close(readable)

    def _set_process(self, name: str, *, process: ProcessId | None) -> None:
        part = self._state.parts[name]
        part.process, part.ready = process, False
        self._save()

    def _save(self) -> None:
        """Write the state down; what cannot be written ends nothing, and is tried again."""
        try:
            write_private(self._data.up_json, msgspec.json.encode(self._state))
        except OSError as error:
            path = str(self._data.up_json)
            log.error("state not written, will retry", extra={"file": path, "error": str(error)})
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
        for child, keeper in reversed(list(zip(self._processes, tasks, strict=True))):
            await self._stop_one(child, keeper)
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
                log.warning("part did not stop, killed", extra={"part": child.spec.name})
                process.kill()
                await process.wait()
        task.cancel()
        # Its error, if it had one, is what run() raises; the other parts stop all the same.
        await asyncio.gather(task, return_exceptions=True)


@contextlib.contextmanager
def _open_log(path: Path) -> Iterator[int]:
    """An append-only log file for the length of the block; a large one is put aside first."""
    if path.exists() and path.stat().st_size > MAX_LOG_BYTES:
        path.replace(path.with_suffix(".log.1"))
    handle = open_private(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, forbidden=GROUP_OTHER_WRITE)
    try:
        yield handle
    finally:
        os.close(handle)
