"""Program that runs a command of a hook or probe in the namespaces of a container.

Started by path with `python -I -S nsenter.py`; of Batholith it imports only `mounting`. It reads a
request from standard input: `argv`, `env`, `cwd`, `ids` (as in `launch.json`) and `pid`, a process
in the container's namespaces, or 0 without a sandbox. Exit codes: n, 128+signal, 126 if the command
cannot be executed.
"""

import ctypes
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


def main() -> int:
    """Run the command of the request on standard input."""
    request = json.load(sys.stdin)
    pid, ids = request["pid"], request["ids"]
    process, bounding = _open_process(pid) if pid else (-1, 0)
    # A user namespace of the agent's own user gives the right to enter the other ones. That of a
    # pod's id range takes root's away, so that only the child enters it, with the file system.
    users_first = ids["base"] is None
    if pid:
        _enter(process, mounting.NEW_PID | (mounting.NEW_USER if users_first else 0))
    child = os.fork()
    if child == 0:
        try:
            mounting.join_session_keyring()
            os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
            if pid:
                users = mounting.NEW_USER if not users_first and ids["namespace"] else 0
                _enter_file_system(process, ids, users=users, bounding=bounding)
            else:
                mounting.set_no_new_privs()
            _execute(request)
        except BaseException as error:
            os.write(2, f"{error}\n".encode(errors="replace"))
        os._exit(CANNOT_RUN)
    status = os.waitpid(child, 0)[1]
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _open_process(pid: int) -> tuple[int, int]:
    """Return a descriptor of *pid*, and its capability bounding set."""
    process = os.pidfd_open(pid)
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        bounds = next(line.split()[1] for line in file if line.startswith("CapBnd"))
    return process, int(bounds, 16)


def _enter(process: int, namespaces: int) -> None:
    if _LIBC.setns(process, namespaces) != 0:
        raise OSError(ctypes.get_errno(), "cannot enter the container's namespaces")


def _enter_file_system(process: int, ids: dict, *, users: int, bounding: int) -> None:  # type: ignore[type-arg]
    """Enter the container's mount namespace with the other namespaces, as its user.

    The pod may have replaced any program, library and module there. So between the two calls this
    process, which may be root, imports and opens nothing.
    """
    kept = [number for number in range(bounding.bit_length()) if bounding >> number & 1]
    sys.meta_path.clear()  # an import fails instead of running the pod's file
    _enter(process, mounting.NEW_NS | mounting.NEW_UTS | mounting.NEW_IPC | users)
    mounting.give_up_privileges(ids, kept)


def _execute(request: dict) -> None:  # type: ignore[type-arg]
    """Replace this process by the command."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    os.chdir(request["cwd"])
    argv = request["argv"]
    os.execvpe(argv[0], argv, request["env"])  # noqa: S606 - no shell on purpose


if __name__ == "__main__":
    sys.exit(main())
