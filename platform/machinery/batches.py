"""Batches of API calls: slow start (creations), or all concurrently (deletions)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..kube.supervision import UnexpectedCancelledError

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult(Generic[Item]):
    """Result of a batch; each item is in exactly one of the fields."""

    succeeded: tuple[Item, ...]
    failed: tuple[tuple[Item, Exception], ...]
    skipped: tuple[Item, ...] = ()
    """Not attempted, because an earlier batch had an error."""

    @property
    def first_error(self) -> Exception | None:
        """The first error, for which to retry the key, if any."""
        return self.failed[0][1] if self.failed else None


_MAX_INITIAL_BATCH = 64
"""Maximum number of items in the first batch of a slow start."""


class InitialBatches:
    """Size of the first batch of the next slow start by key: as much as was just accepted."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}

    def __getitem__(self, key: str) -> int:
        """Return the size for *key*, a power of two."""
        return self._sizes.get(key, 1)

    def update(self, key: str, succeeded: int, *, failed: bool) -> None:
        """Adapt the size for *key* to the result of a batch; after a failure it is one."""
        if failed:
            self._sizes.pop(key, None)
        elif succeeded:
            accepted = min(1 << (succeeded.bit_length() - 1), _MAX_INITIAL_BATCH)
            self._sizes[key] = max(accepted, self[key])


async def slow_start(
    items: Sequence[Item], call: Callable[[Item], Awaitable[object]], *, initial: int = 1
) -> BatchResult[Item]:
    """Call *call* for each item in batches of 1, 2, 4, …; stop after a batch with an error.

    If the server rejects all calls, it gets one and not thousands. The calls of a batch are
    concurrent; a batch begins when the previous one has ended.
    """
    succeeded: list[Item] = []
    failed: list[tuple[Item, Exception]] = []
    start, size = 0, initial
    while start < len(items) and not failed:
        batch = await run_concurrently(items[start : start + size], call)
        succeeded += batch.succeeded
        failed += batch.failed
        start, size = start + size, size * 2
    return BatchResult(
        succeeded=tuple(succeeded), failed=tuple(failed), skipped=tuple(items[start:])
    )


async def run_concurrently(
    items: Sequence[Item], call: Callable[[Item], Awaitable[object]]
) -> BatchResult[Item]:
    """Call *call* for all items concurrently and wait for all results.

    When cancelled, it cancels all calls and waits for them, too. An unexpected CancelledError of a
    call is its failure.
    """

    async def attempt(item: Item) -> None:
        await call(item)

    if len(items) == 1:  # a task would cost as much as the rest of this function
        results = [(items[0], await _error_of_call(call(items[0])))]
    else:
        tasks = [asyncio.create_task(attempt(item)) for item in items]
        if tasks:
            await _wait_all(tasks)
        results = [(item, _error_of(task)) for item, task in zip(items, tasks, strict=True)]
    return BatchResult(
        succeeded=tuple(item for item, error in results if error is None),
        failed=tuple((item, error) for item, error in results if error is not None),
    )


async def _error_of_call(call: Awaitable[object]) -> Exception | None:
    """Return the error of a call in this task, if it failed; raises if the task is cancelled."""
    try:
        await call
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        return UnexpectedCancelledError()
    except Exception as error:
        return error
    return None


async def _wait_all(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait until all *tasks* are done; forward every cancellation to them."""
    cancelled: asyncio.CancelledError | None = None
    while not all(task.done() for task in tasks):
        try:
            await asyncio.wait(tasks)
        except asyncio.CancelledError as error:
            cancelled = error
            for task in tasks:
                task.cancel()
    if cancelled is not None:
        raise cancelled


def _error_of(task: asyncio.Task[None]) -> Exception | None:
    """Return the error of a completed task, if it failed."""
    if task.cancelled():
        return UnexpectedCancelledError()
    error = task.exception()
    if error is not None and not isinstance(error, Exception):
        raise error
    return error
