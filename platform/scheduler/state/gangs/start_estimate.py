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
