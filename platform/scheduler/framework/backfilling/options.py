"""The options of backfilling, which are arguments of the action ``allocate``."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from ...plugins.arguments import ArgumentError, duration, integer, text

PREFIX = "backfilling"
MODE, DEPTH = PREFIX, f"{PREFIX}.depth"
MAX_IDLE, RESERVE_AFTER, ORDER, BORROW_FOR = (
    f"{PREFIX}.max-idle",
    f"{PREFIX}.reserve-after",
    f"{PREFIX}.order",
    f"{PREFIX}.borrow-for",
)
MAX_DEPTH = 100
DEFAULT_MAX_IDLE = timedelta(minutes=5)
_SHORTEST = 1.0
_MAX_DOUBLINGS = 6
"""A queue exceeds what it deserves by a 64th of it or not at all, and by 64 times of it at most."""


class Mode(StrEnum):
    """Which waiting gangs have a start reservation that later gangs must not delay."""

    NONE = "none"
    EASY = "easy"
    """The first of each queue."""

    CONSERVATIVE = "conservative"
    """The first ones, as many as the depth; of each queue the first."""


class Order(StrEnum):
    """In which order gangs are tried that have no start reservation."""

    QUEUE = "queue"
    """That of queues and gangs, as without backfilling."""

    SHORTEST_FIRST = "shortest-first"
    """In each queue the shortest estimate first; gangs without an estimate last."""


@dataclass(frozen=True, slots=True)
class Options:
    """How waiting gangs are planned."""

    mode: Mode = Mode.NONE
    depth: int = 10
    """For how many waiting gangs a start is planned, in addition to the first of each queue."""

    max_idle: float = DEFAULT_MAX_IDLE.total_seconds()
    """Seconds for which a gang keeps capacity idle whose start is not known."""

    reserve_after: float = 0.0
    """Seconds that a gang has waited before it gets a start reservation."""

    order: Order = Order.QUEUE

    borrow_for: float = 0.0
    """Seconds for which a gang may be expected to run with which its queue has twice what it
    deserves."""

    @property
    def uses_run_times(self) -> bool:
        """Whether run times decide about anything."""
        is_default = self.mode is Mode.NONE and self.order is Order.QUEUE
        return not is_default or self.borrow_for > 0

    def borrowable(self, duration: float) -> float:
        """Return by how much a queue may exceed what it deserves for a gang that is expected to run
        for *duration* seconds, as a fraction of that.

        Half the time permits twice as much. Between two powers of two the smaller one counts, so
        that few values differ: gangs are grouped by them.
        """
        if not self.borrow_for or math.isinf(duration):
            return 0.0
        doublings = math.floor(math.log2(self.borrow_for / max(duration, _SHORTEST)))
        return 0.0 if doublings < -_MAX_DOUBLINGS else 2.0 ** min(doublings, _MAX_DOUBLINGS)


def options_of(arguments: Mapping[str, object]) -> Options:
    """Return the options in *arguments*.

    Raises:
        ArgumentError: one has an impossible value.
    """
    depth = integer(arguments, DEPTH, default=Options().depth, minimum=1)
    if depth > MAX_DEPTH:
        raise ArgumentError(DEPTH, f"must be at most {MAX_DEPTH}, not {depth}")
    max_idle = duration(arguments, MAX_IDLE, default=DEFAULT_MAX_IDLE)
    after = duration(arguments, RESERVE_AFTER)
    borrow_for = duration(arguments, BORROW_FOR)
    return Options(
        Mode(_choice(arguments, MODE, tuple(Mode), Mode.NONE)),
        depth,
        (max_idle or DEFAULT_MAX_IDLE).total_seconds(),
        after.total_seconds() if after else 0.0,
        Order(_choice(arguments, ORDER, tuple(Order), Order.QUEUE)),
        borrow_for.total_seconds() if borrow_for else 0.0,
    )


def _choice(
    arguments: Mapping[str, object], name: str, choices: tuple[str, ...], default: str
) -> str:
    given = text(arguments, name, default=default)
    if given not in choices:
        raise ArgumentError(name, f"must be one of {', '.join(choices)}, not {given!r}")
    return given
