"""Deadlines of exchanges: one timer for all, since one for each costs more than a request."""

import asyncio

from .http1 import Exchange


class Deadlines:
    """Ends the connections of exchanges whose server does not respond. For one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._due: dict[Exchange, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def now(self) -> float:
        """Return the time on the clock of the deadlines."""
        return self._loop.time()

    def set(self, exchange: Exchange, due: float) -> None:
        """Expire *exchange* at *due*, unless that is cleared before."""
        self._due[exchange] = due
        if self._timer is None or due < self._timer_at:
            self._arm(due)

    def clear(self, exchange: Exchange) -> None:
        """Remove the deadline of *exchange*, if it has one."""
        self._due.pop(exchange, None)

    def close(self) -> None:
        """Forget all deadlines."""
        self._due.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._timer_at = self._loop.call_at(due, self._fire), due

    def _fire(self) -> None:
        self._timer = None
        now = self._loop.time()
        for exchange in [each for each, due in self._due.items() if due <= now]:
            del self._due[exchange]
            exchange.expire()
        if self._due:
            # Timers may fire slightly early; the minimum avoids a busy loop.
            self._arm(max(min(self._due.values()), now + 0.001))
