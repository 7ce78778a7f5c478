"""Waiting for the world to reach a state, instead of for time to pass."""

import asyncio
from collections.abc import Awaitable, Callable

_BETWEEN_LOOKS = 0.002


async def until(condition: Callable[[], object], what: str = "", *, seconds: float = 10) -> None:
    """Let others run until *condition* holds; fail with *what* if that takes too long.

    The limit of *seconds* only keeps a broken test from hanging.
    """
    try:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - the world offers no event to wait for
                await asyncio.sleep(_BETWEEN_LOOKS)
    except TimeoutError:
        raise AssertionError(f"did not happen: {what or condition}") from None


async def until_true(ask: Callable[[], Awaitable[bool]], *, seconds: float = 20) -> None:
    """The same for what a server must be asked."""
    async with asyncio.timeout(seconds):
        while not await ask():  # noqa: ASYNC110 - likewise
            await asyncio.sleep(_BETWEEN_LOOKS)
