"""What a controller has asked for and not yet seen in its cache.

Between a write and its watch event the cache still shows the world before it. A controller that
counts children in that window would create again; so it remembers what it asked for (*expects*),
handlers report what they see (*observed*), and what is *awaited* is left alone until it has been
seen, or until minutes have passed because a notification was lost.

Order matters: expect before the call, and take back what certainly had no effect (a definite
error; never a timeout). A call that is skipped is never expected.
"""

from collections.abc import Iterable

from .clock import Clock

TTL = 300.0
"""Seconds after which an expectation no longer holds anybody up."""


class Expectations:
    """Children awaited, by key; each by a name or uid, so that one seen twice counts once.

    Each child has its own *ttl* seconds.
    """

    def __init__(self, clock: Clock, *, ttl: float = TTL) -> None:
        self._clock = clock
        self._ttl = ttl
        self._records: dict[str, dict[str, float]] = {}
        """By key its children with the time of the call that concerns them, oldest first."""

    def expect(self, key: str, children: Iterable[str]) -> None:
        """Expect *children* of *key*, beside what is expected already."""
        record, now = self._records.setdefault(key, {}), self._clock.monotonic()
        for child in children:
            record.pop(child, None)  # so that it goes to the end
            record[child] = now

    def observe(self, key: str, child: str) -> None:
        """The child was seen, or the call for it certainly failed."""
        record = self._records.get(key)
        if record is not None:
            record.pop(child, None)

    def pending(self, key: str) -> frozenset[str]:
        """The children of *key* that were not seen yet, and not asked for too long ago."""
        return frozenset(self._unexpired(key))

    def expires_in(self, key: str) -> float | None:
        """Seconds until *key* awaits nothing even if nothing is seen; ``None`` if it does not."""
        record = self._unexpired(key)
        if not record:
            return None
        return next(reversed(record.values())) + self._ttl - self._clock.monotonic()

    def delete(self, key: str) -> None:
        """*key* is gone."""
        self._records.pop(key, None)

    def __len__(self) -> int:
        """Number of keys with a record."""
        return len(self._records)

    def _unexpired(self, key: str) -> dict[str, float]:
        """The record of *key* without what has expired; dropped if that is empty."""
        record = self._records.get(key, {})
        oldest = self._clock.monotonic() - self._ttl
        while record and next(iter(record.values())) < oldest:
            del record[next(iter(record))]
        if not record:
            self._records.pop(key, None)
        return record
