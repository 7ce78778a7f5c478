"""Waiting for the world to reach a state, instead of for time to pass.

The limits only keep a broken test from hanging: they are far beyond what a busy machine needs.
"""

import asyncio
from collections.abc import Awaitable, Callable

PATIENCE = 100.0
"""Seconds after which a test that waits for something is taken for broken."""

_BETWEEN_LOOKS = 0.002
_SELDOM = 0.05
"""Seconds between two questions to a server in the long run: others need the processor, too."""


async def until(
    condition: Callable[[], object], what: str = "", *, seconds: float = PATIENCE
) -> None:
    """Let others run until *condition* holds; fail with *what* if that takes too long."""
    try:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - the world offers no event to wait for
                await asyncio.sleep(_BETWEEN_LOOKS)
    except TimeoutError:
        raise AssertionError(f"did not happen: {what or condition}") from None


async def until_true(ask: Callable[[], Awaitable[bool]], *, seconds: float = PATIENCE) -> None:
    """The same for what a server must be asked."""
    pause = _BETWEEN_LOOKS
    async with asyncio.timeout(seconds):
        while not await ask():
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _SELDOM)


async def until_equal(ask: Callable[[], Awaitable[object]], wanted: object) -> None:
    """Ask until the answer is *wanted*; show the last one if that takes too long."""
    said: list[object] = []

    async def as_wanted() -> bool:
        said[:] = [await ask()]
        return said == [wanted]

    try:
        await until_true(as_wanted)
    except TimeoutError:
        assert said == [wanted]
        raise
