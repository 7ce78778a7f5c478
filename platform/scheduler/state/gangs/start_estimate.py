"""When a gang that waits is expected to start."""

from dataclasses import dataclass, field
from enum import StrEnum


class StartBasis(StrEnum):
    """What the expected start is computed from."""

    LIMITS = "limits"
    """All gangs that it waits for have limits: it starts then, or before if they end early."""

    PREDICTIONS = "predictions"
    """Estimates or predictions, which may be exceeded."""

    UNKNOWN = "unknown"
    """It waits for gangs whose end is not known."""


@dataclass(frozen=True, slots=True)
class StartEstimate:
    """An interval in which a gang is expected to start."""

    earliest: float
    """Unix time."""

    latest: float | None
    """Unix time; ``None`` if it is not known."""

    basis: StartBasis

    expected: float | None = None
    """Unix time at which it probably starts; ``None`` if that is not known."""

    since: float = field(kw_only=True, compare=False)
    """Unix time of the estimate, from which the wait counts."""

    def is_close_to(self, other: "StartEstimate | None") -> bool:
        """Return whether it differs from *other*, an earlier one, by at most a tenth of the wait
        that was expected then.

        The earliest start does not count: it becomes later as time passes.
        """
        if other is None or self.basis is not other.basis:
            return False
        tolerance = 0.1 * max((other.latest or 0.0) - other.since, 1.0)
        return _are_close(self.latest, other.latest, tolerance) and _are_close(
            self.expected, other.expected, tolerance
        )


def _are_close(time: float | None, other: float | None, tolerance: float) -> bool:
    """Return whether both are unknown, or differ by at most *tolerance*."""
    if time is None or other is None:
        return time is other
    return abs(time - other) <= tolerance
