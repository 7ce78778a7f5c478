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
    ids = request["ids"]
    users = ids["base"] is None or ids["namespace"]
    permitted = _enter_namespaces(request["pid"], users=users) if request["pid"] else -1
    child = os.fork()
    if child == 0:
        try:
            _execute(request, permitted)
        except BaseException as error:
            sys.stderr.write(f"{error}\n")
        os._exit(CANNOT_RUN)
    status = os.waitpid(child, 0)[1]
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _enter_namespaces(pid: int, *, users: bool) -> int:
    """Enter the namespaces of *pid*, with *users* also its user namespace.

    Returns the capability bounding set of the container.
    """
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        bounds = next(line.split()[1] for line in file if line.startswith("CapBnd"))
    process = os.pidfd_open(pid)
    if users:
        _drop_groups(pid)
    if _LIBC.setns(process, _NAMESPACES | (mounting.NEW_USER if users else 0)) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter the container's namespaces")
    os.close(process)
    with contextlib.suppress(PermissionError):  # where the container has them, too
        os.setgroups([])
    return int(bounds, 16)


def _drop_groups(pid: int) -> None:
    """Drop the supplementary groups in the namespace around the container's user namespace.

    Bubblewrap forbids it in its own one.
    """
    with contextlib.suppress(OSError):  # that one is the agent's own, or forbids it, too
        inner = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        outer = fcntl.ioctl(inner, _NS_GET_PARENT)
        os.close(inner)
        entered = _LIBC.setns(outer, mounting.NEW_USER) == 0
        os.close(outer)
        if entered:
            os.setgroups([])


def _execute(request: dict, permitted: int) -> None:  # type: ignore[type-arg]
    """Replace this process by the command, with the privileges of its container."""
    mounting.join_session_keyring()
    if permitted >= 0:
        ids = request["ids"]
        mounting.drop_capabilities(n for n in range(permitted.bit_length()) if permitted >> n & 1)
        if ids["base"] is not None:
            mounting.switch_user(ids["user"], base=0 if ids["namespace"] else ids["base"])
    else:
        mounting.set_no_new_privs()
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.chdir(request["cwd"])
    argv = request["argv"]
    os.execvpe(argv[0], argv, request["env"])  # noqa: S606 - no shell on purpose


if __name__ == "__main__":
    sys.exit(main())
