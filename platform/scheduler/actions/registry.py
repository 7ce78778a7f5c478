"""The table of scheduler actions."""

from collections.abc import Callable, Mapping

from ..framework.session import Session
from .allocate import allocate
from .backfill import backfill
from .enqueue import enqueue

Action = Callable[[Session], None]

ENQUEUE = "enqueue"
ACTIONS: Mapping[str, Action | None] = {
    ENQUEUE: enqueue,
    "allocate": allocate,
    "backfill": backfill,
    "gangpreempt": None,
    "gangreclaim": None,
    "preempt": None,
    "reclaim": None,
    "shuffle": None,
}
"""All actions of Volcano by name; ``None`` if there is no implementation yet."""
