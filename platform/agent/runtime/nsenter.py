"""The small program that runs one more command in a container: for hooks and probes.

Started by path with `python -I -S entering.py`; imports nothing of ours but `mounting`. On its
standard input it reads what to run: `argv`, `env`, `cwd`, `ids` (as `shim` does) and `pid`, a
process in the container's namespaces, or 0 where there are none. It exits as the command does: n,
128+signal, 126 when it cannot be executed.
"""

import ctypes
import json
import os
import signal
import sys
import warnings  # noqa: F401 - os.execvpe wants it, where Python itself may be out of sight

if __package__:
    from . import mounting
else:
    sys.path.append(os.path.dirname(os.path.abspath(__file__)))
    import mounting  # type: ignore[import-not-found, no-redef]

CANNOT_RUN = 126
_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1
_NAMESPACES = mounting.NEW_NS | mounting.NEW_UTS | mounting.NEW_IPC | mounting.NEW_PID


def main() -> int:
    """Run what standard input says."""
    wanted = json.load(sys.stdin)
    ids = wanted["ids"]
    users = ids["base"] is None or ids["namespace"]
    permitted = _enter_namespaces(wanted["pid"], users=users) if wanted["pid"] else -1
    child = os.fork()
    if child == 0:
        try:
            _switch_user(wanted, permitted)
        except BaseException as error:
            sys.stderr.write(f"{error}\n")
        os._exit(CANNOT_RUN)
    status = os.waitpid(child, 0)[1]
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _enter_namespaces(pid: int, *, users: bool) -> int:
    """Join the namespaces of *pid*, with *users* that of its users too.

    Gives the capabilities that its container may ever have.
    """
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        bounds = next(line.split()[1] for line in file if line.startswith("CapBnd"))
    process = os.pidfd_open(pid)
    if _LIBC.setns(process, _NAMESPACES | (mounting.NEW_USER if users else 0)) != 0:
        raise OSError(ctypes.get_errno(), "the container cannot be entered")
    os.close(process)
    return int(bounds, 16)


def _switch_user(request: dict, permitted: int) -> None:  # type: ignore[type-arg]
    """Be the command, with no more rights than its container."""
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
    os.execvpe(argv[0], argv, request["env"])  # noqa: S606 - a shell is what we do not want


if __name__ == "__main__":
    sys.exit(main())
