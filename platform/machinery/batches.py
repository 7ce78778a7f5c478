"""Many calls of one kind: carefully at first (creations), or all together (deletions)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..kube.supervision import UnexpectedCancelledError

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchResult(Generic[Item]):
    """What became of each item; the three parts hold every item once."""

    succeeded: tuple[Item, ...]
    failed: tuple[tuple[Item, Exception], ...]
    skipped: tuple[Item, ...] = ()
    """Never attempted, because a batch before theirs had an error."""

    @property
    def first_error(self) -> Exception | None:
        """The error to retry the key for, if any."""
        return self.failed[0][1] if self.failed else None


async def slow_start(
    items: Sequence[Item], call: Callable[[Item], Awaitable[object]], *, initial: int = 1
) -> BatchResult[Item]:
    """Call for each item in batches of 1, 2, 4, …, and stop after the batch that has an error.

    A server that refuses everything so gets one call and not thousands. The calls of a batch
    run at the same time; a batch begins when the one before it has ended.
    """
    done: list[Item] = []
    failed: list[tuple[Item, Exception]] = []
    start, size = 0, initial
    while start < len(items) and not failed:
        batch = await run_concurrently(items[start : start + size], call)
        done += batch.succeeded
        failed += batch.failed
        start, size = start + size, size * 2
    return BatchResult(succeeded=tuple(done), failed=tuple(failed), skipped=tuple(items[start:]))


async def run_concurrently(
    items: Sequence[Item], call: Callable[[Item], Awaitable[object]]
) -> BatchResult[Item]:
    """Call for all items at the same time, and wait for all calls, however they end.

    When cancelled, it cancels them and waits for their ends, too. A CancelledError that a call
    raises by itself is its failure.
    """

    async def attempt(item: Item) -> None:
        await call(item)

    tasks = [asyncio.create_task(attempt(item)) for item in items]
    if tasks:
        await _wait_all(tasks)
    outcomes = [(item, _error_of(task)) for item, task in zip(items, tasks, strict=True)]
    return BatchResult(
        succeeded=tuple(item for item, error in outcomes if error is None),
        failed=tuple((item, error) for item, error in outcomes if error is not None),
    )


async def _wait_all(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait until all *tasks* have ended; hand every cancellation on to them."""
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
    """How a task that has ended failed, if it did."""
    if task.cancelled():
        return UnexpectedCancelledError()
    error = task.exception()
    if error is not None and not isinstance(error, Exception):
        raise error
    return error
