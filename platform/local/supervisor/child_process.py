"""Child processes of the supervisor: forked from it with its imports, or spawned.

A fork saves each component the imports that all components need. It is safe only while the
supervisor has neither an event loop nor threads, so only first starts use it.
"""

import asyncio
import gc
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from ..agent.runtime.process_id import die_with_parent

Entry = Callable[[Sequence[str]], None]
"""Entry point of a forked child: runs the command line with its arguments."""


class Process(Protocol):
    """A child process; the subset of `asyncio.subprocess.Process` that the supervisor uses."""

    @property
    def pid(self) -> int:
        """Process id."""
        ...

    @property
    def returncode(self) -> int | None:
        """Exit status; ``None`` until `wait` has returned."""
        ...

    async def wait(self) -> int:
        """Wait until the process exits."""
        ...

    def send_signal(self, signal: int) -> None:
        """Send a signal; raise ProcessLookupError if the process has exited."""
        ...

    def kill(self) -> None:
        """Send SIGKILL."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """Start options of a child."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    output: int
    """Descriptor that becomes its standard output and error."""
    descriptors: Sequence[int]
    """Open files that it keeps under the same numbers."""


class ForkedProcess:
    """A forked child, watched by its pidfd."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._pidfd = os.pidfd_open(pid)
        self._exited: asyncio.Event | None = None

    async def wait(self) -> int:
        """Wait until the process exits."""
        if self._exited is None:
            self._exited = asyncio.Event()
            asyncio.get_running_loop().add_reader(self._pidfd, self._reap)
        await self._exited.wait()
        assert self.returncode is not None  # noqa: S101  # set before the event
        return self.returncode

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        _, status = os.waitpid(self.pid, 0)
        self.returncode = os.waitstatus_to_exitcode(status)
        if self._exited is not None:
            self._exited.set()

    def send_signal(self, signal: int) -> None:
        """Send a signal; raise ProcessLookupError if the process has exited."""
        if self.returncode is not None:
            raise ProcessLookupError(self.pid)
        os.kill(self.pid, signal)

    def kill(self) -> None:
        """Send SIGKILL."""
        with suppress(ProcessLookupError):
            self.send_signal(signal.SIGKILL)


async def spawn(program: Sequence[str], options: ProcessOptions) -> Process:
    """Start *program* in a new process."""
    return await asyncio.create_subprocess_exec(
        *program,
        *options.arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=options.output,
        stderr=options.output,
        env={**os.environ, **options.environment},
        pass_fds=options.descriptors,
        # Ctrl-C at the terminal signals only the supervisor, which stops the components in order.
        start_new_session=True,
    )


def fork(entry: Entry, options: ProcessOptions) -> ForkedProcess:
    """Fork a child that runs *entry*; only before this process has a loop or threads."""
    sys.stdout.flush()
    sys.stderr.flush()
    gc.freeze()  # keeps pages shared: the children's collectors do not write to these objects
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return ForkedProcess(pid)
    code = 1
    try:
        os.setsid()
        die_with_parent(parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        _set_up_child(options)
        entry(options.arguments)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _set_up_child(options: ProcessOptions) -> None:
    """Set up the child's descriptors and environment."""
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (options.output, 1), (options.output, 2)):
        os.dup2(source, target)
    kept = {0, 1, 2, *options.descriptors}
    # Closes the lock of the data directory, and the sockets of other components.
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with suppress(OSError):  # the descriptor of the listing itself
                os.close(int(name))
    os.environ.update(options.environment)
