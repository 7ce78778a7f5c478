"""Runs of containers as local processes: their directories, shims and exit records.

A run is a directory. The agent writes `launch.json` before it starts the shim; the shim creates
`claim.json`, which can be created only once, and `exit.json` at the end. Thus the next agent can
recover each run after a kill at any point, and none runs more than once:

* no claim: it never started. The agent creates the claim itself, so that the run never starts.
* a claim with a live process: adopted.
* a claim, no process, an exit record: it exited without an agent.
* a claim, no process, no exit record: lost; its remaining processes are killed.

`cgroups` enforces limits of CPU and memory where it can; elsewhere `oom` enforces those of memory.
Core dumps are disabled.
"""

import asyncio
import errno
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeVar

import msgspec

from ....machinery.clock import Clock
from ....model.pod_resources import Resources
from ..state.status import LOST_CODE, LOST_MESSAGE, LOST_REASON
from . import groups, image_run, mounting, rootfs, shim, shim_server, spawning
from .ids import SHARED, IdMode, Ids, chown
from .image_run import RunImage, VolumeImage
from .process_id import ProcessId

RUN_VARIABLE = shim_server.RUN_VARIABLE
POD_VARIABLE = "BATHOLITH_POD_UID"
_INNER_DIR = "/run/batholith"
TERMINATION_LOG = "termination-log"
"""File of a run that takes the container's termination message, in a sandbox."""

_RESOURCES, _RESTART = "resources.json", "restart.json"
_R = TypeVar("_R", bound=msgspec.Struct)
PYTHON_PREFIXES = (sys.prefix, sys.base_prefix)
"""Directories of this Python, which containers may use."""

_KILL_TIMEOUT = 5.0
"""Seconds in which a shim must react to a request to kill."""


class IsolationLevel(StrEnum):
    """Isolation of a container from the machine."""

    BUBBLEWRAP = "bubblewrap"
    UNSHARE = "unshare"
    PLAIN = "plain"


class RunClaim(msgspec.Struct, frozen=True):
    """The shim that claimed a run; ``pid`` 0 means that the run was cancelled."""

    pid: int
    start: int | None = None
    boot: str = ""
    at: float = 0.0


class JoinedProcess(msgspec.Struct, frozen=True):
    """The first process of a container, by id and start time (`shim.start_time`)."""

    pid: int
    start: int


class _LaunchedCommand(msgspec.Struct, frozen=True):
    """The command and other entries of `launch.json`."""

    argv: tuple[str, ...] = ()
    image: RunImage | None = None
    volume_images: tuple[VolumeImage, ...] = ()
    joined: JoinedProcess | None = None
    cgroup: str = ""
    resources: Resources | None = None


class _RestartMark(msgspec.Struct, frozen=True):
    reason: str = ""


class ExitRecord(msgspec.Struct, frozen=True):
    """Exit of a run; times are Unix timestamps."""

    code: int
    at: float
    started: float = 0.0
    reason: str = ""
    message: str = ""

    @property
    def finished_at(self) -> datetime:
        """Time of the exit."""
        return datetime.fromtimestamp(self.at, UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchSpec:
    """What the shim executes."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    log: Path
    hostname: str = ""
    isolation: IsolationLevel = IsolationLevel.PLAIN
    user: tuple[int, int] = (0, 0)
    """User and group inside the sandbox; `ids` maps them to the host's."""

    ids: Ids = field(default_factory=Ids)
    capabilities: Collection[int] = mounting.KEPT_CAPABILITIES
    steps: Sequence[rootfs.Step] = ()
    can_stage: bool = False
    """Whether this user, and not bubblewrap alone, can create namespaces: to prepare mounts for
    bubblewrap, and to start it without supplementary groups."""
    tmpfs_size: int = 64 << 20
    """Bytes of each tmpfs in the sandbox."""

    image: RunImage | None = None
    """The image whose files are the root, at the level `UNSHARE`."""

    volume_images: tuple[VolumeImage, ...] = ()
    """Volumes with the files of images, in a sandbox."""

    stdin: bool = False
    stdin_once: bool = False
    """Whether the input ends when the first client that uses it disconnects."""

    tty: bool = False
    stop_signal: int = signal.SIGTERM
    max_processes: int = 0
    """Processes and threads of each user of a container in a sandbox; 0: without a limit."""

    cgroup: str = ""
    """Path of the control group of its processes; empty for that of the agent."""

    network: str = ""
    """Path of the network namespace of its pod; empty for that of the agent."""

    sysctls: Sequence[tuple[str, str]] = ()
    """Paths below /proc/sys, and values, for its IPC namespace, at the level `UNSHARE`."""

    joined: JoinedProcess | None = None
    """A process of another container of the pod whose pid namespace the container joins, at the
    level `UNSHARE`, with its own ids."""

    resources: Resources = field(default_factory=Resources)
    """Requests and limits of the container, for the agent alone."""

    error: str = ""
    """Why the container cannot start, if it cannot; becomes the message of its exit record."""

    @property
    def images(self) -> list[RunImage]:
        """The images whose files the container has."""
        return _images(self.image, self.volume_images)


class ShimProcess(NamedTuple):
    """The process of a shim, with a descriptor that stays with it if the pid is reused."""

    pid: int
    pidfd: int

    @classmethod
    def of(cls, pid: int) -> Self:
        """Return a process; it may be another one if that with *pid* was reaped before.

        Raises:
            ProcessLookupError: there is no such process.
        """
        return cls(pid, os.pidfd_open(pid))


class RunDir:
    """Directory of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._launch: _LaunchedCommand | None = None

    def _read_launch(self) -> _LaunchedCommand | None:
        """Return what `launch.json` contains, which is written once; ``None`` without it."""
        if self._launch is None:
            self._launch = _read(self.path / shim.LAUNCH, _LaunchedCommand)
        return self._launch

    def prepare(self, spec: LaunchSpec) -> None:
        """Write `launch.json`, durably."""
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        spec.log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        spec.log.touch(mode=0o600)
        if spec.isolation is not IsolationLevel.PLAIN:
            message = self.path / TERMINATION_LOG
            message.touch()
            chown(message, spec.ids.owner(spec.user[0]))
        root = self.path / "root"
        root.mkdir(exist_ok=True)
        content: dict[str, Any] = {
            "argv": list(spec.argv),
            # Overrides the pod's own variable: `kill_tagged` finds the processes by it.
            "env": {**spec.env, RUN_VARIABLE: self.name},
            "cwd": spec.cwd,
            "log": str(spec.log),
            "hostname": spec.hostname,
            "level": str(spec.isolation),
            "error": spec.error,
            "stdin": spec.stdin,
            "stdin_once": spec.stdin_once,
            "tty": spec.tty,
            "stop_signal": spec.stop_signal,
            "max_processes": spec.max_processes,
            "cgroup": spec.cgroup,
            "network": spec.network,
            "sysctls": list(spec.sysctls),
            "resources": msgspec.to_builtins(spec.resources),
            "tmpfs_size": spec.tmpfs_size,
            "ids": {
                "user": spec.user,
                "base": spec.ids.base,
                "namespace": spec.ids.namespace,
                "capabilities": sorted(spec.capabilities),
            },
            "root": str(root),
            "drop_groups": spec.can_stage and bool(groups.supplementary()),
            "steps": list(spec.steps) if spec.isolation is IsolationLevel.UNSHARE else [],
        }
        if spec.isolation is IsolationLevel.BUBBLEWRAP:
            content |= _bubblewrap(spec, str(root))
        if spec.joined is not None:
            content["joined"] = msgspec.to_builtins(spec.joined)
        if spec.images:
            image_run.prepare(self.path, spec.volume_images)
            content["volume_images"] = msgspec.to_builtins(spec.volume_images)
        if spec.image is not None:
            writable = str(self.path / image_run.WRITABLE)
            content |= {"image": msgspec.to_builtins(spec.image), "writable": writable}
        shim.write_durably(str(self.path / shim.LAUNCH), json.dumps(content))
        self._launch = _LaunchedCommand(
            argv=tuple(spec.argv),
            image=spec.image,
            volume_images=spec.volume_images,
            joined=spec.joined,
            cgroup=spec.cgroup,
            resources=spec.resources,
        )

    def start(self, ready_fd: int = -1) -> int:
        """Start the shim as a child of this process, which it outlives; return its process id.

        It keeps *ready_fd*, the write end of a pipe, open until the program runs, or it exits.
        """
        errors = self.open_errors()
        ready = [ready_fd] if ready_fd >= 0 else []
        try:
            return spawning.spawn(
                [str(self.path), *(str(spawning.FIRST_DESCRIPTOR) for _ in ready)],
                {RUN_VARIABLE: self.name, "PATH": os.defpath},
                output=errors,
                descriptors=ready,
            )
        finally:
            os.close(errors)

    def open_errors(self) -> int:
        """Open the file of the error output of the shim itself."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        return os.open(self.path / "shim.err", flags, 0o600)

    @property
    def name(self) -> str:
        """Tag of the run's processes: the last components of its path, pod uid first."""
        return "/".join(self.path.parts[-4:])

    @property
    def container_name(self) -> str:
        """Name of the container."""
        return self.path.parent.name

    def is_prepared(self) -> bool:
        """Return whether `launch.json` was written; without it the run never started."""
        return (self.path / shim.LAUNCH).exists()

    def argv(self) -> tuple[str, ...]:
        """Return the command of the run; empty without `launch.json`."""
        launch = self._read_launch()
        return launch.argv if launch else ()

    @property
    def cgroup(self) -> str:
        """Path of the control group of its processes; empty for that of the agent."""
        launch = self._read_launch()
        return launch.cgroup if launch else ""

    @property
    def resources(self) -> Resources | None:
        """Requests and limits with which it runs; ``None``: an older agent has started it."""
        resized = _read(self.path / _RESOURCES, Resources)
        if resized is not None:
            return resized
        launch = self._read_launch()
        return launch.resources if launch else None

    def write_resources(self, resources: Resources) -> None:
        """Record that it runs with other resources than those it was started with."""
        shim.replace_file(str(self.path / _RESOURCES), msgspec.json.encode(resources).decode())

    @property
    def restart_reason(self) -> str:
        """Why its container is started again under any restart policy; empty if it is not."""
        mark = _read(self.path / _RESTART, _RestartMark)
        return "" if mark is None else mark.reason

    def mark_restart(self, reason: str) -> None:
        """Record why its container is started again under any restart policy."""
        content = msgspec.json.encode(_RestartMark(reason)).decode()
        shim.replace_file(str(self.path / _RESTART), content)

    @property
    def has_joined(self) -> bool:
        """Whether its processes are in the pid namespace of another container."""
        launch = self._read_launch()
        return launch is not None and launch.joined is not None

    def image(self) -> RunImage | None:
        """Return the image of the run, if it runs one."""
        launch = self._read_launch()
        return launch.image if launch else None

    def images(self) -> list[RunImage]:
        """Return the images whose files the container of the run has."""
        launch = self._read_launch()
        return _images(launch.image, launch.volume_images) if launch else []

    def volume_image_ids(self) -> dict[str, str]:
        """Return the ids of the images that the container has as volumes, by name of volume."""
        launch = self._read_launch()
        return {each.name: each.image.image_id for each in launch.volume_images} if launch else {}

    def read_claim(self) -> RunClaim | None:
        """Return the claim of the run, if any."""
        return _read(self.path / shim.CLAIM, RunClaim)

    def cancel(self) -> bool:
        """Prevent the start of the run; return ``False`` if it is already claimed."""
        own = self.path / f"claim.{os.getpid()}.off"
        shim.write_durably(str(own), json.dumps({"pid": 0}))
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
        """Whether it was prepared and not cancelled, and its plan was not outdated."""
        claim = self.read_claim()
        if not self.is_prepared() or (claim is not None and claim.pid == 0):
            return False
        record = self.exit_record()
        return record is None or record.reason != shim.HOST_CHANGED

    def exit_record(self) -> ExitRecord | None:
        """Return the exit record, if the shim has written it."""
        try:
            return _read(self.path / shim.EXIT, ExitRecord)
        except msgspec.DecodeError:
            return None
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.ELOOP):
                return None  # not a file: a plain container can write here
            raise

    @property
    def is_finished(self) -> bool:
        """Whether nothing of it runs or will run: it exited, was lost, or its pod was removed."""
        if self.exit_record() is not None or not self.is_prepared():
            return True
        return self.read_claim() is not None and self.shim_pid() is None

    def errors(self) -> str:
        """Return the error output of the shim itself."""
        with suppress(FileNotFoundError):
            return (self.path / "shim.err").read_text(errors="replace")[-1000:].strip()
        return ""

    def shim_pid(self) -> int | None:
        """Return the process id of the shim that claimed the run, if it is alive."""
        claim = self.read_claim()
        if claim is None or claim.start is None:
            return None
        owner = ProcessId(claim.pid, claim.start, claim.boot)
        return claim.pid if owner.is_alive else None

    def open_shim(self) -> "ShimProcess | None":
        """Return the process of the shim that claimed the run, if it is alive."""
        pid = self.shim_pid()
        if pid is None:
            return None
        with suppress(ProcessLookupError):
            found = ShimProcess.of(pid)
            if self.shim_pid() is not None:
                return found
            os.close(found.pidfd)  # it exited in between: the pid may belong to another process
        return None


def _read(path: Path, kind: type[_R]) -> _R | None:
    # A plain container can replace it by a pipe, which would block the event loop.
    with (
        suppress(FileNotFoundError),
        os.fdopen(mounting.open_regular(str(path)), "rb") as file,
    ):
        return msgspec.json.decode(file.read(), type=kind)
    return None


def _images(own: RunImage | None, volumes: Iterable[VolumeImage]) -> list[RunImage]:
    return [*([] if own is None else [own]), *(each.image for each in volumes)]


def _bubblewrap(launch: LaunchSpec, run_dir: str) -> dict[str, Any]:
    """Return the entries of `launch.json` for a container that bubblewrap sets up.

    Raises:
        ValueError: the container has an id range, into which bubblewrap cannot switch safely.
    """
    if launch.ids.base is not None:
        raise ValueError("bubblewrap runs containers as the agent's own user only")
    program = shutil.which("bwrap") or "bwrap"
    init = ("ro", str(spawning.PROGRAM.parent), _INNER_DIR, "")
    every = [*launch.steps, init]
    staged, steps = rootfs.stage_plan(every, run_dir, homes=launch.can_stage)
    argv = rootfs.bubblewrap_arguments(
        program,
        steps,
        hostname=launch.hostname,
        user=launch.user,
        tmpfs_size=launch.tmpfs_size,
    )
    inner = f"{_INNER_DIR}/{spawning.PROGRAM.name}"
    return {"bubblewrap": [*argv, sys.executable, "-I", "-S", inner], "stage": staged}


class ContainerProcess:
    """The process of a run, started or adopted by this agent."""

    def __init__(self, run_dir: RunDir, shim: ShimProcess, *, clock: Clock) -> None:
        """Watch *shim*, whose descriptor this closes; an event loop must be running."""
        self.run_dir = run_dir
        self.pid = shim.pid
        self._clock = clock
        self._pidfd = shim.pidfd
        loop = asyncio.get_running_loop()
        self._exited: asyncio.Future[None] = loop.create_future()
        loop.add_reader(self._pidfd, self._on_exit)

    def _on_exit(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        with suppress(ChildProcessError):  # most shims are not children of this process
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED | os.WNOHANG)
        os.close(self._pidfd)
        self._pidfd = -1
        if not self._exited.done():
            self._exited.set_result(None)

    async def wait(self) -> ExitRecord:
        """Wait for the exit of the run, and return its exit record."""
        await asyncio.shield(self._exited)
        return collect_exit(self.run_dir)

    def terminate(self) -> None:
        """Ask the main process to stop, by SIGTERM or the signal of its container."""
        self._signal(signal.SIGTERM)

    async def kill(self) -> None:
        """Kill all processes of the run, and wait for their exit."""
        self._signal(signal.SIGUSR1)
        timeout = self._clock.call_later(_KILL_TIMEOUT, self._kill_all)
        try:
            await asyncio.shield(self._exited)
        finally:
            timeout.cancel()

    def _kill_all(self) -> None:
        self._signal(signal.SIGKILL)
        kill_tagged(self.run_dir.name)

    def _signal(self, number: int) -> None:
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    def detach(self) -> None:
        """Stop watching; the processes keep running."""
        if self._pidfd >= 0:
            asyncio.get_running_loop().remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        self._exited.cancel()


def collect_exit(run_dir: RunDir) -> ExitRecord:
    """Return the exit record of a run without a shim; kill what is left of a run without one.

    Processes in the pid namespace of another container may also be left of a run with one: the
    first process of that container adopts them.
    """
    record = run_dir.exit_record()
    if record is not None:
        if run_dir.has_joined:
            kill_tagged(run_dir.name)
        return record
    kill_tagged(run_dir.name)
    return lost_exit_record(run_dir)


def lost_exit_record(run_dir: RunDir) -> ExitRecord:
    """Return the exit record of a run that ended without writing one."""
    errors = run_dir.errors()
    return ExitRecord(
        code=LOST_CODE,
        at=datetime.now(UTC).timestamp(),
        started=claim.at if (claim := run_dir.read_claim()) else 0.0,
        reason=LOST_REASON,
        message=f"{LOST_MESSAGE}: {errors}" if errors else LOST_MESSAGE,
    )


def kill_tagged(tag: str) -> int:
    """Kill every process whose environment has the tag of a run, or of any run of a pod."""
    variable = f"{RUN_VARIABLE}={tag}".encode()
    killed = 0
    for process in Path("/proc").iterdir():
        if not process.name.isdigit() or int(process.name) == os.getpid():
            continue
        with suppress(OSError):  # it has exited, or belongs to another user
            environ = (process / "environ").read_bytes().split(b"\0")
            if any(entry == variable or entry.startswith(variable + b"/") for entry in environ):
                os.kill(int(process.name), signal.SIGKILL)
                killed += 1
    return killed


@dataclass(frozen=True, slots=True)
class IsolationReport:
    """The best isolation level that works on this machine, and why better ones do not."""

    isolation: IsolationLevel
    reasons: tuple[str, ...] = ()
    id_mode: IdMode = IdMode.OWN
    safe_paths: bool = True
    """Whether paths that a pod may replace during the mount can be mounted safely."""


def detect_isolation(requested: IsolationLevel | None = None) -> IsolationReport:
    """Find the best level that works, by test runs; blocks for some tens of milliseconds.

    For root, the id mode takes precedence over the isolation level. If *requested* does not work,
    the result is the plain level, with the reason.

    Bubblewrap runs containers as the agent's own user only: it executes the sandbox's init in the
    pod's file system, where root must execute nothing.
    """
    reasons: list[str] = []
    for identity in IdMode if os.geteuid() == 0 else [IdMode.OWN]:
        for level in [requested] if requested else list(IsolationLevel):
            if level is IsolationLevel.PLAIN or (
                level is IsolationLevel.BUBBLEWRAP and identity is not IdMode.OWN
            ):
                continue
            error = _try_isolation(level, identity, sub_path="file")
            if not error:
                return IsolationReport(level, tuple(reasons), identity)
            reasons.append(f"{level} ({identity} user ids): {error}")
            if level is IsolationLevel.BUBBLEWRAP and not _try_isolation(
                level, identity, sub_path=""
            ):
                return IsolationReport(level, tuple(reasons), identity, safe_paths=False)
    return IsolationReport(IsolationLevel.PLAIN, tuple(reasons))


def _try_isolation(level: IsolationLevel, id_mode: IdMode, *, sub_path: str) -> str:
    """Return why *level* does not work; empty if it does."""
    if level is IsolationLevel.BUBBLEWRAP and shutil.which("bwrap") is None:
        return "bwrap is not installed"
    with tempfile.TemporaryDirectory(prefix="batholith-probe-") as text:
        base = Path(text)
        (base / "file").write_text("seen")
        source = base if sub_path else base / "file"
        mounts = [rootfs.Mount(str(source), "/etc/batholith-probe/file", True, sub_path)]
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
        record = run.exit_record()
        if record is None:
            return run.errors() or "the test run was lost"
        if record.code == 0:
            return ""
        wrote = _last_line(base / "log" / "0.log")
        exited = f"the test run exited with {record.code}"
        return record.message or (f"{exited}: {wrote}" if wrote else exited)


def _last_line(log: Path) -> str:
    """Return the text of the last line of a log; empty if there is none."""
    lines = log.read_text(errors="replace").splitlines()
    return lines[-1].split(" ", 3)[-1].strip() if lines else ""
