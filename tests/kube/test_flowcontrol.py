"""Client-side rate limiter, limit of writes in flight, and backoff."""

import asyncio
from contextlib import AsyncExitStack, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from support.controller_api import ControllerApi

from batholith.kube.client.client import Client, ClientOptions
from batholith.kube.client.flowcontrol import InFlightLimiter, TokenBucketRateLimiter
from batholith.kube.metrics import ClientMetrics
from batholith.kube.timing import Backoff, Timing
from batholith.model.names import NODES


class SleepClock:
    """Clock that advances only by sleeping."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timing = Timing(monotonic=lambda: self.now, sleep=self.sleep, random=lambda: 0.5)

    async def sleep(self, seconds: float) -> None:
        self.now += seconds
        await asyncio.sleep(0)


async def test_burst_passes_immediately_and_the_rest_at_the_qps() -> None:
    watch = SleepClock()
    limiter = TokenBucketRateLimiter(5, 10, timing=watch.timing)
    waits = [await limiter.wait() for _ in range(13)]
    assert waits == pytest.approx([0.0] * 10 + [0.2] * 3)
    assert limiter.saturation == pytest.approx(1.0)
    watch.now += 1
    assert limiter.saturation == pytest.approx(0.5)


@given(
    qps=st.floats(0.5, 100),
    burst=st.integers(1, 20),
    gaps=st.lists(st.floats(0, 2), max_size=60),
)
def test_no_interval_exceeds_burst_plus_qps(qps: float, burst: int, gaps: list[float]) -> None:
    async def run() -> list[float]:
        watch = SleepClock()
        limiter = TokenBucketRateLimiter(qps, burst, timing=watch.timing)
        sent = []
        for gap in gaps:
            watch.now += gap
            await limiter.wait()
            sent.append(watch.now)
        return sent

    sent = asyncio.run(run())
    for first, start in enumerate(sent):
        for last in range(first, len(sent)):
            assert last - first + 1 <= burst + (sent[last] - start) * qps + 1e-6


async def test_zero_qps_means_unlimited() -> None:
    limiter = TokenBucketRateLimiter(0)
    assert [await limiter.wait() for _ in range(100)] == [0.0] * 100
    assert limiter.saturation == 0.0


async def test_background_requests_leave_half_of_the_bucket_free() -> None:
    watch = SleepClock()
    limiter = TokenBucketRateLimiter(1, 4, timing=watch.timing)
    waits = [await limiter.wait(background=True) for _ in range(4)]
    assert waits == pytest.approx([0, 0, 0, 1])
    assert await limiter.wait() == 0.0


async def test_cancelled_waiter_returns_its_token() -> None:
    started = asyncio.Event()

    async def forever(seconds: float) -> None:
        started.set()
        await asyncio.Event().wait()

    limiter = TokenBucketRateLimiter(1, 1, timing=Timing(monotonic=lambda: 0.0, sleep=forever))
    await limiter.wait()
    waiter = asyncio.create_task(limiter.wait())
    await started.wait()
    waiter.cancel()
    with suppress(asyncio.CancelledError):
        await waiter
    assert limiter.saturation == 1.0
    assert limiter._tokens == 0.0


async def test_saturation_is_read_at_each_scrape_and_registered_once_per_owner() -> None:
    registry = CollectorRegistry()
    metrics = ClientMetrics(registry)
    limiter = TokenBucketRateLimiter(1, 4, timing=Timing(monotonic=lambda: 0.0))
    metrics.register_rate_limiter("job_controller", lambda: limiter.saturation)
    metrics.register_rate_limiter("job_controller", lambda: 7.0)
    await limiter.wait()
    assert registry.get_sample_value("job_controller_rate_limiter_use") == 0.25


async def test_client_requests_are_rate_limited_and_report_the_delay() -> None:
    watch, registry = SleepClock(), CollectorRegistry()
    options = ClientOptions(metrics=ClientMetrics(registry), timing=watch.timing)
    async with ControllerApi() as api:
        limiter = TokenBucketRateLimiter(2, 1, timing=watch.timing)
        client = Client(api.credentials, user_agent="t", limiter=limiter, options=options)
        async with client:
            for number in range(4):
                await client.create(NODES, {"metadata": {"name": f"n{number}"}})
        labels = {"verb": "POST", "host": api.credentials.server.removeprefix("https://")}
        waited = registry.get_sample_value("rest_client_rate_limiter_duration_seconds_sum", labels)
    assert watch.now == pytest.approx(1.5)
    assert waited == pytest.approx(1.5)


async def _hold(
    flow: InFlightLimiter, log: list[str], name: str, *, background: bool = False
) -> None:
    async with flow.slot(background=background):
        log.append(name)
        await asyncio.sleep(0)


async def test_writes_wait_for_slots_and_events_after_them() -> None:
    flow, log = InFlightLimiter(2), list[str]()
    async with AsyncExitStack() as held:
        await held.enter_async_context(flow.slot())
        await held.enter_async_context(flow.slot())
        tasks = [asyncio.create_task(_hold(flow, log, "event", background=True))]
        tasks += [asyncio.create_task(_hold(flow, log, name)) for name in "abc"]
        await asyncio.sleep(0)
        assert log == []
    await asyncio.gather(*tasks)
    assert log == ["a", "b", "c", "event"]


@given(
    limit=st.integers(1, 4),
    cancelled=st.lists(st.booleans(), min_size=1, max_size=30),
    background=st.lists(st.booleans(), min_size=30, max_size=30),
)
def test_cancelled_waiters_leak_no_slot(
    limit: int, cancelled: list[bool], background: list[bool]
) -> None:
    async def run() -> None:
        flow, log = InFlightLimiter(limit), list[str]()
        tasks = [
            asyncio.create_task(_hold(flow, log, str(number), background=background[number]))
            for number in range(len(cancelled))
        ]
        await asyncio.sleep(0)
        for task, stop in zip(tasks, cancelled, strict=True):
            if stop:
                task.cancel()
                await asyncio.sleep(0)
        await asyncio.gather(*tasks, return_exceptions=True)
        async with AsyncExitStack() as all_slots:
            for _ in range(limit):
                await all_slots.enter_async_context(flow.slot())
        assert len(log) >= cancelled.count(False)

    asyncio.run(run())


def test_backoff_doubles_with_jitter_and_resets_after_two_minutes() -> None:
    watch = SleepClock()
    backoff = Backoff(timing=watch.timing)
    delays = []
    for _ in range(8):
        delays.append(backoff.next_delay())
        watch.now += delays[-1]
    assert delays == pytest.approx([1.2, 2.4, 4.8, 9.6, 19.2, 38.4, 45.0, 45.0])
    watch.now += 121
    assert backoff.next_delay() == pytest.approx(1.2)
