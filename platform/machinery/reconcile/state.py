"""State in memory of each object of a controller, and the throttle of its counts."""

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from ...model.meta import ObjectMeta
from ..clock import Clock

S = TypeVar("S")


class KeyStates(Generic[S]):
    """One *new()* for each object; an object that was created again under its name gets another."""

    def __init__(self, new: Callable[[], S] | None = None) -> None:
        """Without *new*, a state is created by its controller and :meth:`put`."""
        self._new = new
        self._states: dict[str, tuple[str, S]] = {}

    def of(self, meta: ObjectMeta) -> S:
        """Return the state of the object of *meta*.

        Raises:
            LookupError: it has none, and there is no *new*.
        """
        found = self._states.get(meta.key)
        if found is None or found[0] != meta.uid:
            if self._new is None:
                raise LookupError(meta.key)
            found = self._states[meta.key] = meta.uid, self._new()
        return found[1]

    def put(self, meta: ObjectMeta, state: S) -> None:
        """Set the state of the object of *meta*."""
        self._states[meta.key] = meta.uid, state

    def get(self, key: str, uid: str = "") -> S | None:
        """Return the state of *key*, if there is one, and if it is of *uid* where that is given."""
        found = self._states.get(key)
        return None if found is None or (uid and found[0] != uid) else found[1]

    def forget(self, key: str) -> None:
        """Drop the state of *key*."""
        self._states.pop(key, None)

    def __iter__(self) -> Iterator[tuple[str, S]]:
        """Yield each key with its state."""
        return ((key, state) for key, (_, state) in self._states.items())

    def __len__(self) -> int:
        """Number of keys with a state."""
        return len(self._states)


class CountThrottle:
    """Limits how often the counts in a status are written; phases and conditions never wait."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._written_at: dict[str, float] = {}

    def delay(self, key: str, interval: float) -> float | None:
        """Return in how many seconds *interval* has passed since the last write; None if now."""
        last = self._written_at.get(key)
        wait = 0.0 if last is None else last + interval - self._clock.monotonic()
        return wait if wait > 0 else None

    def wrote(self, key: str) -> None:
        """The status of *key* was written now, with its counts."""
        self._written_at[key] = self._clock.monotonic()

    def forget(self, key: str) -> None:
        """Drop the time of the last write."""
        self._written_at.pop(key, None)
