"""Long work in slices: between two of them the event loop serves others."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import TypeVar

from .stored_objects import Entry
from .watch import Selection

SLICE = 500
"""Objects that are looked at before others have their turn."""

PARSED = 100
"""The same where each object is parsed or made anew."""

T = TypeVar("T")


async def slices(items: Sequence[T], size: int = SLICE) -> AsyncGenerator[Sequence[T]]:
    """Parts of *items*, which must not change; others have their turn before each but the first."""
    for start in range(0, len(items), size):
        if start:
            await asyncio.sleep(0)
        yield items[start : start + size]


async def select(
    entries: Sequence[Entry], selection: Selection, *, limit: int = 0
) -> Sequence[Entry]:
    """Those of *entries* that are wanted, one more than *limit* at most."""
    if not selection.selective:
        return entries
    found: list[Entry] = []
    async for part in slices(entries, PARSED if selection.fields else SLICE):
        found += [entry for entry in part if selection.matches(entry)]
        if limit and len(found) > limit:
            return found[: limit + 1]
    return found
