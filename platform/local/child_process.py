"""Child processes of the supervisor: forked from it with all its imports, or started anew.

Forking saves each part the import of what all parts share; it is possible only as long as the
supervisor has no loop and no threads, so it serves the first start alone.
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
"""What a forked child does with its arguments: the command line, without a new interpreter."""


class Process(Protocol):
    """A child that runs or has ended; as asyncio's own."""

    @property
    def pid(self) -> int:
        """Its number."""
        ...

    @property
    def returncode(self) -> int | None:
        """How it ended; ``None`` while it runs or nobody has waited."""
        ...

    async def wait(self) -> int:
        """Wait for its end."""
        ...

    def send_signal(self, signal: int) -> None:
        """Send a signal; raises ProcessLookupError when it has ended."""
        ...

    def kill(self) -> None:
        """SIGKILL."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOptions:
    """How a child starts."""

    arguments: Sequence[str]
    environment: Mapping[str, str]
    output: int
    """Descriptor that becomes its standard output and error."""
    descriptors: Sequence[int]
    """Open files that it keeps under the same numbers."""


class ForkedProcess:
    """A forked child, waited for by a descriptor of its process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._pidfd = os.pidfd_open(pid)
        self._exited: asyncio.Event | None = None

    async def wait(self) -> int:
        """Wait for its end."""
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
        """Send a signal; raises ProcessLookupError when it has ended."""
        if self.returncode is not None:
            raise ProcessLookupError(self.pid)
        os.kill(self.pid, signal)

    def kill(self) -> None:
        """SIGKILL."""
        with suppress(ProcessLookupError):
            self.send_signal(signal.SIGKILL)


async def spawn(program: Sequence[str], options: ProcessOptions) -> Process:
    """Start *program* anew with the arguments of *start*."""
    return await asyncio.create_subprocess_exec(
        *program,
        *options.arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=options.output,
        stderr=options.output,
        env={**os.environ, **options.environment},
        pass_fds=options.descriptors,
        # Ctrl-C at the terminal is for the supervisor, which ends the parts in order.
        start_new_session=True,
    )


def fork(entry: Entry, options: ProcessOptions) -> ForkedProcess:
    """Fork a child that does *entry*; only before any loop or thread of this process."""
    sys.stdout.flush()
    sys.stderr.flush()
    gc.freeze()  # what is shared stays shared: the collector does not touch it in the children
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return ForkedProcess(pid)
    code = 1
    try:
        os.setsid()
        die_with_parent(parent)
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
    """Make the inherited descriptors and environment the child's own."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (options.output, 1), (options.output, 2)):
        os.dup2(source, target)
    kept = {0, 1, 2, *options.descriptors}
    # The lock of the data folder among them, and the sockets of other parts.
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with suppress(OSError):  # the descriptor that listed them
                os.close(int(name))
    os.environ.update(options.environment)
