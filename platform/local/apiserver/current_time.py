"""The time of the server whose request or controller runs, which a test may advance.

Several servers with different clocks can run in one process, so the clock is a context variable.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime

from ...machinery.clock import Clock, SystemClock
from ...model import times

_SYSTEM = SystemClock()
_clock: ContextVar[Clock] = ContextVar("clock of the API server")
_fixed: ContextVar[datetime | None] = ContextVar("fixed time", default=None)


def use_clock(clock: Clock) -> None:
    """Let the current task, and those it starts, read the time from *clock*."""
    _clock.set(clock)


def current_time() -> datetime:
    """Return the current time in UTC."""
    return _fixed.get() or _clock.get(_SYSTEM).now()


@contextmanager
def fixed_time() -> Iterator[None]:
    """Keep the time unchanged in the block, in which one write may be planned several times."""
    token = _fixed.set(current_time())
    try:
        yield
    finally:
        _fixed.reset(token)


def now() -> str:
    """Return the current time in the format of objects."""
    return _format(current_time().replace(microsecond=0))


# Objects of one second share the text.
_format = functools.lru_cache(maxsize=16)(times.format)
