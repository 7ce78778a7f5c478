"""Assignment of shards to replicas: which ones a replica acquires or releases next.

All replicas compute it from what they observe, without talking to each other. Where they observe
the same, no two of them try to acquire the same shard; where not, its Lease decides.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """Shards to acquire and to release."""

    acquire: tuple[int, ...] = ()
    release: tuple[int, ...] = ()


def plan_shards(
    holders: Sequence[str | None], *, members: Collection[str], identity: str
) -> ShardPlan:
    """Return what the member *identity* does next.

    *holders* has the identity that holds each shard, or None for one that may be acquired; a holder
    need not be among *members*, the live replicas. Once no member has anything to do, the numbers
    of their shards differ by at most one. As few shards as possible change their holder.
    """
    counts = dict.fromkeys({*members, identity}, 0)
    for holder in holders:
        if holder in counts:
            counts[holder] += 1
    release = _surplus(len(holders), holders.count(None), counts, identity)
    held = [shard for shard, holder in enumerate(holders) if holder == identity]
    acquire = []
    for shard, holder in enumerate(holders):
        if holder is None:
            taker = min(counts, key=lambda member: (counts[member], member))
            counts[taker] += 1
            if taker == identity:
                acquire.append(shard)
    return ShardPlan(acquire=tuple(acquire), release=tuple(held[len(held) - release :]))


def _surplus(shards: int, free: int, counts: dict[str, int], identity: str) -> int:
    """Return how many shards *identity* releases, so that all members get their fair share."""
    fair, remainder = divmod(shards, len(counts))
    most = fair + bool(remainder)
    counts = dict(counts)
    surplus = 0
    while True:
        largest = max(counts, key=lambda member: (counts[member], member))
        missing = sum(max(0, fair - count) for count in counts.values()) - free
        if counts[largest] <= (fair if missing > 0 else most):
            return surplus
        counts[largest] -= 1
        free += 1
        surplus += largest == identity
