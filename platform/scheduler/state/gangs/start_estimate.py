"""When a gang that waits is expected to start."""

from dataclasses import dataclass
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

    def is_close_to(self, other: "StartEstimate | None") -> bool:
        """Return whether it differs from *other*, an earlier one, by at most a tenth of the wait
        that was expected then."""
        if other is None or self.basis is not other.basis:
            return False
        if self.latest is None or other.latest is None:
            return self.latest is other.latest
        tolerance = 0.1 * max(other.latest - other.earliest, 1.0)
        return abs(self.latest - other.latest) <= tolerance
