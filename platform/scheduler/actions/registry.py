"""The table of scheduler actions."""

from collections.abc import Callable, Mapping

from ..framework.session import Session
from .allocate import allocate
from .backfill import backfill
from .enqueue import enqueue
from .preempt import preempt
from .reclaim import reclaim

Action = Callable[[Session], None]

ENQUEUE = "enqueue"
ACTIONS: Mapping[str, Action | None] = {
    ENQUEUE: enqueue,
    "allocate": allocate,
    "backfill": backfill,
    "gangpreempt": None,
    "gangreclaim": None,
    "preempt": preempt,
    "reclaim": reclaim,
    "shuffle": None,
}
"""All actions of Volcano by name; ``None`` if there is no implementation yet."""
