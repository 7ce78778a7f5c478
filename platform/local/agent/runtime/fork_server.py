"""Starts of shims by a fork server, `shim_server`, instead of a Python interpreter for each."""

import asyncio
import errno
import os
import signal
import socket
import threading
from contextlib import suppress
from pathlib import Path

from . import shim_server, spawning
from .runs import RunDir, ShimProcess

_TIMEOUT = 60.0
"""Seconds without a response after which the server is replaced."""


class _ServerLostError(Exception):
    """The server has exited, or does not respond."""


class ForkServer:
    """Starts shims; its process is started with the first one, and again if it was killed.

    A start to which the server does not respond is repeated without it. The claim of the run
    decides which of the two shims runs the container.
    """

    def __init__(self, data_dir: Path) -> None:
        """*data_dir* is shown in the list of processes."""
        self._data_dir = data_dir
        self._lock = threading.Lock()
        self._requests = asyncio.Lock()
        """Held during a request: waiting ones occupy no threads, which others need, too."""

        self._control: socket.socket | None = None
        self.pid = 0
        """Process id of the server, or of the last one."""

        self._closed = False

    async def start(self, run_dir: RunDir) -> ShimProcess:
        """Start a shim, and wait until its program runs or it has exited; it outlives the agent.

        A run that could not start has an exit record then.

        Raises:
            OSError: no process can be created.
        """
        # Not cancelled with this task: the next start would receive the response to this one.
        work = asyncio.ensure_future(self._start_alone(run_dir))
        try:
            started, reported = await asyncio.shield(work)
        except asyncio.CancelledError:
            work.add_done_callback(_close_result)
            raise
        loop = asyncio.get_running_loop()
        closed = asyncio.Event()
        loop.add_reader(reported, closed.set)
        try:
            await closed.wait()
        except asyncio.CancelledError:
            os.close(started.pidfd)
            raise
        finally:
            loop.remove_reader(reported)
            os.close(reported)
        return started

    async def _start_alone(self, run_dir: RunDir) -> tuple[ShimProcess, int]:
        async with self._requests:
            return await asyncio.to_thread(self._start, run_dir)

    def close(self) -> None:
        """End the server; the shims go on."""
        with self._lock:
            self._closed = True
            self._end()

    def _start(self, run_dir: RunDir) -> tuple[ShimProcess, int]:
        """Start a shim; return it, and the descriptor whose end reports that its program runs."""
        reported, ready = os.pipe()
        try:
            try:
                with self._lock:
                    return self._fork(run_dir, ready), reported
            finally:
                os.close(ready)
        except _ServerLostError:
            os.read(reported, 1)  # until a shim that was forked runs its program, or exits
            os.close(reported)
        except BaseException:
            os.close(reported)
            raise
        return _start_without_server(run_dir)

    def _fork(self, run_dir: RunDir, ready: int) -> ShimProcess:
        """Have the server fork a shim.

        Raises:
            OSError: no process can be created.
            _ServerLostError: there is no response, or none can be asked for.
        """
        if self._closed or len(run_dir.name.encode()) > shim_server.MAX_TAG:
            raise _ServerLostError
        control = self._control or self._spawn()
        errors = run_dir.open_errors()
        try:
            request = f"{run_dir.name}\0{run_dir.path}".encode()
            socket.send_fds(control, [request], [errors, ready])
            # Other programs that this process starts must not inherit the descriptor.
            response, received, _, _ = socket.recv_fds(control, 64, 1, socket.MSG_CMSG_CLOEXEC)
        except OSError:
            response, received = b"", []
        finally:
            os.close(errors)
        if not response:
            self._end()
            raise _ServerLostError
        if not received:
            number = max(-int(response), 0) or errno.EMFILE  # without one: of this process
            raise OSError(number, os.strerror(number))
        return ShimProcess(int(response), received[0])

    def _spawn(self) -> socket.socket:
        own, other = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.pid = spawning.spawn(
                ["--serve", str(spawning.FIRST_DESCRIPTOR), str(self._data_dir)],
                shim_server.ENVIRONMENT,
                output=2,
                descriptors=[other.fileno()],
            )
        except BaseException:
            own.close()
            raise
        finally:
            other.close()
        own.settimeout(_TIMEOUT)
        self._control = own
        return own

    def _end(self) -> None:
        if self._control is None:
            return
        self._control.close()
        self._control = None
        with suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(self.pid, 0)


def _start_without_server(run_dir: RunDir) -> tuple[ShimProcess, int]:
    """Start a shim by a separate interpreter, unless the run has one that is alive."""
    reported, ready = os.pipe()
    try:
        started = run_dir.open_shim() or ShimProcess.of(run_dir.start(ready))
    except BaseException:
        os.close(reported)
        raise
    finally:
        os.close(ready)
    return started, reported


def _close_result(work: "asyncio.Future[tuple[ShimProcess, int]]") -> None:
    if not work.cancelled() and work.exception() is None:
        started, reported = work.result()
        os.close(started.pidfd)
        os.close(reported)
