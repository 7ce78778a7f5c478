"""When the members of an incomplete gang have arrived."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemberArrival:
    """When members of an incomplete gang have arrived, by a monotonic clock."""

    next_count: int = 0
    """Number of members at the last arrival plus one; 0 if no member was missing."""
    last_arrival: float = 0.0
    """Time of that arrival."""
    missing_since: float = 0.0
    """When members were first missing."""
