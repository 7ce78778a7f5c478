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

from ..kube.errors import UNAVAILABLE_ERRORS, ApiError, ConnectionLostError, NotLeaderError
from ..kube.supervision import UnexpectedCancelledError, supervise
from ..kube.timing import Timing
from .clock import Clock, SystemClock, Timer
from .delay_heap import DelayHeap
from .rate_limiters import RateLimiter, default_controller_rate_limiter
from .shards import shard_of
from .workqueue import WorkQueue
from .workqueue_stats import WorkQueueStats

if TYPE_CHECKING:
    from .metrics import WorkQueueMetrics

log = logging.getLogger(__name__)

_YIELD_EVERY = 16
"""Keys after which a worker lets others run, in case no reconcile had to wait."""


OUTAGE_MAX_DELAY = 30.0
"""Seconds that a key waits at most after a failure that all keys share: that of the server. One of
its own may cost it a quarter of an hour; after an outage that would be felt as a second one."""


RECONCILE_TIMEOUT = 300.0
"""Seconds that one reconcile may take unless the settings say otherwise."""

_CANCEL_GRACE_PERIOD = 30.0
"""Seconds after which a reconcile that was cancelled and has not ended is complained of."""


class ReconcileTimeoutError(Exception):
    """A reconcile took too long, and was cancelled."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"cancelled after {seconds:g} s")


class TerminalError(Exception):
    """Trying again is of no use: the key rests until something new happens."""


class RequeueError(Exception):
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
        log_fields: Callable[[str], Mapping[str, str]] | None = None,
    ) -> None:
        """*about* says how the log names a key: ``<name>=<key>`` by default."""
        if shards < 1:
            raise ValueError(f"need at least one shard, got {shards}")
        self.name = name
        self.log_fields = log_fields or (lambda key: {name: key})
        self.clock = clock if clock is not None else SystemClock()
        self.stats = WorkQueueStats()
        self.shards = tuple(WorkQueue(self.clock, self.stats) for _ in range(shards))
        self._limiter = default_controller_rate_limiter(self.clock) if limiter is None else limiter
        self._delays = DelayHeap(self.clock, self.add)
        # Each mail in an envelope of its own, so that two equal ones can be told apart.
        self._items: dict[str, deque[tuple[object]]] = {}
        if metrics is not None:
            metrics.register(self)

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
        self.stats.retries += 1
        if seconds > 0:
            self._delays.add(key, seconds)
        else:
            self.add(key)

    def add_rate_limited(self, key: str, *, max_delay: float = math.inf) -> None:
        """Count a failure of *key* and look again when the limiter says so, or after *at_most*."""
        self.add_after(key, self._limiter.when(key, max_delay=max_delay))

    def forget(self, key: str) -> None:
        """*key* did well: its failures no longer count."""
        self._limiter.forget(key)

    def num_requeues(self, key: str) -> int:
        """Failures of *key* since it was last forgotten."""
        return self._limiter.num_requeues(key)

    def add_item(self, key: str, item: object) -> None:
        """Put *mail* behind what already lies in the mailbox of *key*, and look at *key* soon."""
        if not self.shutting_down:
            self._items.setdefault(key, deque()).append((item,))
            self.add(key)

    def peek_item(self, key: str) -> object | None:
        """The oldest mail of *key*, which stays where it is; ``None`` if there is none."""
        envelope = self.item_token(key)
        return envelope[0] if envelope else None

    def item_token(self, key: str) -> tuple[object] | None:
        """What the oldest mail of *key* lies in: another one means another mail."""
        box = self._items.get(key)
        return box[0] if box else None

    def pop_item(self, key: str) -> object:
        """Remove the oldest mail of *key*, now that it is carried out.

        Raises:
            LookupError: there is none.
        """
        box = self._items.get(key)
        if not box:
            raise LookupError(f"no mail for {key!r}")
        (mail,) = box.popleft()
        if not box:
            del self._items[key]
        return mail

    def mark_succeeded(self, key: str, *, requeue_after: float | None) -> None:
        """*key* did well; look again in *again_in* seconds, if given."""
        self._limiter.forget(key)
        if requeue_after is not None:
            self.add_after(key, requeue_after)

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

    def delayed_count(self) -> int:
        """Keys that wait for their time."""
        return len(self._delays)


Reconcile = Callable[[str], Awaitable[float | None]]
"""Brings the object of a key nearer to what it should be; seconds until the next look, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """What run_workers does beyond the plain loop."""

    max_requeues: int = -1
    """Retries of a failing key before it is given up; negative: no limit."""

    on_give_up: Callable[[str, Exception], object] | None = None
    """Told of a key that is given up, when its retries or its sense have run out. It takes the
    mail that cannot be carried out, or that is tried again at the key's next turn."""

    workers_per_shard: int = 1
    """Workers of each shard. With more than one, keys of a shard may overtake each other; one key
    is still in one hand only. It spares shards where some would be long and others empty."""

    shutdown_timeout: float = 5.0
    """Seconds that a stop waits for the keys in work and queued: a process has ten in all."""

    timeout: float = RECONCILE_TIMEOUT
    """Seconds that one reconcile may take. Then it is cancelled, and its key is tried again like
    one that failed; what it had under way may have been carried out, or not."""


async def run_workers(
    queue: ShardedQueue, reconcile: Reconcile, *, settings: WorkerSettings | None = None
) -> None:
    """Serve each shard of *queue* by its worker, until cancelled or the queue is shut down.

    Whatever *reconcile* raises, a CancelledError of its own making included, is a failure of its
    key. A worker that fails itself is started again, and its key is tried again.

    When cancelled, it shuts the queue down and lets the workers finish what is queued, for the
    grace period at most (a second cancel ends that too); then nothing runs any more.
    """
    crew = _WorkerGroup(queue, reconcile, settings or WorkerSettings())
    serving = asyncio.create_task(crew.run())
    try:
        await asyncio.shield(serving)
    except asyncio.CancelledError:
        queue.shut_down()
        limit = queue.clock.call_later(crew.settings.shutdown_timeout, serving.cancel)
        try:
            await serving
        finally:
            limit.cancel()
        raise


class _WorkerGroup:
    """The workers of one queue."""

    def __init__(self, queue: ShardedQueue, reconcile: Reconcile, settings: WorkerSettings) -> None:
        self.queue = queue
        self.reconcile = reconcile
        self.settings = settings
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Work until the queue is shut down and empty."""
        async with asyncio.TaskGroup() as self._tasks:
            for shard in self.queue.shards * self.settings.workers_per_shard:
                self.add_worker(shard)

    def add_worker(self, shard: WorkQueue) -> None:
        """Have one more worker serve *shard*, unless the queue is shut down."""
        if self._tasks is None or self.queue.shutting_down:
            return
        clock = self.queue.clock
        worker = _Worker(self, shard)
        self._tasks.create_task(
            supervise(
                f"{self.queue.name} worker",
                worker.run,
                timing=Timing(monotonic=clock.monotonic, sleep=clock.sleep, now=clock.now),
                may_end=lambda: worker.replaced or self.queue.shutting_down,
            )
        )


class _Worker:
    """Takes keys of one shard, one after the other, and settles the outcome of each."""

    def __init__(self, group: _WorkerGroup, shard: WorkQueue) -> None:
        self.replaced = False
        """Another one serves the shard, as this one cannot let go of its key."""
        self._group = group
        self._queue = group.queue
        self._shard = shard
        self._task: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        self._cancel_count = 0
        """How often the present reconcile has been cancelled for taking too long."""

    async def run(self) -> None:
        """Work until the queue is shut down and empty, or this worker is replaced."""
        self._task = task = asyncio.current_task()
        turns = 0
        if self.replaced:  # it has failed after all, and is not needed any more
            return
        async for key in self._shard:
            try:
                await self._process(key)
            except BaseException:
                self._queue.add_rate_limited(key)  # so that it is not lost; no effect at the end
                raise
            finally:
                seconds = self._shard.done(key)
                if log.isEnabledFor(logging.DEBUG):
                    about = {**self._queue.log_fields(key), "seconds": seconds}
                    log.debug("looked at it", extra=about)
            if task is not None and task.cancelling():
                raise asyncio.CancelledError  # which the reconcile has kept to itself
            if self.replaced:
                return
            turns += 1
            if turns % _YIELD_EVERY == 0:
                await asyncio.sleep(0)

    async def _process(self, key: str) -> None:
        """Reconcile *key*, and settle the outcome; never the same key in two workers."""
        queue, settings = self._queue, self._group.settings
        if queue.shard(key) is not self._shard:
            log.error("key in a foreign queue", extra=queue.log_fields(key))
            queue.add(key)
            return
        first = queue.item_token(key)
        try:
            again_in = await self._reconcile(key)
        except TerminalError as error:
            log.exception("gave up", extra=queue.log_fields(key))
            _drop(queue, key, error, settings)
        except Exception as error:
            _retry(queue, key, error, settings)
        else:
            _on_success(queue, key, again_in, first)

    async def _reconcile(self, key: str) -> float | None:
        """Call the reconciler; what it raises is an Exception unless this task is cancelled."""
        self._cancel_count = 0
        self._timer = self._queue.clock.call_later(
            self._group.settings.timeout, lambda: self._on_timeout(key)
        )
        try:
            return await self._group.reconcile(key)
        except asyncio.CancelledError as error:
            if self._is_cancelled():
                raise
            if self._cancel_count:
                raise ReconcileTimeoutError(self._group.settings.timeout) from error
            raise UnexpectedCancelledError from error
        finally:
            if self._timer is not None:
                self._timer.cancel()
            if self._task is not None:
                for _ in range(self._cancel_count):
                    self._task.uncancel()

    def _is_cancelled(self) -> bool:
        """Whether somebody else than this worker cancels it."""
        return self._task is not None and self._task.cancelling() > self._cancel_count

    def _on_timeout(self, key: str) -> None:
        """Cancel the reconcile of *key*; if it goes on, let another worker serve the other keys."""
        about = {**self._queue.log_fields(key), "seconds": round(self._shard.age(key), 3)}
        if not self._cancel_count:
            self._queue.stats.timeouts += 1
            log.error("reconcile takes too long, cancelling it", extra=about)
        else:
            log.error("reconcile goes on though it was cancelled", extra=about)
            if not self.replaced:
                self.replaced = True
                self._group.add_worker(self._shard)
        self._cancel_count += 1
        self._timer = self._queue.clock.call_later(
            _CANCEL_GRACE_PERIOD, lambda: self._on_timeout(key)
        )
        if self._task is not None:
            self._task.cancel()


def _retry(queue: ShardedQueue, key: str, error: Exception, settings: WorkerSettings) -> None:
    """Look again when the limiter says so, or give up when there were too many retries."""
    about = queue.log_fields(key)
    if 0 <= settings.max_requeues <= queue.num_requeues(key):
        log.error("out of retries", extra=about, exc_info=error)
        _drop(queue, key, error, settings)
        return
    if isinstance(error, RequeueError):
        log.debug("not yet", extra={**about, "why": str(error)})
    elif isinstance(error, ApiError | ConnectionLostError | NotLeaderError):
        # The server's words say it all; where we stood when they came is the same each time.
        log.warning("will retry", extra={**about, "error": str(error)})
    else:
        log.warning("will retry", extra=about, exc_info=error)
    outage = isinstance(error, UNAVAILABLE_ERRORS)
    queue.add_rate_limited(key, max_delay=OUTAGE_MAX_DELAY if outage else math.inf)


def _drop(queue: ShardedQueue, key: str, error: Exception, settings: WorkerSettings) -> None:
    first = queue.item_token(key)
    if settings.on_give_up is not None:
        try:
            settings.on_give_up(key, error)
        except (Exception, asyncio.CancelledError):  # it awaits nothing, so that is its own
            log.exception("cannot give the key up, will retry", extra=queue.log_fields(key))
            queue.add_rate_limited(key)
            return
        left = queue.item_token(key)
        if left is not None and left is not first:
            queue.add(key)
    queue.forget(key)


def _on_success(
    queue: ShardedQueue, key: str, requeue_after: float | None, first: tuple[object] | None
) -> None:
    """More mail means another turn at once; one that was left lying waits as after a failure."""
    left = queue.item_token(key)
    if left is not None and left is first:
        queue.add_rate_limited(key)
        return
    queue.mark_succeeded(key, requeue_after=requeue_after)
    if left is not None:
        queue.add(key)
