"""Waiting for the world to reach a state, instead of for time to pass."""

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], *, seconds: float = 10) -> None:
    """Let other tasks run until *condition* holds; fail if it takes longer than *seconds*."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - the world offers no event to wait for
            await asyncio.sleep(0.001)
