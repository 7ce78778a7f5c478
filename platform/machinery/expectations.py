"""Writes that a controller has requested and its informer has not reported yet.

Between a write and its watch event the informer's store shows the state before the write. A
controller that counts children in that window would create them again. So it records what it
requests (*expect*), event handlers report what they receive (*observe*), and a sync creates nothing
that is *pending*: until it is observed, or until it expires because a notification was lost.

A controller expects a child before the call. After a call that certainly had no effect (a definite
error, never a timeout) it observes the child itself. A call that is skipped is not expected.

Objects that :class:`~.reconcile.cache.WriteThroughCache` shows need no expectations.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from .clock import Clock

log = logging.getLogger(__name__)

TTL = 300.0
"""Seconds after which an expectation expires."""


@dataclass(slots=True)
class _Expectation:
    """One child that is expected."""

    since: float
    uid: str = ""
    """Uid of the created object, once the call has returned."""


class Expectations:
    """Expected children by key. A child is a name or uid, so that two observations count once.

    Each child expires `TTL` seconds after it was expected.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._records: dict[str, dict[str, _Expectation]] = {}
        """Children by key, oldest first."""

    def expect(self, key: str, children: Iterable[str]) -> None:
        """Expect *children* of *key* in addition to those that are expected already."""
        record, now = self._records.setdefault(key, {}), self._clock.monotonic()
        for child in children:
            record.pop(child, None)  # moves to the end
            record[child] = _Expectation(now)
        if not record:
            del self._records[key]

    def set_created(self, key: str, child: str, uid: str) -> bool:
        """Record the uid of a created child; return false if the child was observed before."""
        expectation = self._records.get(key, {}).get(child)
        if expectation is not None:
            expectation.uid = uid
        return expectation is not None

    def observe(self, key: str, child: str) -> str | None:
        """Remove a child that was observed or that was certainly not created.

        Return its uid, empty if the call has not returned; ``None`` if it was not expected.
        """
        record = self._records.get(key, {})
        expectation = record.pop(child, None)
        if not record:
            self._records.pop(key, None)
        return None if expectation is None else expectation.uid

    def pending(self, key: str) -> frozenset[str]:
        """Return the children of *key* that are neither observed nor expired."""
        return frozenset(self._unexpired(key))

    def created(self, key: str) -> dict[str, str]:
        """Return the uids, by child, of the created children of *key* not observed yet."""
        record = self._records.get(key, {})
        return {child: each.uid for child, each in record.items() if each.uid}

    def expire(self, key: str) -> list[str]:
        """Remove the expired children of *key*; return the uids of those that were created."""
        expired = self._records.get(key, {}).keys() - self._unexpired(key).keys()
        return [uid for child in expired if (uid := self.observe(key, child))]

    def delete(self, key: str) -> None:
        """Remove all children of a deleted key."""
        self._records.pop(key, None)

    def __contains__(self, key: str) -> bool:
        """Whether children of *key* are expected, expired or not."""
        return key in self._records

    def __len__(self) -> int:
        """Number of keys with expected children."""
        return len(self._records)

    def _unexpired(self, key: str) -> dict[str, _Expectation]:
        """Return the unexpired children; drop expired ones, but not those that expire() reports."""
        now = self._clock.monotonic()
        unexpired: dict[str, _Expectation] = {}
        expired_count = 0
        for child, each in list(self._records.get(key, {}).items()):
            if each.since + TTL > now:
                unexpired[child] = each
            elif not each.uid:
                self.observe(key, child)
                expired_count += 1
        if expired_count:
            log.warning("expectations expired", extra={"key": key, "children": expired_count})
        return unexpired
