"""Keep Python's cycle collector from walking large informer stores repeatedly.

With 50,000 objects a full collection blocks the loop for about 0.1 s. So collection is disabled
during the initial list, and the listed objects are frozen afterwards.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

FREEZE_MIN_OBJECTS = 5000
"""Objects in an initial list from which on freezing the heap pays off."""

_disable_count = 0


@contextmanager
def gc_paused() -> Iterator[None]:
    """Disable the cycle collector within the block; blocks of several tasks may overlap."""
    global _disable_count
    if _disable_count == 0 and not gc.isenabled():
        yield  # disabled elsewhere: leave it so
        return
    _disable_count += 1
    gc.disable()
    try:
        yield
    finally:
        _disable_count -= 1
        if _disable_count == 0:
            gc.enable()


def raise_gc_thresholds() -> None:
    """Collect less often: objects received by watch hold no cycles.

    With Python's default thresholds a third of the cost of an event is spent walking the objects
    received shortly before it.
    """
    gc.set_threshold(50_000, 20, 100)


def freeze_heap() -> None:
    """Collect once, exclude all live objects from later collections, and collect less often."""
    gc.collect()
    gc.freeze()
    raise_gc_thresholds()
