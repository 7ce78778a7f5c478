"""Only some go at once, and those who wait go by rank."""

import asyncio

import pytest

from batholith.machinery.priority_semaphore import PrioritySemaphore
from batholith.machinery.testing import run_ready_tasks


class Line:
    """People who go through a door of so many places, each until let out."""

    def __init__(self, places: int) -> None:
        self.turns = PrioritySemaphore(places)
        self.inside: list[str] = []
        self.out: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def come(self, name: str, rank: float) -> None:
        self.out[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._go(name, rank))
        await run_ready_tasks()

    async def leave(self, name: str) -> None:
        self.out[name].set()
        await self.tasks[name]
        await run_ready_tasks()

    async def _go(self, name: str, rank: float) -> None:
        async with self.turns.slot(rank):
            self.inside.append(name)
            await self.out[name].wait()
            self.inside.remove(name)


async def test_the_smallest_rank_goes_first_and_among_equals_who_came_first() -> None:
    line = Line(1)
    for name, rank in (("first", 9), ("large", 5), ("small", 1), ("small too", 1)):
        await line.come(name, rank)
    order = []
    for _ in range(4):
        order += line.inside
        await line.leave(line.inside[0])
    assert order == ["first", "small", "small too", "large"]


async def test_no_more_go_than_there_are_places() -> None:
    line = Line(2)
    for name in "abc":
        await line.come(name, 0)
    assert line.inside == ["a", "b"]
    await line.leave("b")
    assert line.inside == ["a", "c"]
    await line.leave("a")
    await line.leave("c")
    await line.come("d", 0)
    assert line.inside == ["d"], "places that nobody waited for are free again"
    await line.leave("d")


async def test_whoever_gives_up_takes_no_place() -> None:
    line = Line(1)
    for name in "abc":
        await line.come(name, 0)
    line.tasks["b"].cancel()
    await line.leave("a")
    assert line.inside == ["c"]
    await line.leave("c")


async def test_a_place_given_to_one_who_gives_up_at_that_moment_goes_on() -> None:
    line = Line(1)
    for name in "abc":
        await line.come(name, 0)
    line.out["a"].set()
    while line.inside == ["a"]:  # noqa: ASYNC110 - nothing to wait on
        await asyncio.sleep(0)
    line.tasks["b"].cancel()
    await run_ready_tasks()
    assert line.inside == ["c"]
    await line.leave("c")


def test_there_must_be_a_place() -> None:
    with pytest.raises(ValueError, match="at least one"):
        PrioritySemaphore(0)
