"""Result of a reconcile as data: what happens to its key."""

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Result:
    """What a reconcile without error requests for its key.

    All but :data:`Result.BACKOFF` reset the failures of the key; that counts one, without an error
    in the log.
    """

    requeue_after: float | None = None
    """Seconds after which to reconcile again, if no event precedes it."""

    backoff: bool = False
    """Reconcile again after the delay of the rate limiter."""

    DONE: ClassVar["Result"]
    """Reconcile after the next event."""

    REQUEUE: ClassVar["Result"]
    """Reconcile again at once."""

    BACKOFF: ClassVar["Result"]
    """Reconcile again with backoff, as after an error."""

    def __post_init__(self) -> None:
        """Reject contradictory fields."""
        if self.backoff and self.requeue_after is not None:
            raise ValueError("cannot requeue after a time and with backoff")

    @classmethod
    def after(cls, seconds: float) -> "Result":
        """Reconcile again after *seconds*."""
        return cls(requeue_after=seconds)


Result.DONE = Result()
Result.REQUEUE = Result(requeue_after=0.0)
Result.BACKOFF = Result(backoff=True)
