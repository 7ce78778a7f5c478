"""Work queue of a controller (sharded, delaying, rate-limited) and the worker loop.

A *key* (``namespace/name``, or ``name``) requests a reconcile of that object; its state is read
from the informers. What must neither be merged nor reordered (Commands, expired timers) is a
pending *item* of the key until the reconciler has processed and popped it: a failed reconcile finds
it again.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..kube.errors import (
    UNAVAILABLE_ERRORS,
    ApiError,
    ConflictError,
    ConnectionLostError,
    NotLeaderError,
)
from ..kube.supervision import UnexpectedCancelledError, supervise
from ..kube.timing import Timing
from .clock import Clock, SystemClock, Timer
from .delay_heap import DelayHeap
from .rate_limiters import RateLimiter, default_controller_rate_limiter
from .result import Result
from .shards import WHOLE, Shard
from .workqueue import WorkQueue
from .workqueue_stats import WorkQueueStats

if TYPE_CHECKING:
    from .metrics import WorkQueueMetrics

log = logging.getLogger(__name__)

_YIELD_EVERY = 16
"""Keys after which a worker yields to other tasks, should no reconcile await anything."""


OUTAGE_MAX_DELAY = 30.0
"""Maximum delay in seconds after an error that affects all keys, an outage of the API server. The
regular one, up to a quarter of an hour, would prolong the outage."""


RECONCILE_TIMEOUT = 300.0
"""Default timeout of one reconcile in seconds."""

_CANCEL_GRACE_PERIOD = 30.0
"""Seconds after which a cancelled reconcile that still runs is logged."""


class ReconcileTimeoutError(Exception):
    """A reconcile timed out and was cancelled."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"cancelled after {seconds:g} s")


class TerminalError(Exception):
    """A permanent error: the key is dropped until it is added again."""


class RequeueError(Exception):
    """Requeue with backoff, without logging an error."""


class WriteFailedError(Exception):
    """Writes were refused or failed; the text is that of the server."""


_EXPECTED_ERRORS = (
    ApiError, ConnectionLostError, NotLeaderError, RequeueError, WriteFailedError,
)  # fmt: skip
"""Errors of requests and of concurrent changes, not of the reconciler."""


@contextmanager
def requeue_on_conflict(what: str) -> Iterator[None]:
    """Raise RequeueError if a write in the block finds *what* modified since it was read."""
    try:
        yield
    except ConflictError as error:
        raise RequeueError(f"{what} was modified concurrently") from error


class ShardedQueue:
    """Sharded work queue: a key always maps to the same shard. For one event loop."""

    def __init__(
        self,
        *,
        name: str,
        shards: int = 1,
        limiter: RateLimiter | None = None,
        clock: Clock | None = None,
        metrics: "WorkQueueMetrics | None" = None,
        log_fields: Callable[[str], Mapping[str, str]] | None = None,
        owned: Shard = WHOLE,
    ) -> None:
        """*log_fields* returns the log fields of a key: ``<name>=<key>`` by default.

        Adds of keys that are not in *owned* have no effect.
        """
        if shards < 1:
            raise ValueError(f"need at least one shard, got {shards}")
        self.name = name if owned.count == 1 else f"{name}-{owned.index}"
        self.owned = owned
        self.log_fields = log_fields or (lambda key: {name: key})
        self.clock = clock if clock is not None else SystemClock()
        self.stats = WorkQueueStats()
        self.shards = tuple(WorkQueue(self.clock, self.stats) for _ in range(shards))
        self._limiter = default_controller_rate_limiter(self.clock) if limiter is None else limiter
        self._delays = DelayHeap(self.clock, self.add)
        # Each item is wrapped in its own tuple, so that equal items are distinguishable.
        self._items: dict[str, deque[tuple[object]]] = {}
        if metrics is not None:
            metrics.register(self)

    def shard(self, key: str) -> WorkQueue:
        """Return the shard of *key*."""
        return self.shards[self.owned.worker_of(key, len(self.shards))]

    def add(self, key: str, *, low_priority: bool = False) -> None:
        """Add *key*; merged with an earlier add that no worker has picked up yet."""
        if self.owned.owns(key):
            self.shard(key).add(key, low_priority=low_priority)

    def include_changes(self, key: str) -> None:
        """Forget adds of *key* while it is processed; for a reconciler that reads all state now."""
        self.shard(key).include_changes(key)

    def add_after(self, key: str, seconds: float) -> None:
        """Add *key* after *seconds*; an earlier scheduled time wins."""
        if self.shutting_down or not self.owned.owns(key):
            return
        self.stats.retries += 1
        if seconds > 0:
            self._delays.add(key, seconds)
        else:
            self.add(key)

    def add_rate_limited(self, key: str, *, max_delay: float = math.inf) -> None:
        """Count a failure of *key* and add it after the limiter's delay, at most *max_delay*."""
        self.add_after(key, self._limiter.when(key, max_delay=max_delay))

    def forget(self, key: str) -> None:
        """Reset the failure count of *key*."""
        self._limiter.forget(key)

    def num_requeues(self, key: str) -> int:
        """Return the failures of *key* since it was last forgotten."""
        return self._limiter.num_requeues(key)

    def add_item(self, key: str, item: object) -> None:
        """Append *item* to the pending items of *key* and add *key*."""
        if not self.shutting_down and self.owned.owns(key):
            self._items.setdefault(key, deque()).append((item,))
            self.add(key)

    def peek_item(self, key: str) -> object | None:
        """Return the oldest pending item of *key*, or ``None``."""
        token = self.item_token(key)
        return token[0] if token else None

    def item_token(self, key: str) -> tuple[object] | None:
        """Return the wrapper of the oldest item, which identifies it."""
        items = self._items.get(key)
        return items[0] if items else None

    def pop_item(self, key: str) -> object:
        """Remove and return the oldest pending item of *key*, once it is processed.

        Raises:
            LookupError: there is none.
        """
        items = self._items.get(key)
        if not items:
            raise LookupError(f"no pending item for {key!r}")
        (item,) = items.popleft()
        if not items:
            del self._items[key]
        return item

    def mark_succeeded(self, key: str, *, requeue_after: float | None) -> None:
        """Reset the failure count of *key*; add it after *requeue_after* seconds, if given."""
        self._limiter.forget(key)
        if requeue_after is not None:
            self.add_after(key, requeue_after)

    @property
    def shutting_down(self) -> bool:
        """Whether adds are ignored."""
        return self.shards[0].shutting_down

    def shut_down(self) -> None:
        """Ignore further adds and drop delayed keys; workers finish what is queued."""
        self._delays.close()
        for shard in self.shards:
            shard.shut_down()

    async def drain(self) -> None:
        """Shut down and wait until all accepted keys are done; ``shut_down`` ends the wait."""
        self._delays.close()
        await asyncio.gather(*(shard.drain() for shard in self.shards))

    def depth(self) -> int:
        """Return the number of dirty keys, including those in processing."""
        return sum(shard.depth for shard in self.shards)

    def ages(self) -> list[float]:
        """Return for each key in processing for how many seconds."""
        return [age for shard in self.shards for age in shard.ages()]

    def delayed_count(self) -> int:
        """Return the number of delayed keys."""
        return len(self._delays)


Reconcile = Callable[[str], Awaitable[float | Result | None]]
"""Reconciles the object of a key; returns a Result, or the seconds to requeue after, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerSettings:
    """Options of run_workers."""

    max_requeues: int = -1
    """Retries of a failing key before it is dropped; negative: unlimited."""

    on_dropped: Callable[[str, Exception], object] | None = None
    """Called with a key that is dropped after a terminal error or too many retries. It should pop
    the item that cannot be processed, else it is retried with the next reconcile of the key."""

    workers_per_shard: int = 1
    """Workers per shard. With more than one, keys of a shard may overtake each other, but no key is
    processed concurrently. Avoids idle workers when shards differ in load."""

    shutdown_timeout: float = 5.0
    """Seconds that shutdown waits for queued keys and those in processing: a process has ten."""

    timeout: float = RECONCILE_TIMEOUT
    """Timeout of one reconcile in seconds. Then it is cancelled and its key is retried as after a
    failure; its writes in flight may or may not have taken effect."""


async def run_workers(
    queue: ShardedQueue, reconcile: Reconcile, *, settings: WorkerSettings | None = None
) -> None:
    """Process each shard of *queue* by its workers, until cancelled or the queue is shut down.

    Any exception of *reconcile*, an unexpected CancelledError included, is a failure of its key. A
    worker that fails itself is restarted, and its key is retried.

    When cancelled, it shuts the queue down and lets the workers finish what is queued, at most for
    the shutdown timeout (a second cancellation ends that too); no worker runs on return.
    """
    group = _WorkerGroup(queue, reconcile, settings or WorkerSettings())
    queue.stats.workers = len(queue.shards) * group.settings.workers_per_shard
    log_fields = {"controller": queue.name, "workers": queue.stats.workers}
    log.info("controller started", extra=log_fields)
    try:
        await _run_group(group)
    finally:
        log.info("controller stopped", extra=log_fields)


async def _run_group(group: "_WorkerGroup") -> None:
    queue, group_task = group.queue, asyncio.create_task(group.run())
    try:
        await asyncio.shield(group_task)
    except asyncio.CancelledError:
        queue.shut_down()
        limit = queue.clock.call_later(group.settings.shutdown_timeout, group_task.cancel)
        try:
            await group_task
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
        """Process keys until the queue is shut down and empty."""
        async with asyncio.TaskGroup() as self._tasks:
            for shard in self.queue.shards * self.settings.workers_per_shard:
                self.add_worker(shard)

    def add_worker(self, shard: WorkQueue) -> None:
        """Start a worker for *shard*, unless the queue is shut down."""
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
    """Processes the keys of one shard one by one and requeues or forgets each."""

    def __init__(self, group: _WorkerGroup, shard: WorkQueue) -> None:
        self.replaced = False
        """Another worker serves the shard, since this one's reconcile ignores cancellation."""
        self._group = group
        self._queue = group.queue
        self._shard = shard
        self._task: asyncio.Task[None] | None = None
        self._timer: Timer | None = None
        self._cancel_count = 0
        """How often the current reconcile has been cancelled due to its timeout."""

    async def run(self) -> None:
        """Process keys until the queue is shut down and empty, or this worker is replaced."""
        self._task = task = asyncio.current_task()
        processed = 0
        if self.replaced:  # restarted by its supervisor, but no longer needed
            return
        async for key in self._shard:
            try:
                await self._process(key)
            except BaseException:
                self._queue.add_rate_limited(key)  # keeps the key; no effect during shutdown
                raise
            finally:
                seconds = self._shard.done(key)
                if log.isEnabledFor(logging.DEBUG):
                    log_fields = {**self._queue.log_fields(key), "seconds": seconds}
                    log.debug("reconciled", extra=log_fields)
            if task is not None and task.cancelling():
                raise asyncio.CancelledError  # swallowed by the reconcile
            if self.replaced:
                return
            processed += 1
            if processed % _YIELD_EVERY == 0:
                await asyncio.sleep(0)

    async def _process(self, key: str) -> None:
        """Reconcile *key* and handle the result; never the same key in two workers."""
        queue, settings = self._queue, self._group.settings
        if queue.shard(key) is not self._shard:
            log.error("key in wrong shard", extra=queue.log_fields(key))
            queue.add(key)
            return
        first = queue.item_token(key)
        try:
            result = await self._reconcile(key)
        except TerminalError as error:
            log.exception("reconcile failed permanently", extra=queue.log_fields(key))
            queue.stats.terminal_errors += 1
            queue.stats.results["error"] += 1
            _drop(queue, key, error, settings)
        except Exception as error:
            _retry(queue, key, error, settings)
        else:
            _on_success(queue, key, result, first)
        queue.stats.reconcile_duration.observe(self._shard.age(key))

    async def _reconcile(self, key: str) -> Result:
        """Call the reconciler; raises an Exception unless this task is cancelled."""
        self._cancel_count = 0
        self._timer = self._queue.clock.call_later(
            self._group.settings.timeout, lambda: self._on_timeout(key)
        )
        try:
            result = await self._group.reconcile(key)
            return result if isinstance(result, Result) else Result(requeue_after=result)
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
        """Whether this task is cancelled other than by its timeout."""
        return self._task is not None and self._task.cancelling() > self._cancel_count

    def _on_timeout(self, key: str) -> None:
        """Cancel the reconcile of *key*; if that has no effect, start another worker."""
        log_fields = {**self._queue.log_fields(key), "seconds": round(self._shard.age(key), 3)}
        if not self._cancel_count:
            self._queue.stats.timeouts += 1
            log.error("reconcile timed out, cancelling", extra=log_fields)
        else:
            log.error("reconcile still running after cancellation", extra=log_fields)
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
    """Requeue *key* with backoff, or drop it after too many retries."""
    log_fields, errors = queue.log_fields(key), _leaves(error)
    requeued = all(isinstance(each, RequeueError) for each in errors)
    queue.stats.results["requeue" if requeued else "error"] += 1
    if 0 <= settings.max_requeues <= queue.num_requeues(key):
        log.error("max requeues exceeded, dropping key", extra=log_fields, exc_info=error)
        _drop(queue, key, error, settings)
        return
    text = "; ".join(dict.fromkeys(map(str, errors)))
    if requeued:
        log.debug("requeued", extra={**log_fields, "reason": text})
    elif all(isinstance(each, _EXPECTED_ERRORS) for each in errors):
        # The server's message suffices; the traceback is always the same.
        log.warning("reconcile failed, requeuing", extra={**log_fields, "error": text})
    else:
        queue.stats.unexpected_errors += 1
        log.warning("reconcile failed, requeuing", extra=log_fields, exc_info=error)
    outage = any(isinstance(each, UNAVAILABLE_ERRORS) for each in errors)
    queue.add_rate_limited(key, max_delay=OUTAGE_MAX_DELAY if outage else math.inf)


def _leaves(error: Exception) -> list[Exception]:
    """Return the errors of a group, of its groups too; or the error itself."""
    if isinstance(error, ExceptionGroup):
        return [leaf for each in error.exceptions for leaf in _leaves(each)]
    return [error]


def _drop(queue: ShardedQueue, key: str, error: Exception, settings: WorkerSettings) -> None:
    first = queue.item_token(key)
    if settings.on_dropped is not None:
        try:
            settings.on_dropped(key, error)
        except (Exception, asyncio.CancelledError):  # no await inside: the callback's own
            log.exception("cannot drop key, requeuing", extra=queue.log_fields(key))
            queue.add_rate_limited(key)
            return
        remaining = queue.item_token(key)
        if remaining is not None and remaining is not first:
            queue.add(key)
    queue.forget(key)


def _on_success(queue: ShardedQueue, key: str, result: Result, first: tuple[object] | None) -> None:
    """Reset the failures; a remaining item requeues the key, with backoff if not processed."""
    queue.stats.results[_result_label(result)] += 1
    remaining = queue.item_token(key)
    if remaining is not None and remaining is first:
        queue.add_rate_limited(key)
        return
    if result.backoff:
        queue.add_rate_limited(key)
    else:
        queue.mark_succeeded(key, requeue_after=result.requeue_after)
    if remaining is not None:
        queue.add(key)


def _result_label(result: Result) -> str:
    if result.backoff:
        return "requeue"
    return "success" if result.requeue_after is None else "requeue_after"
