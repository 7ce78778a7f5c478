"""What happened in the API server, and waiting for it without polling."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from ..model.names import Resource

Json = dict[str, Any]

WAIT_SECONDS = 60.0
"""Only a test that would hang takes so long."""


class WaitTimeoutError(AssertionError):
    """What a test waited for did not happen."""


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """One committed change of an object."""

    resource: Resource
    type: str
    """``ADDED``, ``MODIFIED`` or ``DELETED``."""

    data: bytes
    """The object after the change, as JSON."""

    @property
    def object(self) -> Json:
        """The object after the change."""
        decoded: Json = msgspec.json.decode(self.data)
        return decoded


class Signal:
    """Wakes the tasks that wait for a condition when it may hold."""

    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def notify(self) -> None:
        """Have all conditions checked again."""
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def wait_until(
        self,
        condition: Callable[[], object],
        *,
        timeout: float = WAIT_SECONDS,
        describe: Callable[[], str] = str,
    ) -> None:
        """Return when *condition* holds; one that raises LookupError does not hold.

        Raises:
            WaitTimeoutError: it did not hold within *timeout* seconds, with the text of *describe*.
        """
        try:
            async with asyncio.timeout(timeout):
                while not _holds(condition):
                    await self._next()
        except TimeoutError:
            text = f"the condition did not hold within {timeout:g} s; {describe()}".rstrip("; ")
            raise WaitTimeoutError(text) from None

    async def _next(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            await waiter
        finally:
            self._waiters.discard(waiter)


def _holds(condition: Callable[[], object]) -> bool:
    try:
        return bool(condition())
    except LookupError:  # a field that is not there yet
        return False
