"""Delayed keys: a heap, and one timer for its first entry."""

import heapq
import logging
from collections.abc import Callable

from .clock import Clock, Timer

log = logging.getLogger(__name__)

_MAX_TIMER_DELAY = 10.0
"""Seconds after which the heap is checked even if the clock misbehaves."""
_MIN_STALE_ENTRIES = 16
"""Number of stale entries below which the heap is not rebuilt."""


class DelayHeap:
    """Calls *ready* with each key when it is due.

    Each key has one due time: a second add can move it forward, never back.
    """

    def __init__(self, clock: Clock, ready: Callable[[str], None]) -> None:
        self._clock = clock
        self._ready = ready
        # A heap entry is valid only while it equals the key's due time: an earlier due time leaves
        # a stale entry behind.
        self._heap: list[tuple[float, str]] = []
        self._due: dict[str, float] = {}
        self._timer: Timer | None = None
        self._timer_at = 0.0
        self._closed = False

    def add(self, key: str, seconds: float) -> None:
        """Schedule *key* in *seconds*; an earlier due time wins. Ignored when closed."""
        if self._closed:
            return
        due = self._clock.monotonic() + seconds
        if due >= self._due.get(key, float("inf")):
            return
        self._due[key] = due
        heapq.heappush(self._heap, (due, key))
        if len(self._heap) > 2 * len(self._due) + _MIN_STALE_ENTRIES:
            self._heap = [(due, key) for key, due in self._due.items()]
            heapq.heapify(self._heap)
        if self._timer is None or due < self._timer_at:
            self._arm()

    def close(self) -> None:
        """Drop all keys and ignore further adds."""
        self._closed = True
        self._due.clear()
        self._heap.clear()
        self._disarm()

    def __len__(self) -> int:
        """Number of delayed keys."""
        return len(self._due)

    def heap_size(self) -> int:
        """Return the size of the heap: up to two entries per delayed key, and a few."""
        return len(self._heap)

    def _fire(self) -> None:
        self._timer = None
        now = self._clock.monotonic()
        while self._heap and self._heap[0][0] <= now:
            due, key = heapq.heappop(self._heap)
            if self._due.get(key) == due:
                del self._due[key]
                self._deliver(key)
        if not self._closed:
            self._arm()

    def _deliver(self, key: str) -> None:
        try:
            self._ready(key)
        except Exception:  # the timer must be rearmed for the other keys
            log.exception("cannot add delayed key", extra={"key": key})

    def _arm(self) -> None:
        self._disarm()
        if not self._heap:
            return
        now = self._clock.monotonic()
        # A timer may fire slightly early; the minimum avoids a busy loop until the due time.
        wait = min(max(self._heap[0][0] - now, 0.001), _MAX_TIMER_DELAY)
        self._timer = self._clock.call_later(wait, self._fire)
        self._timer_at = now + wait

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
