"""``fairshare``: queues, and users in them, that have used least in the past are first.

Usage decays with a half-life. It is compared as seconds in which the whole cluster would have been
used, by the resource of which a queue or user has used most; that of a queue is divided by its
weight. In a tree of queues those of one parent are compared with each other. A user is who
submitted a gang, by its annotation, or else its namespace.

Orders are computed once in an interval, and gangs by ranks of users, so that the order of gangs
that wait changes only when one user overtakes another.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta

import numpy as np

from ...model import times
from ...model.names import ROOT_QUEUE
from ..state.cache.cache import SchedulerCache
from ..state.gangs.diagnosis import BudgetUse
from ..state.gangs.gang import Gang, QueueInfo
from ..state.gangs.users import user_of
from ..state.past_usage.decayed_sums import Key
from ..state.resources import format_amount
from .arguments import duration
from .extension_points import Rejection
from .handle import Handle

BUDGET_EXHAUSTED = "BudgetExhausted"
"""Reason of a rejection: the queue has used what it may use until the end of a window of time."""

_HALF_LIFE, _INTERVAL = timedelta(days=7), timedelta(seconds=10)

_RESOLUTION = 1e-9
"""Of usage relative to the largest: what differs by less is equal."""


class FairSharePlugin:
    """Orders queues and gangs by past usage."""

    def __init__(self, arguments: Mapping[str, object], handle: Handle) -> None:
        """Parse half-life and interval; *handle* has the events that budgets wait for."""
        self._handle = handle
        half_life = duration(arguments, "half-life", default=_HALF_LIFE) or _HALF_LIFE
        interval = duration(arguments, "interval", default=_INTERVAL) or _INTERVAL
        self._half_life = half_life.total_seconds()
        self._interval = interval.total_seconds()
        self.order_generation = 0
        """Grows when the order of gangs changes."""
        self._cache: SchedulerCache | None = None
        self._usage: dict[str, float] = {}
        """By queue, in seconds of the whole cluster."""
        self._ranks: dict[Key, int] = {}
        """By queue and user; 0 without usage."""
        self._computed: tuple[int, float] | None = None
        """For which state of the recorded usage orders were computed, and when."""
        self._keys: dict[str, tuple[float, ...]] = {}
        """Sort keys of queues as of the last computation."""
        self._queues_version = -1

    def on_session_open(self, cache: SchedulerCache) -> None:
        """Let usage be recorded, and compute orders again if that is due."""
        self._cache = cache
        usage, queues = cache.past_usage, cache.queues
        changed = usage.record(
            self._half_life, cache.gangs.values(), queues.by_name.values(), queues.version
        )
        for name in changed:
            cache.scheduling_queue.publish(self._handle.event(name))
        now, epoch = usage.now, usage.epoch
        if self._queues_version != cache.queues.version:
            self._queues_version = cache.queues.version
            self._keys.clear()
        computed = self._computed
        if computed is None or computed[0] != epoch or now - computed[1] >= self._interval:
            self._computed = (epoch, now)
            self._compute(cache)

    def queue_order(self, queue: QueueInfo) -> tuple[float, ...]:
        """From the top of the tree: first those within their soft budget, then higher priority,
        then the smaller past usage."""
        key = self._keys.get(queue.name)
        if key is None:
            key = self._keys[queue.name] = self._queue_key(queue.name)
        return key

    def job_order(self, gang: Gang) -> float:
        """Gangs of users first that have used less in this queue."""
        if self._cache is None:
            return 0.0
        return float(self._ranks.get((self._cache.queues.of(gang).name, user_of(gang)), 0))

    def job_valid(self, gang: Gang) -> Rejection | None:
        """Reject a gang whose queue has used up a hard budget, unless it has started and is not
        ready: then it would keep its nodes in vain."""
        has_started = gang.counts.ready > 0
        return None if has_started and not gang.is_ready() else self._budget_rejection(gang)

    def job_enqueueable(self, gang: Gang) -> Rejection | bool | None:
        """Reject a gang whose queue has used up a hard budget, else abstain."""
        return self._budget_rejection(gang)

    def job_enqueued(self, gang: Gang) -> None:
        """Do nothing."""

    # -- private -------------------------------------------------------------------------------

    def _compute(self, cache: SchedulerCache) -> None:
        cache.past_usage.budgets.publish()
        keys, shares = cache.past_usage.shares(cache.node_matrix.total())
        self._keys.clear()
        largest = float(shares.max(initial=0.0))
        steps = np.round(shares / (largest * _RESOLUTION)) if largest > 0 else shares
        self._usage = {
            queue: share
            for (queue, user), share in zip(keys, shares.tolist(), strict=True)
            if not user
        }
        by_user = _ranks(zip(keys, steps.tolist(), strict=True))
        if by_user != self._ranks:
            self._ranks = by_user
            self.order_generation += 1

    def _budget_rejection(self, gang: Gang) -> Rejection | None:
        if self._cache is None or not self._cache.past_usage.budgets:
            return None
        path = self._cache.queues.path_of(gang)
        use = self._cache.past_usage.budgets.exhausted(path, hard=True)
        if use is None:
            return None
        return Rejection(
            BUDGET_EXHAUSTED,
            _message(use),
            budget=use,
            wake_on=frozenset(map(self._handle.event, path)),
            retry_at=use.until,
            shared=True,
        )

    def _queue_key(self, name: str) -> tuple[float, ...]:
        if self._cache is None:
            return ()
        queues, key = self._cache.queues, list[float]()
        for each in reversed(queues.with_ancestors(name) or (name,)):
            level = queues.by_name.get(each)
            if each == ROOT_QUEUE and each != name:
                continue
            spec = level.object.spec if level is not None and level.object is not None else None
            is_over = self._cache.past_usage.budgets.exhausted((each,), hard=False) is not None
            priority, weight = (spec.priority, max(spec.weight, 1)) if spec else (0, 1)
            key += (float(is_over), -priority, self._usage.get(each, 0.0) / weight)
        return tuple(key)


def _ranks(usage: Iterable[tuple[Key, float]]) -> dict[Key, int]:
    """Return the rank of each user with *usage* in its queue, from 1; equal usage has one rank."""
    ranks: dict[Key, int] = {}
    queue, before, rank = None, 0.0, 0
    for key, used in sorted(usage, key=lambda each: (each[0][0], each[1])):
        if key[0] != queue:
            queue, before, rank = key[0], 0.0, 0
        if key[1] and used > 0:
            rank += used > before
            before = used
            ranks[key] = rank
    return ranks


def _message(use: BudgetUse) -> str:
    used, limit = (format_amount(use.resource, each) for each in (use.used, use.limit))
    until = times.format(datetime.fromtimestamp(use.until, UTC))
    return (
        f'queue "{use.queue}" has used its budget: {used} of {limit} {use.resource}-hours; '
        f"it may use more from {until} on"
    )
