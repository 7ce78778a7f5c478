"""Fork server of shims: a process of the agent that has imported what a shim needs.

It is started by path with `python -I -S starting.py --serve DESCRIPTOR DATA_DIR`, has one thread,
and reads nothing of a pod: a request is the tag and the directory of a run, with the descriptors of
the shim. So the shim of one pod finds nothing of another one in the memory that it gets. The server
exits when the agent closes the connection, or exits; the shims outlive it.
"""

import ctypes
import errno
import gc
import os
import select
import signal
import socket
import sys

if __package__:
    from . import attach as _attach
    from . import shim
else:
    import attach as _attach  # type: ignore[import-not-found, no-redef]  # noqa: F401
    import shim  # type: ignore[import-not-found, no-redef]

RUN_VARIABLE = "BATHOLITH_RUN"
"""Variable with the tag of a run, which all its processes have."""

MAX_TAG = 512
"""Bytes of a tag that the environment of the server has space for."""

MAX_REQUEST = 8192
ENVIRONMENT = {RUN_VARIABLE: "-" * MAX_TAG, "PATH": os.defpath}
"""Environment with which the server has to be started; no run has this tag."""

_DESCRIPTORS = 2  # the error output of the shim, and the one that reports the start
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.getenv.restype = ctypes.c_void_p


def serve(descriptor: int) -> None:
    """Fork a shim for each request on *descriptor*, until it is closed."""
    shim.close_inherited(descriptor)
    control = socket.socket(fileno=descriptor)
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    shim.boot_id()  # once for all shims
    gc.collect()
    gc.freeze()  # else a collection in a shim would copy what it shares with the others
    poller = select.poll()
    poller.register(control, select.POLLIN)
    while True:
        for ready, _ in poller.poll():
            if ready != control.fileno():
                poller.unregister(ready)
                os.waitid(os.P_PIDFD, ready, os.WEXITED)
                os.close(ready)
                continue
            process = _respond(control)
            if process is None:
                return
            if process >= 0:
                poller.register(process, select.POLLIN)


def _respond(control: socket.socket) -> int | None:
    """Fork the shim of one request; return its pidfd, -1 after an error, ``None`` at the end.

    The response is the process id with the pidfd, or a negative error number.
    """
    request, received, _, _ = socket.recv_fds(control, MAX_REQUEST, _DESCRIPTORS)
    if not request:
        return None
    try:
        if len(received) != _DESCRIPTORS:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        pid = os.fork()
        if pid == 0:
            _run_shim(request.decode(), *received)
        process = _open_process(pid)
    except OSError as error:
        control.send(str(-(error.errno or errno.EIO)).encode())
        return -1
    finally:
        for each in received:
            os.close(each)
    socket.send_fds(control, [str(pid).encode()], [process])
    return process


def _open_process(pid: int) -> int:
    """Return the pidfd of a child; without one the server could not wait for it, so kill it."""
    try:
        return os.pidfd_open(pid)
    except OSError:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        raise


def _run_shim(request: str, errors: int, ready: int) -> None:
    """Become the shim of a run; never returns."""
    code = 1
    try:
        tag, run_path = request.split("\0")
        os.setsid()
        os.dup2(errors, 1)
        os.dup2(errors, 2)
        _set_tag(tag.encode())
        code = shim.main(run_path, ready)
    except BaseException:
        sys.excepthook(*sys.exc_info())
        sys.stderr.flush()
    finally:
        os._exit(code)  # the forked child must not return to the code of the server


def _set_tag(tag: bytes) -> None:
    """Change the environment of this process also as others read it, in `/proc/PID/environ`.

    Raises:
        ValueError: the environment has no space for it.
    """
    if len(tag) > MAX_TAG:
        raise ValueError("the tag of the run is too long")
    address = _LIBC.getenv(RUN_VARIABLE.encode())
    ctypes.memset(address, 0, MAX_TAG)
    ctypes.memmove(address, tag, len(tag))
    os.environ[RUN_VARIABLE] = tag.decode()
