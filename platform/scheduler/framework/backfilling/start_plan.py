"""Start reservations: when and where gangs that wait start, and what later gangs leave to them.

The plan is kept between cycles. A reservation is moved only to an earlier start, and else kept,
with what all the others use subtracted. It is planned again, and may become later, if it does not
fit any more: a node was lost, an estimate was exceeded, a gang that precedes it uses what it was
to use, or the limits of its queue have changed. Then those after it are planned again, too, so that
their order stays. Everything here is pure: times are arguments, nothing is read from the cluster.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from enum import StrEnum

import numpy as np

from ...state.resources import Matrix
from .profile import Allowed, Occupation, PodNeed, Profile
from .start_errors import StartErrors

_MIN_DELAY = 60.0
"""Seconds of a delay that is reported."""


class Cause(StrEnum):
    """Why a planned start became later."""

    PRIORITY = "a gang that precedes it precedes it now"
    NODES = "nodes that it was to use are lost or do not suit it any more"
    OVERRUN = "a gang runs longer than was expected"
    OTHERS = "pods that do not wait for the plan use what it was to use"
    QUEUE = "the limits of its queue have changed"
    OWN = "the gang itself has changed"


@dataclass(frozen=True, slots=True)
class ExpectedEnd:
    """When a running gang is expected to end."""

    time: float
    """Unix time; infinite if it is not known."""

    state: tuple[object, ...]
    """What it was computed from."""

    probable: float
    """When it probably ends, as Unix time: not later."""

    is_enforced: bool = False
    """Whether it is ended then at the latest."""

    is_overdue: bool = False
    """Whether it should have ended, so that it is about to be ended."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A gang that waits, as the plan sees it."""

    key: str
    queue: str
    priority: int
    pod_needs: tuple[PodNeed, ...]
    """What it needs to start."""

    duration: float
    """Expected seconds that it runs; infinite if that is not known."""

    allowed: Allowed
    version: int = 0
    """Differs if the gang has changed."""

    queue_priority: int = 0

    def outranks(self, other: "Waiting") -> bool:
        """Return whether it need not leave anything to *other*."""
        if self.queue == other.queue:
            return self.priority > other.priority
        return self.queue_priority > other.queue_priority


@dataclass(slots=True)
class StartReservation:
    """When and where a gang is planned to start."""

    waiting: Waiting
    occupation: Occupation
    waits_since: float | None = None
    """Since when, as Unix time, it has kept capacity for a start that is not known."""

    bound: float = math.inf
    """The latest start, as Unix time, that was promised."""

    delays: list[Cause] = field(default_factory=list)
    """Why the promise could not be kept, in order."""

    is_kept: bool = True
    """Whether later gangs leave its nodes to it."""

    reported: float = math.inf
    """The start, as Unix time, of which a delay is reported."""

    reported_delays: int = 0
    """How many of *delays* have been reported."""

    @property
    def start(self) -> float:
        """The planned start as Unix time; infinite if it is not known."""
        return self.occupation.start


class StartPlan:
    """The start reservations in the order of their precedence."""

    def __init__(self, *, max_idle: float = 0.0) -> None:
        """Start without any.

        One whose start is not known keeps capacity for *max_idle* seconds at most.
        """
        self.reservations: dict[str, StartReservation] = {}
        self.max_idle = max_idle
        self.broken: dict[str, StartReservation] = {}
        """Reservations that could not be planned again, by the keys of their gangs."""
        self.ends: dict[str, ExpectedEnd] = {}
        """When running gangs are expected to end, by their keys."""
        self.node_position = (0, 0)
        """Of the changes of nodes that it includes."""
        self.position: tuple[int, ...] = ()
        """Of all changes that it includes."""
        self.next_due = -math.inf
        """When it is to be planned again although nothing changes, as Unix time."""
        self.has_estimates = False
        """Whether any gang had a limit or an estimate."""
        self.has_predictions = False
        """Whether any gang had a prediction."""
        self.waiting_since: dict[str, float] = {}
        """When gangs were first to get a reservation, as Unix time, by their keys."""
        self.errors = StartErrors()
        """How exact the planned starts of gangs were that have started."""
        self.estimated: set[str] = set()
        """Keys of gangs without a reservation whose starts are estimated."""
        self.next_estimates = -math.inf
        """When they are estimated again at the earliest, as Unix time."""
        self.unestimated = ""
        """Key of a gang that waits for that."""
        self.version = 0
        """Grows when a gang that was held back may start."""
        self._profile: Profile | None = None

    def __iter__(self) -> Iterator[StartReservation]:
        """Return the reservations."""
        return iter(self.reservations.values())

    def __len__(self) -> int:
        return len(self.reservations)

    @property
    def profile(self) -> Profile:
        """What is free in this cycle.

        Raises:
            RuntimeError: no cycle has begun.
        """
        if self._profile is None:
            raise RuntimeError("the plan has no profile")
        return self._profile

    # -- cycles --------------------------------------------------------------------------------

    def begin(
        self,
        profile: Profile,
        waiting_of: Callable[[StartReservation], Waiting | None],
        cause: Cause,
    ) -> None:
        """Plan again for a new cycle.

        Args:
            profile: what will be free, without any reservation.
            waiting_of: returns the gang of a reservation as it is now, or ``None`` if it does not
                wait any more.
            cause: why a reservation whose nodes do not suffice any more is delayed.
        """
        self._profile = profile
        known, self.reservations = list(self.reservations.values()), {}
        problem: Cause | None = None
        for each in known:
            waiting = waiting_of(each)
            if waiting is None:
                self.version += 1
                continue
            problem = problem or self._problem(each, waiting, cause)
            if problem is not None:
                self._plan_again(waiting, each, problem)
                continue
            each.waiting = waiting
            self.reservations[waiting.key] = each
            self._limit_idle(each)
            if each.is_kept:
                self._subtract(each)
        for each in list(self):
            self._move_earlier(each)

    def pop_delays(self, now: float) -> list[tuple[str, Cause, float, float]]:
        """Return the starts that have become later since they were returned last: the key of the
        gang, the last cause, and the start before and now.

        Delays of less than a minute, or a tenth of the wait, count once they have added up to
        that. What is not planned any more has no start.
        """
        found = []
        current = [(each, each.start) for each in self]
        current += [(each, math.inf) for each in self.broken.values()]
        for each, start in current:
            is_new = len(each.delays) > each.reported_delays
            if start < each.reported or (start > each.reported and not is_new):
                each.reported = start
            elif is_new and start - each.reported > max((each.reported - now) / 10, _MIN_DELAY):
                found.append((each.waiting.key, each.delays[-1], each.reported, start))
                each.reported, each.reported_delays = start, len(each.delays)
        return found

    def end(self) -> None:
        """Forget what was free in this cycle."""
        self._profile = None

    def reserve(self, waiting: Waiting) -> StartReservation | None:
        """Plan the start of *waiting* after what precedes it; ``None`` if nodes or limits never
        permit it, as far as is known."""
        outranked = [each for each in self if waiting.outranks(each.waiting)]
        for each in outranked:
            self._withdraw(each)
        new = self._plan(waiting)
        for each in outranked:
            self._plan_again(each.waiting, each, Cause.PRIORITY)
        return new

    def drop(self, key: str) -> None:
        """End the reservation of a gang, if there is one."""
        self.broken.pop(key, None)
        known = self.reservations.pop(key, None)
        if known is not None:
            self.version += 1
            if self._profile is not None and known.is_kept:
                self._add(known)

    def postpone(self, key: str) -> None:
        """Note that a gang cannot start although all that it needs seems to be free: its start is
        not known then."""
        known = self.reservations.get(key)
        if known is None or known.start > self.profile.now:
            return
        self._withdraw(known)
        at_some_time = replace(known.occupation, start=math.inf, end=math.inf)
        self._insert(StartReservation(known.waiting, at_some_time), before=known)

    def occupy(self, waiting: Waiting, occupation: Occupation) -> None:
        """Count what pods of *waiting* use that were allocated in this cycle, and plan the gangs
        again that had to yield to it."""
        self.profile.subtract(occupation)
        yielding = [each for each in self if waiting.outranks(each.waiting)]
        for each in yielding:
            self._withdraw(each)
        for each in yielding:
            if self._problem(each, each.waiting, Cause.PRIORITY) is None:
                self.reservations[each.waiting.key] = each
                if each.is_kept:
                    self._subtract(each)
            else:
                self._plan_again(each.waiting, each, Cause.PRIORITY)

    def rechecks(self, now: float) -> dict[str, float]:
        """Return in how many seconds gangs are due, by their keys: a start, the end of the time for
        which one whose start is not known keeps capacity, or the next estimates."""
        due = {each.waiting.key: self._due(each) for each in self}
        if self.unestimated:
            due[self.unestimated] = self.next_estimates
        return {key: at - now for key, at in due.items() if now < at < math.inf}

    def _due(self, reservation: StartReservation) -> float:
        if math.isfinite(reservation.start):
            return reservation.start
        is_kept = reservation.is_kept and reservation.waits_since is not None
        return (reservation.waits_since or 0.0) + self.max_idle if is_kept else math.inf

    # -- what is left to others ----------------------------------------------------------------

    def constrains(self, waiting: Waiting) -> bool:
        """Return whether *waiting* has to leave anything to others."""
        return any(each.is_kept and not self._may_take(waiting, each) for each in self)

    @contextmanager
    def free_for(self, waiting: Waiting) -> Iterator[Matrix]:
        """Return what *waiting* may use of what is free now, a row per resource and a column per
        node: it ends before that is needed, or it is not needed. Valid in the block only."""
        lent = [each for each in self if each.is_kept and self._may_take(waiting, each)]
        for each in lent:
            self._add(each)
        is_planned = _is_planned(self.reservations.get(waiting.key))
        end = self.profile.now + waiting.duration
        try:
            yield self.profile.least_until(end, is_planned=is_planned)
        finally:
            for each in lent:
                if self.reservations.get(each.waiting.key) is each:
                    self._subtract(each)

    @staticmethod
    def _may_take(waiting: Waiting, reservation: StartReservation) -> bool:
        is_own = waiting.key == reservation.waiting.key
        return is_own or waiting.outranks(reservation.waiting)

    # -- private -------------------------------------------------------------------------------

    def _problem(
        self, reservation: StartReservation, waiting: Waiting, cause: Cause
    ) -> Cause | None:
        """Return why it cannot start then and there any more; *cause* if the nodes do not
        suffice."""
        if waiting.version != reservation.waiting.version:
            return Cause.OWN
        nodes = reservation.occupation.nodes
        if nodes.max(initial=-1) >= self.profile.some_time.shape[1]:
            return Cause.NODES
        for before, now in zip(reservation.waiting.pod_needs, waiting.pod_needs, strict=True):
            if not np.array_equal(before.feasible[nodes], now.feasible[nodes]):
                return Cause.NODES
        is_past = reservation.start < self.profile.now
        if is_past or not self.profile.fits_at(reservation.occupation):
            return cause
        return None if waiting.allowed(reservation.start) else Cause.QUEUE

    def _plan_again(self, waiting: Waiting, before: StartReservation, cause: Cause) -> None:
        """Replace *before*, which has ended because of *cause*; what was promised is kept, also if
        no start is possible now."""
        if not self._plan(waiting, before=before, cause=cause):
            before.delays.append(cause)
            self.broken[waiting.key] = before
            self.version += 1

    def _plan(
        self,
        waiting: Waiting,
        *,
        before: StartReservation | None = None,
        cause: Cause | None = None,
    ) -> StartReservation | None:
        """Add a reservation instead of *before*; *cause* is why it is later, if it is."""
        found = self._earliest(waiting, before, limit=math.inf)
        if found is None and waiting.allowed(math.inf):
            found = self.profile.at_some_time(waiting.pod_needs)
        if found is None:
            return None
        return self._insert(StartReservation(waiting, found), before=before, cause=cause)

    def _earliest(
        self, waiting: Waiting, reservation: StartReservation | None, *, limit: float
    ) -> Occupation | None:
        """Return the earliest start before *limit*.

        A gang whose start is planned already leaves nothing to those whose start is not known.
        """
        return self.profile.earliest(
            waiting.pod_needs,
            waiting.duration,
            waiting.allowed,
            before=limit,
            is_planned=_is_planned(reservation),
        )

    def _insert(
        self,
        new: StartReservation,
        *,
        before: StartReservation | None = None,
        cause: Cause | None = None,
    ) -> StartReservation:
        new.bound = new.reported = new.start
        before = before or self.broken.pop(new.waiting.key, None)
        if before is not None:
            new.bound, new.delays = before.bound, before.delays
            new.reported, new.reported_delays = before.reported, before.reported_delays
            if new.start > max(before.start, self.profile.now) and cause is not None:
                new.delays.append(cause)
            new.bound = min(new.bound, new.start)
            if not math.isfinite(new.start):
                new.waits_since = before.waits_since
            if new.start != before.start or not before.is_kept:
                self.version += 1
        self.reservations[new.waiting.key] = new
        self._limit_idle(new)
        if new.is_kept:
            self._subtract(new)
        return new

    def _move_earlier(self, reservation: StartReservation) -> None:
        """Let *reservation*, which is subtracted if it is kept, start earlier if it can."""
        if reservation.is_kept:
            self._add(reservation)
        waiting = reservation.waiting
        found = self._earliest(waiting, reservation, limit=reservation.start)
        if found is not None:
            reservation.occupation = found
            reservation.bound = min(reservation.bound, found.start)
            reservation.waits_since, reservation.is_kept = None, True
            self.version += 1
        if reservation.is_kept:
            self._subtract(reservation)

    def _limit_idle(self, reservation: StartReservation) -> None:
        """End the protection of a reservation that has waited too long for an unknown end."""
        now = self.profile.now
        if math.isfinite(reservation.start):
            reservation.waits_since = None
            return
        if reservation.waits_since is None:
            reservation.waits_since = now
        is_overdue = now >= reservation.waits_since + self.max_idle
        if is_overdue or math.isinf(reservation.waiting.duration):
            self.version += reservation.is_kept
            reservation.is_kept = False

    def _withdraw(self, reservation: StartReservation) -> None:
        """Remove *reservation*, which is to be planned again."""
        if reservation.is_kept:
            self._add(reservation)
        del self.reservations[reservation.waiting.key]

    def _subtract(self, reservation: StartReservation) -> None:
        self.profile.subtract(reservation.occupation)
        self._count_unknown()

    def _add(self, reservation: StartReservation) -> None:
        self.profile.add(reservation.occupation)
        self._count_unknown()

    def _count_unknown(self) -> None:
        self.profile.waits_for_unknown = any(
            each.is_kept and not math.isfinite(each.start) for each in self
        )


def _is_planned(reservation: StartReservation | None) -> bool:
    """Return whether there is a reservation whose start is known."""
    return reservation is not None and math.isfinite(reservation.start)
