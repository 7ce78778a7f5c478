"""Supervision of long-running tasks: one that ends unexpectedly is logged, counted and restarted.

Otherwise the work of a dead task would stay undone until the process restarts, with all health
checks passing. Informers need it, too, so it belongs to this layer; it imports nothing but the
standard library.

Failures are counted in a plain dictionary of the process; :class:`TaskMetrics` exports it, and
processes that serve no metrics do not load the Prometheus library.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

from .timing import Backoff, Timing

if TYPE_CHECKING:
    from prometheus_client.core import Metric

log = logging.getLogger(__name__)

TASK_RESTARTS: Counter[str] = Counter()
"""Unexpected ends of tasks of this process, by the name of the task."""

INITIAL_BACKOFF, MAX_BACKOFF = 0.1, 30.0
"""Seconds before a restart, without jitter: after the first failure, and at most."""

BACKOFF_RESET_AFTER = 120.0
"""Seconds without a failure after which the backoff is reset."""


_FAILURES = (Exception, asyncio.CancelledError)
"""Any other exception ends the process."""


class EndedUnexpectedlyError(Exception):
    """A task returned although it was not cancelled."""


class UnexpectedCancelledError(Exception):
    """A CancelledError was raised without a cancellation of the task."""

    def __init__(self) -> None:
        super().__init__("a CancelledError was raised inside")


async def supervise(
    name: str,
    function: Callable[[], Awaitable[object]],
    *,
    timing: Timing | None = None,
    may_end: Callable[[], bool] = lambda: False,
    fatal: tuple[type[Exception], ...] = (),
) -> None:
    """Run *function*, restarting it with backoff, until this task is cancelled.

    Usage: ``tasks.create_task(supervise("event recorder", recorder.run))``.

    An exception, a return and a CancelledError without a cancellation of this task are failures:
    logged with a traceback, and counted under *name*, which should be one of few. KeyboardInterrupt
    and SystemExit propagate. A cancellation is forwarded to *function*, which is awaited and, if it
    ends by an exception or a return, not restarted.

    *timing* provides clock and sleep; *may_end* returns whether a return is expected (a work queue
    that is shut down); exceptions of the types *fatal* are raised to the caller.
    """
    backoff = Backoff(
        timing=timing or Timing(),
        initial=INITIAL_BACKOFF,
        cap=MAX_BACKOFF,
        jitter=0.3,
        reset_after=BACKOFF_RESET_AFTER,
    )
    while True:
        failure = await _attempt(name, function)
        if isinstance(failure, fatal) or not isinstance(failure, _FAILURES):
            raise failure
        if isinstance(failure, EndedUnexpectedlyError) and may_end():
            return
        delay = backoff.next_delay()
        TASK_RESTARTS[name] += 1
        log.error(
            "task failed, will restart",
            extra={"task": name, "seconds": round(delay, 3)},
            exc_info=failure,
        )
        del failure  # releases the frames of its traceback
        await backoff.timing.sleep(delay)


async def _attempt(name: str, function: Callable[[], Awaitable[object]]) -> BaseException:
    """Run *function* and return its failure; raise only when cancelled.

    It runs in a separate task: otherwise the two kinds of CancelledError are indistinguishable,
    since before Python 3.13 a failing TaskGroup may leave its task's cancellation count raised.
    """

    async def run() -> None:
        await function()

    task = asyncio.create_task(run())
    try:
        await asyncio.wait((task,))
    except asyncio.CancelledError:
        await _stop(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            log.error("task failed while stopping", extra={"task": name}, exc_info=error)
        raise
    if task.cancelled():
        return _cancelled_error(task)
    return task.exception() or EndedUnexpectedlyError("it returned")


async def _stop(task: asyncio.Task[None]) -> None:
    """Cancel *task*, again on every further cancellation, and wait until it is done."""
    task.cancel()
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            task.cancel()


async def cancel_and_wait(*tasks: asyncio.Future[Any]) -> None:
    """Cancel *tasks*, and wait until all have ended; how they end is ignored."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _cancelled_error(task: asyncio.Task[None]) -> BaseException:
    """Return the CancelledError that ended *task*, with its traceback."""
    try:
        task.result()
    except asyncio.CancelledError as error:
        return error
    raise AssertionError("the task was not cancelled")


class TaskMetrics:
    """Collector that exports TASK_RESTARTS; register it with each registry that is served."""

    def collect(self) -> "Iterator[Metric]":
        """Yield one series per task that has failed."""
        from prometheus_client.core import CounterMetricFamily

        family = CounterMetricFamily(
            "batholith_task_restarts",
            "Long-running tasks that ended unexpectedly and were restarted.",
            labels=["task"],
        )
        for name, number in sorted(TASK_RESTARTS.items()):
            family.add_metric([name], number)
        yield family
