"""The base class of controllers: observe the state of a key, decide, execute the decision.

Event handlers add keys to the work queue. For each key a worker calls :meth:`Controller.observe`,
which reads the object and all that belongs to it from the caches, then the pure
:meth:`Controller.decide`, then :meth:`Controller.execute` for each effect in order. What is not
done because the process dies is decided again from the state that the next process observes.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from ...model.meta import HasMeta
from ..clock import Clock, SystemClock
from ..controller import RECONCILE_TIMEOUT, ShardedQueue, WorkerSettings, run_workers
from ..lifecycle import Source, run_controller
from ..metrics import WorkQueueMetrics
from ..rate_limiters import RateLimiter
from ..result import Result
from ..shards import WHOLE, Shard
from .cache import WriteThroughCache

View = TypeVar("View")
Effect = TypeVar("Effect")
T = TypeVar("T", bound=HasMeta)

_MAX_PASSES = 32
"""Passes over one key in one reconcile, before the worker takes the next key."""


class PerKey(Protocol):
    """State in memory that belongs to keys."""

    def forget(self, key: str) -> None:
        """Drop what belongs to *key*, if there is anything."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """Options that every controller has; the settings of most add their own."""

    workers: int = 5
    """Concurrent reconciles."""

    reconcile_timeout: float = RECONCILE_TIMEOUT
    """Timeout of one reconcile in seconds."""

    max_requeues: int = -1
    """Retries before a key is dropped until it is added again; negative: unlimited."""

    work_metrics: WorkQueueMetrics | None = None
    """Metrics of the work queue, if any."""


@dataclass(slots=True)
class Sync:
    """One pass over a key. Effects note here what the worker has to do afterwards."""

    key: str
    requeue_after: float | None = None
    """Seconds until the next reconcile, if no event precedes it."""
    again: bool = False
    """Observe and decide again at once: something was written that later decisions depend on."""
    errors: list[Exception] = field(default_factory=list)
    """Errors of effects that do not prevent the others; the first one fails the reconcile."""

    def after(self, seconds: float | None) -> None:
        """Reconcile again after *seconds*, if given; an earlier requested time wins."""
        if seconds is not None:
            earlier = self.requeue_after
            self.requeue_after = seconds if earlier is None else min(seconds, earlier)


@dataclass(frozen=True, slots=True)
class RequeueAfter:
    """Effect: reconcile again after some seconds, if no event precedes it."""

    seconds: float


class Controller(ABC, Generic[View, Effect]):
    """Reconciles the objects of one kind; see :meth:`run`.

    A subclass sets :attr:`sources` and implements :meth:`observe`, :meth:`decide` and
    :meth:`execute`. State that it keeps for each key is passed to :meth:`keep`, so that it is
    dropped when the object is deleted.
    """

    sources: Sequence[Source]
    """The informers with their event handlers."""

    def __init__(
        self,
        name: str,
        settings: ControllerSettings,
        *,
        clock: Clock | None = None,
        limiter: RateLimiter | None = None,
        log_fields: Callable[[str], Mapping[str, str]] | None = None,
        shard: Shard = WHOLE,
    ) -> None:
        """*name* is that of the work queue in logs and metrics, the rest as for ShardedQueue.

        *limiter* has the backoff of failed keys; only the keys of *shard* are reconciled.
        """
        self.clock: Clock = clock or SystemClock()
        self.queue = ShardedQueue(
            name=name,
            shards=settings.workers,
            limiter=limiter,
            clock=self.clock,
            metrics=settings.work_metrics,
            log_fields=log_fields,
            owned=shard,
        )
        self._worker_settings = WorkerSettings(
            max_requeues=settings.max_requeues,
            on_dropped=self.on_dropped,
            timeout=settings.reconcile_timeout,
        )
        self._per_key: list[PerKey] = []

    async def run(
        self, *, ready: asyncio.Event | None = None, elected: asyncio.Event | None = None
    ) -> None:
        """Sync the informers, set *ready*, and reconcile after *elected* until cancelled.

        When cancelled, it finishes the keys that are processed or queued, then writes nothing.
        """
        await run_controller(
            self.sources, self.work, on_synced=self.on_synced, ready=ready, elected=elected
        )

    async def work(self) -> None:
        """Run the workers until cancelled."""
        await run_workers(self.queue, self.reconcile, settings=self._worker_settings)

    @abstractmethod
    async def observe(self, sync: Sync) -> View | Result | None:
        """Return the state that the decision about a key depends on.

        ``None`` if there is no such object: what is kept for the key is dropped. A Result if
        nothing is to be decided now, for example because an informer is behind.

        Raises:
            ApiError, ConnectionLostError: a read failed; the key is retried.
        """

    @abstractmethod
    def decide(self, view: View) -> Iterable[Effect]:
        """Return the effects that the object needs, in order. Pure: reads nothing but *view*.

        Of a generator each effect is executed before the next one is computed.
        """

    @abstractmethod
    async def execute(self, sync: Sync, view: View, effect: Effect) -> None:
        """Execute one effect.

        An error skips the effects that follow, unless it is added to ``sync.errors`` instead.

        Raises:
            RequeueError: an object was modified concurrently, or a precondition is not met.
            ApiError, ConnectionLostError: a write was rejected, or may not have arrived.
        """

    def enqueue_changes(
        self, cache: WriteThroughCache[T] | None = None
    ) -> Callable[[T | None, T | None], None]:
        """Return an event handler that adds the key of each object, except after own writes.

        Own writes are those of *cache*; without it there are none.
        """

        def on_change(old: T | None, new: T | None) -> None:
            found = new or old
            if found is not None and (new is None or cache is None or not cache.is_own_write(new)):
                self.queue.add(found.metadata.key)

        return on_change

    def on_synced(self) -> None:
        """Called when all informers are synced and have their handlers, before the first key."""

    def on_dropped(self, key: str, error: Exception) -> None:
        """Called with a key that is dropped after a terminal error or too many retries."""

    def keep(self, *states: PerKey) -> None:
        """Drop what *states* keep for a key once there is no object of it."""
        self._per_key += states

    def forget(self, key: str) -> None:
        """Drop what is kept for *key*."""
        for state in self._per_key:
            state.forget(key)

    async def reconcile(self, key: str) -> Result:
        """Observe, decide and execute until no effect asks for another pass.

        Raises:
            Exception: what an effect raised, or the first error that one noted.
        """
        for _ in range(_MAX_PASSES):
            self.queue.include_changes(key)
            sync = Sync(key)
            view = await self.observe(sync)
            if view is None:
                self.forget(key)
                return Result.DONE
            if isinstance(view, Result):
                return view
            try:
                for effect in self.decide(view):
                    await self.execute(sync, view, effect)
                if sync.errors:
                    raise sync.errors[0]
            except Exception:
                if sync.requeue_after is not None:  # may be earlier than the retry
                    self.queue.add_after(key, sync.requeue_after)
                raise
            if not sync.again:
                return Result(requeue_after=sync.requeue_after)
        return Result.REQUEUE
