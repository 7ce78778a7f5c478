"""Long-running tasks that must not end: one that fails is logged, counted and started again.

A task that dies unseen stops its part of the work until the process is restarted, with every
health check fulfilled. It lies in this layer because the caches need it too; it knows nothing of
Kubernetes and loads nothing but the standard library.

Failures are counted in a plain dictionary of the process; :class:`TaskMetrics` shows it to a
registry, and processes that serve no metrics do without Prometheus' library.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING

from .timing import Backoff, Timing

if TYPE_CHECKING:
    from prometheus_client.core import Metric

log = logging.getLogger(__name__)

TASK_RESTARTS: Counter[str] = Counter()
"""Unexpected ends of tasks of this process, by the name of the task."""

INITIAL_BACKOFF, MAX_BACKOFF = 0.1, 30.0
"""Seconds before a restart, without jitter: after the first failure, and after many in a row."""

BACKOFF_RESET_AFTER = 120.0
"""Seconds without a failure after which the pauses begin at the first one again."""


_FAILURES = (Exception, asyncio.CancelledError)
"""What else a task raises ends the process."""


class EndedUnexpectedlyError(Exception):
    """A task returned that should go on until it is cancelled."""


class UnexpectedCancelledError(Exception):
    """A CancelledError was raised though nothing had been cancelled."""

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
    """Run *function*, again and again with growing pauses, until this task is cancelled.

    Usage: ``tasks.create_task(supervise("event recorder", recorder.run))``.

    An exception, a return and a CancelledError that was raised inside without a cancellation of
    this task are failures: logged with a traceback, and counted under *name*, which should be one
    of few. KeyboardInterrupt and SystemExit pass. Every cancellation is handed on to *function*,
    and its end awaited; if it answers by an exception or a return it is not started again.

    *timing* brings clock and pauses; *may_end* says when a return is the proper end (a queue that
    is shut down); exceptions of the types *fatal* are for the caller, and end it.
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
        pause = backoff.next_delay()
        TASK_RESTARTS[name] += 1
        log.error(
            "task failed, will restart",
            extra={"task": name, "seconds": round(pause, 3)},
            exc_info=failure,
        )
        del failure  # and with it the frames of its traceback
        await backoff.timing.sleep(pause)


async def _attempt(name: str, function: Callable[[], Awaitable[object]]) -> BaseException:
    """Run *function* to its end and return how it failed; raise only when cancelled.

    It runs in a task of its own. In one task the two kinds of CancelledError could not be told
    apart: before Python 3.13 a TaskGroup that fails may leave its task's count of cancellations
    raised.
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
    """Cancel *task*, once more with every further cancellation, and wait for its end."""
    task.cancel()
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            task.cancel()


def _cancelled_error(task: asyncio.Task[None]) -> BaseException:
    """The CancelledError that ended *task*, with its traceback."""
    try:
        task.result()
    except asyncio.CancelledError as error:
        return error
    raise AssertionError("the task was not cancelled")


class TaskMetrics:
    """A collector that shows RESTARTS; register one with each registry that is served."""

    def collect(self) -> "Iterator[Metric]":
        """One series for each task that has failed."""
        from prometheus_client.core import CounterMetricFamily

        family = CounterMetricFamily(
            "batholith_task_restarts",
            "Long-running tasks that ended unexpectedly and were started again.",
            labels=["task"],
        )
        for name, number in sorted(TASK_RESTARTS.items()):
            family.add_metric([name], number)
        yield family
