"""Pods that are assumed on a node, as a former or deleted plan may still create them there.

Each is charged on its node until no request can create it any more.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from ..podinfo.equivalence import EquivalenceClass
from .cache_protocol import PlanningCache


@dataclass(frozen=True, slots=True)
class _AssumedPod:
    """A pod that may still be created on a node by a plan."""

    until: float
    owner: tuple[str, str]
    """Key of the gang, and name of the pod."""

    node: str
    eq_class: EquivalenceClass
    was_seen: bool
    """Whether a pod of this name was there."""

    has_left: bool
    """Whether its member has left this node, which could not take it."""


class AssumedPods:
    """All assumed pods."""

    def __init__(self, cache: PlanningCache) -> None:
        """Start without any."""
        self._cache = cache
        self._by_uid: dict[str, _AssumedPod] = {}
        self._by_owner: dict[tuple[str, str], set[str]] = {}
        self._due: list[tuple[float, str]] = []
        self._last_id = 0

    def __len__(self) -> int:
        """Return the number of assumed pods."""
        return len(self._by_uid)

    def add(
        self,
        owner: tuple[str, str],
        node: str,
        eq_class: EquivalenceClass,
        until: float,
        *,
        was_seen: bool = False,
        has_left: bool = False,
    ) -> str:
        """Charge *node* for a pod until *until*; returns the uid of the charge.

        *owner* is the key of the gang and the name of the pod.
        """
        self._last_id += 1
        uid = f"plan:{self._last_id}"
        self._by_uid[uid] = _AssumedPod(until, owner, node, eq_class, was_seen, has_left)
        self._by_owner.setdefault(owner, set()).add(uid)
        self._cache.add_assumed_pod(uid, node, eq_class)
        heapq.heappush(self._due, (until, uid))
        return uid

    def drop(self, uid: str) -> None:
        """End a charge, if it has not ended."""
        assumed = self._by_uid.pop(uid, None)
        if assumed is None:
            return
        uids = self._by_owner[assumed.owner]
        uids.discard(uid)
        if not uids:
            del self._by_owner[assumed.owner]
        self._cache.remove_assumed_pod(uid)

    def drop_of(self, owner: tuple[str, str], *, seen_only: bool = False) -> None:
        """End the charges for a pod; with *seen_only* only those that were added when it was
        deleted."""
        for uid in list(self._by_owner.get(owner, ())):
            if self._by_uid[uid].was_seen or not seen_only:
                self.drop(uid)

    def next_due(self) -> float | None:
        """Return when :meth:`expire` is to be called next."""
        return self._due[0][0] if self._due else None

    def expire(self, now: float) -> None:
        """End the charges that end until *now*."""
        while self._due and self._due[0][0] <= now:
            until, uid = heapq.heappop(self._due)
            assumed = self._by_uid.get(uid)
            if assumed is not None and assumed.until <= until:
                self.drop(uid)

    def limit(self, until: float) -> None:
        """End no charge later than *until*."""
        for uid, each in list(self._by_uid.items()):
            if each.until > until:
                self._by_uid[uid] = _AssumedPod(
                    until, each.owner, each.node, each.eq_class, each.was_seen, each.has_left
                )
                heapq.heappush(self._due, (until, uid))

    def on_node(self, node: str, *, left_only: bool = False) -> Iterator[EquivalenceClass]:
        """Return the classes of the pods that are assumed on *node*; with *left_only* only of those
        whose member has left it."""
        for each in self._by_uid.values():
            if each.node == node and (each.has_left or not left_only):
                yield each.eq_class
