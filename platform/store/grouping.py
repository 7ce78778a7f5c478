"""Writes of one kind that share a statement: those that arrive while others are being written."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

import sqlalchemy as sa

from .database import Database, StoreUnavailableError

T = TypeVar("T")
R = TypeVar("R")


class GroupedWrites(Generic[T, R]):
    """Executes many items by one call of *execute*, in their order.

    *execute* returns a result for each item; like all writes it must be idempotent.
    """

    def __init__(
        self, database: Database, execute: Callable[[sa.Connection, Sequence[T]], Sequence[R]]
    ) -> None:
        self._database = database
        self._execute = execute
        self._waiting: list[tuple[T, asyncio.Future[R]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def submit(self, item: T) -> R:
        """Write *item*; return its result.

        Raises:
            StoreUnavailableError: the database does not respond in time.
        """
        done: asyncio.Future[R] = asyncio.get_running_loop().create_future()
        self._waiting.append((item, done))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write())
        return await done

    async def _write(self) -> None:
        try:
            while self._waiting:
                group, self._waiting = self._waiting, []
                await self._write_group(group)
        finally:
            self._writer = None

    async def _write_group(self, group: Sequence[tuple[T, asyncio.Future[R]]]) -> None:
        items = [item for item, _ in group]
        try:
            results = await self._database.run(lambda db: self._execute(db, items))
        except StoreUnavailableError as error:
            # The others would wait as long, one group after the other.
            waiting, self._waiting = self._waiting, []
            _fail((*group, *waiting), error)
        except Exception as error:
            if len(group) == 1:
                _fail(group, error)
                return
            for each in group:  # one item must not fail the others
                await self._write_group((each,))
        except BaseException as error:
            _fail((*group, *self._waiting), error)
            raise
        else:
            for (_, done), result in zip(group, results, strict=True):
                if not done.done():
                    done.set_result(result)


def _fail(group: Sequence[tuple[T, asyncio.Future[R]]], error: BaseException) -> None:
    for _, done in group:
        if done.done():
            continue
        if isinstance(error, asyncio.CancelledError):
            done.cancel()
        else:
            done.set_exception(error)
