"""The work queue against a model."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.examples import examples

from batholith.machinery.testing import FakeClock, run_ready_tasks
from batholith.machinery.workqueue import WorkQueue
from batholith.machinery.workqueue_stats import WorkQueueStats

KEYS = st.sampled_from([*"abcdefghijkl"])


def make_queue() -> WorkQueue:
    return WorkQueue(FakeClock(), WorkQueueStats())


class WorkQueueMachine(RuleBasedStateMachine):
    """INV-WQ-1, INV-WQ-2, INV-WQ-3, INV-WQ-5, INV-WQ-6, INV-WQ-7, INV-MX-1, INV-MX-2, INV-MX-3."""

    @initialize()
    def start(self) -> None:
        self.stats = WorkQueueStats()
        self.queue = WorkQueue(FakeClock(), self.stats)
        self.order: list[str] = []
        self.low_priority: list[str] = []
        self.overtaken = 0
        """Keys returned since one of low priority could have been."""
        self.processing: dict[str, bool] = {}
        self.get_count = 0
        self.done_count = 0
        self.included_count = 0
        self.closed = False

    @rule(key=KEYS, low_priority=st.booleans())
    def add(self, key: str, low_priority: bool) -> None:
        self.queue.add(key, low_priority=low_priority)
        if self.closed:
            return
        if key in self.processing:
            self.processing[key] = True
        elif key not in self.order + self.low_priority:
            (self.low_priority if low_priority else self.order).append(key)

    def _take(self, key: str | None) -> None:
        """Check that *key* is the next one: of low priority if no other is queued, or after seven
        others."""
        if self.low_priority and (not self.order or self.overtaken == 7):
            assert key == self.low_priority.pop(0)
            self.overtaken = 0
        else:
            assert key == (self.order.pop(0) if self.order else None)
            self.overtaken += bool(self.low_priority)

    @rule()
    def get(self) -> None:
        key = self.queue.get_nowait()
        self._take(key)
        if key is not None:
            assert key not in self.processing
            self.processing[key] = False
            self.get_count += 1

    @rule(key=KEYS)
    def done(self, key: str) -> None:
        self.queue.done(key)
        if key in self.processing:
            self.done_count += 1
            if self.processing.pop(key):
                self.order.append(key)

    @rule(key=KEYS)
    def include_changes(self, key: str) -> None:
        self.queue.include_changes(key)
        if self.processing.get(key):
            self.processing[key] = False
            self.included_count += 1

    @rule()
    @precondition(lambda self: self.get_count > 3)
    def shut_down(self) -> None:
        self.queue.shut_down()
        self.closed = True

    @invariant()
    def agrees(self) -> None:
        self.queue.validate()
        again = sum(self.processing.values())
        queued = len(self.order) + len(self.low_priority)
        assert len(self.queue) == queued
        assert self.queue.depth == queued + again
        assert self.stats.adds - self.get_count - self.included_count == self.queue.depth
        assert self.stats.queue_duration.count == self.get_count
        assert self.stats.work_duration.count == self.done_count
        assert self.queue.idle == (not queued and not self.processing)

    def teardown(self) -> None:
        if not hasattr(self, "queue"):
            return
        for key in list(self.processing):
            self.done(key)
        while (queued := self.queue.get_nowait()) is not None:
            self._take(queued)
        assert self.order + self.low_priority == []  # INV-WQ-7: what was accepted is delivered


TestWorkQueueMachine = WorkQueueMachine.TestCase
TestWorkQueueMachine.settings = settings(
    max_examples=examples(60), stateful_step_count=40, deadline=None
)


def test_inv_wq_4_key_added_in_processing_is_returned_again() -> None:
    """INV-WQ-4 and INV-WQ-5."""
    queue = make_queue()
    queue.add("a")
    assert queue.get_nowait() == "a"
    for _ in range(5):
        queue.add("a")
    assert queue.get_nowait() is None
    queue.done("a")
    assert queue.get_nowait() == "a"
    queue.done("a")
    assert queue.get_nowait() is None


def test_done_of_a_queued_key_does_not_duplicate_it() -> None:
    queue = make_queue()
    queue.add("a")
    queue.done("a")
    assert len(queue) == 1
    queue.validate()


@given(
    plan=st.lists(st.tuples(KEYS, st.integers(0, 3)), max_size=30),
    workers=st.integers(1, 4),
)
@settings(max_examples=examples(30), deadline=None)
def test_inv_wq_9_last_add_is_followed_by_a_complete_sync(
    plan: list[tuple[str, int]], workers: int
) -> None:
    """INV-WQ-9, INV-WQ-3 and INV-PIPE-2: a sync starts after the last add, and none overlap."""

    async def run() -> None:
        queue = make_queue()
        events: list[tuple[str, str]] = []
        running: Counter[str] = Counter()

        async def work(steps: int) -> None:
            async for key in queue:
                running[key] += 1
                assert running[key] == 1
                events.append(("start", key))
                for _ in range(steps):
                    await asyncio.sleep(0)
                running[key] -= 1
                queue.done(key)

        async with asyncio.TaskGroup() as group:
            for number in range(workers):
                group.create_task(work(number + 1))
            for key, steps in plan:
                events.append(("add", key))
                queue.add(key)
                for _ in range(steps):
                    await asyncio.sleep(0)
            await queue.drain()
        for key in {key for key, _ in plan}:
            marks = [what for what, about in events if about == key]
            last_add = len(marks) - 1 - marks[::-1].index("add")
            assert "start" in marks[last_add:]

    asyncio.run(run())


async def test_inv_wq_7_shutdown_wakes_every_waiter() -> None:
    """INV-WQ-7: current waiters and later ones."""
    queue = make_queue()
    waiting = [asyncio.create_task(queue.get()) for _ in range(3)]
    await run_ready_tasks()
    queue.shut_down()
    queue.add("later")
    assert await asyncio.gather(*waiting) == [None, None, None]
    assert await queue.get() is None


async def test_inv_wq_8_drain_waits_for_the_last_done() -> None:
    """INV-WQ-8, with a key that turned dirty before the shut-down."""
    queue = make_queue()
    queue.add("a")
    queue.add("b")
    assert await queue.get() == "a"
    queue.add("a")
    drained = asyncio.create_task(queue.drain())
    await run_ready_tasks()
    queue.add("c")
    queue.done("a")
    assert [await queue.get(), await queue.get()] == ["b", "a"]
    queue.done("b")
    await run_ready_tasks()
    assert not drained.done()
    queue.done("a")
    await drained
    assert await queue.get() is None


async def test_inv_wq_8_shut_down_ends_a_drain_early() -> None:
    queue = make_queue()
    queue.add("a")
    await queue.get()
    drained = asyncio.create_task(queue.drain())
    await run_ready_tasks()
    assert not drained.done()
    queue.shut_down()
    await drained


async def test_idle_queue_drains_immediately() -> None:
    await make_queue().drain()


async def test_cancelled_waiter_passes_its_wake_up_on() -> None:
    queue = make_queue()
    first, second = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await run_ready_tasks()
    queue.add("a")
    first.cancel()
    assert await second == "a"
    with pytest.raises(asyncio.CancelledError):
        await first
