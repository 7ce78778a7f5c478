"""Worker loop: retries, dropped keys, pending items, shards, shutdown."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import examples
from support.polling import wait_for

from batholith.kube.errors import ConnectionLostError, ForbiddenError, ServerError
from batholith.kube.supervision import TASK_RESTARTS
from batholith.machinery.batches import run_concurrently
from batholith.machinery.controller import (
    Reconcile,
    RequeueError,
    ShardedQueue,
    TerminalError,
    WorkerSettings,
    run_workers,
)
from batholith.machinery.rate_limiters import ExponentialFailureRateLimiter
from batholith.machinery.result import Result
from batholith.machinery.testing import FakeClock, run_ready_tasks


def make_queue(clock: FakeClock | None = None, *, shards: int = 1) -> ShardedQueue:
    return ShardedQueue(
        name="test",
        shards=shards,
        limiter=ExponentialFailureRateLimiter(1, 60),
        clock=clock or FakeClock(),
    )


@asynccontextmanager
async def working(
    queue: ShardedQueue, reconcile: Reconcile, settings: WorkerSettings | None = None
) -> AsyncIterator[None]:
    """Workers for the length of the block, which must end without an error."""
    workers = asyncio.create_task(run_workers(queue, reconcile, settings=settings))
    await run_ready_tasks()
    try:
        yield
    finally:
        queue.shut_down()
        await workers
        for shard in queue.shards:
            shard.validate()
            assert shard.idle  # INV-WK-1: every get had its done


def failing(times: int, log: list[float], clock: FakeClock) -> Callable[[str], Awaitable[None]]:
    """A reconcile that fails the first *times* calls and records the times of its calls."""

    async def reconcile(key: str) -> None:
        log.append(clock.monotonic())
        if len(log) <= times:
            raise RuntimeError("refused")

    return reconcile


async def test_inv_wk_2_failures_are_spaced_by_the_limiter() -> None:
    clock, calls = FakeClock(), list[float]()
    queue = make_queue(clock)
    async with working(queue, failing(4, calls, clock)):
        queue.add("a")
        await clock.advance(100)
    assert calls == [0, 1, 3, 7, 15]


async def test_inv_wk_3_success_resets_the_backoff() -> None:
    clock, calls = FakeClock(), list[float]()
    queue = make_queue(clock)

    async def reconcile(key: str) -> None:
        calls.append(clock.monotonic())
        if len(calls) in (1, 2, 4):
            raise RuntimeError("refused")

    async with working(queue, reconcile):
        queue.add("a")
        await clock.advance(100)
        assert queue.num_requeues("a") == 0
        queue.add("a")
        await clock.advance(100)
    assert calls == [0, 1, 3, 100, 101]


@pytest.mark.parametrize("limit", [0, 1, 5])
async def test_inv_wk_4_max_requeues_means_one_more_attempt(limit: int) -> None:
    clock, calls = FakeClock(), list[float]()
    queue = make_queue(clock)
    lost: list[tuple[str, str]] = []
    rules = WorkerSettings(
        max_requeues=limit, on_dropped=lambda key, error: lost.append((key, str(error)))
    )
    async with working(queue, failing(1000, calls, clock), rules):
        queue.add("a")
        await clock.advance(10_000)
    assert len(calls) == limit + 1
    assert lost == [("a", "refused")]
    assert queue.num_requeues("a") == 0


async def test_backoff_is_bounded_after_an_outage(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, calls = FakeClock(), list[float]()
    queue = ShardedQueue(name="job", limiter=ExponentialFailureRateLimiter(1, 1000), clock=clock)
    outage = [ConnectionLostError("refused"), ServerError("full", status=503)]

    async def reconcile(key: str) -> None:
        calls.append(clock.monotonic())
        if clock.monotonic() < 100:
            raise outage[len(calls) % 2]

    async with working(queue, reconcile):
        queue.add("default/train")
        await clock.advance(200)
    assert calls == [0, 1, 3, 7, 15, 31, 61, 91, 121]
    assert {getattr(line, "job", "") for line in caplog.records} == {"default/train"}


async def test_inv_wk_5_failing_key_does_not_delay_others() -> None:
    clock = FakeClock()
    queue = make_queue(clock)
    calls: Counter[str] = Counter()

    async def reconcile(key: str) -> None:
        calls[key] += 1
        if key == "bad":
            raise RuntimeError("for ever")

    async with working(queue, reconcile):
        queue.add("bad")
        for _ in range(20):
            queue.add("good")
            await run_ready_tasks()
    assert calls == {"bad": 1, "good": 20}


async def test_workers_of_one_shard_take_keys_in_order_and_never_the_same() -> None:
    queue, log, under_way = make_queue(), list[str](), set[str]()
    go = asyncio.Event()

    async def reconcile(key: str) -> None:
        assert key not in under_way
        under_way.add(key)
        log.append(key)
        await go.wait()
        under_way.discard(key)

    async with working(queue, reconcile, WorkerSettings(workers_per_shard=2)):
        for key in ("a", "b", "c", "a"):
            queue.add(key)
            await run_ready_tasks()
        assert log == ["a", "b"]
        go.set()
        await run_ready_tasks()
    assert log == ["a", "b", "c", "a"]


async def test_terminal_error_drops_the_key_until_it_is_added_again() -> None:
    clock, calls = FakeClock(), list[str]()
    queue = make_queue(clock)

    async def reconcile(key: str) -> None:
        calls.append(key)
        raise TerminalError("no such phase")

    async with working(queue, reconcile):
        queue.add("a")
        await clock.advance(1000)
        assert calls == ["a"]
        queue.add("a")
        await clock.advance(1000)
    assert calls == ["a", "a"]


async def test_requeue_error_backs_off_without_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, calls = FakeClock(), list[float]()
    queue = make_queue(clock)

    async def reconcile(key: str) -> None:
        calls.append(clock.monotonic())
        if len(calls) < 3:
            raise RequeueError("the cache lags behind")

    async with working(queue, reconcile):
        queue.add("a")
        await clock.advance(100)
    assert calls == [0, 1, 3]
    assert caplog.records == []


async def test_api_error_is_logged_without_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock, calls = FakeClock(), list[str]()
    queue = make_queue(clock)

    async def reconcile(key: str) -> None:
        calls.append(key)
        if len(calls) < 2:
            raise ForbiddenError("no PriorityClass with name high was found", status=403)

    async with working(queue, reconcile):
        queue.add("a")
        await clock.advance(100)
    [record] = caplog.records
    assert (record.getMessage(), record.exc_info) == ("reconcile failed, requeuing", None)
    assert "no PriorityClass" in vars(record)["error"]


async def test_requeue_after_is_honored() -> None:
    clock, calls = FakeClock(), list[float]()
    queue = make_queue(clock)

    async def reconcile(key: str) -> float | None:
        calls.append(clock.monotonic())
        return [7.5, 0, None][len(calls) - 1]

    async with working(queue, reconcile):
        queue.add("a")
        await clock.advance(100)
    assert calls == [0, 7.5, 7.5]


async def test_one_key_is_never_reconciled_concurrently() -> None:
    """INV-PIPE-2 and INV-PIPE-3: no overlap; a change during processing is reconciled later."""
    queue = make_queue(shards=3)
    running: Counter[str] = Counter()
    seen: dict[str, int] = {}
    world: Counter[str] = Counter()

    async def reconcile(key: str) -> None:
        running[key] += 1
        assert running[key] == 1
        seen[key] = world[key]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        running[key] -= 1

    async with working(queue, reconcile):
        for step in range(200):
            key = f"ns/{step % 7}"
            world[key] += 1
            queue.add(key)
            if step % 3 == 0:
                await asyncio.sleep(0)
        await queue.drain()
    assert seen == dict(world)


@given(posts=st.lists(st.sampled_from(["ns/a", "ns/b", "ns/c", "ns/d"]), max_size=40))
@settings(max_examples=examples(25), deadline=None)
def test_inv_sh_1_items_of_a_key_are_processed_in_order_by_one_worker(posts: list[str]) -> None:
    """INV-SH-1 and INV-VC-2, with every third attempt failing before the item is popped."""

    async def run() -> None:
        clock = FakeClock()
        queue = make_queue(clock, shards=3)
        processed: dict[str, list[object]] = defaultdict(list)
        workers: dict[str, set[asyncio.Task[object] | None]] = defaultdict(set)
        attempts = 0

        async def reconcile(key: str) -> None:
            nonlocal attempts
            workers[key].add(asyncio.current_task())
            item = queue.peek_item(key)
            await asyncio.sleep(0)
            attempts += 1
            if attempts % 3 == 0:
                raise RuntimeError("refused")
            if item is not None:
                processed[key].append(item)
                assert queue.pop_item(key) is item

        async with working(queue, reconcile):
            for number, key in enumerate(posts):
                queue.add_item(key, number)
                if number % 5 == 0:
                    await asyncio.sleep(0)
            await clock.advance(5000)
        for key in set(posts):
            assert processed[key] == [n for n, each in enumerate(posts) if each == key]
            assert len(workers[key]) == 1

    asyncio.run(run())


async def test_pending_item_survives_a_failed_reconcile() -> None:
    clock = FakeClock()
    queue = make_queue(clock)
    tries: list[object] = []

    async def reconcile(key: str) -> None:
        tries.append(queue.peek_item(key))
        if len(tries) < 3:
            raise ConnectionError("lost")
        queue.pop_item(key)

    async with working(queue, reconcile):
        queue.add_item("a", "abort")
        await clock.advance(100)
        assert queue.peek_item("a") is None
    assert tries == ["abort", "abort", "abort"]


async def test_unprocessed_item_is_retried_with_backoff() -> None:
    clock, calls = FakeClock(), list[float]()
    queue = make_queue(clock)

    async def reconcile(key: str) -> None:
        calls.append(clock.monotonic())

    async with working(queue, reconcile):
        queue.add_item("a", "later")
        await clock.advance(8)
    assert calls == [0, 1, 3, 7]


async def test_equal_items_are_processed_separately() -> None:
    clock, calls = FakeClock(), list[float]()
    queue = make_queue(clock)

    async def reconcile(key: str) -> None:
        calls.append(clock.monotonic())
        queue.pop_item(key)

    async with working(queue, reconcile):
        queue.add_item("a", "restart")
        queue.add_item("a", "restart")
        await run_ready_tasks()
    assert calls == [0, 0]


async def test_next_item_is_processed_after_one_is_dropped() -> None:
    queue = make_queue()
    processed = []

    async def reconcile(key: str) -> None:
        if queue.peek_item(key) == "bad":
            raise TerminalError("what is that?")
        processed.append(queue.pop_item(key))

    rules = WorkerSettings(on_dropped=lambda key, error: queue.pop_item(key))
    async with working(queue, reconcile, rules):
        queue.add_item("a", "bad")
        queue.add_item("a", "good")
        await run_ready_tasks()
    assert processed == ["good"]


def test_popping_a_missing_item_raises_lookup_error() -> None:
    queue = make_queue()
    with pytest.raises(LookupError, match="no pending item for 'a'"):
        queue.pop_item("a")


async def test_inv_sh_2_key_in_wrong_shard_is_requeued_to_its_own() -> None:
    """INV-SH-2: processed once, by the right worker."""
    queue = make_queue(shards=3)
    workers: list[asyncio.Task[object] | None] = []

    async def reconcile(key: str) -> None:
        workers.append(asyncio.current_task())

    home = queue.shard("ns/a")
    foreign = next(shard for shard in queue.shards if shard is not home)
    async with working(queue, reconcile):
        queue.add("ns/a")
        await run_ready_tasks()
        foreign.add("ns/a")
        await run_ready_tasks()
    assert len(workers) == 2
    assert workers[0] is workers[1]


async def test_stop_finishes_queued_keys_and_drops_delayed_ones() -> None:
    """INV-LC-1: nothing runs after the end."""
    clock = FakeClock()
    queue = make_queue(clock)
    finished: list[str] = []

    async def reconcile(key: str) -> None:
        await asyncio.sleep(0)
        finished.append(key)

    workers = asyncio.create_task(run_workers(queue, reconcile))
    queue.add_after("later", 5)
    for key in "abc":
        queue.add(key)
    await asyncio.sleep(0)
    workers.cancel()
    with pytest.raises(asyncio.CancelledError):
        await workers
    assert finished == ["a", "b", "c"]
    queue.add("d")
    await clock.advance(100)
    assert finished == ["a", "b", "c"]
    assert clock.timer_count == 0


async def test_inv_lc_3_hanging_sync_ends_with_the_shutdown_timeout() -> None:
    clock = FakeClock()
    queue = make_queue(clock)
    ended: list[str] = []

    async def reconcile(key: str) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(key)

    settings = WorkerSettings(shutdown_timeout=30)
    workers = asyncio.create_task(run_workers(queue, reconcile, settings=settings))
    queue.add("a")
    await run_ready_tasks()
    workers.cancel()
    await clock.advance(29)
    assert not workers.done()
    await clock.advance(2)
    assert workers.cancelled()
    assert ended == ["a"]


async def test_inv_lc_3_second_stop_does_not_wait() -> None:
    clock = FakeClock()
    queue = make_queue(clock)
    workers = asyncio.create_task(run_workers(queue, lambda key: asyncio.Event().wait()))
    queue.add("a")
    await run_ready_tasks()
    workers.cancel()
    await run_ready_tasks()
    workers.cancel()
    with pytest.raises(asyncio.CancelledError):
        await workers
    assert clock.timer_count == 0


async def test_workers_that_never_await_yield_to_other_tasks() -> None:
    queue = make_queue()
    iterations = 0

    async def reconcile(key: str) -> None:
        nonlocal iterations
        iterations += 1
        if iterations < 1000:
            queue.add(key)

    seen = []
    async with working(queue, reconcile):
        queue.add("a")
        while iterations < 1000:
            await asyncio.sleep(0)
            seen.append(iterations)
    assert len(seen) > 10


async def test_nothing_is_retried_once_the_queue_is_shut_down() -> None:
    clock = FakeClock()
    queue = make_queue(clock)
    queue.shut_down()
    queue.add("a")
    queue.add_after("b", 1)
    queue.add_rate_limited("c")
    queue.add_item("d", "item")
    await clock.advance(100)
    assert (queue.depth(), queue.delayed_count(), queue.peek_item("d")) == (0, 0, None)
    await queue.drain()


class MisbehavingReconcile:
    """A reconcile that performs one action once, and records keys and times of its calls."""

    def __init__(self, clock: FakeClock, act: Callable[[], Awaitable[object]]) -> None:
        self._clock = clock
        self._actions = [act]
        self.calls: list[tuple[str, float]] = []
        self.in_progress: set[str] = set()

    async def __call__(self, key: str) -> None:
        assert key not in self.in_progress, "INV-PIPE-2"
        self.in_progress.add(key)
        self.calls.append((key, self._clock.monotonic()))
        try:
            if self._actions:
                await self._actions.pop()()
        finally:
            self.in_progress.remove(key)


async def cancel_inside() -> None:
    raise asyncio.CancelledError


async def await_cancelled_task() -> None:
    task = asyncio.create_task(asyncio.Event().wait())
    task.cancel()
    await task


async def fail_in_a_group() -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(asyncio.wait_for(asyncio.Event().wait(), 0))


async def fail_in_a_batch() -> None:
    outcome = await run_concurrently("ab", lambda item: cancel_inside())
    assert outcome.first_error is not None
    raise outcome.first_error


@pytest.mark.parametrize(
    "act", [cancel_inside, await_cancelled_task, fail_in_a_group, fail_in_a_batch]
)
async def test_unexpected_cancelled_error_fails_the_reconcile_and_stalls_no_shard(
    act: Callable[[], Awaitable[object]],
) -> None:
    clock = FakeClock()
    queue, reconcile = make_queue(clock), MisbehavingReconcile(clock, act)
    async with working(queue, reconcile):
        queue.add("a")
        await wait_for(lambda: queue.delayed_count() and queue.shards[0].idle)
        queue.add("b")
        await clock.advance(10)
    assert [key for key, _ in reconcile.calls] == ["a", "b", "a"]
    assert reconcile.calls[2][1] == 1.0  # as after any failure


@pytest.mark.parametrize("error", [RuntimeError("broken handler"), asyncio.CancelledError()])
async def test_failing_drop_handler_loses_no_key_and_stalls_no_shard(
    error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    clock, calls = FakeClock(), list[str]()
    queue = make_queue(clock)
    errors = [error]

    async def reconcile(key: str) -> None:
        calls.append(key)
        if key == "a" and len(calls) <= 2:
            raise TerminalError("of no use")

    def gave_up(key: str, why: Exception) -> None:
        if errors:
            raise errors.pop()

    async with working(queue, reconcile, WorkerSettings(on_dropped=gave_up)):
        queue.add("a")
        await run_ready_tasks()
        queue.add("b")
        await clock.advance(10)
    assert calls == ["a", "b", "a"]
    assert "cannot drop key, requeuing" in caplog.messages


async def test_failed_worker_is_restarted_and_its_key_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, calls = FakeClock(), list[str]()
    queue, faults = make_queue(clock), [RuntimeError("a mistake of the loop's own")]
    settle_key = queue.mark_succeeded

    def failing_settle(key: str, *, requeue_after: float | None) -> None:
        if faults:
            raise faults.pop()
        settle_key(key, requeue_after=requeue_after)

    monkeypatch.setattr(queue, "mark_succeeded", failing_settle)

    async def reconcile(key: str) -> None:
        calls.append(key)

    before = TASK_RESTARTS["test worker"]
    async with working(queue, reconcile):
        queue.add("a")
        await run_ready_tasks()
        queue.add("b")
        await clock.advance(10)
    assert (calls, TASK_RESTARTS["test worker"] - before) == (["a", "b", "a"], 1)


async def hang() -> None:
    await asyncio.Event().wait()


async def test_hanging_reconcile_is_cancelled_and_its_key_retried(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = FakeClock()
    queue, reconcile = make_queue(clock), MisbehavingReconcile(clock, hang)
    async with working(queue, reconcile, WorkerSettings(timeout=60)):
        queue.add("a")
        queue.add("b")
        await clock.advance(59)
        assert reconcile.calls == [("a", 0)]
        await clock.advance(10)
        assert reconcile.calls == [("a", 0), ("b", 60), ("a", 61)]
        assert queue.stats.timeouts == 1
        await clock.advance(1000)
    assert len(reconcile.calls) == 3
    logged = [(line.levelname, line.message) for line in caplog.records]
    assert logged == [
        ("ERROR", "reconcile timed out, cancelling"),
        ("WARNING", "reconcile failed, requeuing"),
    ]
    assert {getattr(line, "test", "") for line in caplog.records} == {"a"}


@pytest.mark.parametrize("fails", [False, True])
async def test_reconcile_that_ignores_cancellation_delays_no_other_key(
    *, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """It never runs concurrently with itself, nor does its worker after being replaced."""
    clock, enough = FakeClock(), asyncio.Event()

    async def ignore() -> None:
        while not enough.is_set():
            with suppress(asyncio.CancelledError):
                await enough.wait()
        if fails:
            current = asyncio.current_task()
            assert current is not None
            current.cancel()
            await asyncio.sleep(0)

    queue, reconcile = make_queue(clock), MisbehavingReconcile(clock, ignore)
    async with working(queue, reconcile, WorkerSettings(timeout=60)):
        queue.add("a")
        await clock.advance(80)
        queue.add("a")
        queue.add("b")
        await clock.advance(100)
        assert [key for key, _ in reconcile.calls] == ["a", "b"]
        enough.set()
        await clock.advance(10)
        assert sum(not getter.done() for getter in queue.shards[0]._waiters) == 1
        queue.add("c")
        await run_ready_tasks()
    again = ["a"] if fails else []  # once for what has happened, and once for the failure
    assert [key for key, _ in reconcile.calls] == ["a", "b", "a", *again, "c"]
    assert caplog.messages.count("reconcile still running after cancellation") == 4
    assert queue.stats.timeouts == 1


async def test_cancellation_swallowed_by_a_reconcile_still_ends_the_worker() -> None:
    clock, cancels = FakeClock(), list[str]()
    queue = make_queue(clock)

    async def reconcile(key: str) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancels.append(key)

    workers = asyncio.create_task(
        run_workers(queue, reconcile, settings=WorkerSettings(shutdown_timeout=3, timeout=2))
    )
    queue.add("a")
    await clock.advance(1)
    queue.add("b")
    workers.cancel()
    await clock.advance(3)
    assert workers.cancelled()
    assert cancels == ["a", "b"]


@pytest.mark.parametrize(
    ("result", "again_after", "requeues"),
    [
        (Result.DONE, None, 0),
        (None, None, 0),
        (Result.REQUEUE, 0.0, 0),
        (Result.after(5), 5.0, 0),
        (5.0, 5.0, 0),
        (Result.BACKOFF, 2.0, 2),
    ],
)
async def test_result_determines_when_the_key_is_reconciled_again(
    result: Result | float | None, again_after: float | None, requeues: int
) -> None:
    """The key has failed once before."""
    clock, times = FakeClock(), list[float]()
    queue = make_queue(clock)
    queue.add_rate_limited("a")

    async def reconcile(key: str) -> Result | float | None:
        times.append(clock.monotonic())
        return result if len(times) == 1 else None

    async with working(queue, reconcile):
        await clock.advance(1)
        assert queue.num_requeues("a") == (requeues if again_after != 0 else 0)
        await clock.advance(60)
    assert times == ([1.0] if again_after is None else [1.0, 1.0 + again_after])


def test_result_is_either_delayed_or_backed_off() -> None:
    with pytest.raises(ValueError, match="cannot requeue after a time and with backoff"):
        Result(requeue_after=1, backoff=True)


async def test_next_item_is_processed_at_once_though_the_result_is_backoff() -> None:
    clock = FakeClock()
    queue = make_queue(clock)
    for item in ("first", "second"):
        queue.add_item("a", item)
    popped: list[object] = []

    async def reconcile(key: str) -> Result:
        popped.append(queue.pop_item(key))
        return Result.BACKOFF

    async with working(queue, reconcile):
        await clock.advance(0)
        assert popped == ["first", "second"]
        queue.add_item("a", "third")
        await clock.advance(0)
        assert popped == ["first", "second", "third"]
        queue.forget("a")


@pytest.mark.parametrize(
    ("errors", "message", "traceback"),
    [
        ([ForbiddenError("no", status=403, reason="Forbidden")] * 2, "403 Forbidden: no", False),
        ([ForbiddenError("no", status=403), RuntimeError("bug")], None, True),
    ],
)
async def test_errors_of_a_group_are_logged(
    errors: list[Exception], message: str | None, traceback: bool, caplog: pytest.LogCaptureFixture
) -> None:
    queue = make_queue()
    queue.add("a")

    async def reconcile(key: str) -> None:
        raise ExceptionGroup("several", [errors[0], ExceptionGroup("inner", errors[1:])])

    async with working(queue, reconcile):
        pass
    (record,) = [each for each in caplog.records if each.levelname == "WARNING"]
    assert record.getMessage() == "reconcile failed, requeuing"
    assert getattr(record, "error", None) == message
    assert (record.exc_info is not None) == traceback


async def test_start_and_stop_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    queue = make_queue(shards=3)

    async def reconcile(key: str) -> None:
        """Do nothing."""

    async with working(queue, reconcile, WorkerSettings(workers_per_shard=2)):
        pass
    assert [(each.getMessage(), vars(each)["controller"]) for each in caplog.records] == [
        ("controller started", "test"),
        ("controller stopped", "test"),
    ]
    assert vars(caplog.records[0])["workers"] == 6


async def test_results_and_durations_are_counted() -> None:
    clock = FakeClock()
    queue = make_queue(clock)
    outcomes: dict[str, Result | Exception | None] = {
        "done": None,
        "again": Result.after(60),
        "backoff": Result.BACKOFF,
        "conflict": RequeueError("conflict"),
        "rejected": ForbiddenError("no", status=403),
        "bug": RuntimeError("bug"),
        "permanent": TerminalError("permanent"),
    }

    async def reconcile(key: str) -> Result | None:
        await clock.sleep(0.2)
        assert queue.ages() == [pytest.approx(0.2)]
        outcome = outcomes[key]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    for key in outcomes:
        queue.add(key)
    async with working(queue, reconcile):
        for _ in range(len(outcomes) - 1):
            await clock.advance(0.2)
        queue.shut_down()
        await clock.advance(0.2)
    stats = queue.stats
    assert stats.results == {"success": 1, "requeue_after": 1, "requeue": 2, "error": 3}
    assert (stats.terminal_errors, stats.unexpected_errors, stats.workers) == (1, 1, 1)
    assert stats.reconcile_duration.count == len(outcomes)
    assert stats.reconcile_duration.total == pytest.approx(0.2 * len(outcomes))
