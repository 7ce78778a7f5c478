"""``fairshare``: queues, and users in them, that have used least in the past are first.

Usage decays with a half-life. It is compared as seconds in which the whole cluster would have been
used, by the resource of which a queue or user has used most; that of a queue is divided by its
weight. In a tree of queues those of one parent are compared with each other. A user is who
submitted a gang, by its annotation, or else its namespace.

Orders are computed once in an interval, and gangs by ranks of users, so that the order of gangs
that wait changes only when one user overtakes another.
"""

from collections.abc import Mapping
from datetime import timedelta

import numpy as np

from ...model.names import ROOT_QUEUE
from ..state.cache.cache import SchedulerCache
from ..state.gangs.gang import Gang, QueueInfo
from ..state.gangs.users import user_of
from ..state.past_usage.decayed_sums import Key
from .arguments import duration

_HALF_LIFE, _INTERVAL = timedelta(days=7), timedelta(seconds=10)

_RESOLUTION = 1e-9
"""Of usage relative to the largest: what differs by less is equal."""


class FairSharePlugin:
    """Orders queues and gangs by past usage."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Parse half-life and interval."""
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
        cache.past_usage.record(self._half_life, cache.gangs.values(), cache.queues.version)
        now, epoch = cache.past_usage.now, cache.past_usage.epoch
        if self._queues_version != cache.queues.version:
            self._queues_version = cache.queues.version
            self._keys.clear()
        computed = self._computed
        if computed is None or computed[0] != epoch or now - computed[1] >= self._interval:
            self._computed = (epoch, now)
            self._compute(cache)

    def queue_order(self, queue: QueueInfo) -> tuple[float, ...]:
        """From the top of the tree: higher priority first, then the smaller past usage."""
        key = self._keys.get(queue.name)
        if key is None:
            key = self._keys[queue.name] = self._queue_key(queue.name)
        return key

    def job_order(self, gang: Gang) -> float:
        """Gangs of users first that have used less in this queue."""
        if self._cache is None:
            return 0.0
        return float(self._ranks.get((self._cache.queues.of(gang).name, user_of(gang)), 0))

    # -- private -------------------------------------------------------------------------------

    def _compute(self, cache: SchedulerCache) -> None:
        keys, shares = cache.past_usage.shares(cache.node_matrix.total())
        self._keys.clear()
        largest = float(shares.max(initial=0.0))
        steps = np.round(shares / (largest * _RESOLUTION)) if largest > 0 else shares
        _, ranks = np.unique(np.append(steps, 0.0), return_inverse=True)
        by_user: dict[Key, int] = {}
        self._usage = {}
        for key, share, rank in zip(keys, shares.tolist(), ranks[:-1].tolist(), strict=True):
            if not key[1]:
                self._usage[key[0]] = share
            elif rank:
                by_user[key] = rank
        if by_user != self._ranks:
            self._ranks = by_user
            self.order_generation += 1

    def _queue_key(self, name: str) -> tuple[float, ...]:
        if self._cache is None:
            return (0.0,)
        queues, key = self._cache.queues, list[float]()
        for each in reversed(queues.with_ancestors(name) or (name,)):
            level = queues.by_name.get(each)
            if each == ROOT_QUEUE and each != name:
                continue
            spec = level.object.spec if level is not None and level.object is not None else None
            priority, weight = (spec.priority, max(spec.weight, 1)) if spec else (0, 1)
            key += (-priority, self._usage.get(each, 0.0) / weight)
        return tuple(key)
