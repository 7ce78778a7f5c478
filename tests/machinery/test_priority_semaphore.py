"""A limited number of holders, and waiters by priority."""

import asyncio

import pytest

from batholith.machinery.priority_semaphore import PrioritySemaphore
from batholith.machinery.testing import run_ready_tasks


class Contenders:
    """Holders of a semaphore, each until released."""

    def __init__(self, slots: int) -> None:
        self.semaphore = PrioritySemaphore(slots)
        self.holders: list[str] = []
        self.released: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def enter(self, name: str, priority: float) -> None:
        self.released[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._acquire(name, priority))
        await run_ready_tasks()

    async def leave(self, name: str) -> None:
        self.released[name].set()
        await self.tasks[name]
        await run_ready_tasks()

    async def _acquire(self, name: str, priority: float) -> None:
        await self.semaphore.acquire(priority)
        self.holders.append(name)
        await self.released[name].wait()
        self.holders.remove(name)
        self.semaphore.release()


async def test_smallest_priority_is_next_and_fifo_among_equals() -> None:
    line = Contenders(1)
    for name, rank in (("first", 9), ("large", 5), ("small", 1), ("small too", 1)):
        await line.enter(name, rank)
    order = []
    for _ in range(4):
        order += line.holders
        await line.leave(line.holders[0])
    assert order == ["first", "small", "small too", "large"]


async def test_no_more_holders_than_slots() -> None:
    line = Contenders(2)
    for name in "abc":
        await line.enter(name, 0)
    assert line.holders == ["a", "b"]
    await line.leave("b")
    assert line.holders == ["a", "c"]
    await line.leave("a")
    await line.leave("c")
    await line.enter("d", 0)
    assert line.holders == ["d"], "released slots are free again"
    await line.leave("d")


async def test_cancelled_waiter_takes_no_slot() -> None:
    line = Contenders(1)
    for name in "abc":
        await line.enter(name, 0)
    line.tasks["b"].cancel()
    await line.leave("a")
    assert line.holders == ["c"]
    await line.leave("c")


async def test_slot_assigned_to_a_cancelled_waiter_is_passed_on() -> None:
    line = Contenders(1)
    for name in "abc":
        await line.enter(name, 0)
    line.released["a"].set()
    while line.holders == ["a"]:  # noqa: ASYNC110 - nothing to wait on
        await asyncio.sleep(0)
    line.tasks["b"].cancel()
    await run_ready_tasks()
    assert line.holders == ["c"]
    await line.leave("c")


def test_zero_slots_are_rejected() -> None:
    with pytest.raises(ValueError, match="at least one"):
        PrioritySemaphore(0)
