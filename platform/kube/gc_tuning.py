"""Keeping Python's cycle collector from walking big caches again and again.

A cache of 50,000 objects costs a full collection about 0.1 s on the loop. So collection pauses
while a first list comes in, and what was listed is then taken out of its sight.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

FREEZE_MIN_OBJECTS = 5000
"""Objects in a first list from which on it is worth to freeze the heap."""

_pause_count = 0


@contextmanager
def gc_paused() -> Iterator[None]:
    """Collect no cycles within the block; blocks of several tasks may overlap."""
    global _pause_count
    if _pause_count == 0 and not gc.isenabled():
        yield  # somebody else switched it off: leave it so
        return
    _pause_count += 1
    gc.disable()
    try:
        yield
    finally:
        _pause_count -= 1
        if _pause_count == 0:
            gc.enable()


def raise_gc_thresholds() -> None:
    """Collect less often: what comes by watch and stays holds no cycles, but would be walked.

    With Python's own thresholds a third of an event's cost goes into looking at objects that
    came shortly before it.
    """
    gc.set_threshold(50_000, 20, 100)


def freeze_heap() -> None:
    """Collect once, then hide all that is alive from later collections, and collect less often."""
    gc.collect()
    gc.freeze()
    raise_gc_thresholds()
