"""Shim: the process between the agent and one run of a container, which outlives the agent.

It is forked by `shim_server`, or started by path with `python -I -S starting.py RUN_DIR`, and of
Batholith it imports only
`mounting` (with `groups`), `image_root`, `forking`, `log_writer` and, if needed, `attach`. In
order:

1. *Claim* the run: link a file that names this process into the run's directory. The link can
   exist only once, so that a run starts at most once even if the agent is killed.
2. Start the main process (in its sandbox), with pipes for its output.
3. Write each output line with its time to the log, forward SIGTERM, reap orphaned processes;
   SIGUSR1 kills the container immediately.
4. When the main process has exited, kill its remaining processes and write the exit record
   atomically.

`launch.json` contains argv, env, cwd and log; for a sandbox also level, hostname, ids, capabilities
and mounts (`rootfs`). Exit codes: n, 128+signal, 128 if the program cannot be executed.
"""

import ctypes
import errno
import fcntl
import functools
import json
import os
import resource
import select
import signal
import termios
import time
import warnings  # noqa: F401 - os.execvpe imports it, perhaps where Python is not mounted

TYPE_CHECKING = False  # as in `typing`, which each start of a container would take time to import
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

if __package__:
    from . import image_root, mounting
    from .forking import Helper
    from .log_writer import LogWriter
    from .mounting import CannotStartError, HostChangedError
else:
    import image_root  # type: ignore[import-not-found, no-redef]
    import mounting  # type: ignore[import-not-found, no-redef]
    from forking import Helper  # type: ignore[import-not-found, no-redef]
    from log_writer import LogWriter  # type: ignore[import-not-found, no-redef]
    from mounting import CannotStartError, HostChangedError  # type: ignore[no-redef]

CLAIM, EXIT, LAUNCH = "claim.json", "exit.json", "launch.json"
CANNOT_START = 128
START_ERROR = "StartError"
HOST_CHANGED = "HostChanged"
"""Reason of the exit record of a run that did not start because its plan was outdated."""

_INIT_FIELDS = ("argv", "env", "cwd", "tty", "stop_signal", "max_processes")
"""Entries of `launch.json` that the init of a sandbox has."""

_OWN_MARK, _HOST_CHANGED_MARK = "\1", "\2"
"""Prefixes of what the child reports: it is this program's; the plan is outdated."""

_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 1, 4, 36
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4


def main(run_path: str, ready_fd: int = -1) -> int:
    """Execute the run of *run_path*.

    The descriptor *ready_fd* is closed once the program runs, or at the exit, when the exit record
    is written.
    """
    close_inherited(ready_fd)
    run = ShimRun(run_path, ready_fd)
    if not run.write_claim():
        return 1
    run.start()
    if not run.message:
        run.report_start()
    run.supervise()
    run.finish()
    return 0


def _import_attach() -> "Any":
    """Import `attach`, which is slow to import and seldom needed."""
    if __package__:
        from . import attach
    else:
        import attach  # type: ignore[import-not-found, no-redef]
    return attach


def close_inherited(kept: int) -> None:
    """Close what the agent was started with: the container must not have it."""
    for number in map(int, os.listdir("/proc/self/fd")):
        if number > 2 and number != kept:
            try:
                os.close(number)
            except OSError:
                continue  # the one of the listing


class ShimRun:
    """One run of one container, from claim to exit record."""

    def __init__(self, run_path: str, ready_fd: int) -> None:
        self.run_path = run_path
        self.ready_fd = ready_fd
        self.main = 0
        self.target = 0  # receives the signals; differs from main under bubblewrap
        self.status: int | None = None
        self.message = ""
        self.host_changed = False
        self.started = 0.0
        self.pending: list[int] = []
        self.stop_signal = int(signal.SIGTERM)
        """What the target gets to stop: the init of a sandbox passes another signal on itself."""
        self.outputs: dict[int, LogWriter] = {}
        self.attached: Any = None
        """The `AttachServer` of a container with an input or a terminal."""
        self.wake, self.wake_write = os.pipe()
        for end in (self.wake, self.wake_write):
            os.set_blocking(end, False)
        # Before the claim: an agent that reads the process id may send signals.
        signal.set_wakeup_fd(self.wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD):
            signal.signal(number, self._on_signal)
        for number in (signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)

    def _on_signal(self, number: int, _: object) -> None:
        if number != signal.SIGCHLD:
            self.pending.append(number)

    def write_claim(self) -> bool:
        """Claim the run, durably; return ``False`` if it is already claimed or was cancelled."""
        pid = os.getpid()
        me = {"pid": pid, "start": start_time(pid), "boot": boot_id(), "at": time.time()}
        own = os.path.join(self.run_path, f"claim.{os.getpid()}")
        write_durably(own, json.dumps(me))
        try:
            os.link(own, os.path.join(self.run_path, CLAIM))
        except FileExistsError:
            return False
        finally:
            os.unlink(own)
        return True

    def start(self) -> None:
        """Start the main process; an error is kept for the exit record."""
        with open(os.path.join(self.run_path, LAUNCH), encoding="utf-8") as file:
            launch = json.load(file)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        self.log = os.open(launch["log"], flags, 0o600)
        _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.started = time.time()
        try:
            if launch.get("network"):
                _enter_network_namespace(launch["network"])
            _drop_passed_capabilities()
            self._spawn(launch)
        except (OSError, CannotStartError) as error:
            self.status, self.message = CANNOT_START, str(error)

    def _spawn(self, launch: dict) -> None:  # type: ignore[type-arg]
        if launch["error"]:
            raise CannotStartError(launch["error"])
        source, outputs, command_ends = self._open_streams(launch)
        failed_read, failed_write = os.pipe()
        info_read, info_write = os.pipe()
        level = launch["level"]
        if level == "plain":
            self.stop_signal = launch["stop_signal"]
        layer_ids = -1
        if level == "unshare":
            layer_ids = launch["layer_ids"] = image_root.open_layer_ids(launch)
            _enter_pid_namespace(launch)
        self.main = self.target = os.fork()
        if self.main == 0:
            own = [*outputs, *(self.attached.descriptors if self.attached else [])]
            for end in {*own, self.ready_fd} - {-1}:
                os.close(end)
            _run_child(launch, (source, *command_ends), failed_write, info_write)
        for end in {source, *command_ends, failed_write, info_write, layer_ids} - {-1}:
            os.close(end)
        if level == "bubblewrap":
            self.target = _inner_pid(info_read) or self.main
        os.close(info_read)
        report = _read_all(failed_read)
        os.close(failed_read)
        for name, end in zip(("stdout", "stderr"), outputs, strict=False):
            os.set_blocking(end, False)
            self.outputs[end] = LogWriter(self.log, name)
        if level == "bubblewrap" and not report:  # it failed before its init
            report = f"{_HOST_CHANGED_MARK}{self._bubblewrap_error()}"
        report = report.lstrip(_OWN_MARK)
        self.host_changed = report.startswith(_HOST_CHANGED_MARK)
        self.message = report.removeprefix(_HOST_CHANGED_MARK)

    def _open_streams(self, launch: dict) -> tuple[int, list[int], list[int]]:  # type: ignore[type-arg]
        """Return the container's input, this process's ends of the outputs, the container's."""
        stdin, tty = launch.get("stdin", False), launch.get("tty", False)
        if tty:
            terminal, source = os.openpty()
            outputs, ends, writer = [terminal], [source, source], terminal
        else:
            source, writer = os.pipe() if stdin else (os.open("/dev/null", os.O_RDONLY), -1)
            pairs = [os.pipe(), os.pipe()]
            outputs, ends = [read for read, _ in pairs], [write for _, write in pairs]
        ids = launch["ids"]
        if ids["base"] is not None and (stdin or tty):
            owner = ids["base"] + ids["user"][0]
            for end in {source, *ends}:
                os.fchown(end, owner, owner)  # else the container could not open /dev/stdin
        if stdin or tty:
            attach = _import_attach()
            self.attached = attach.AttachServer(
                self.run_path,
                stdin=os.dup(writer) if tty else writer,
                terminal=tty,
                once=launch["stdin_once"],
            )
        return source, outputs, ends

    def _bubblewrap_error(self) -> str:
        try:
            with open(os.path.join(self.run_path, "shim.err"), errors="replace") as file:
                return file.read(4096).strip() or "bubblewrap failed"
        except FileNotFoundError:
            return "bubblewrap failed"

    def report_start(self) -> None:
        """Report to the agent that the program runs."""
        if self.ready_fd >= 0:
            os.close(self.ready_fd)
            self.ready_fd = -1

    def supervise(self) -> None:
        """Copy output, forward signals and reap processes until the main process exits."""
        while self.status is None:
            for end in self._wait():
                if end == self.wake:
                    _drain(self.wake)
                elif end in self.outputs:
                    self._copy(end)
            self._signal()
            self._reap()

    def _wait(self) -> list[int]:
        """Wait for output, signals and attached clients; return what can be read."""
        attached = self.attached
        if attached is None:
            return select.select([self.wake, *self.outputs], [], [])[0]
        outputs = () if attached.is_behind else self.outputs
        readable, writable, _ = select.select(
            [self.wake, *outputs, *attached.readable()], attached.writable(), [], attached.timeout()
        )
        attached.handle([*readable, *writable])
        return readable

    def _signal(self) -> None:
        while self.pending:
            number = self.pending.pop(0)
            try:
                if number == signal.SIGUSR1:
                    self._kill_main()
                else:
                    os.kill(self.target, self.stop_signal)
            except ProcessLookupError:
                return  # it has exited; `_reap` collects its status

    def _kill_main(self) -> None:
        os.kill(self.target, signal.SIGKILL)
        kill_process_group(self.main)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.main:
                self.status = exit_code(status)

    def _copy(self, end: int) -> None:
        try:
            data = os.read(end, 65536)
        except BlockingIOError:
            return
        except OSError:
            data = b""  # no process has the terminal open
        if data:
            self.outputs[end].feed(data)
            if self.attached is not None:
                self.attached.send(b"\1" if self.outputs[end].stream == "stdout" else b"\2", data)
        else:
            self.outputs.pop(end).close()
            os.close(end)

    def finish(self) -> None:
        """Kill remaining processes, copy the last output, write the exit record."""
        if self.main:
            self._kill_remaining()
        for end in list(self.outputs):
            while end in self.outputs and select.select([end], [], [], 0)[0]:
                self._copy(end)
        for lines in self.outputs.values():
            lines.close()
        failed = bool(self.message)
        if failed and not self.host_changed:
            LogWriter(self.log, "stderr").feed(f"cannot start: {self.message}\n".encode())
        record = {
            "code": CANNOT_START if failed else self.status,
            "reason": HOST_CHANGED if self.host_changed else START_ERROR if failed else "",
            "message": self.message[:4096],
            "started": self.started,
            "at": time.time(),
        }
        replace_file(os.path.join(self.run_path, EXIT), json.dumps(record))
        if self.attached is not None:
            self.attached.close()

    def _kill_remaining(self) -> None:
        """Kill the process group of the main process, then its orphaned descendants."""
        kill_process_group(self.main)
        while True:
            for pid in children(os.getpid()):
                os.kill(pid, signal.SIGKILL)
            try:
                os.waitpid(-1, 0)
            except ChildProcessError:
                return


def _enter_network_namespace(path: str) -> None:
    """Enter the network namespace of the pod, with all later children.

    Raises:
        OSError: it does not exist any more, or the kernel does not permit it.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        mounting.set_namespaces(descriptor, mounting.NEW_NET)
    finally:
        os.close(descriptor)


def _drop_passed_capabilities() -> None:
    """Drop the capabilities that an agent without root passes on to enter the pod's network."""
    if os.geteuid() != 0:
        _LIBC.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
        mounting.set_capabilities((), unused=())


def _enter_pid_namespace(launch: dict) -> None:  # type: ignore[type-arg]
    """Put children of this process into a pid namespace, a new one or that of another container.

    Raises:
        CannotStartError: the kernel does not permit it, or the other container has exited.
    """
    ids = launch["ids"]
    if ids["base"] is None:
        mounting.unshare(mounting.NEW_USER | mounting.NEW_PID, ids["user"])
    elif "joined" in launch:
        launch["joined"]["fd"] = _join_pid_namespace(launch["joined"])
    else:
        mounting.unshare(mounting.NEW_PID)


def _join_pid_namespace(joined: dict) -> int:  # type: ignore[type-arg]
    """Put children of this process into the pid namespace of another; return its descriptor.

    Raises:
        CannotStartError: that process has exited.
    """
    process = None
    if start_time(joined["pid"]) is not None:
        process = os.pidfd_open(joined["pid"])
    if process is None or start_time(joined["pid"]) != joined["start"]:
        raise CannotStartError("the target container has exited")
    mounting.set_namespaces(process, mounting.NEW_PID)
    return process


def _run_child(
    launch: dict,  # type: ignore[type-arg]
    streams: tuple[int, ...],
    failed: int,
    info: int,
) -> None:
    """Become the main process, or the sandbox around it; never returns."""
    try:
        os.setsid()
        _reset_signals()
        if launch.get("cgroup"):
            enter_cgroup(launch["cgroup"])
        errors = os.dup(2)
        for end, number in zip(streams, range(3), strict=True):
            os.dup2(end, number)
        for end in set(streams):
            os.close(end)
        tty = launch.get("tty", False)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.umask(0o022)
        mounting.join_session_keyring()
        level = launch["level"]
        if level != "plain":
            # Process 1 ignores a SIGTERM that arrives before its handler is set.
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        if level == "unshare":
            _enter_sandbox(launch, failed)
        elif level == "bubblewrap":
            _run_bubblewrap(launch, failed, info, errors)
        else:
            mounting.set_no_new_privs()
            os.chdir(launch["cwd"])
            if tty:
                _set_controlling_terminal()
            execute(launch["argv"], launch["env"])
    except BaseException as error:  # the forked child must not return to the parent's code
        _report_failure(failed, error)
    os._exit(CANNOT_START)


def _report_failure(failed: int, error: BaseException) -> None:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    mark = _HOST_CHANGED_MARK if isinstance(error, HostChangedError) else ""
    os.write(failed, f"{_OWN_MARK}{mark}{text or type(error).__name__}".encode()[:4096])


def _reset_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGCHLD, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)


# --- unshare sandbox ------------------------------------------------------------------------


def _enter_sandbox(launch: dict, failed: int) -> None:  # type: ignore[type-arg]
    """Build the root as the first process of the new pid namespace, then run its init.

    A pod may have mounted its own files over every program, library and module. So this process
    has the pod's user ids and capabilities before that root is its own: of root's processes only a
    helper ever has it, which changes the root and exits.
    """
    mounting.unshare(mounting.NEW_NS | mounting.NEW_IPC | mounting.NEW_UTS)
    mounting.set_hostname(launch["hostname"])
    _write_sysctls(launch.get("sysctls", ()))
    root, ids = launch["root"], launch["ids"]
    layer_ids = launch["layer_ids"]
    image_root.mount_volumes(launch.get("volume_images", ()), owner=ids["base"], ids=layer_ids)
    build = mounting.build_root
    if launch.get("image"):
        image, writable = launch["image"], launch["writable"]
        build = functools.partial(image_root.build, image, writable, ids=layer_ids)
    build(root, launch["steps"], owner=ids["base"], tmpfs_size=launch["tmpfs_size"])
    if layer_ids >= 0:
        os.close(layer_ids)
    if ids["base"] is None:
        mounting.pivot_root(root)
        mounting.drop_privileges(ids, ids["capabilities"])
    else:
        os.chdir("/")  # moves to the new root together with this process's root
        helper = _enter_user_namespace(launch, lambda: mounting.pivot_root(root))
        mounting.drop_privileges(ids, ids["capabilities"])
        if not helper.run():
            raise CannotStartError("cannot change the root directory")
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)  # the change of ids has cleared it
    run_init(launch, failed)


def _write_sysctls(sysctls: "Iterable[tuple[str, str]]") -> None:
    """Set what the pod asks for in the new IPC namespace.

    Raises:
        CannotStartError: the kernel does not accept it.
    """
    for path, value in sysctls:
        try:
            with open(f"/proc/sys/{path}", "w") as file:
                file.write(value)
        except OSError as error:
            raise CannotStartError(f"sysctl {path}: {error.strerror}") from None


def _enter_user_namespace(launch: dict, task: "Callable[[], object]") -> Helper:  # type: ignore[type-arg]
    """Enter the container's user namespace, if it has one; return a helper outside, for *task*."""
    ids = launch["ids"]
    if ids["namespace"] and "joined" not in launch:
        return mounting.enter_id_range(ids["base"], task)
    helper = Helper(task)
    if "joined" in launch:
        if ids["namespace"]:
            # Else no process of one container could trace those of the other.
            mounting.set_namespaces(launch["joined"]["fd"], mounting.NEW_USER)
        os.close(launch["joined"]["fd"])
    return helper


def _set_controlling_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


_FORWARDED = (signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def run_init(launch: dict, failed: int) -> None:  # type: ignore[type-arg]
    """Run as process 1: start the program, forward signals, reap, exit with its exit code.

    Signals that other programs of the container send to process 1 are for the program, as if it
    were process 1 itself.
    """
    try:
        os.makedirs(launch["cwd"], exist_ok=True)
        os.chdir(launch["cwd"])
        limit_processes(launch["max_processes"])
        child = _start_program(launch, failed)
    except BaseException as error:  # the caller may be a forked child
        _report_failure(failed, error)
        os._exit(CANNOT_START)
    os.close(failed)
    signal.signal(signal.SIGTERM, lambda *_: _forward_signal(child, launch["stop_signal"]))
    for number in _FORWARDED:
        signal.signal(number, lambda received, _: _forward_signal(child, received))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    while True:
        pid, status = os.wait()
        if pid == child:
            os._exit(exit_code(status))


def _start_program(launch: dict, failed: int) -> int:  # type: ignore[type-arg]
    """Start the program of a container as a child of its init; return its process id.

    Raises:
        OSError: it cannot be executed.
    """
    if not launch["tty"] and not launch.get("joined"):
        return spawn(launch["argv"], launch["env"])
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if launch["tty"]:
                _set_controlling_terminal()
            # In the pid namespace of another container, it would outlive this process.
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
            execute(launch["argv"], launch["env"])
        except BaseException as error:
            _report_failure(failed, error)
        os._exit(CANNOT_START)
    return child


def enter_cgroup(group: str) -> None:
    """Move this process to a control group.

    Raises:
        OSError: that is not permitted, or the group does not exist.
    """
    descriptor = os.open(os.path.join(group, "cgroup.procs"), os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(descriptor, b"0")
    finally:
        os.close(descriptor)


def limit_processes(number: int) -> None:
    """Limit the processes and threads of this user, unless *number* is 0.

    In a user namespace only those in it count, so it must be entered before. A lower limit of the
    agent's own stays.
    """
    hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
    if number and (hard == resource.RLIM_INFINITY or number < hard):
        resource.setrlimit(resource.RLIMIT_NPROC, (number, number))


def execute(argv: list[str], env: dict[str, str]) -> None:
    """Replace this process by *argv*, searching the PATH of *env*.

    Raises:
        OSError: the program is not found, or cannot be executed.
    """
    try:
        os.execvpe(argv[0], argv, env)  # noqa: S606 - no shell on purpose
    except OSError as error:
        raise _exec_error(argv[0], error) from error


def spawn(argv: list[str], env: dict[str, str]) -> int:
    """Start *argv* in a new session, searching the PATH of *env*; return its process id.

    The memory of this process is not copied for it, as a fork would do.

    Raises:
        OSError: the program is not found, or cannot be executed.
    """
    program = argv[0]
    failure = OSError(errno.ENOENT, os.strerror(errno.ENOENT))
    for directory in [""] if "/" in program else env.get("PATH", os.defpath).split(os.pathsep):
        path = os.path.join(directory, program)
        try:
            os.stat(path)  # costs less than a process that finds nothing to execute
            return os.posix_spawn(path, argv, env, setsid=True, setsigmask=())
        except OSError as error:
            if failure.errno in (errno.ENOENT, errno.ENOTDIR):
                failure = error
    raise _exec_error(program, failure)


def _exec_error(program: str, error: OSError) -> OSError:
    return OSError(error.errno, f'exec: "{program}": {error.strerror}')


def _forward_signal(child: int, number: int) -> None:
    try:
        os.kill(child, number)
    except ProcessLookupError:
        return  # it has exited; os.wait returns its status


# --- bubblewrap sandbox ---------------------------------------------------------------------


def _run_bubblewrap(launch: dict, failed: int, info: int, errors: int) -> None:  # type: ignore[type-arg]
    stderr = os.dup(2)
    volumes = launch.get("volume_images", ())
    if launch["stage"] or launch["drop_groups"] or volumes:
        mounting.unshare(mounting.NEW_NS | mounting.NEW_USER)
        image_root.mount_volumes(volumes, owner=None)
    if launch["stage"]:
        mounting.stage(launch["root"], launch["stage"])
    passed = {name: launch[name] for name in _INIT_FIELDS}
    inner = json.dumps([passed, failed, stderr])
    read, write = os.pipe()
    fcntl.fcntl(write, 1031, max(65536, len(inner) + 4096))  # F_SETPIPE_SZ: the write cannot block
    os.write(write, inner.encode())
    os.close(write)
    os.dup2(errors, 2)  # bubblewrap's own errors do not belong into the container's log
    for end in (failed, info, read, stderr):
        os.set_inheritable(end, True)
    argv = [each.replace("{info}", str(info)) for each in launch["bubblewrap"]]
    os.execve(argv[0], [*argv, "--init", str(read)], dict(os.environ))  # noqa: S606


def _inner_pid(info: int) -> int | None:
    """Return the child process that bubblewrap reports on its info pipe; ``None`` if it failed."""
    try:
        return int(json.loads(_read_all(info))["child-pid"])
    except (ValueError, KeyError):
        return None


def init_main(descriptor: int) -> None:
    """Inside bubblewrap: read the command from *descriptor*, then run as process 1.

    A pod may have replaced every module of this Python. It gains nothing: bubblewrap has dropped
    all capabilities, and the container runs as the same user, which is not root of the host.
    """
    with os.fdopen(descriptor, encoding="utf-8") as file:
        launch, failed, stderr = json.load(file)
    os.dup2(stderr, 2)
    os.close(stderr)
    os.set_inheritable(failed, False)
    os.write(failed, _OWN_MARK.encode())
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # the container runs as the same user
    run_init(launch, failed)


def exit_code(status: int) -> int:
    """Return the exit code of a wait status: 128 + signal after a signal."""
    if os.WIFSIGNALED(status):
        return 128 + os.WTERMSIG(status)
    return os.WEXITSTATUS(status)


def kill_process_group(leader: int) -> None:
    """Kill a process group, if it exists."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        return  # all have exited, or it never became a process group


def start_time(pid: int) -> int | None:
    """Return when *pid* started, in clock ticks since boot; ``None`` if it has exited.

    A zombie counts as exited.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


@functools.cache
def boot_id() -> str:
    """Return the id of this boot of the machine."""
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()


def children(parent: int) -> list[int]:
    """Return the children of a process, oldest first; none if it has exited."""
    try:
        with open(f"/proc/{parent}/task/{parent}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def replace_file(path: str, text: str) -> None:
    """Write a file atomically and durably."""
    write_durably(path + ".new", text)
    os.rename(path + ".new", path)


def write_durably(path: str, text: str) -> None:
    """Write a new file and flush it to disk."""
    # A file object would need three more system calls, at each of many files of a start.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        data = text.encode()
        while data:
            data = data[os.write(descriptor, data) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_all(descriptor: int) -> str:
    chunks = []
    while data := os.read(descriptor, 4096):
        chunks.append(data)
    return b"".join(chunks).decode(errors="replace")


def _drain(descriptor: int) -> None:
    try:
        while os.read(descriptor, 512):
            continue
    except BlockingIOError:
        return
