"""Objects of an event loop, used by a test that blocks: their methods run in the loop's thread."""

from collections.abc import Callable, Coroutine, Generator
from contextlib import AbstractAsyncContextManager, contextmanager
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from .loop_thread import LoopThread

P = ParamSpec("P")
T = TypeVar("T")
TargetT = TypeVar("TargetT", bound=AbstractAsyncContextManager[Any])


class Blocking(Generic[TargetT]):
    """An async context manager that is entered in its own thread."""

    def __init__(self, target: TargetT) -> None:
        self._target = target
        self._thread = LoopThread()

    def __enter__(self) -> Self:
        try:
            self._thread.run(self._target.__aenter__())
        except BaseException:
            self._thread.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._thread.run(self._target.__aexit__(kind, error, trace))
        finally:
            self._thread.close()

    @contextmanager
    def entered(self, manager: AbstractAsyncContextManager[T]) -> Generator[T]:
        """Enter an async context manager in the thread of the cluster for the block."""
        value = self.run(_enter(manager))
        try:
            yield value
        except BaseException as error:
            if not self.run(_exit(manager, error)):
                raise
        else:
            self.run(_exit(manager, None))

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call *function* in the thread of the cluster, such as ``held.release``."""
        return self._thread.call(function, *args, **kwargs)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Wait for *coroutine* in the thread of the cluster, such as ``held.wait_held()``."""
        return self._thread.run(coroutine)


async def _enter(manager: AbstractAsyncContextManager[T]) -> T:
    return await manager.__aenter__()


async def _exit(manager: AbstractAsyncContextManager[Any], error: BaseException | None) -> object:
    if error is None:
        return await manager.__aexit__(None, None, None)
    return await manager.__aexit__(type(error), error, error.__traceback__)


def waiting(
    function: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Blocking[Any], P], T]:
    """Return a method that waits for a coroutine method of the target."""

    def method(self: Blocking[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.run(function(self._target, *args, **kwargs))

    method.__doc__, method.__name__ = function.__doc__, function.__name__
    return method


def calling(
    function: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Blocking[Any], P], T]:
    """Return a method that calls one of the target."""

    def method(self: Blocking[Any], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.call(function, self._target, *args, **kwargs)

    method.__doc__, method.__name__ = function.__doc__, function.__name__
    return method
