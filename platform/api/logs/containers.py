"""Logs of single containers, as the caller may read them, and how many are open at a time.

Each open log is a connection to the API server and some memory; `LogStreams` bounds both.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlencode

from ...kube.client.client import Client
from ...kube.client.codec import object_path
from ...model.names import PODS
from ..problems import RETRY_AFTER, ProblemError

MAX_STREAMS = 256
"""Logs that one replica reads at a time."""

MAX_STREAMS_PER_USER = 128
"""Logs that it reads at a time for one user."""

IDLE_TIMEOUT = 60.0
"""Seconds without data after which a log that is not followed has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """What to read of a container's log; the names are those of the API server in snake case."""

    container: str = ""
    follow: bool = False
    tail_lines: int | None = None
    since_seconds: int | None = None
    since_time: str = ""
    timestamps: bool = False
    previous: bool = False
    limit_bytes: int | None = None

    def path(self, namespace: str, pod: str) -> str:
        """Return the path of the log with its query."""
        flags = {
            "follow": self.follow,
            "timestamps": self.timestamps,
            "previous": self.previous,
        }
        given = {
            "container": self.container or None,
            "tailLines": self.tail_lines,
            # Of both, which are exclusive, the time is the later one.
            "sinceSeconds": None if self.since_time else self.since_seconds,
            "sinceTime": self.since_time or None,
            "limitBytes": self.limit_bytes,
            **{name: "true" for name, flag in flags.items() if flag},
        }
        query = urlencode({name: value for name, value in given.items() if value is not None})
        path = object_path(PODS, pod, namespace=namespace, subresource="log")
        return f"{path}?{query}" if query else path


@asynccontextmanager
async def open_log(
    client: Client, namespace: str, pod: str, options: LogOptions
) -> AsyncIterator[AsyncIterator[bytes]]:
    """Open a log with the rights of *client*; the block gets its bytes.

    Raises:
        ApiError, ConnectionLostError: also from the iteration.
    """
    idle_timeout = None if options.follow else IDLE_TIMEOUT
    path = options.path(namespace, pod)
    async with client.stream_path(path, idle_timeout=idle_timeout) as chunks:
        yield chunks


class LogStreams:
    """The logs that are open, in total and by user."""

    def __init__(self, total: int = MAX_STREAMS, per_user: int = MAX_STREAMS_PER_USER) -> None:
        self._total = total
        self._per_user = per_user
        self._by_user: Counter[str] = Counter()
        self._released = asyncio.Event()

    def __len__(self) -> int:
        """Number of open logs."""
        return self._by_user.total()

    def is_available(self, user: str) -> bool:
        """Whether *user* may open one more."""
        return len(self) < self._total and self._by_user[user] < self._per_user

    def check(self, user: str) -> None:
        """Check that *user* may open one more.

        Raises:
            ProblemError: 503, too many are open.
        """
        if not self.is_available(user):
            text = f"too many logs are being read: at most {self._per_user} for one user, "
            text += f"{self._total} in all"
            raise ProblemError(503, text, retry_after=RETRY_AFTER)

    async def acquire(self, user: str) -> None:
        """Wait until *user* may open one more, and count it; release it."""
        while not self.is_available(user):
            self._released.clear()
            await self._released.wait()
        self._by_user[user] += 1

    @asynccontextmanager
    async def one(self, user: str) -> AsyncIterator[None]:
        """Count one more log of *user* for the length of the block."""
        await self.acquire(user)
        try:
            yield
        finally:
            self.release(user)

    def release(self, user: str) -> None:
        """Count one log of *user* less."""
        self._by_user[user] -= 1
        if not self._by_user[user]:
            del self._by_user[user]
        self._released.set()
