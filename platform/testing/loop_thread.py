"""An event loop in its own thread, for tests that block."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class LoopThread:
    """Runs calls in an event loop that is not blocked by the caller's thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        # A daemon: a test session that is killed by a signal does not wait for it.
        self._thread = threading.Thread(
            target=self._loop.run_forever, name="batholith-testing", daemon=True
        )
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Return the result of *coroutine*, which runs in the loop.

        Raises:
            RuntimeError: the caller is in the loop, for instance in a condition.
        """
        if self._is_current:
            coroutine.close()
            raise RuntimeError("cannot wait in the thread of the cluster, such as in a condition")
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return the result of *function*, which is called in the loop."""
        if self._is_current:
            return function(*args, **kwargs)
        done: Future[T] = Future()

        def work() -> None:
            try:
                done.set_result(function(*args, **kwargs))
            except BaseException as error:
                done.set_exception(error)

        self._loop.call_soon_threadsafe(work)
        return done.result()

    def close(self) -> None:
        """Stop the loop, and wait for its thread."""
        self.run(self._loop.shutdown_asyncgens())
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def _is_current(self) -> bool:
        return threading.current_thread() is self._thread
