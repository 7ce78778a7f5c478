"""What a controller has asked for and not yet seen in its cache.

Between a write and its watch event the cache still shows the world before it. A controller that
counts children in that window would create or delete again; so it remembers what it asked for
(*expects*), handlers report what they see (*observe*), and children are left alone until all has
been seen, or until five minutes have passed because a notification was lost.

Order matters: ask :meth:`satisfied` before the children are listed, expect the full number before
the first call, and lower it for calls that certainly had no effect (a definite error, a skipped
call; never a timeout).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from .clock import Clock

TTL = 300.0
"""Seconds after which an expectation no longer holds anybody up."""


@dataclass(slots=True)
class _Counts:
    since: float
    adds: int
    dels: int


class CounterExpectations:
    """Expectations as two numbers a key."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._records: dict[str, _Counts] = {}

    def set(self, key: str, *, adds: int = 0, dels: int = 0) -> None:
        """Expect this much of *key*, in the place of what was expected; the time starts anew."""
        self._records[key] = _Counts(self._clock.monotonic(), adds, dels)

    def raise_by(self, key: str, *, adds: int = 0, dels: int = 0) -> None:
        """Expect more of *key*; nothing if there is no record. The time runs on."""
        record = self._records.get(key)
        if record is not None:
            record.adds += adds
            record.dels += dels

    def lower_by(self, key: str, *, adds: int = 0, dels: int = 0) -> None:
        """Expect less of *key*; nothing if there is no record. The time runs on."""
        self.raise_by(key, adds=-adds, dels=-dels)

    def creation_observed(self, key: str) -> None:
        """A child of *key* has been seen to appear."""
        self.lower_by(key, adds=1)

    def deletion_observed(self, key: str) -> None:
        """A child of *key* has been seen to go."""
        self.lower_by(key, dels=1)

    def satisfied(self, key: str) -> bool:
        """All was seen (or more), or it was too long ago, or nothing was expected."""
        record = self._records.get(key)
        if record is None or (record.adds <= 0 and record.dels <= 0):
            return True
        return self._clock.monotonic() - record.since > TTL

    def pending(self, key: str) -> tuple[int, int]:
        """Creations and deletions of *key* not seen yet; negative if more were seen."""
        record = self._records.get(key)
        return (record.adds, record.dels) if record else (0, 0)

    def delete(self, key: str) -> None:
        """*key* is gone."""
        self._records.pop(key, None)

    def __len__(self) -> int:
        """Number of keys with a record."""
        return len(self._records)


@dataclass(slots=True)
class _Ids:
    """Children with the time of the call that concerns them, oldest first."""

    adds: dict[str, float] = field(default_factory=dict)
    dels: dict[str, float] = field(default_factory=dict)


class UidExpectations:
    """Expectations as sets of children, so that a child seen to go twice counts once.

    Creations are expected by name (ours are fixed before the call), deletions by uid. Each child
    has its own five minutes.
    """

    def __init__(self, clock: Clock, *, ttl: float = TTL) -> None:
        self._clock = clock
        self._ttl = ttl
        self._records: dict[str, _Ids] = {}

    def expect_creations(self, key: str, names: Iterable[str]) -> None:
        """Expect children of *key* to appear, beside what is expected already."""
        self._expect(self._records.setdefault(key, _Ids()).adds, names)

    def expect_deletions(self, key: str, uids: Iterable[str]) -> None:
        """Expect children of *key* to go, beside what is expected already."""
        self._expect(self._records.setdefault(key, _Ids()).dels, uids)

    def creation_observed(self, key: str, name: str) -> None:
        """The child was seen, or its creation certainly failed."""
        record = self._records.get(key)
        if record is not None:
            record.adds.pop(name, None)

    def deletion_observed(self, key: str, uid: str) -> None:
        """The child was seen to end or go, or its deletion certainly failed."""
        record = self._records.get(key)
        if record is not None:
            record.dels.pop(uid, None)

    def satisfied(self, key: str) -> bool:
        """All was seen, or it was too long ago, or nothing was expected."""
        return self._live(key) is None

    def awaited_creations(self, key: str) -> frozenset[str]:
        """Names of the children of *key* that should appear and were not seen yet."""
        record = self._live(key)
        return frozenset(record.adds) if record else frozenset()

    def awaited_deletions(self, key: str) -> frozenset[str]:
        """Uids of the children of *key* that should go and were not seen to."""
        record = self._live(key)
        return frozenset(record.dels) if record else frozenset()

    def expires_in(self, key: str) -> float | None:
        """Seconds until *key* is free even if nothing more is seen; ``None`` if it is free."""
        record = self._live(key)
        if record is None:
            return None
        latest = max(next(reversed(ids.values()), 0.0) for ids in (record.adds, record.dels))
        return latest + self._ttl - self._clock.monotonic()

    def delete(self, key: str) -> None:
        """*key* is gone."""
        self._records.pop(key, None)

    def __len__(self) -> int:
        """Number of keys with a record."""
        return len(self._records)

    def _expect(self, ids: dict[str, float], more: Iterable[str]) -> None:
        now = self._clock.monotonic()
        for name in more:
            ids.pop(name, None)  # so that it goes to the end
            ids[name] = now

    def _live(self, key: str) -> _Ids | None:
        """The record of *key* without what has expired; ``None``, and dropped, if empty."""
        record = self._records.get(key)
        if record is None:
            return None
        oldest = self._clock.monotonic() - self._ttl
        for ids in (record.adds, record.dels):
            while ids and next(iter(ids.values())) < oldest:
                del ids[next(iter(ids))]
        if record.adds or record.dels:
            return record
        del self._records[key]
        return None


class ReadYourWrites:
    """Holds a key back until the caches have reached what was written for it.

    Versions are compared as numbers, which Kubernetes promises for objects of one resource.
    """

    def __init__(self) -> None:
        self._wanted: dict[str, dict[str, int]] = {}

    def wrote(self, key: str, resource: str, version: str) -> None:
        """A write for *key* gave an object of *resource* this resource version."""
        wanted = self._wanted.setdefault(key, {})
        wanted[resource] = max(int(version), wanted.get(resource, 0))

    def caught_up(self, key: str, resource: str, version: str) -> bool:
        """The cache of *resource*, at *version*, shows what was written for *key*."""
        wanted = self._wanted.get(key)
        if wanted is None or resource not in wanted:
            return True
        if int(version or 0) < wanted[resource]:
            return False
        del wanted[resource]
        if not wanted:
            del self._wanted[key]
        return True

    def delete(self, key: str) -> None:
        """*key* is gone."""
        self._wanted.pop(key, None)

    def __len__(self) -> int:
        """Number of keys with unseen writes."""
        return len(self._wanted)
