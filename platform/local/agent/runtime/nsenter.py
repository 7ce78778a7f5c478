"""Program that runs a command of a hook or probe in the namespaces of a container.

Started by path with `python -I -S nsenter.py`; of Batholith it imports only `mounting`. It reads a
request from standard input: `argv`, `env`, `cwd`, `ids` (as in `launch.json`) and `pid`, a process
in the container's namespaces, or 0 without a sandbox. Exit codes: n, 128+signal, 126 if the command
cannot be executed.
"""

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import sys
import warnings  # noqa: F401 - os.execvpe imports it, perhaps where Python is not mounted

if __package__:
    from . import mounting
else:
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import mounting  # type: ignore[import-not-found, no-redef]

CANNOT_RUN = 126
_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_NS_GET_PARENT = 0xB702
_NAMESPACES = mounting.NEW_NS | mounting.NEW_UTS | mounting.NEW_IPC | mounting.NEW_PID


def main() -> int:
    """Run the command of the request on standard input."""
    request = json.load(sys.stdin)
    pid = request["pid"]
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    mounting.join_session_keyring()
    container = _Container(pid, request["ids"]) if pid else None
    if container:
        container.enter_first()
    child = os.fork()
    if child == 0:
        try:
            if container:
                container.enter()
            else:
                mounting.set_no_new_privs()
            _execute(request)
        except BaseException as error:
            os.write(2, f"{error}\n".encode(errors="replace"))
        os._exit(CANNOT_RUN)
    status = os.waitpid(child, 0)[1]
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


class _Container:
    """The namespaces of a container.

    The pod may have replaced any program, library and module in its file system. So a process of
    root that enters it only drops its privileges there, and the parent stays outside.
    """

    def __init__(self, pid: int, ids: dict) -> None:  # type: ignore[type-arg]
        self._process = os.pidfd_open(pid)
        self._user_namespace = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        self._ids = ids
        with open(f"/proc/{pid}/status", encoding="ascii") as file:
            bounds = next(line.split()[1] for line in file if line.startswith("CapBnd"))
        permitted = int(bounds, 16)
        self._bounding = [n for n in range(permitted.bit_length()) if permitted >> n & 1]
        users = mounting.NEW_USER if ids["base"] is None or ids["namespace"] else 0
        self._remaining = _NAMESPACES | users
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
    """Replace this process by the command."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.chdir(request["cwd"])
    argv = request["argv"]
    os.execvpe(argv[0], argv, request["env"])  # noqa: S606 - no shell on purpose


if __name__ == "__main__":
    sys.exit(main())
