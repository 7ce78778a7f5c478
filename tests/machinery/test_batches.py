"""Slow start: a server that rejects requests is not flooded."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batholith.kube.supervision import UnexpectedCancelledError
from batholith.machinery.batches import run_concurrently, slow_start


class LimitedServer:
    """Accepts *good* calls and rejects the rest; counts concurrent calls."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.calls = 0
        self.in_flight = 0
        self.in_flight_sizes: list[int] = []

    async def call(self, item: int) -> None:
        self.calls += 1
        self.in_flight += 1
        here = self.calls
        if self.in_flight == 1:
            self.in_flight_sizes.append(0)
        self.in_flight_sizes[-1] += 1
        await asyncio.sleep(0)
        self.in_flight -= 1
        if here > self.capacity:
            raise RuntimeError(f"item {item} refused")


@given(count=st.integers(0, 100))
@settings(deadline=None)
def test_inv_ss_1_server_that_rejects_all_gets_one_call(count: int) -> None:
    """INV-SS-1."""
    server = LimitedServer(capacity=0)
    outcome = asyncio.run(slow_start(range(count), server.call))
    assert server.calls == min(1, count)
    assert len(outcome.skipped) == max(0, count - 1)


@given(count=st.integers(0, 200), good=st.integers(0, 200))
@settings(deadline=None)
def test_inv_ss_2_3_4_batches_double_and_stop_after_an_error(count: int, good: int) -> None:
    """INV-SS-2 (calls at most double the successes), INV-SS-3 (powers of two), INV-SS-4."""
    server = LimitedServer(good)
    outcome = asyncio.run(slow_start(range(count), server.call))
    assert server.calls <= 2 * (good + 1)
    assert server.in_flight_sizes[:-1] == [
        2**power for power in range(len(server.in_flight_sizes) - 1)
    ]
    assert sum(server.in_flight_sizes) == server.calls
    results = [*outcome.succeeded, *(item for item, _ in outcome.failed), *outcome.skipped]
    assert sorted(results) == list(range(count))
    assert (outcome.first_error is None) == (count <= good)


async def test_error_in_the_last_batch_skips_nothing() -> None:
    outcome = await slow_start(range(3), LimitedServer(capacity=2).call)
    assert outcome.succeeded == (0, 1)
    assert outcome.skipped == ()
    assert str(outcome.first_error) == "item 2 refused"


async def test_run_concurrently_calls_all_items_at_once() -> None:
    server = LimitedServer(capacity=5)
    outcome = await run_concurrently(range(8), server.call)
    assert server.in_flight_sizes == [8]
    assert (len(outcome.succeeded), len(outcome.failed)) == (5, 3)


async def test_cancellation_is_not_a_failure_of_an_item() -> None:
    hanging = asyncio.create_task(slow_start(range(5), lambda item: asyncio.sleep(60 * item)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    hanging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await hanging


async def cancel_itself(item: int) -> None:
    raise asyncio.CancelledError


@pytest.mark.parametrize("count", [1, 3])
async def test_an_unexpected_cancellation_is_a_failure_of_its_item(count: int) -> None:
    outcome = await run_concurrently(range(count), cancel_itself)
    assert [type(error) for _, error in outcome.failed] == [UnexpectedCancelledError] * count


@pytest.mark.parametrize("count", [1, 3])
async def test_cancellation_ends_all_calls(count: int) -> None:
    ended: list[int] = []

    async def call(item: int) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(item)

    running = asyncio.create_task(run_concurrently(range(count), call))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sorted(ended) == list(range(count))
