"""Runs of containers as local processes: their folders, their shims, their ends.

A run is a folder. Its `launch.json` is written before anything starts (the intent); the shim's
`claim.json` appears at most once (`shim`), and its `exit.json` when all is over. So an agent that
was killed at any point finds out what became of each run, and none runs twice:

* no claim: it never started. The agent puts a claim of its own there, and it never will.
* a claim whose process lives: adopted.
* a claim, no process, an exit file: it ended while nobody looked.
* a claim, no process, no exit file: lost; what it left behind is killed.

CPU limits are not enforced: that takes cgroups, which need privileges. For memory see `memory`.
Core dumps are off.
"""

import asyncio
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from ...machinery.clock import Clock
from . import mounting, rootfs, shim
from .ids import SHARED, IdMode, Ids
from .process_id import ProcessId

RUN_VARIABLE = "BATHOLITH_RUN"
POD_VARIABLE = "BATHOLITH_POD_UID"
_INNER_DIR = "/run/batholith"
_R = TypeVar("_R", bound=msgspec.Struct)
_PROGRAM = Path(shim.__file__).with_name("starting.py")
PYTHON_PREFIXES = (sys.prefix, sys.base_prefix)
"""Where this Python lies, which containers may use."""

_READY_FD = 3
"""The shim's descriptor that closes when the run is claimed."""

_READY_TIMEOUT = 5.0
"""Seconds that a shim has to obey an order to kill."""


class IsolationLevel(StrEnum):
    """How far a container is kept apart from the machine."""

    BUBBLEWRAP = "bubblewrap"
    UNSHARE = "unshare"
    PLAIN = "plain"


class RunClaim(msgspec.Struct, frozen=True):
    """Who took a run; ``pid`` 0 means that it was called off."""

    pid: int
    start: int | None = None
    boot: str = ""
    at: float = 0.0


class _LaunchedCommand(msgspec.Struct, frozen=True):
    """Of what is written before a start, the program alone."""

    argv: tuple[str, ...] = ()


class ExitRecord(msgspec.Struct, frozen=True):
    """How a run ended, times in seconds since 1970."""

    code: int
    at: float
    started: float = 0.0
    reason: str = ""
    message: str = ""

    @property
    def finished_at(self) -> datetime:
        """When it ended."""
        return datetime.fromtimestamp(self.at, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """What a run shall execute."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    log: Path
    hostname: str = ""
    isolation: IsolationLevel = IsolationLevel.PLAIN
    user: tuple[int, int] = (0, 0)
    """User and group as the sandbox shows them; `ids` says who that is outside."""

    ids: Ids = field(default_factory=Ids)
    capabilities: Collection[int] = mounting.KEPT_CAPABILITIES
    steps: Sequence[rootfs.Step] = ()


class RunDir:
    """One run on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def prepare(self, spec: LaunchSpec) -> None:
        """Write the intent down, durably."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        spec.log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        spec.log.touch(mode=0o600)
        root = self.path / "root"
        root.mkdir(exist_ok=True)
        text: dict[str, Any] = {
            "argv": list(spec.argv),
            # The mark by which `sweep` finds what is left, whatever the pod says.
            "env": {**spec.env, RUN_VARIABLE: self.name},
            "cwd": spec.cwd,
            "log": str(spec.log),
            "hostname": spec.hostname,
            "level": str(spec.isolation),
            "ids": {
                "user": spec.user,
                "base": spec.ids.base,
                "namespace": spec.ids.namespace,
                "capabilities": sorted(spec.capabilities),
            },
            "root": str(root),
            "steps": list(spec.steps) if spec.isolation is IsolationLevel.UNSHARE else [],
        }
        if spec.isolation is IsolationLevel.BUBBLEWRAP:
            text |= _bubblewrap(spec, str(root))
        shim.write_atomically(str(self.path / shim.LAUNCH), json.dumps(text))

    def start(self, ready_fd: int = -1) -> int:
        """Start the shim and give its process id; it outlives this process.

        It holds *news*, the writing end of a pipe, until it claimed the run or is gone.
        """
        null, errors = os.open(os.devnull, os.O_RDWR), self._open("shim.err")
        ends = [null, errors, errors, *([ready_fd] if ready_fd >= 0 else [])]
        told = [str(_READY_FD)] if ready_fd >= 0 else []
        try:
            return os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-S", str(_PROGRAM), str(self.path), *told],
                {RUN_VARIABLE: self.name, "PATH": os.defpath},
                file_actions=[(os.POSIX_SPAWN_DUP2, end, to) for to, end in enumerate(ends)],
                setsid=True,
                setsigmask=[],
                setsigdef=[signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE],
            )
        finally:
            os.close(null)
            os.close(errors)

    def _open(self, name: str) -> int:
        return os.open(self.path / name, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    @property
    def name(self) -> str:
        """Marks the run's processes; the last parts of the path, pod uid first."""
        return "/".join(self.path.parts[-4:])

    @property
    def container_name(self) -> str:
        """The name of the container that runs."""
        return self.path.parent.name

    def is_prepared(self) -> bool:
        """The intent was written down; without it there was no start either."""
        return (self.path / shim.LAUNCH).exists()

    def argv(self) -> tuple[str, ...]:
        """What was to be executed; empty if the intent was not written down."""
        told = _read(self.path / shim.LAUNCH, _LaunchedCommand)
        return told.argv if told else ()

    def read_claim(self) -> RunClaim | None:
        """Who took the run, if anybody did."""
        return _read(self.path / shim.CLAIM, RunClaim)

    def cancel(self) -> bool:
        """Make sure that the run never starts; ``False`` if it has already been taken."""
        own = self.path / f"claim.{os.getpid()}.off"
        shim.write_atomically(str(own), json.dumps({"pid": 0}))
        try:
            os.link(own, self.path / shim.CLAIM)
        except FileExistsError:
            return False
        finally:
            own.unlink()
        return True

    def claim_or_cancel(self) -> RunClaim | None:
        """Return the claim of the shim that started the run; cancel the run if there is none."""
        if self.read_claim() is None and self.cancel():
            return None
        claim = self.read_claim()
        return None if claim is None or claim.pid == 0 else claim

    @property
    def is_valid(self) -> bool:
        """It was intended and not called off."""
        claim = self.read_claim()
        return self.is_prepared() and (claim is None or claim.pid != 0)

    def exit_record(self) -> ExitRecord | None:
        """How the run ended, if it did and could say so."""
        with suppress(IsADirectoryError, msgspec.DecodeError):  # a container may have been there
            return _read(self.path / shim.EXIT, ExitRecord)
        return None

    @property
    def is_finished(self) -> bool:
        """Whether nothing of it runs or will: it ended, was lost, or went with its pod."""
        if self.exit_record() is not None or not self.is_prepared():
            return True
        return self.read_claim() is not None and self.shim_pid() is None

    def errors(self) -> str:
        """What the shim itself complained about."""
        with suppress(FileNotFoundError):
            return (self.path / "shim.err").read_text(errors="replace")[-1000:].strip()
        return ""

    def shim_pid(self) -> int | None:
        """The shim's process id, if it lives and is the one that claimed."""
        claim = self.read_claim()
        if claim is None or claim.start is None:
            return None
        owner = ProcessId(claim.pid, claim.start, claim.boot)
        return claim.pid if owner.is_alive else None


def _read(path: Path, kind: type[_R]) -> _R | None:
    with suppress(FileNotFoundError):
        return msgspec.json.decode(path.read_bytes(), type=kind)
    return None


def _bubblewrap(launch: LaunchSpec, run_dir: str) -> dict[str, Any]:
    """What the shim does for a container that bubblewrap sets up."""
    program = shutil.which("bwrap") or "bwrap"
    laid, steps = rootfs.stage_plan(launch.steps, run_dir)
    steps.append(("show", str(_PROGRAM.parent), _INNER_DIR, ""))
    user = launch.user if launch.ids.base is None else None
    argv = rootfs.bubblewrap_arguments(program, steps, hostname=launch.hostname, user=user)
    inner = f"{_INNER_DIR}/{_PROGRAM.name}"
    sealed = any(kind == "seal" for kind, _, _, _ in steps)
    made = [place for kind, mode, place, _ in steps if kind == "tmpfs" and mode != "700"]
    return {
        "bubblewrap": [*argv, sys.executable, "-I", "-S", inner],
        "stage": laid,
        "owned": [] if user or sealed else ["/", *made],
    }


async def start_and_wait_claimed(run_dir: RunDir) -> int:
    """Start the shim, and wait until it claimed the run or is gone."""
    read, write = os.pipe()
    try:
        pid = run_dir.start(write)
    finally:
        os.close(write)
    loop = asyncio.get_running_loop()
    claimed = asyncio.Event()
    loop.add_reader(read, claimed.set)
    try:
        await claimed.wait()
    finally:
        loop.remove_reader(read)
        os.close(read)
    return pid


class ContainerProcess:
    """A run that is under way, own child or adopted."""

    def __init__(self, run_dir: RunDir, pid: int, *, clock: Clock) -> None:
        """Watch *pid*; must be called while a loop runs.

        Raises:
            ProcessLookupError: there is no such process any more.
        """
        self.run_dir = run_dir
        self.pid = pid
        self._clock = clock
        self._pidfd = os.pidfd_open(pid)
        loop = asyncio.get_running_loop()
        self._exited: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._pidfd, self._on_exit)

    def _on_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        with suppress(ChildProcessError):  # an adopted one is not our child
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)
        os.close(self._pidfd)
        self._pidfd = -1
        if not self._exited.done():
            self._exited.set_result(None)

    async def wait(self) -> ExitRecord:
        """Wait for the end; what could not say how it ended is killed and counts as lost."""
        await asyncio.shield(self._exited)
        return collect_exit(self.run_dir)

    def terminate(self) -> None:
        """Pass SIGTERM to the main process."""
        self._signal(signal.SIGTERM)

    async def kill(self) -> None:
        """Kill everything of the run, and wait until it is gone."""
        self._signal(signal.SIGUSR1)
        late = self._clock.call_later(_READY_TIMEOUT, self._kill_all)
        try:
            await asyncio.shield(self._exited)
        finally:
            late.cancel()

    def _kill_all(self) -> None:
        self._signal(signal.SIGKILL)
        kill_tagged(self.run_dir.name)

    def _signal(self, number: int) -> None:
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def detach(self) -> None:
        """Stop watching; the processes go on."""
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        self._exited.cancel()


def collect_exit(run_dir: RunDir) -> ExitRecord:
    """Return the exit record of a run whose shim is gone; kill the rest of a run without one."""
    record = run_dir.exit_record()
    if record is not None:
        return record
    kill_tagged(run_dir.name)
    return lost_exit_record(run_dir)


def lost_exit_record(run_dir: RunDir) -> ExitRecord:
    """What is said of a run that nobody saw ending."""
    errors = run_dir.errors()
    message = "The container could not be located when the pod was terminated"
    return ExitRecord(
        code=137,
        at=datetime.now(UTC).timestamp(),
        started=claim.at if (claim := run_dir.read_claim()) else 0.0,
        reason="ContainerStatusUnknown",
        message=f"{message}: {errors}" if errors else message,
    )


def kill_tagged(tag: str) -> int:
    """Kill every process whose environment says that it belongs to run (or pod) *mark*."""
    wanted = f"{RUN_VARIABLE}={tag}".encode()
    killed = 0
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        with suppress(OSError):  # gone meanwhile, or somebody else's
            held = (folder / "environ").read_bytes().split(b"\0")
            if any(entry == wanted or entry.startswith(wanted + b"/") for entry in held):
                os.kill(int(folder.name), signal.SIGKILL)
                killed += 1
    return killed


@dataclass(frozen=True, slots=True)
class IsolationReport:
    """The best level that works here, and why better ones do not."""

    isolation: IsolationLevel
    reasons: tuple[str, ...] = ()
    id_mode: IdMode = IdMode.OWN
    safe_paths: bool = True
    """What a pod may swap while it is being mounted can be mounted."""


def detect_isolation(requested: IsolationLevel | None = None) -> IsolationReport:
    """Find the best level that works by trying; blocks for some tens of milliseconds.

    For root, who pods are matters more than how their sandbox is made. *wanted* is tried alone; if
    it does not work the answer is plain, with the reason.
    """
    reasons: list[str] = []
    for identity in IdMode if os.geteuid() == 0 else [IdMode.OWN]:
        for level in [requested] if requested else list(IsolationLevel):
            if level is IsolationLevel.PLAIN:
                continue
            problem = _try_isolation(level, identity, below="file")
            if not problem:
                return IsolationReport(level, tuple(reasons), identity)
            reasons.append(f"{level} ({identity} user ids): {problem}")
            if level is IsolationLevel.BUBBLEWRAP and not _try_isolation(level, identity, below=""):
                return IsolationReport(level, tuple(reasons), identity, safe_paths=False)
    return IsolationReport(IsolationLevel.PLAIN, tuple(reasons))


def isolation_warning(report: IsolationReport, *, root: bool) -> str:
    """What is wrong with how pods are kept apart; empty if nothing is. *root*: the agent is."""
    if report.isolation is IsolationLevel.PLAIN:
        if root:
            return "there is no sandbox: pods run as root, and can do to this machine what root can"
        return "there is no sandbox: pods can read and write what the user of the agent can"
    if root and report.id_mode is IdMode.OWN:
        return "pods cannot have user ids of their own: in their sandbox they run as root"
    if report.id_mode is IdMode.SWITCHED:
        return "there are no user namespaces: no pod can be root, not even in its own eyes"
    if not report.safe_paths:
        return "subPath, and mounts inside other mounts, cannot be had: pods that ask are refused"
    return ""


def _try_isolation(level: IsolationLevel, id_mode: IdMode, *, below: str) -> str:
    """Why *level* does not work; empty if it does."""
    if level is IsolationLevel.BUBBLEWRAP and shutil.which("bwrap") is None:
        return "bwrap is not installed"
    with tempfile.TemporaryDirectory(prefix="batholith-probe-") as text:
        base = Path(text)
        (base / "file").write_text("seen")
        source = base if below else base / "file"
        mounts = [rootfs.Mount(str(source), "/etc/batholith-probe/file", True, below)]
        ranges = id_mode is not IdMode.OWN
        tools = PYTHON_PREFIXES if ranges else ()
        steps = rootfs.mount_plan(mounts, hidden=[], home=os.path.expanduser("~"), tools=tools)
        run = RunDir(base / "run")
        script = "cat /etc/batholith-probe/file >/dev/null && test -w /tmp && test -r /proc/self"
        run.prepare(
            LaunchSpec(
                argv=["sh", "-c", script],
                env={"PATH": os.defpath},
                cwd="/",
                log=base / "log" / "0.log",
                hostname="probe",
                isolation=level,
                ids=Ids(SHARED if ranges else None, id_mode is IdMode.RANGE),
                steps=steps,
            )
        )
        os.waitpid(run.start(), 0)
        ended = run.exit_record()
        if ended is None:
            return run.errors() or "the trial run vanished"
        return "" if ended.code == 0 else ended.message or f"the trial ended with {ended.code}"
