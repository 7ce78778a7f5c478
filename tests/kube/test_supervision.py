"""Supervised tasks: restarted after every failure, ended only by a cancellation."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator

import pytest
from prometheus_client import CollectorRegistry
from support.polling import wait_for

from batholith.kube.supervision import TASK_RESTARTS, TaskMetrics, supervise
from batholith.kube.timing import Timing
from batholith.machinery.testing import FakeClock, run_ready_tasks


@pytest.fixture(autouse=True)
def _own_count() -> Iterator[None]:
    before = TASK_RESTARTS.copy()
    TASK_RESTARTS.clear()
    yield
    TASK_RESTARTS.clear()
    TASK_RESTARTS.update(before)


def timing(clock: FakeClock) -> Timing:
    return Timing(monotonic=clock.monotonic, sleep=clock.sleep, random=lambda: 0.0)


class ScriptedTask:
    """A task that performs one action per start, then waits forever."""

    def __init__(self, *acts: Callable[[], Awaitable[object]]) -> None:
        self._actions = list(acts)
        self.starts: list[float] = []

    def bind(self, clock: FakeClock) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            self.starts.append(clock.monotonic())
            if self._actions:
                await self._actions.pop(0)()
            else:
                await asyncio.Event().wait()

        return run


async def fail() -> None:
    raise RuntimeError("broken")


async def end() -> None:
    pass


async def cancel_from_inside() -> None:
    raise asyncio.CancelledError


async def await_cancelled_future() -> None:
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


async def fail_in_a_group() -> None:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(fail())


@pytest.mark.parametrize(
    "act", [fail, end, cancel_from_inside, await_cancelled_future, fail_in_a_group]
)
async def test_every_unexpected_end_is_logged_counted_and_restarted(
    act: Callable[[], Awaitable[object]], caplog: pytest.LogCaptureFixture
) -> None:
    clock, script = FakeClock(), ScriptedTask(act)
    task = asyncio.create_task(supervise("worker", script.bind(clock), timing=timing(clock)))
    await clock.advance(1)
    assert len(script.starts) == 2
    assert not task.done()
    (record,) = caplog.records
    assert (record.levelno, record.message) == (logging.ERROR, "task failed, will restart")
    assert record.exc_info is not None
    registry = CollectorRegistry()
    registry.register(TaskMetrics())
    assert registry.get_sample_value("batholith_task_restarts_total", {"task": "worker"}) == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert TASK_RESTARTS == {"worker": 1}


async def test_restart_backoff_grows_and_resets_after_a_healthy_time() -> None:
    clock = FakeClock()

    async def work_for_long() -> None:
        await clock.sleep(500)
        raise RuntimeError("broken after long")

    script = ScriptedTask(*[fail] * 12, work_for_long)
    task = asyncio.create_task(supervise("worker", script.bind(clock), timing=timing(clock)))
    await clock.advance(10_000)
    delays = [
        later - sooner for sooner, later in zip(script.starts, script.starts[1:], strict=False)
    ]
    assert delays[:4] == pytest.approx([0.1, 0.2, 0.4, 0.8])
    assert delays[9:12] == pytest.approx([30, 30, 30])
    assert delays[12] == pytest.approx(500.1)
    task.cancel()
    await run_ready_tasks()
    assert task.cancelled()


async def test_cancellation_ends_a_running_or_backing_off_task() -> None:
    clock = FakeClock()
    for script in (ScriptedTask(), ScriptedTask(fail)):
        task = asyncio.create_task(supervise("worker", script.bind(clock), timing=timing(clock)))
        await run_ready_tasks()
        task.cancel()
        await run_ready_tasks()
        assert task.cancelled()
        assert len(script.starts) == 1


@pytest.mark.parametrize("raises", [True, False])
async def test_task_that_fails_on_cancellation_is_not_restarted(
    *, raises: bool, caplog: pytest.LogCaptureFixture
) -> None:
    clock = FakeClock()

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if raises:
                raise RuntimeError("cannot tidy up") from None

    script = ScriptedTask(stubborn)
    task = asyncio.create_task(supervise("worker", script.bind(clock), timing=timing(clock)))
    await run_ready_tasks()
    task.cancel()
    await clock.advance(100)
    assert task.cancelled()
    assert len(script.starts) == 1
    assert [line.message for line in caplog.records] == ["task failed while stopping"] * raises
    assert not TASK_RESTARTS


async def test_timeout_inside_a_task_is_not_its_cancellation() -> None:
    clock = FakeClock()

    async def run_out_of_time() -> None:
        async with asyncio.timeout(0):
            await asyncio.Event().wait()

    script = ScriptedTask(run_out_of_time)
    task = asyncio.create_task(supervise("worker", script.bind(clock), timing=timing(clock)))
    await wait_for(lambda: TASK_RESTARTS["worker"] == 1)
    await clock.advance(1)
    assert len(script.starts) == 2
    task.cancel()
    await run_ready_tasks()
    assert task.cancelled()


async def test_expected_return_ends_the_supervision() -> None:
    clock, script = FakeClock(), ScriptedTask(fail, end, end)
    expected = False
    task = asyncio.create_task(
        supervise("worker", script.bind(clock), timing=timing(clock), may_end=lambda: expected)
    )
    await clock.advance(0.2)
    assert len(script.starts) == 2
    expected = True
    await clock.advance(10)
    assert task.done()
    assert task.exception() is None
    assert TASK_RESTARTS == {"worker": 2}


async def test_fatal_error_is_raised_to_the_caller() -> None:
    class LostError(Exception):
        pass

    async def lose() -> None:
        raise LostError

    with pytest.raises(LostError):
        await supervise("elector", lose, fatal=(LostError,))
    assert not TASK_RESTARTS


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_process_exit_exceptions_propagate(kind: type[BaseException]) -> None:
    starts = []

    async def leave() -> None:
        starts.append(kind)
        raise kind

    with pytest.raises(kind):
        asyncio.run(supervise("elector", leave))
    assert len(starts) == 1
    assert not TASK_RESTARTS


async def test_repeated_cancellation_is_forwarded() -> None:
    cancellations = []

    async def finish_slowly() -> None:
        for _ in range(2):
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancellations.append("cancel")
        raise asyncio.CancelledError

    task = asyncio.create_task(supervise("worker", finish_slowly))
    for count in (1, 2):
        await run_ready_tasks()
        assert not task.done()
        task.cancel()
        await run_ready_tasks()
        assert len(cancellations) == count
    assert task.cancelled()
