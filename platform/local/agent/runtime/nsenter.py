"""Program that runs a command of a hook, probe or client in the namespaces of a container.

Started by path with `python -I -S nsenter.py`; of Batholith it imports only `mounting` and `shim`.
It reads a request from standard input: `argv`, `env`, `cwd`, `ids` (as in `launch.json`) and `pid`,
a process in the container's namespaces with its `start` time, or 0 without a sandbox. Exit codes:
n, 128+signal, 126 if the command cannot be executed.

The command of a client also has `stdio`, three descriptors, and `tty`, whether they are a terminal.
Standard output then only takes why the command cannot be executed. The command is killed by
SIGTERM, and if the agent exits.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import resource
import signal
import sys
import termios
import warnings  # noqa: F401 - os.execvpe imports it, perhaps where Python is not mounted

if __package__:
    from . import mounting
    from .shim import enter_cgroup, limit_processes, start_time
else:
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import mounting  # type: ignore[import-not-found, no-redef]
    from shim import enter_cgroup, limit_processes, start_time  # type: ignore[import-not-found, no-redef]

CANNOT_RUN = 126
_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_NS_GET_PARENT = 0xB702
_NAMESPACES = mounting.NEW_NS | mounting.NEW_UTS | mounting.NEW_IPC | mounting.NEW_PID


class CannotRunError(Exception):
    """The command cannot be executed."""


def main() -> int:
    """Run the command of the request on standard input."""
    agent = os.getppid()
    request = json.load(sys.stdin)
    stdio = request.get("stdio")
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    mounting.join_session_keyring()
    errors = 2 if stdio is None else 1
    container = None
    try:
        if request["pid"]:
            container = _Container(request)
            container.enter_first()
    except (ProcessLookupError, FileNotFoundError, StopIteration):
        return _report(CannotRunError("the container has exited"), errors)
    except (OSError, CannotRunError) as error:
        return _report(error, errors)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    child = os.fork()
    if child == 0:
        errors = os.dup(errors)  # the command gets other streams
        try:
            if request.get("cgroup"):
                enter_cgroup(request["cgroup"])
            if container:
                container.enter()
            else:
                mounting.set_no_new_privs()
            if stdio is not None:
                _attach(stdio, is_terminal=request["tty"])
            _execute(request)
        except BaseException as error:
            _report(error, errors)
        os._exit(CANNOT_RUN)
    if stdio is not None:
        _supervise(child, agent, stdio)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    status = os.waitpid(child, 0)[1]
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _report(error: BaseException, errors: int) -> int:
    """Write why the command cannot be executed; return the exit code for that."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else error
    os.write(errors, f"{text}\n".encode(errors="replace"))
    return CANNOT_RUN


def _attach(stdio: list[int], *, is_terminal: bool) -> None:
    """Use *stdio* as the standard streams of a new session; keep no other descriptor of it."""
    os.setsid()
    for number, end in enumerate(stdio):
        os.dup2(end, number)
    for end in set(stdio):
        os.close(end)
    if is_terminal:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _supervise(child: int, agent: int, stdio: list[int]) -> None:
    """Close what only the command may hold; kill it on SIGTERM, and if the agent exits."""
    for end in set(stdio):
        os.close(end)
    for number in (1, 2):
        os.dup2(0, number)  # the agent waits for the end of what could keep it from being executed

    def kill(*_: object) -> None:
        for kill_one in (os.killpg, os.kill):  # before its setsid it leads no group
            with contextlib.suppress(ProcessLookupError):
                kill_one(child, signal.SIGKILL)

    signal.signal(signal.SIGTERM, kill)
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != agent:  # it exited before
        kill()


class _Container:
    """The namespaces of a container.

    The pod may have replaced any program, library and module in its file system. So a process of
    root that enters it only drops its privileges there, and the parent stays outside.
    """

    def __init__(self, request: dict) -> None:  # type: ignore[type-arg]
        pid, ids = request["pid"], request["ids"]
        self._process = os.pidfd_open(pid)
        self._user_namespace = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        self._ids = ids
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            bounds = next(line.split()[1] for line in file if line.startswith("CapBnd"))
        permitted = int(bounds, 16)
        if start_time(pid) != request["start"]:
            raise CannotRunError("the container has exited")  # another process may have this id
        self._bounding = [n for n in range(permitted.bit_length()) if permitted >> n & 1]
        users = mounting.NEW_USER if ids["base"] is None or ids["namespace"] else 0
        # The network may be that of the agent, which only root can enter again.
        shared = os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net")
        self._remaining = _NAMESPACES | users | (0 if shared else mounting.NEW_NET)
        sys.meta_path.clear()  # from here on an import fails instead of running the pod's file

    def enter_first(self) -> None:
        """Enter the namespaces that the parent of the command's process needs."""
        if self._ids["base"] is not None:
            self._enter(mounting.NEW_PID)
            return
        # A normal user has to enter all at once: each gives the right to enter the others.
        _drop_groups(self._user_namespace)
        self._enter(self._remaining)
        with contextlib.suppress(PermissionError):  # where the container has them, too
            os.setgroups([])

    def enter(self) -> None:
        """Enter the other namespaces, and switch to the container's user."""
        self._enter(self._remaining)
        mounting.drop_privileges(self._ids, self._bounding)

    def _enter(self, namespaces: int) -> None:
        if namespaces and _LIBC.setns(self._process, namespaces) != 0:
            raise OSError(ctypes.get_errno(), "cannot enter the container's namespaces")
        self._remaining &= ~namespaces


def _drop_groups(user_namespace: int) -> None:
    """Drop the supplementary groups in the namespace around the container's user namespace.

    Bubblewrap forbids it in its own one.
    """
    with contextlib.suppress(OSError):  # that one is the agent's own, or forbids it, too
        outer = fcntl.ioctl(user_namespace, _NS_GET_PARENT)
        entered = _LIBC.setns(outer, mounting.NEW_USER) == 0
        os.close(outer)
        if entered:
            os.setgroups([])


def _execute(request: dict) -> None:  # type: ignore[type-arg]
    """Replace this process by the command, with the limits and signals of the container's."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.umask(0o022)
    if request["pid"]:
        limit_processes(request.get("max_processes", 0))
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, set())
    os.chdir(request["cwd"])
    argv = request["argv"]
    try:
        os.execvpe(argv[0], argv, request["env"])  # noqa: S606 - no shell on purpose
    except OSError as error:
        raise OSError(error.errno, f'exec: "{argv[0]}": {error.strerror}') from error


if __name__ == "__main__":
    # Not sys.exit(): while the interpreter ends, SIGTERM would end it instead of its handler.
    os._exit(main())
