"""Waiting for the world to reach a state, instead of for time to pass.

The limits only keep a broken test from hanging: they are far beyond what a busy machine needs.
"""

import asyncio
from collections.abc import Awaitable, Callable

DEFAULT_TIMEOUT = 100.0
"""Seconds after which a test that waits for something is taken for broken."""

_POLL_INTERVAL = 0.002
_MAX_POLL_INTERVAL = 0.05
"""Seconds between two questions to a server in the long run: others need the processor, too."""


async def wait_for(
    condition: Callable[[], object], what: str = "", *, seconds: float = DEFAULT_TIMEOUT
) -> None:
    """Let others run until *condition* holds; fail with *what* if that takes too long."""
    try:
        async with asyncio.timeout(seconds):
            while not condition():  # noqa: ASYNC110 - the world offers no event to wait for
                await asyncio.sleep(_POLL_INTERVAL)
    except TimeoutError:
        raise AssertionError(f"did not happen: {what or condition}") from None


async def wait_until_true(
    query: Callable[[], Awaitable[bool]], *, seconds: float = DEFAULT_TIMEOUT
) -> None:
    """The same for what a server must be asked."""
    delay = _POLL_INTERVAL
    async with asyncio.timeout(seconds):
        while not await query():
            await asyncio.sleep(delay)
            delay = min(delay * 1.5, _MAX_POLL_INTERVAL)


async def wait_until_equal(query: Callable[[], Awaitable[object]], expected: object) -> None:
    """Poll until the result equals *wanted*; on timeout report the last one."""
    last: list[object] = []

    async def matches() -> bool:
        last[:] = [await query()]
        return last == [expected]

    try:
        await wait_until_true(matches)
    except TimeoutError:
        assert last == [expected]
        raise
