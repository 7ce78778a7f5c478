"""What queues, and users in them, have used so far: resource-seconds with exponential decay.

Nothing is recorded before a plugin starts it. Then the resources of a gang count from when they are
allocated until they are not any more, for its user, its queue and all queues above it; each cycle
adds what was used since the one before by a few operations on arrays. Time is measured by the
monotonic clock. The wall clock counts only for the time between two processes.
"""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec
import numpy as np

from ....model.budgets import Window
from ....model.past_usage import KeptUsage, PastUse, PastWindow
from ..gangs.gang import Gang, QueueInfo, TaskStatus
from ..gangs.users import user_of
from ..resources import Amounts, FloatVector, units_of
from .budgets import Budgets
from .decayed_sums import DecayedSums, Key, Snapshot, decay, integral, largest_fractions

DEFAULT_HALF_LIFE = 7 * 86400.0

MAX_CHARACTERS = 300_000
"""Characters that are kept over a restart; what was used least is forgotten."""

MAX_WINDOWS = 2_000
"""Queues of which is kept what they have used of their budget."""

_NEGLIGIBLE = 1e-9
"""Fractions of what all have used that are not kept."""

_DIGITS = 9
"""Significant digits of what is kept."""


class _Charged(NamedTuple):
    """What of a gang counts now, and for whom."""

    gang: Gang
    keys: tuple[Key, ...]
    amounts: Amounts

    @property
    def queues(self) -> Iterable[str]:
        """The queue of the gang and those above it."""
        return (queue for queue, user in self.keys if not user)


class PastUsage:
    """The past usage of all queues and users."""

    def __init__(self, path_of: Callable[[Gang], tuple[str, ...]]) -> None:
        """Record nothing yet; *path_of* returns the queue of a gang and those above it."""
        self.is_recorded = self._is_wanted = False
        self.half_life = DEFAULT_HALF_LIFE
        """Seconds after which usage counts half."""

        self.snapshot: Snapshot | None = None
        """The sums at the end of the last cycle; may be read in any thread."""

        self.epoch = 0
        """Grows when the sums have changed otherwise than by the passing of time."""

        self._path_of = path_of
        self._sums = DecayedSums()
        self.budgets = Budgets(lambda name: self._sums.rates_of((name, "")))
        """What of it counts against budgets of queues."""
        self._charged: dict[str, _Charged] = {}
        """By key of the gang."""

        self._queues_version = -1
        self._now = 0.0
        self._time = self._since = 0.0
        """Unix time of :attr:`now`, and since when usage is recorded."""

        self._kept: KeptUsage | None = None
        """What is to be restored."""

    @property
    def now(self) -> float:
        """Reading of the monotonic clock up to which the sums are up to date."""
        return self._now

    # -- recording -----------------------------------------------------------------------------

    def advance(self, now: float, time: float) -> None:
        """Bring the sums up to date at monotonic time *now*, which is Unix time *time*."""
        if len(self._sums):
            self._sums.advance(now - self._now, self.half_life)
        self._now, self._time = max(now, self._now), time
        self.budgets.advance(self._now, time)

    def record(
        self,
        half_life: float,
        gangs: Iterable[Gang],
        queues: Iterable[QueueInfo],
        queues_version: int,
    ) -> list[str]:
        """Record from now on what *gangs*, which are all that exist, use, with *half_life* in
        seconds, and restore what was kept of the last process.

        To be called at the start of each session, else the recording ends. *queues* are all
        queues, and *queues_version* grows when one may have another parent or budget. Returns the
        names of those that have another budget.
        """
        self.half_life, self._is_wanted = half_life, True
        is_new = queues_version != self._queues_version or not self.is_recorded
        changed = self.budgets.update(queues) if is_new else []
        if not self.is_recorded:
            self.is_recorded, self._since = True, self._time
            for gang in gangs:
                self.observe(gang)
            self.epoch += 1
        elif queues_version != self._queues_version:
            for charged in list(self._charged.values()):
                self.observe(charged.gang)
        self._queues_version = queues_version
        if self._kept is not None:
            self._restore(self._kept)
            self._kept = None
            self.epoch += 1
        self._sums.forget_idle()
        return changed

    def observe(self, gang: Gang) -> None:
        """Count what *gang* uses from now on, which may have changed since it was observed last."""
        if not self.is_recorded:
            return
        known, allocated = self._charged.get(gang.key), gang.allocated
        if known is None and not allocated:
            return
        keys = self._keys_of(gang)
        if known is not None:
            if known.amounts == allocated and known.keys == keys:
                return
            del self._charged[gang.key]
            self._add_rate(known, -1)
        if allocated:
            charged = self._charged[gang.key] = _Charged(gang, keys, allocated.copy())
            self._add_rate(charged, 1)

    def end_cycle(self) -> None:
        """Publish the sums as of this cycle.

        If no plugin has recorded usage in it, nothing is recorded any more; what was decays.
        """
        if self.is_recorded and not self._is_wanted:
            self.is_recorded = False
            self._charged.clear()
            self._sums.stop()
            self.budgets.stop()
        self._is_wanted = False
        if self.is_recorded or self.snapshot is not None:
            self.snapshot = self._sums.snapshot(self._now, self.half_life)

    def shares(self, total: Amounts) -> tuple[tuple[Key, ...], FloatVector]:
        """Return for each key what it has used, in seconds in which it would have used all of
        *total*, of the resource of which that is most.

        Pods are not a resource here.
        """
        snapshot = self._sums.snapshot(self._now, self.half_life)
        columns = [
            column
            for column, name in enumerate(snapshot.resources)
            if name != "pods" and total.get(name, 0) > 0
        ]
        if not columns:
            return snapshot.keys, np.zeros(len(snapshot.keys))
        divisors = np.array([total[snapshot.resources[column]] for column in columns])
        shares: FloatVector = (snapshot.used[:, columns] / divisors).max(axis=1)
        return snapshot.keys, shares

    # -- over restarts -------------------------------------------------------------------------

    def encode(self, now: float, time: float) -> str:
        """Return what is to be kept at monotonic time *now*, which is Unix time *time*; in any
        thread."""
        snapshot = self.snapshot
        kept = KeptUsage(at=time)
        if snapshot is None:
            return msgspec.json.encode(kept).decode()
        used = snapshot.used_at(now)
        fractions = largest_fractions(used)
        kept.resources = list(snapshot.resources)
        kept.units = [units_of(name) for name in kept.resources]
        kept.half_life = self.half_life
        kept.windows = self._windows_at(now, time)
        left = MAX_CHARACTERS - len(msgspec.json.encode(kept))
        for row in np.argsort(-fractions, kind="stable").tolist():
            if fractions[row] < _NEGLIGIBLE:
                break
            queue, user = snapshot.keys[row]
            each = PastUse(queue, user, [_rounded(n) for n in used[row].tolist()])
            left -= len(msgspec.json.encode(each).decode()) + 1
            if left < 0:
                break
            kept.usage.append(each)
        return msgspec.json.encode(kept).decode()

    def restore(self, text: str) -> None:
        """Continue from what :meth:`encode` has returned, as soon as the next cycle begins.

        Raises:
            ValueError: the text is malformed.
        """
        kept = msgspec.json.decode(text, type=KeptUsage)
        numbers = [each.used for each in kept.usage] + [each.used for each in kept.windows]
        if any(len(used) != len(kept.resources) or min(used, default=0.0) < 0 for used in numbers):
            raise ValueError("malformed usage of a queue")
        self._kept = kept

    # -- private -------------------------------------------------------------------------------

    def _add_rate(self, charged: _Charged, sign: int) -> None:
        if self.budgets:
            self.budgets.add_rate(charged.queues, charged.amounts, sign)
        self._sums.add_rate(charged.keys, charged.amounts, sign)

    def _windows_at(self, now: float, time: float) -> list[PastWindow]:
        """Return what is to be kept of the first budgets."""
        snapshot = self.snapshot
        resources = snapshot.resources if snapshot is not None else ()
        windows = []
        for name, use in list(self.budgets.snapshot().items())[:MAX_WINDOWS]:
            since_end = max(time - use.window.end, 0.0)
            used = use.used_at(now - since_end)
            numbers = [_rounded(used.get(each, 0.0)) for each in resources]
            windows.append(PastWindow(name, *use.window, time - since_end, numbers))
        return windows

    def _restore(self, kept: KeptUsage) -> None:
        """Add what was *kept*, and what pods that still have their resources have used since.

        If the wall clock is behind that of the last process, no time has passed.
        """
        factor = decay(max(self._time - kept.at, 0.0), self.half_life)
        for each in kept.usage:
            used = dict(zip(kept.resources, (n * factor for n in each.used), strict=True))
            self._sums.add_used((each.queue, each.user), used)
        factor = decay(max(self._time - self._since, 0.0), self.half_life)
        windows = {each.queue: each for each in kept.windows}
        for queue, past in windows.items():
            used = dict(zip(kept.resources, past.used, strict=True))
            self.budgets.add_used(queue, used, Window(past.start, past.end))
        for charged in self._charged.values():
            used = _used_between(charged.gang, kept.at, self._since, self._weight)
            if used:
                used = {name: n * factor for name, n in used.items()}
                for key in charged.keys:
                    self._sums.add_used(key, used)
            for queue in charged.queues:
                self._restore_budget(charged.gang, queue, windows.get(queue), kept.at)

    def _weight(self, seconds: float) -> float:
        return integral(seconds, self.half_life)

    def _restore_budget(
        self, gang: Gang, queue: str, kept: PastWindow | None, kept_at: float
    ) -> None:
        """Count what *gang* has used of the budget of *queue* since that was written."""
        window = self.budgets.window_of(queue)
        if window is not None:
            since = max(window.start, kept_at if kept is None else kept.at)
            self.budgets.add_used(queue, _used_between(gang, since, self._since, float))

    def _keys_of(self, gang: Gang) -> tuple[Key, ...]:
        path = self._path_of(gang)
        return (path[0], user_of(gang)), *((name, "") for name in path)


def _rounded(number: float) -> float:
    return float(f"{number:.{_DIGITS}g}")


def _used_between(
    gang: Gang, since: float, until: float, weight_of: Callable[[float], float]
) -> dict[str, float]:
    """Return what the pods of *gang* that have resources now have used from *since* to *until*,
    both Unix time; the seconds of each are weighted."""
    used: dict[str, float] = {}
    for task in gang.tasks.values():
        if task.status not in (TaskStatus.BOUND, TaskStatus.RUNNING) or not task.traits.started:
            continue
        seconds = until - max(float(task.traits.started), since)
        if seconds > 0:
            weight = weight_of(seconds)
            for name, units in task.eq_class.request.items():
                used[name] = used.get(name, 0.0) + units * weight
    return used
