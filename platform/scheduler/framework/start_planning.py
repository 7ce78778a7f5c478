"""Plans the starts of gangs that wait, in one session, and keeps later gangs from delaying them.

Nothing is computed unless run times are known and a gang has to wait.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import reduce
from heapq import merge, nsmallest

import numpy as np

from ...model.run_times import Basis
from ..plugins.extension_points import NOT_ENOUGH_RESOURCES
from ..state.gangs.diagnosis import Diagnosis
from ..state.gangs.gang import Gang, QueueInfo, Task, TaskStatus, add_amounts
from ..state.gangs.start_estimate import StartBasis, StartEstimate
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.queue.scheduling_queue import (
    FREED,
    STARTS,
    TIMER,
    USAGE,
    OrderKey,
    QueueingHints,
)
from ..state.resources import Amounts, FloatVector, IntVector, Matrix
from ..state.run_times.predictions import pattern_of
from .backfilling.options import Mode, Options
from .backfilling.probable_starts import ProbableStarts
from .backfilling.profile import Held, Occupation, PodNeed, Profile, choose_nodes
from .backfilling.start_plan import Cause, ExpectedEnd, StartReservation, Waiting
from .domain_capacities import planned_domain
from .expected_pods import expected_pods
from .gang_order import GangOrder
from .missing_members import MissingMembers, required_tasks
from .plugin_calls import PluginError
from .queueing_hints import demand_of
from .session import Session
from .spare_capacity import Spare, SpareLimit
from .statement import OperationKind, Statement
from .sub_group_units import needed_tasks
from .task_runs import grouped, runs

RELEASE_SECONDS = 30.0
"""After which terminating pods are expected to have ended."""

_ESTIMATE_SECONDS = 10.0
"""Least time between two estimates of gangs that are not admitted to their queue."""

_MAX_ATTEMPTS = 10
"""How many gangs per reservation a session tries to plan that have not been tried in it."""

_COUNTED = (TaskStatus.BINDING, TaskStatus.BOUND, TaskStatus.RUNNING)


_EVERYTHING = nullcontext(Spare())
_NOTHING = nullcontext()


class StartPlanning:
    """The start plan in one session of the action ``allocate``."""

    def __init__(self, session: Session, options: Options) -> None:
        """Plan for *session*; nothing if backfilling is off, or no run time is known."""
        self._session = session
        self._options = options
        self.is_on = options.mode is not Mode.NONE
        """Whether starts are planned at all."""
        self._cache = session.cache
        self._plan = session.start_plan
        self._plan.max_idle = options.max_idle
        self._version = self._plan.version
        self._has_begun = False
        self._estimated = set(self._plan.reservations)
        """Keys of gangs that had a start reservation before."""
        self.order = GangOrder(self, session, options.order)
        self._waiting: dict[str, Iterator[tuple[OrderKey, Gang]]] | None = None
        self._next: dict[str, tuple[OrderKey, Gang] | None] = {}
        self._attempts = _MAX_ATTEMPTS * options.depth
        self._slots = np.zeros(0, np.int64)
        self._ends: FloatVector = np.zeros(0)
        self._probable_ends: FloatVector = np.zeros(0)
        self._held = Held(self._slots, np.zeros((0, 0), np.int64))
        self._freed: dict[str, tuple[FloatVector, Matrix]] = {}
        """By queue, when its pods end, in order, and what they use that have ended by then."""
        self._committed: Matrix | None = None
        self._held_back: dict[Hashable, tuple[int, float, str]] = {}
        """By demand: the version of the plan for which a gang was held back, its seconds, and the
        key of the gang that it would have delayed."""
        self._started: list[tuple[str, Occupation]] = []
        """What was allocated in this session, by queue."""
        self._probable: list[tuple[Occupation, float]] = []
        """The same, with when it probably ends, as Unix time."""

    # -- session -------------------------------------------------------------------------------

    def begin(self) -> None:
        """Plan again what was planned before."""
        if not self.is_on:
            self._plan.reservations.clear()
            return
        for known in (self._plan.broken, self._plan.waiting_since):
            for key in [each for each in known if each not in self._cache.pending_gangs]:
                del known[key]
        self._plan.errors.forget_others(self._cache.gangs)
        if self._plan and not self._knows_run_times:
            self._forget_reservations()
        if not self._plan or self._is_unchanged():
            return
        self._begin()
        self._publish()
        for each in self._plan:
            gang = self._cache.gangs[each.waiting.key]
            if each.start <= self._cache.cycle_time and gang.unschedulable_group is not None:
                self._cache.scheduling_queue.activate(gang, TIMER)

    @property
    def _knows_run_times(self) -> bool:
        """Whether the run time of any gang has been known, by a prediction only as long as these
        are of use."""
        predictions = self._cache.run_times.predictions
        is_predicted = self._plan.has_predictions and predictions.usefulness.is_given
        return self._plan.has_estimates or is_predicted

    def _forget_reservations(self) -> None:
        for key in self._plan.reservations:
            if key in self._cache.gangs:
                self._estimate(self._cache.gangs[key], None)
        self._plan.reservations.clear()
        self._plan.version += 1
        self._publish()

    def _is_unchanged(self) -> bool:
        """Return whether no gang is to be tried and the plan would stay as it is."""
        now, queue = self._cache.cycle_time, self._cache.scheduling_queue
        if queue.active or queue.woken or self._position() != self._plan.position:
            return False
        return now < self._plan.next_due

    def _position(self) -> tuple[int, ...]:
        """Return what differs if nodes or what they have free have changed."""
        cache = self._cache
        return (
            cache.node_matrix.usage_changes.position,
            cache.node_matrix.node_changes.position,
            cache.run_times.predictions.version,
            cache.queues.version,
        )

    def finish(self) -> None:
        """End the planning of this session."""
        pending: list[tuple[OrderKey, Gang]] | None = None
        if self.is_on and self._session.has_enqueue_action:
            pending = self._pending_if_due()
        if pending:
            self._begin()
        now = self._cache.cycle_time
        starts = ProbableStarts(
            now,
            self._cache.node_matrix.allocatable,
            self._held,
            self._ends,
            self._probable_ends,
            self._probable,
        )
        if self._has_begun:
            self._estimate_planned(starts)
        if pending is not None:
            self._estimate_pending(pending, starts)
        if not self._has_begun:
            return
        self._plan.end()
        self._publish()
        self._plan.position = self._position()
        self._plan.next_due = now + min(self._plan.rechecks(now).values(), default=math.inf)

    def _estimate_planned(self, starts: ProbableStarts) -> None:
        """Estimate when the gangs start that have a reservation."""
        for key in self._estimated - self._plan.reservations.keys():
            if key in self._cache.gangs:
                self._estimate(self._cache.gangs[key], None)
        for each in sorted(self._plan, key=lambda each: each.start):
            gang, needs = self._cache.gangs[each.waiting.key], each.waiting.pod_needs
            self._estimate(gang, self._interval(gang, each.occupation, needs, starts))

    def _estimate(self, gang: Gang, estimate: StartEstimate | None) -> None:
        """Set when *gang* starts, and report it again if that has changed by more than a little."""
        before = gang.estimated_start
        if estimate is not None and estimate.is_close_to(before):
            return
        gang.estimated_start = estimate
        if estimate is not before:
            self._cache.changes.mark(gang)

    def _interval(
        self,
        gang: Gang,
        occupation: Occupation,
        pod_needs: Sequence[PodNeed],
        starts: ProbableStarts,
    ) -> StartEstimate:
        """Return when *gang* starts that is to use *occupation*, by how exact such starts were
        before.

        Until that is known: gangs may end before their limits, and one that exceeds a prediction is
        expected to run for twice as long.
        """
        now, start = self._cache.cycle_time, occupation.start
        if start == math.inf:
            return StartEstimate(now, None, StartBasis.UNKNOWN, since=now)
        probable = starts.of(
            occupation,
            reduce(np.logical_or, (need.feasible for need in pod_needs)),
            reduce(np.add, (need.request * need.count for need in pod_needs)),
            self._probable_end(gang) - now,
        )
        if start > now:
            self._plan.errors.plan(gang.key, now, probable)
        has_limits = all(
            each.is_enforced for each in self._plan.ends.values() if each.time <= start
        )
        basis = StartBasis.LIMITS if has_limits else StartBasis.PREDICTIONS
        interval = self._plan.errors.interval(now, probable)
        if interval is not None:
            return StartEstimate(
                interval.earliest, interval.latest, basis, interval.expected, since=now
            )
        wait = start - now
        if has_limits:
            return StartEstimate(now, start, basis, probable, since=now)
        return StartEstimate(now + wait / 2, start + wait, basis, start, since=now)

    def _pending_if_due(self) -> list[tuple[OrderKey, Gang]] | None:
        """Return the gangs that are not admitted to their queue and whose starts are to be
        estimated again; ``None`` if that was done a moment ago, and a cycle follows for it."""
        now, plan = self._cache.cycle_time, self._plan
        if now >= plan.next_estimates:
            plan.unestimated, plan.next_estimates = "", now + _ESTIMATE_SECONDS
            return [each for each in self._pending() if math.isfinite(self.duration_of(each[1]))]
        if not plan.unestimated:
            active = self._cache.scheduling_queue.active.values()
            rejected = (each for each in active if each.is_pending)
            plan.unestimated = next(
                (each.key for each in rejected if self._session.is_rejected(each)), ""
            )
        return None

    def _estimate_pending(
        self, pending: Sequence[tuple[OrderKey, Gang]], starts: ProbableStarts
    ) -> None:
        """Estimate the starts of the first gangs of *pending*.

        They have no start reservation: what admits them is up to the action ``enqueue``.
        """
        before, self._plan.estimated = self._plan.estimated, set()
        counts = Counter(each.waiting.queue for each in self._plan)
        for _, gang in pending:
            name = self._cache.queues.of(gang).name
            is_beyond = self._options.mode is Mode.EASY or counts.total() >= self._options.depth
            if counts[name] and is_beyond:
                continue
            estimate = self._expected_start(gang, starts)
            if estimate is not None:
                counts[name] += 1
                self._plan.estimated.add(gang.key)
                self._estimate(gang, estimate)
        for key in before - self._plan.estimated - self._plan.reservations.keys():
            if key in self._cache.gangs:
                self._estimate(self._cache.gangs[key], None)

    def _pending(self) -> list[tuple[OrderKey, Gang]]:
        """Return the first gangs of each queue that are not admitted to it, in order."""
        rejected = {name: list(members) for name, members in self._unschedulable().items()}
        for gang in self._cache.scheduling_queue.active.values():
            if self._session.is_rejected(gang):
                name = self._cache.queues.of(gang).name
                rejected.setdefault(name, []).append((self._session.job_order(gang), gang))
        found: list[tuple[OrderKey, Gang]] = []
        for members in rejected.values():
            pending = (each for each in members if _is_estimated_before_admission(each[1]))
            found += nsmallest(self._options.depth, pending, key=lambda member: member[0])
        return sorted(found, key=lambda member: member[0])

    def _expected_start(self, gang: Gang, starts: ProbableStarts) -> StartEstimate | None:
        """Return when *gang* starts, which is not admitted yet, after those that are planned; a
        later call counts what it will use."""
        needs = expected_pods(self._cache, gang)
        if not needs:
            return None
        profile, index = self._plan.profile, self._cache.node_matrix.resource_index
        try:
            pod_needs = [
                PodNeed(each.request_vector(index), self._session.feasible(each), count)
                for each, count in needs
            ]
            # What its queue deserves depends on the pods that it requests, and these do not exist.
            allowed = self._allowed(gang, needs, borrowable=math.inf)
            duration = self.duration_of(gang)
            found = profile.earliest(pod_needs, duration, allowed, before=math.inf)
            if found is None and allowed(math.inf):
                found = profile.at_some_time(pod_needs)
        except PluginError as error:
            self._session.calls.record(error)
            return None
        if found is None:
            return None
        profile.subtract(found)
        return self._interval(gang, found, pod_needs, starts)

    def _begin(self) -> None:
        if self._has_begun:
            return
        self._has_begun = True
        times = [time for each in self._plan for time in (each.start, each.occupation.end)]
        overrun = self._find_ends()
        matrix = self._cache.node_matrix
        position = (matrix.node_changes.position, matrix.total_version)
        cause = Cause.OTHERS
        if position != self._plan.node_position:
            cause = Cause.NODES
        elif overrun:
            cause = Cause.OVERRUN
        self._plan.node_position = position
        table = self._cache.task_table
        self._held = Held(table.node[self._slots].astype(np.int64), table.requests(self._slots))
        now, free = self._cache.cycle_time, matrix.available().copy()
        profile = Profile(now, free, self._ends, self._held, times)
        if matrix.has_pipelined:
            promised = matrix.pipelined - (matrix.idle - free)
            nodes = np.flatnonzero(promised.any(axis=0))
            later = Occupation(now + RELEASE_SECONDS, math.inf, nodes, promised[:, nodes])
            profile.subtract(later)
        self._plan.begin(profile, self._current, cause)

    def _find_ends(self) -> bool:
        """Find when pods on nodes end; returns whether a gang ends later than was expected."""
        cache, table = self._cache, self._cache.task_table
        now = cache.cycle_time
        slots = np.flatnonzero(table.node >= 0)
        gang_ids = table.gang[slots]
        ends: dict[str, ExpectedEnd] = {}
        by_id = np.full((2, int(gang_ids.max(initial=-1)) + 1), math.inf)
        overrun = False
        running = int(TaskStatus.RUNNING)
        outdated = cache.run_times.pop_outdated()
        queues, predictions = cache.queues.version, cache.run_times.predictions.version
        for gang_id in np.unique(gang_ids).tolist():
            gang = table.gang_of(gang_id)
            end = self._plan.ends.get(gang.key)
            known = math.inf if end is None else end.time
            state = (
                gang.version,
                gang.counts.by_status[running],
                queues,
                predictions if known == math.inf else 0,
            )
            is_outdated = gang.key in outdated or (end is not None and end.probable <= now)
            if end is None or is_outdated or end.state != state:
                end = self._expected_end(gang, state)
            ends[gang.key] = end
            by_id[:, gang_id] = end.time, end.probable
            overrun |= end.time > known
            self._plan.version += end.time < known
        self._plan.ends = ends
        self._slots, both = slots, by_id[:, gang_ids]
        self._freed.clear()
        releasing = table.status[slots] == TaskStatus.RELEASING
        both[:, releasing] = np.minimum(both[:, releasing], now + RELEASE_SECONDS)
        self._ends, self._probable_ends = both
        return overrun

    def _publish(self) -> None:
        if self._version != self._plan.version:
            self._version = self._plan.version
            self._cache.scheduling_queue.publish(STARTS)
            self._cache.scheduling_queue.wake_published()

    # -- gangs ---------------------------------------------------------------------------------

    def borrowable(self, gang: Gang) -> float:
        """Return by how much the queue of *gang* may exceed what it deserves with it, as a fraction
        of that: the sooner it ends, the more."""
        gang.borrowable = self._options.borrowable(self.duration_of(gang))
        return gang.borrowable

    def borrowing(self, gang: Gang) -> AbstractContextManager[None]:
        """Let the block use what the queue of *gang* may borrow for it."""
        fraction = self.borrowable(gang)
        return self._session.borrowing(fraction) if fraction else _NOTHING

    def lends_to(self, queue: QueueInfo) -> bool:
        """Return whether gangs of *queue*, which is overused, may borrow if they end soon.

        Raises:
            PluginError: a plugin raised.
        """
        if not self._options.borrow_for:
            return False
        with self._session.borrowing(math.inf):
            return not self._session.overused(queue)

    def precedes(self, gang: Gang) -> bool:
        """Return whether *gang* has a start reservation."""
        return gang.key in self._plan.reservations

    def spare_for(self, gang: Gang) -> AbstractContextManager[Spare]:
        """Let the block use what *gang* may use without a delay of others."""
        return self._counting_spare(gang) if self._plan or self._has_begun else _EVERYTHING

    @contextmanager
    def _counting_spare(self, gang: Gang) -> Iterator[Spare]:
        try:
            with self._spare(gang) as spare:
                yield spare
        finally:
            self._count_committed(gang)

    @contextmanager
    def _spare(self, gang: Gang) -> Iterator[Spare]:
        if not self._plan or not self.is_on or self._is_hopeless(gang):
            yield Spare()
            return
        holder = self._known_holder(gang)
        if holder:
            yield Spare(holder)
            return
        waiting = self._constrained(gang)
        if waiting is None:
            yield Spare()
            return
        available = self._cache.node_matrix.available()
        with self._plan.free_for(waiting) as free:
            is_possible = choose_nodes(waiting.pod_needs, available) is not None
            spare = Spare()
            if is_possible and choose_nodes(waiting.pod_needs, np.minimum(free, available)) is None:
                spare = Spare(self._first_before(gang))
            with self._session.limited_to(SpareLimit(free, self._cache.node_matrix)):
                yield spare
        if is_possible and self._session.is_rejected(gang) and not spare.holder:
            self._session.wait(gang, self._hints(gang))
            self._session.confine_rejection(gang)

    def _is_hopeless(self, gang: Gang) -> bool:
        """Return whether *gang* cannot start now, with any plan.

        Then it is rejected as it would be without a plan: with all gangs with equal demand, and
        until what it lacks is free.

        Raises:
            PluginError: a filter or limit raised.
        """
        missing = MissingMembers(gang)
        if missing.satisfied:
            return False
        queue = self._cache.queues.of(gang)
        for eq_class, count in required_tasks(list(gang.pending_tasks.values()), missing):
            is_limited = not (gang.single or eq_class.best_effort)
            if is_limited and self._session.allocatable_count(queue, eq_class) < count:
                return True
            if self._session.placer(eq_class).capacity(count) < count:
                return True
        return False

    def _known_holder(self, gang: Gang) -> str:
        """Return for which gang *gang* is held back, if one with equal demand that is as short was
        held back before in this session; else an empty string."""
        version, seconds, holder = self._held_back.get(self._demand_of(gang), (-1, 0.0, ""))
        is_held = version == self._plan.version and self.duration_of(gang) >= seconds
        return holder if is_held and gang.key not in self._plan.reservations else ""

    def _demand_of(self, gang: Gang) -> Hashable:
        tasks = list(gang.pending_tasks.values())
        return demand_of(gang, self._cache.queues.of(gang).name, tasks, MissingMembers(gang))

    def _first_before(self, gang: Gang) -> str:
        """Return the key of the first other gang for which something is kept."""
        keys = (each.waiting.key for each in self._plan if each.is_kept)
        return next((key for key in keys if key != gang.key), gang.key)

    def _constrained(self, gang: Gang) -> Waiting | None:
        """Return *gang* if it may not use all that is free."""
        if self._cache.reservations.get(gang.key) is not None:
            return None  # pods were evicted for it
        self._begin()
        waiting = self._waiting_of(gang)
        return waiting if waiting is not None and self._plan.constrains(waiting) else None

    def hold_back(self, gang: Gang, holder: str) -> None:
        """Reject *gang*, which would delay that with key *holder*."""
        name = holder.rpartition("/")[2]
        message = f"it would delay a planned start: {name} precedes it"
        self._session.reject(gang, Diagnosis(NOT_ENOUGH_RESOURCES, message), self._hints(gang))
        self._session.confine_rejection(gang)
        if gang.key not in self._plan.reservations:
            known = self._plan.version, self.duration_of(gang), holder
            self._held_back[self._demand_of(gang)] = known

    def _hints(self, gang: Gang) -> QueueingHints:
        """Return what *gang* waits for if start reservations may have kept it from starting: a gang
        that is shorter need not wait."""
        demand = (self._demand_of(gang), gang.estimated_seconds)
        return QueueingHints(frozenset({FREED, USAGE, STARTS}), demand=demand)

    def commit(self, gang: Gang, statement: Statement) -> None:
        """Commit *statement*, and count what it has allocated for *gang*.

        Raises:
            PluginError: nothing is committed.
        """
        used = self._used_by(statement) if self._plan or self._has_begun else None
        self._session.commit(gang, statement)
        self._committed = used
        self._plan.errors.observe(gang.key, self._cache.cycle_time)

    def _count_committed(self, gang: Gang) -> None:
        """Count what was allocated for *gang*, when what was lent to it is subtracted again."""
        used, self._committed = self._committed, None
        if used is None:
            return
        if MissingMembers(gang).satisfied:
            self._plan.waiting_since.pop(gang.key, None)
            self._plan.drop(gang.key)
            gang.estimated_start = None
        if self._has_begun:
            now = self._cache.cycle_time
            nodes = np.flatnonzero(used.any(axis=0))
            occupation = Occupation(now, now + self.duration_of(gang), nodes, used[:, nodes])
            self._started.append((self._cache.queues.of(gang).name, occupation))
            self._probable.append((occupation, self._probable_end(gang)))
            self._plan.occupy(self._summary(gang), occupation)

    def _used_by(self, statement: Statement) -> Matrix:
        matrix = self._cache.node_matrix
        used = np.zeros_like(matrix.idle)
        for operation in statement.operations:
            if operation.kind is OperationKind.ALLOCATE:
                request = operation.change.eq_class.request_vector(matrix.resource_index)
                nodes = np.array(operation.change.node_indexes, np.int64)
                np.add.at(used[: len(request)].T, nodes, request)
        return used

    def rejected(self, gang: Gang) -> None:
        """Plan the start of *gang*, which does not fit now, if it is to get a reservation."""
        if not self.is_on or gang.single:
            return
        if gang.key in self._plan.reservations:
            self._begin()
            self._plan.postpone(gang.key)
        elif self._knows_run_times and self._is_wanted(gang):
            self._reserve(gang)

    def reserve_before(self, queue: QueueInfo, order: OrderKey) -> None:
        """Plan the starts of the gangs of *queue* that precede *order* and are not tried now."""
        if not self.is_on or not self._knows_run_times:
            return
        if not len(self._cache.scheduling_queue) or not self.can_reserve(queue.name):
            return
        while self._attempts and self.can_reserve(queue.name):
            gang = self._next_waiting(queue.name, order)
            if gang is None:
                return
            self._attempts -= 1
            self._reserve(gang)

    def _next_waiting(self, queue_name: str, order: OrderKey) -> Gang | None:
        """Return the next gang of a queue that precedes *order* and waits without being tried."""
        while (first := self._peek(queue_name)) is not None and first[0] < order:
            self._next.pop(queue_name)
            if first[1].unschedulable_group is not None and self._is_waiting(first[1]):
                return first[1]
        return None

    def is_due(self, gang: Gang) -> bool:
        """Return whether *gang* has waited for long enough to get a reservation."""
        since = self._plan.waiting_since.get(gang.key, self._cache.cycle_time)
        return self._cache.cycle_time >= since + self._options.reserve_after

    def _reserve(self, gang: Gang) -> None:
        self._plan.waiting_since.setdefault(gang.key, self._cache.cycle_time)
        if not self.is_due(gang):
            return
        self._begin()
        waiting = self._waiting_of(gang)
        if waiting is None or gang.key in self._plan.reservations:
            return
        try:
            self._plan.reserve(waiting)
        except PluginError as error:
            self._session.calls.record(error)

    # -- which gangs ---------------------------------------------------------------------------

    def can_reserve(self, queue_name: str) -> bool:
        """Return whether another gang of a queue may get a reservation."""
        if not self.is_on or not self._knows_run_times:
            return False
        is_first = all(each.waiting.queue != queue_name for each in self._plan)
        if self._options.mode is Mode.EASY:
            return is_first
        return is_first or len(self._plan) < self._options.depth

    def _is_wanted(self, gang: Gang) -> bool:
        """Return whether *gang*, which was rejected, is to get a reservation."""
        name = self._cache.queues.of(gang).name
        if self.can_reserve(name):
            return True
        return self._options.mode is Mode.EASY and all(
            gang.priority > each.waiting.priority
            for each in self._plan
            if each.waiting.queue == name
        )

    def _is_waiting(self, gang: Gang) -> bool:
        return (
            not gang.single
            and not gang.is_pending
            and gang.key not in self._plan.reservations
            and not self._cache.scheduling_queue.is_to_be_tried(gang)
            and gang.has_requesting_tasks()
            and not MissingMembers(gang).satisfied
            and not gang.awaits_ungating()
        )

    def _peek(self, queue_name: str) -> tuple[OrderKey, Gang] | None:
        """Return the first waiting gang of a queue that was not returned before."""
        if self._waiting is None:
            self._waiting = self._unschedulable()
        if queue_name not in self._next:
            self._next[queue_name] = next(self._waiting.get(queue_name, iter(())), None)
        return self._next[queue_name]

    def _unschedulable(self) -> dict[str, Iterator[tuple[OrderKey, Gang]]]:
        """Return the unschedulable gangs of each queue, in order."""
        members: dict[str, list[list[tuple[OrderKey, Gang]]]] = {}
        for group in self._cache.scheduling_queue.groups():
            self._session.sort(group)
            name = self._cache.queues.of(group.first()[1]).name
            members.setdefault(name, []).append(group.members())
        return {
            name: merge(*groups, key=lambda member: member[0]) for name, groups in members.items()
        }

    # -- gangs as the plan sees them -----------------------------------------------------------

    def duration_of(self, gang: Gang) -> float:
        """Return for how long *gang* is expected to run, in seconds; infinite if unknown.

        What decides that is determined once for each version of the gang and the queues. A
        prediction is always the current one: others of its pattern may have ended since then.
        """
        if not self._options.uses_run_times:
            return math.inf
        run_times, version = self._cache.run_times, (gang.version, self._cache.queues.version)
        if gang.estimated_version != version:
            gang.estimated_version = version
            self._set_duration(gang)
        if gang.predicted_pattern is not None:
            gang.estimated_seconds = run_times.predictions.of_pattern(gang.predicted_pattern)
        seconds = gang.estimated_seconds
        if seconds is None:
            return math.inf
        if gang.is_predicted:
            self._plan.has_predictions = True
        else:
            self._plan.has_estimates = True
        return seconds

    def _set_duration(self, gang: Gang) -> None:
        now, run_times = self._cache.cycle_time, self._cache.run_times
        seconds, basis = run_times.of(gang)
        gang.is_predicted = seconds is None or basis is Basis.PREDICTION
        if gang.is_predicted and run_times.started_at(gang) is None:
            gang.predicted_pattern = pattern_of(gang)
            return
        gang.predicted_pattern = None
        end = run_times.expected_end(gang, now)
        gang.estimated_seconds = None if end is None else round(end - now, 3)

    def _expected_end(self, gang: Gang, state: tuple[object, ...]) -> ExpectedEnd:
        """Return when *gang*, which has pods on nodes, ends; *state* decides that, if it is
        known."""
        now = self._cache.cycle_time
        end = self._cache.run_times.expected_end(gang, now)
        known = self._plan.ends.get(gang.key)
        if end is not None and end > now:
            is_enforced = self._cache.run_times.of(gang).basis is Basis.LIMIT
            probable = self._probable_end(gang) if is_enforced else end
            return ExpectedEnd(end, state, min(probable, end), is_enforced)
        if end is None or known is None or known.is_overdue or known.time == math.inf:
            return ExpectedEnd(math.inf, state, math.inf)  # nothing enforces the limit
        end = now + RELEASE_SECONDS
        return ExpectedEnd(end, state, end, is_overdue=True)

    def _probable_end(self, gang: Gang) -> float:
        """Return when *gang* probably ends that runs or would start now; infinite if unknown."""
        end = self._cache.run_times.probable_end(gang, self._cache.cycle_time)
        return math.inf if end is None else end

    def _current(self, reservation: StartReservation) -> Waiting | None:
        """Return the gang of *reservation* as it is now, if it still waits."""
        gang = self._cache.gangs.get(reservation.waiting.key)
        is_obsolete = gang is None or gang.is_pending or not gang.has_requesting_tasks()
        if gang is None or is_obsolete or MissingMembers(gang).satisfied:
            self._plan.waiting_since.pop(reservation.waiting.key, None)
            return None
        return self._waiting_of(gang)

    def _summary(self, gang: Gang, pod_needs: tuple[PodNeed, ...] = ()) -> Waiting:
        queue = self._cache.queues.of(gang)
        return Waiting(
            gang.key,
            queue.name,
            gang.priority,
            pod_needs,
            self.duration_of(gang),
            lambda time: True,
            gang.version,
            queue.object.spec.priority if queue.object else 0,
        )

    def _waiting_of(self, gang: Gang) -> Waiting | None:
        """Return *gang* with what it needs to start, or ``None`` if it cannot."""
        if self._session.job_valid(gang):
            return None
        try:
            needs = self._needs(gang)
            if needs is None:
                return None
            option = planned_domain(self._session, gang)
            if option is None:
                return None
            index = self._cache.node_matrix.resource_index
            with self._session.within(option):
                pod_needs = tuple(
                    PodNeed(each.request_vector(index), self._session.feasible(each), count)
                    for each, count in needs
                )
        except PluginError as error:
            self._session.calls.record(error)
            return None
        allowed = self._allowed(gang, needs, borrowable=self.borrowable(gang))
        return replace(self._summary(gang, pod_needs), allowed=allowed)

    def _needs(self, gang: Gang) -> list[tuple[EquivalenceClass, int]] | None:
        """Return how many pods of which class *gang* needs to start, as ``allocate`` takes them."""
        tasks = self._session.tasks(gang)
        if any(self._is_blocked(task) for task in tasks):
            return None
        missing = MissingMembers(gang)
        if missing.satisfied:
            return [(task.eq_class, 1) for task in tasks[:1]]
        if gang.sub_groups is not None:
            needed = needed_tasks(gang, tasks)
            return list(Counter(task.eq_class for task in needed).items()) or None
        needs = []
        for eq_class, run in runs(grouped(tasks) if missing.total >= len(tasks) else tasks):
            count = missing.needed(run[0].role, len(run))
            missing.consume(run[0].role, count)
            if count:
                needs.append((eq_class, count))
        return needs if missing.satisfied else None

    def _is_blocked(self, task: Task) -> bool:
        if task.eq_class.unsupported_fields:
            return True
        has_claims = bool(task.pvcs or task.device_claims)
        return has_claims and bool(self._session.claim_rejection(task))

    # -- limits of queues ----------------------------------------------------------------------

    def _allowed(
        self, gang: Gang, needs: Sequence[tuple[EquivalenceClass, int]], *, borrowable: float
    ) -> Callable[[float], bool]:
        queue = self._cache.queues.of(gang)

        def allowed(time: float) -> bool:
            change = self._queue_change(gang, queue, time)
            counted: list[Amounts] = [change]
            add_amounts(queue.allocated, change)
            try:
                for eq_class, count in needs:
                    with self._session.borrowing(borrowable):
                        allowed_count = self._session.allocatable_count(queue, eq_class)
                    if allowed_count < count:
                        return eq_class.best_effort
                    taken = {name: units * count for name, units in eq_class.request.items()}
                    add_amounts(queue.allocated, taken)
                    counted.append(taken)
                return True
            finally:
                for each in counted:
                    add_amounts(queue.allocated, each, -1)

        return allowed

    def _queue_change(self, gang: Gang, queue: QueueInfo, time: float) -> Amounts:
        """Return by how much what is allocated in *queue* changes until *time*, by pods that end
        and by planned starts other than that of *gang*."""
        total = -self._freed_until(queue.name, time)
        for name, started in self._started:
            if name == queue.name and started.end <= time:
                total[: len(started.amounts)] -= started.amounts.sum(axis=1)
        for each in self._plan:
            occupation = each.occupation
            if each.waiting.queue != queue.name or each.waiting.key == gang.key:
                continue
            if occupation.start <= time < occupation.end:
                total[: len(occupation.amounts)] += occupation.amounts.sum(axis=1)
        return self._cache.node_matrix.resource_index.amounts(total)

    def _freed_until(self, queue_name: str, time: float) -> IntVector:
        """Return what pods of a queue use that run now and have ended by *time*."""
        if queue_name not in self._freed:
            table, slots = self._cache.task_table, self._slots
            is_own = table.queue[slots] == table.queue_id(queue_name)
            counted = np.flatnonzero(is_own & np.isin(table.status[slots], _COUNTED))
            counted = counted[np.argsort(self._ends[counted], kind="stable")]
            sums = table.requests(slots[counted]).cumsum(axis=1)
            self._freed[queue_name] = self._ends[counted], np.pad(sums, ((0, 0), (1, 0)))
        ends, freed = self._freed[queue_name]
        until: IntVector = freed[:, np.searchsorted(ends, time, side="right")]
        return until


def _is_estimated_before_admission(gang: Gang) -> bool:
    """Return whether the start of *gang* may be estimated although it is not admitted to its queue:
    not while its queue has used its budget, which no estimate considers."""
    waits_for_budget = gang.diagnosis is not None and gang.diagnosis.budget is not None
    return gang.is_pending and gang.podgroup is not None and not waits_for_budget
