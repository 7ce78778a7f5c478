"""Writes that a controller has requested and its informer has not reported yet.

Between a write and its watch event the informer's store shows the state before the write. A
controller that counts children in that window would create them again. So it records what it
requests (*expect*), event handlers report what they receive (*observe*), and a sync creates nothing
that is *pending*: until it is observed, or until it expires because a notification was lost.

A controller expects a child before the call. After a call that certainly had no effect (a definite
error, never a timeout) it observes the child itself. A call that is skipped is not expected.

:class:`ControllerExpectations` is for controllers that create and delete any number of children:
creations by name, deletions by uid, and :meth:`~ControllerExpectations.satisfied`.
:class:`FinalizerExpectations` are the pods whose tracking finalizer is being removed.
:class:`Expectations` are the children of one kind of write, for controllers that need each child.
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

    Each child expires *ttl* seconds after it was expected.
    """

    def __init__(self, clock: Clock, *, ttl: float = TTL) -> None:
        self._clock = clock
        self._ttl = ttl
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

    def expires_in(self, key: str) -> float | None:
        """Return the seconds until all children of *key* expire, more than 0; ``None`` if none
        is pending."""
        unexpired = self._unexpired(key)
        if not unexpired:
            return None
        return next(reversed(unexpired.values())).since + self._ttl - self._clock.monotonic()

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
            # As in expires_in(): what is pending for 0 seconds would be reconciled in a loop.
            if each.since + self._ttl > now:
                unexpired[child] = each
            elif not each.uid:
                self.observe(key, child)
                expired_count += 1
        if expired_count:
            log.warning("expectations expired", extra={"key": key, "children": expired_count})
        return unexpired


class ControllerExpectations:
    """Creations (by name) and deletions (by uid) that each key of a controller expects.

    A sync reads :meth:`satisfied` before it lists the children. If it is false, the sync creates
    and deletes nothing; it is repeated by the next event, or after :meth:`expires_in`. Since
    children are identified, a notification that arrives twice (a deletion timestamp, then the end
    of the pod) counts once, and one that arrives before the response counts as well.

    A key has a record from :meth:`set_expectations` until :meth:`delete`. Each child expires *ttl*
    seconds after it was expected.
    """

    def __init__(self, clock: Clock, *, ttl: float = TTL) -> None:
        self._creations = Expectations(clock, ttl=ttl)
        self._deletions = Expectations(clock, ttl=ttl)
        self._keys: set[str] = set()

    def set_expectations(
        self, key: str, *, creations: Iterable[str] = (), deletions: Iterable[str] = ()
    ) -> None:
        """Replace the record of *key*; without children it expects none."""
        self.delete(key)
        self._keys.add(key)
        self.raise_expectations(key, creations=creations, deletions=deletions)

    def raise_expectations(
        self, key: str, *, creations: Iterable[str] = (), deletions: Iterable[str] = ()
    ) -> None:
        """Add children to the record of *key*; no effect without a record."""
        if key in self._keys:
            self._creations.expect(key, creations)
            self._deletions.expect(key, deletions)

    def lower_expectations(
        self, key: str, *, creations: Iterable[str] = (), deletions: Iterable[str] = ()
    ) -> None:
        """Remove children that will not be observed: the call was rejected or not issued."""
        for name in creations:
            self._creations.observe(key, name)
        for uid in deletions:
            self._deletions.observe(key, uid)

    def expect_creations(self, key: str, names: Iterable[str]) -> None:
        """Expect children to be added, in addition to those pending; creates the record."""
        self._keys.add(key)
        self._creations.expect(key, names)

    def expect_deletions(self, key: str, uids: Iterable[str]) -> None:
        """Expect children to be deleted, in addition to those pending; creates the record."""
        self._keys.add(key)
        self._deletions.expect(key, uids)

    def creation_observed(self, key: str, name: str) -> bool:
        """Remove an added child; return whether it was expected."""
        return self._creations.observe(key, name) is not None

    def deletion_observed(self, key: str, uid: str) -> bool:
        """Remove a child that is deleted or terminating; return whether it was expected."""
        return self._deletions.observe(key, uid) is not None

    def satisfied(self, key: str) -> bool:
        """Whether *key* has no record, or all its children are observed or expired."""
        return not self._creations.pending(key) and not self._deletions.pending(key)

    def pending_creations(self, key: str) -> frozenset[str]:
        """Return the names of the children that are expected to be added."""
        return self._creations.pending(key)

    def pending_deletions(self, key: str) -> frozenset[str]:
        """Return the uids of the children that are expected to be deleted."""
        return self._deletions.pending(key)

    def expires_in(self, key: str) -> float | None:
        """Return the seconds until *key* is satisfied at the latest; ``None`` if it is."""
        times = (self._creations.expires_in(key), self._deletions.expires_in(key))
        return max((seconds for seconds in times if seconds is not None), default=None)

    def delete(self, key: str) -> None:
        """Remove the record of a key whose object is deleted."""
        self._keys.discard(key)
        self._creations.delete(key)
        self._deletions.delete(key)

    def __contains__(self, key: str) -> bool:
        """Whether *key* has a record."""
        return key in self._keys

    def __len__(self) -> int:
        """Number of records."""
        return len(self._keys)
