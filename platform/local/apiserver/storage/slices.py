"""Split long work into slices: between two slices the event loop runs other tasks."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TypeVar

from .stored_objects import StoredObject
from .watch import SelectionPredicate

SLICE_SIZE = 500
"""Objects per slice."""

PARSED_SLICE_SIZE = 100
"""Objects per slice if each is parsed or encoded."""

T = TypeVar("T")


async def slices(items: Sequence[T], size: int = SLICE_SIZE) -> AsyncGenerator[Sequence[T]]:
    """Yield slices of *items*, which must not change; other tasks run between them."""
    for start in range(0, len(items), size):
        if start:
            await asyncio.sleep(0)
        yield items[start : start + size]


async def select(
    entries: Sequence[StoredObject], selection: SelectionPredicate, *, limit: int = 0
) -> Sequence[StoredObject]:
    """Return the selected *entries*, at most one more than *limit*."""
    if not selection.has_selectors:
        return entries
    found: list[StoredObject] = []
    async for batch in slices(entries, PARSED_SLICE_SIZE if selection.fields else SLICE_SIZE):
        found += [entry for entry in batch if selection.matches(entry)]
        if limit and len(found) > limit:
            return found[: limit + 1]
    return found
