"""The sharded, delaying, rate-limited queue of a controller, and the one worker loop.

A *key* (``namespace/name``, or ``name``) means "look again at this object"; what happened is read
from the caches. What must neither merge nor change its order (Commands, expired timers) lies as
*mail* in the key's mailbox until the reconciler, having carried it out, takes it: a reconciler
that fails finds it there again.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..kube.errors import OUTAGES, ApiError, ConnectionLostError, NotLeadingError
from .clock import Clock, SystemClock
from .delays import DelayHeap
from .figures import QueueFigures
from .limiters import RateLimiter, default_controller_limiter
from .queues import WorkQueue
from .shards import shard_of

if TYPE_CHECKING:
    from .metrics import WorkQueueMetrics

log = logging.getLogger(__name__)

_TURNS = 16
"""Keys after which a worker lets others run, in case no reconcile had to wait."""


OUTAGE_PAUSE = 30.0
"""Seconds that a key waits at most after a failure that all keys share: that of the server. One of
its own may cost it a quarter of an hour; after an outage that would be felt as a second one."""


class TerminalError(Exception):
    """Trying again is of no use: the key rests until something new happens."""


class TryAgainError(Exception):
    """Not yet, and nobody's fault: retry with growing delays, without a report."""


class ShardedQueue:
    """As many queues as workers; a key always goes to the same one. For one event loop."""

    def __init__(
        self,
        *,
        name: str,
        shards: int = 1,
        limiter: RateLimiter | None = None,
        clock: Clock | None = None,
        metrics: "WorkQueueMetrics | None" = None,
        about: Callable[[str], Mapping[str, str]] | None = None,
    ) -> None:
        """*about* says how the log names a key: ``<name>=<key>`` by default."""
        if shards < 1:
            raise ValueError(f"need at least one shard, got {shards}")
        self.name = name
        self.about = about or (lambda key: {name: key})
        self.clock = clock if clock is not None else SystemClock()
        self.figures = QueueFigures()
        self.shards = tuple(WorkQueue(self.clock, self.figures) for _ in range(shards))
        self._limiter = default_controller_limiter(self.clock) if limiter is None else limiter
        self._delays = DelayHeap(self.clock, self.add)
        # Each mail in an envelope of its own, so that two equal ones can be told apart.
        self._mail: dict[str, deque[tuple[object]]] = {}
        if metrics is not None:
            metrics.watch(self)

    def shard(self, key: str) -> WorkQueue:
        """The queue that *key* belongs to."""
        return self.shards[shard_of(key, len(self.shards))]

    def add(self, key: str) -> None:
        """Look at *key* soon; merged with an earlier add that no worker has taken yet."""
        self.shard(key).add(key)

    def add_after(self, key: str, seconds: float) -> None:
        """Look at *key* in *seconds*, or sooner if it waits for an earlier time already."""
        if self.shutting_down:
            return
        self.figures.retries += 1
        if seconds > 0:
            self._delays.add(key, seconds)
        else:
            self.add(key)

    def add_rate_limited(self, key: str, *, at_most: float = math.inf) -> None:
        """Count a failure of *key* and look again when the limiter says so, or after *at_most*."""
        self.add_after(key, self._limiter.when(key, at_most=at_most))

    def forget(self, key: str) -> None:
        """*key* did well: its failures no longer count."""
        self._limiter.forget(key)

    def num_requeues(self, key: str) -> int:
        """Failures of *key* since it was last forgotten."""
        return self._limiter.num_requeues(key)

    def post(self, key: str, mail: object) -> None:
        """Put *mail* behind what already lies in the mailbox of *key*, and look at *key* soon."""
        if not self.shutting_down:
            self._mail.setdefault(key, deque()).append((mail,))
            self.add(key)

    def peek_mail(self, key: str) -> object | None:
        """The oldest mail of *key*, which stays where it is; ``None`` if there is none."""
        envelope = self.envelope(key)
        return envelope[0] if envelope else None

    def envelope(self, key: str) -> tuple[object] | None:
        """What the oldest mail of *key* lies in: another one means another mail."""
        box = self._mail.get(key)
        return box[0] if box else None

    def take_mail(self, key: str) -> object:
        """Remove the oldest mail of *key*, now that it is carried out.

        Raises:
            LookupError: there is none.
        """
        box = self._mail.get(key)
        if not box:
            raise LookupError(f"no mail for {key!r}")
        (mail,) = box.popleft()
        if not box:
            del self._mail[key]
        return mail

    def settle(self, key: str, *, again_in: float | None) -> None:
        """*key* did well; look again in *again_in* seconds, if given."""
        self._limiter.forget(key)
        if again_in is not None:
            self.add_after(key, again_in)

    @property
    def shutting_down(self) -> bool:
        """No keys are taken any more."""
        return self.shards[0].shutting_down

    def shut_down(self) -> None:
        """Take no more keys and drop those that wait; workers finish what is queued."""
        self._delays.close()
        for shard in self.shards:
            shard.shut_down()

    async def drain(self) -> None:
        """Shut down, and wait until all accepted keys are done; ``shut_down`` ends the wait."""
        self._delays.close()
        await asyncio.gather(*(shard.drain() for shard in self.shards))

    def depth(self) -> int:
        """Keys that need work, whether or not they are being worked on."""
        return sum(shard.depth for shard in self.shards)

    def ages(self) -> list[float]:
        """Seconds that each key in work has been in work."""
        return [age for shard in self.shards for age in shard.ages()]

    def waiting(self) -> int:
        """Keys that wait for their time."""
        return len(self._delays)


Reconcile = Callable[[str], Awaitable[float | None]]
"""Brings the object of a key nearer to what it should be; seconds until the next look, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What run_workers does beyond the plain loop."""

    max_requeues: int = -1
    """Retries of a failing key before it is given up; negative: no limit."""

    gave_up: Callable[[str, Exception], object] | None = None
    """Told of a key that is given up, when its retries or its sense have run out. It takes the
    mail that cannot be carried out, or that is tried again at the key's next turn."""

    hands: int = 1
    """Workers of each shard. With more than one, keys of a shard may overtake each other; one key
    is still in one hand only. It spares shards where some would be long and others empty."""

    grace: float = 5.0
    """Seconds that a stop waits for the keys in work and queued: a process has ten in all."""


async def run_workers(
    queue: ShardedQueue, reconcile: Reconcile, *, settings: WorkerSettings | None = None
) -> None:
    """Serve each shard of *queue* by its worker, until cancelled or the queue is shut down.

    When cancelled, it shuts the queue down and lets the workers finish what is queued, for the
    grace period at most (a second cancel ends that too); then nothing runs any more.
    """
    settings = settings or WorkerSettings()

    async def serve() -> None:
        async with asyncio.TaskGroup() as group:
            for shard in queue.shards * settings.hands:
                group.create_task(_work(queue, shard, reconcile, settings))

    serving = asyncio.create_task(serve())
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        queue.shut_down()
        limit = queue.clock.call_later(settings.grace, serving.cancel)
        try:
            await serving
        finally:
            limit.cancel()
        raise


async def _work(
    queue: ShardedQueue, shard: WorkQueue, reconcile: Reconcile, settings: WorkerSettings
) -> None:
    """Take a key, reconcile it, settle the outcome; never the same key in two workers."""
    turns = 0
    async for key in shard:
        first = queue.envelope(key)
        try:
            if queue.shard(key) is not shard:
                log.error("key in a foreign queue", extra=queue.about(key))
                queue.add(key)
                continue
            again_in = await reconcile(key)
        except TerminalError as error:
            log.exception("gave up", extra=queue.about(key))
            _give_up(queue, key, error, settings)
        except Exception as error:
            _retry(queue, key, error, settings)
        else:
            _settle(queue, key, again_in, first)
        finally:
            seconds = shard.done(key)
            if log.isEnabledFor(logging.DEBUG):
                log.debug("looked at it", extra={**queue.about(key), "seconds": seconds})
        turns += 1
        if turns % _TURNS == 0:
            await asyncio.sleep(0)


def _retry(queue: ShardedQueue, key: str, error: Exception, settings: WorkerSettings) -> None:
    """Look again when the limiter says so, or give up when there were too many retries."""
    about = queue.about(key)
    if 0 <= settings.max_requeues <= queue.num_requeues(key):
        log.error("out of retries", extra=about, exc_info=error)
        _give_up(queue, key, error, settings)
        return
    if isinstance(error, TryAgainError):
        log.debug("not yet", extra={**about, "why": str(error)})
    elif isinstance(error, ApiError | ConnectionLostError | NotLeadingError):
        # The server's words say it all; where we stood when they came is the same each time.
        log.warning("will retry", extra={**about, "error": str(error)})
    else:
        log.warning("will retry", extra=about, exc_info=error)
    outage = isinstance(error, OUTAGES)
    queue.add_rate_limited(key, at_most=OUTAGE_PAUSE if outage else math.inf)


def _give_up(queue: ShardedQueue, key: str, error: Exception, settings: WorkerSettings) -> None:
    first = queue.envelope(key)
    queue.forget(key)
    if settings.gave_up is not None:
        settings.gave_up(key, error)
        left = queue.envelope(key)
        if left is not None and left is not first:
            queue.add(key)


def _settle(
    queue: ShardedQueue, key: str, again_in: float | None, first: tuple[object] | None
) -> None:
    """More mail means another turn at once; one that was left lying waits as after a failure."""
    left = queue.envelope(key)
    if left is not None and left is first:
        queue.add_rate_limited(key)
        return
    queue.settle(key, again_in=again_in)
    if left is not None:
        queue.add(key)
