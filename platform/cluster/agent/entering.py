"""The small program that runs one more command in a container: for hooks and probes.

Started by path with `python -I -S entering.py`; imports nothing of ours. On its standard input it
reads what to run: `argv`, `env`, `cwd` and `pid`, a process in the container's namespaces, or 0
where there are none. It exits as the command does: n, 128+signal, 126 when it cannot be executed.
"""

import ctypes
import json
import os
import signal
import sys
import warnings  # noqa: F401 - os.execvpe wants it, where Python itself may be out of sight

CANNOT_RUN = 126
_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG, _PR_CAPBSET_DROP, _PR_SET_NO_NEW_PRIVS = 1, 24, 38
_LAST_CAPABILITY = 40
_NAMESPACES = 0x00020000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000
"""Mounts, host name, IPC, users and processes."""


def main() -> int:
    """Run what standard input says."""
    wanted = json.load(sys.stdin)
    permitted = _enter(wanted["pid"]) if wanted["pid"] else -1
    child = os.fork()
    if child == 0:
        try:
            _become(wanted, permitted)
        except BaseException as error:
            sys.stderr.write(f"{error}\n")
        os._exit(CANNOT_RUN)
    status = os.waitpid(child, 0)[1]
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def _enter(pid: int) -> int:
    """Join the namespaces of *pid*; gives the capabilities that its container may ever have."""
    with open(f"/proc/{pid}/status", encoding="ascii") as file:
        bounds = next(line.split()[1] for line in file if line.startswith("CapBnd"))
    process = os.pidfd_open(pid)
    if _LIBC.setns(process, _NAMESPACES) != 0:
        raise OSError(ctypes.get_errno(), "the container cannot be entered")
    os.close(process)
    return int(bounds, 16)


def _become(wanted: dict, permitted: int) -> None:  # type: ignore[type-arg]
    """Be the command, with no more rights than its container."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if permitted >= 0:
        for capability in range(_LAST_CAPABILITY + 1):
            if not permitted >> capability & 1:
                _LIBC.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
        _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.chdir(wanted["cwd"])
    argv = wanted["argv"]
    os.execvpe(argv[0], argv, wanted["env"])  # noqa: S606 - a shell is what we do not want


if __name__ == "__main__":
    sys.exit(main())
