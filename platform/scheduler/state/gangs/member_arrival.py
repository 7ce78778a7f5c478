"""When the members of a gang arrive that is not complete yet."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemberArrival:
    """When members of a gang with missing members arrived, by a monotonic clock."""

    next_count: int = 0
    """Number of members at the last arrival plus one; 0 if no member was missing."""
    last_arrival: float = 0.0
    """Time of that arrival."""
    missing_since: float = 0.0
    """When members were first missing."""
