"""Long work in slices: between two of them the event loop serves others."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TypeVar

from .stored_objects import StoredObject
from .watch import SelectionPredicate

SLICE_SIZE = 500
"""Objects that are looked at before others have their turn."""

PARSED_SLICE_SIZE = 100
"""The same where each object is parsed or made anew."""

T = TypeVar("T")


async def slices(items: Sequence[T], size: int = SLICE_SIZE) -> AsyncGenerator[Sequence[T]]:
    """Parts of *items*, which must not change; others have their turn before each but the first."""
    for start in range(0, len(items), size):
        if start:
            await asyncio.sleep(0)
        yield items[start : start + size]


async def select(
    entries: Sequence[StoredObject], selection: SelectionPredicate, *, limit: int = 0
) -> Sequence[StoredObject]:
    """Those of *entries* that are wanted, one more than *limit* at most."""
    if not selection.has_selectors:
        return entries
    found: list[StoredObject] = []
    async for part in slices(entries, PARSED_SLICE_SIZE if selection.fields else SLICE_SIZE):
        found += [entry for entry in part if selection.matches(entry)]
        if limit and len(found) > limit:
            return found[: limit + 1]
    return found
