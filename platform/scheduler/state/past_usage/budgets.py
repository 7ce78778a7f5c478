"""Budgets of queues, and what has been used of them in the current windows of time.

What a queue has used is brought up to date when what it uses changes, and when it is asked for: all
others cost nothing. Windows are those of the wall clock, durations those of the monotonic one. The
window before the current one is remembered, so that a wall clock that is wrong for a while
does not grant a budget twice.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from ....model.budgets import Budget, Window, budget_of
from ..gangs.diagnosis import BudgetUse
from ..gangs.gang import QueueInfo, add_amounts
from ..resources import Amounts, amounts

_HOUR = 3600.0

_JUMP = 10.0
"""Seconds by which both clocks may differ in one step."""


class WindowUse(NamedTuple):
    """What a queue has used in a window. Not changed, so it may be read in any thread."""

    window: Window
    used: Mapping[str, float]
    """Amounts as in ``state.resources``, times seconds."""

    rates: Mapping[str, int]
    """What is used now."""

    at: float
    """Monotonic time up to which *used* is up to date."""

    def used_at(self, now: float) -> dict[str, float]:
        """Return what is used at monotonic time *now*, if the same is used until then."""
        seconds = max(now - self.at, 0.0)
        return {
            name: self.used.get(name, 0.0) + self.rates.get(name, 0) * seconds
            for name in self.used.keys() | self.rates.keys()
        }


class Budgets:
    """The budgets of all queues."""

    def __init__(self, rates_of: Callable[[str], Amounts]) -> None:
        """Start without budgets; *rates_of* returns what a queue and those below it use now."""
        self._rates_of = rates_of
        self._budgets: dict[str, Budget] = {}
        self._limits: dict[str, Amounts] = {}
        """What a budget is in amounts, for an hour."""
        self._use: dict[str, WindowUse] = {}
        self._before: dict[str, WindowUse] = {}
        """Use of the windows before the current ones."""
        self._exhausted: dict[str, tuple[Window, BudgetUse]] = {}
        """What was known of a budget when it was found used up in a window."""
        self._now = self._time = 0.0
        self.published: tuple[BudgetUse, ...] = ()
        """What was used when :meth:`publish` was called last; may be read in any thread."""

    def __bool__(self) -> bool:
        """Return whether a queue has a budget."""
        return bool(self._budgets)

    def advance(self, now: float, time: float) -> None:
        """Set the monotonic time to *now* and the Unix time to *time*.

        What was used before a jump of the wall clock counts in the windows of the time before.
        """
        expected = self._time + now - self._now
        if abs(time - expected) > _JUMP:
            self._now, self._time = now, expected
            for name in self._budgets:
                self._update(name)
        self._now, self._time = now, time

    def update(self, queues: Iterable[QueueInfo]) -> list[str]:
        """Read the budgets of *queues*; return the names of those that have another one."""
        found = {
            queue.name: budget
            for queue in queues
            if queue.object and (budget := budget_of(queue.object.metadata.annotations))
        }
        changed = [
            name
            for name in found.keys() | self._budgets.keys()
            if found.get(name) != self._budgets.get(name)
        ]
        self._budgets = found
        for name in changed:
            self._exhausted.pop(name, None)
            if name in found:
                self._limits[name] = amounts(found[name].hours)
                self._update(name)
            else:
                for each in (self._limits, self._use, self._before):
                    each.pop(name, None)
        return changed

    def add_rate(self, names: Iterable[str], change: Amounts, sign: int = 1) -> None:
        """Let each of the queues *names* use *change* more from now on, or less with *sign* -1."""
        for name in names:
            if name in self._budgets:
                use = self._update(name)
                rates = dict(use.rates)
                add_amounts(rates, change, sign)
                self._use[name] = use._replace(rates=rates)

    def add_used(self, name: str, used: Mapping[str, float], window: Window | None = None) -> None:
        """Add what queue *name* has used in *window*, by default the current one; nothing if that
        is over, or it has no budget."""
        if name not in self._budgets:
            return
        use = self._update(name)
        if window is None or window == use.window:
            total = {
                each: use.used.get(each, 0.0) + used.get(each, 0.0)
                for each in use.used.keys() | used.keys()
            }
            self._use[name] = use._replace(used=total)
            self._exhausted.pop(name, None)
        elif name not in self._before:
            self._before[name] = WindowUse(window, used, {}, self._now)

    def stop(self) -> None:
        """Let nothing be used from now on."""
        for name in self._budgets:
            self._use[name] = self._update(name)._replace(rates={})

    def window_of(self, name: str) -> Window | None:
        """Return the current window of queue *name*, if it has a budget."""
        return self._update(name).window if name in self._budgets else None

    def exhausted(self, names: Iterable[str], *, hard: bool) -> BudgetUse | None:
        """Return the first budget of the queues *names* that is used up, of the hard or the soft
        ones.

        What has been used is that of the first call in the window that has returned it.
        """
        for name in names:
            budget = self._budgets.get(name)
            if (
                budget is not None
                and budget.is_hard is hard
                and (found := self._exhausted_of(name))
            ):
                return found
        return None

    def publish(self) -> None:
        """Publish what is used of all budgets, by queue and resource."""
        self.published = tuple(
            _use_of(name, each, limit, self._update(name))
            for name, limits in self._limits.items()
            for each, limit in limits.items()
        )

    def snapshot(self) -> dict[str, WindowUse]:
        """Return the use of the current windows by queue; in any thread."""
        return self._use.copy()

    # -- private -------------------------------------------------------------------------------

    def _exhausted_of(self, name: str) -> BudgetUse | None:
        use = self._update(name)
        known = self._exhausted.get(name)
        if known is not None and known[0] == use.window:
            return known[1]
        for resource, limit in self._limits[name].items():
            if use.used.get(resource, 0.0) >= limit * _HOUR:
                found = _use_of(name, resource, limit, use)
                self._exhausted[name] = (use.window, found)
                return found
        return None

    def _update(self, name: str) -> WindowUse:
        """Bring the use of queue *name* up to date, in the window that is current now."""
        window, use = self._budgets[name].window_at(self._time), self._use.get(name)
        if use is None:
            use = WindowUse(window, {}, self._rates_of(name), self._now)
        elif use.window == window:
            if use.at < self._now:
                use = use._replace(used=use.used_at(self._now), at=self._now)
        else:
            use = self._next(name, use, window)
        self._use[name] = use
        return use

    def _next(self, name: str, use: WindowUse, window: Window) -> WindowUse:
        """Return the use of *window*, which has replaced that of *use*: what was used since its
        start counts in it."""
        since = max(self._now - use.at, 0.0)
        recent = min(since, max(self._time - window.start, 0.0))
        begin = self._now - recent
        before = self._before.get(name)
        self._before[name] = WindowUse(use.window, use.used_at(begin), {}, begin)
        used = before.used if before is not None and before.window == window else {}
        following = WindowUse(window, used, use.rates, begin)
        return following._replace(used=following.used_at(self._now), at=self._now)


def _use_of(name: str, resource: str, limit: int, use: WindowUse) -> BudgetUse:
    hours = use.used.get(resource, 0.0) / _HOUR
    return BudgetUse(name, resource, int(hours), limit, use.window.end)
