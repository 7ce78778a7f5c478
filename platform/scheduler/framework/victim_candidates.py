"""Which tasks may be evicted for a gang, and which of them rather than others."""

from collections.abc import Sequence

import numpy as np

from ..plugins.extension_points import Preemptor
from ..plugins.gang import SurplusCounter, gangs_with_surplus
from ..state.gangs.gang import Gang, QueueInfo, Task, TaskStatus, add_amounts
from ..state.gangs.task_table import TaskTable
from ..state.gangs.victim_columns import PREEMPTABLE, PROTECTED_UNTIL, SAVED, STARTED, TIME_LIMIT
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.resources import PODS, Amounts, BoolVector, FloatVector, IntVector, amounts
from .session import Session
from .victim_plan import Candidates
from .victims import Reach

_NEVER = np.iinfo(np.int64).max

_MOST = 0.9
"""A gang that has run for more of its limit is evicted after all others of its priority."""

_RECHECK_DELAY = 1.0
"""Seconds after which a gang is tried again whose victims are not running yet."""


class VictimCandidates:
    """The tasks that may be evicted in one attempt."""

    def __init__(self, session: Session, gang: Gang, reach: Reach, *, breaking: bool) -> None:
        """Find tasks for *gang*; *breaking* permits to leave gangs below their minimum."""
        self.retry_at: float | None = None
        """When a task may be evicted that may not be now, as Unix time."""

        self.breaks_gangs = False
        """Whether tasks were left out because their gangs need them."""

        self.excluded: set[int] = set()
        """Slots of tasks that plugins did not permit."""

        self._session = session
        self._cache = session.cache
        self._gang = gang
        self._queue = session.cache.queues.of(gang)
        self._reach = reach
        self._breaking = breaking

    def slots(self, eq_class: EquivalenceClass, nodes: BoolVector | None) -> IntVector:
        """Return the slots of tasks on *nodes* (``None``: any) that may be evicted for pods of
        *eq_class*."""
        table = self._cache.task_table
        running = table.status == TaskStatus.RUNNING
        starting = table.status == TaskStatus.BOUND
        assumed = table.status == TaskStatus.BINDING
        if self._reach is Reach.PREEMPT:
            running, starting = running | starting, assumed
        else:
            starting = starting | assumed
        evictable = (table.node >= 0) & (table.gang != table.gang_id(self._gang))
        evictable &= table.column(PREEMPTABLE.name).astype(np.bool_)
        if nodes is not None:
            evictable &= nodes[table.node]
        evictable &= self._queue_mask(table)
        if (starting & evictable).any():
            self._retry_after(self._cache.cycle_time + _RECHECK_DELAY)
        slots = np.flatnonzero(running & evictable)
        if eq_class.best_effort:
            best_effort = [task.eq_class.best_effort for task in self.tasks(slots)]
            slots = slots[np.array(best_effort, np.bool_)]
        slots = self._without_young(self._without_refused(slots))
        preemptor = self.preemptor(eq_class, ())
        permitted = self._session.votes.mask(self._reach, preemptor, table, slots)
        self._note_protected(slots[~permitted])
        slots = slots[permitted]
        if not self._breaking:
            with_surplus = np.isin(table.gang[slots], gangs_with_surplus(table, slots))
            self.breaks_gangs |= not with_surplus.all()
            slots = slots[with_surplus]
        return slots

    def columns(self, slots: IntVector, rows: IntVector, eq_class: EquivalenceClass) -> Candidates:
        """Return what is compared of the tasks in *slots*; their requests in *rows*."""
        table = self._cache.task_table
        levels, ranks = self.order(slots)
        return Candidates(
            slots=slots,
            nodes=table.node[slots].astype(np.int64),
            requests=table.requests(slots)[rows],
            levels=levels,
            ranks=ranks,
            required=self._conflicts(slots, eq_class),
        )

    def order(self, slots: IntVector) -> tuple[IntVector, IntVector]:
        """Return the level of each of *slots*, and its preference.

        A task of a higher level is evicted only if all of lower ones do not suffice: one that its
        gang needs, one of a queue that loses tasks later, one of a higher priority, or one that
        ends soon by the limit of its gang. Of one level those are preferred that lose the least
        work: resources times the seconds since they have started, or have saved their work.
        """
        table = self._cache.task_table
        priorities = (
            self._ends_soon(slots),
            table.priority[slots],
            table.gang_priority[table.gang[slots]],
            self._queue_ranks(slots),
        )
        started = STARTED.values(table, slots)
        order = np.lexsort((slots, -started, self._lost_work(slots), *priorities))
        ranks = np.empty(len(slots), np.int64)
        ranks[order] = np.arange(len(slots))
        keys = (*priorities, self._breaking_mask(slots, ranks).astype(np.int64))
        by_level = np.lexsort(keys)
        levels = np.zeros(len(slots), np.int64)
        if len(slots):
            is_next = np.any([np.diff(key[by_level]) != 0 for key in keys], axis=0)
            levels[by_level[1:]] = np.cumsum(is_next)
        return levels, ranks

    def permitted(self, preemptor: Preemptor, victims: Sequence[Task]) -> set[str]:
        """Return the uids of the tasks that may all be evicted together."""
        permitted = self._session.votes.victims(self._reach, preemptor, victims)
        if not self._breaking:
            surplus = SurplusCounter()
            spare = [task for task in permitted if surplus.consume(task)]
            self.breaks_gangs |= len(spare) < len(permitted)
            permitted = spare
        if self._reach is Reach.RECLAIM:
            permitted = self._above_guarantee(permitted)
        return {task.uid for task in permitted}

    def preemptor(self, eq_class: EquivalenceClass, tasks: Sequence[Task]) -> Preemptor:
        """Return *tasks*, of *eq_class*, as the votes of plugins see them."""
        priority = min((task.priority for task in tasks), default=self._gang.priority)
        return Preemptor(self._gang, self._queue, eq_class, len(tasks), priority)

    def tasks(self, slots: IntVector) -> list[Task]:
        """Return the tasks in *slots*."""
        tasks = self._cache.task_table.tasks
        return [task for slot in slots.tolist() if (task := tasks[slot]) is not None]

    # -- private -------------------------------------------------------------------------------

    def _queue_mask(self, table: TaskTable) -> BoolVector:
        """Return which tasks are in a queue from which the gang may take resources."""
        if self._reach is Reach.PREEMPT:
            lower = table.gang_priority[table.gang] < self._gang.priority
            lower &= table.priority < self._priority()
            own: BoolVector = lower & (table.queue == table.queue_id(self._queue.name))
            return own
        others = [
            table.queue_id(queue.name)
            for queue in self._cache.queues.by_name.values()
            if queue is not self._queue
            and queue.object is not None
            and queue.object.spec.reclaimable is not False
            and queue.allocated
        ]
        return np.isin(table.queue, [number for number in others if number >= 0])

    def _priority(self) -> int:
        """Return the pod priority below which pods may be evicted, if their gang has a lower
        priority."""
        pods = (task.priority for task in self._gang.pending_tasks.values())
        return max(self._gang.priority, min(pods, default=0))

    def _without_refused(self, slots: IntVector) -> IntVector:
        """Return *slots* without tasks whose eviction was refused."""
        excluded = set(self.excluded)
        for uid, until in self._cache.refused_evictions.items():
            task = self._cache.task(uid)
            if task is not None and until > self._cache.cycle_time:
                excluded.add(task.slot)
                self._retry_after(until)
        return slots[~np.isin(slots, list(excluded))] if excluded else slots

    def _without_young(self, slots: IntVector) -> IntVector:
        """Return *slots* without tasks of gangs that have not run for their minimum time yet."""
        longest = self._cache.min_runtimes.longest()
        if not longest or not len(slots):
            return slots
        table, now = self._cache.task_table, self._cache.cycle_time
        started = self._gang_starts()[table.gang[slots]]
        young = (started > 0) & (started + longest > now)
        numbers, inverse = np.unique(table.gang[slots[young]], return_inverse=True)
        gangs = [table.gang_of(number) for number in numbers.tolist()]
        runtimes = np.array([self._cache.min_runtimes.of(gang) for gang in gangs])
        until = np.zeros(len(slots))
        until[young] = started[young] + runtimes[inverse]
        protected = until > now
        if protected.any():
            self._retry_after(float(until[protected].min()))
        return slots[~protected]

    def _gang_starts(self) -> IntVector:
        """Return by number of the gang when the first of its tasks that are on nodes was started,
        as Unix time; 0 if that is not known."""
        table = self._cache.task_table
        on_node = np.flatnonzero(table.node >= 0)
        starts: IntVector = np.full(int(table.gang.max(initial=-1)) + 1, _NEVER, np.int64)
        started = STARTED.values(table, on_node)
        np.minimum.at(starts, table.gang[on_node[started > 0]], started[started > 0])
        starts[starts == _NEVER] = 0
        return starts

    def _ends_soon(self, slots: IntVector) -> IntVector:
        """Return for each of *slots* whether a tenth of the limit of its gang is left at most."""
        table = self._cache.task_table
        limits = TIME_LIMIT.values(table, slots)
        if not limits.any():
            return np.zeros(len(slots), np.int64)
        started = self._gang_starts()[table.gang[slots]]
        ends = (limits > 0) & (started > 0)
        ends &= started + limits * _MOST <= self._cache.cycle_time
        return ends.astype(np.int64)

    def _lost_work(self, slots: IntVector) -> FloatVector:
        """Return for each of *slots* the work that its eviction costs: what it requests, of the
        resource of which that is the largest part of the cluster, times seconds."""
        table, matrix = self._cache.task_table, self._cache.node_matrix
        now = int(self._cache.cycle_time)
        since = np.maximum(STARTED.values(table, slots), SAVED.values(table, slots))
        seconds = now - np.minimum(since, now)
        requests = table.requests(slots).astype(np.float64)
        total = matrix.allocatable.sum(axis=1)[: len(requests)].astype(np.float64)
        total[PODS] = 0
        fractions = requests[: len(total)][total > 0] / total[total > 0, np.newaxis]
        work: FloatVector = fractions.max(axis=0, initial=0.0) * seconds
        return work

    def _note_protected(self, slots: IntVector) -> None:
        """Note the earliest time at which one of the tasks in *slots* is not protected any more."""
        until = PROTECTED_UNTIL.values(self._cache.task_table, slots)
        until = until[until > self._cache.cycle_time]
        if len(until):
            self._retry_after(float(until.min()))

    def _retry_after(self, time: float) -> None:
        self.retry_at = time if self.retry_at is None else min(self.retry_at, time)

    def _queue_ranks(self, slots: IntVector) -> IntVector:
        """Return for each of *slots* how many queues lose tasks before its own does."""
        if self._reach is not Reach.RECLAIM or not len(slots):
            return np.zeros(len(slots), np.int64)
        table = self._cache.task_table
        numbers, first = np.unique(table.queue[slots], return_index=True)
        found = [self._queue_of(task) for task in self.tasks(slots[first])]
        by_number = np.array(self._session.votes.queue_ranks(found, self._queue), np.int64)
        ranks: IntVector = by_number[np.searchsorted(numbers, table.queue[slots])]
        return ranks

    def _breaking_mask(self, slots: IntVector, ranks: IntVector) -> BoolVector:
        """Return which tasks their gangs need for the minimum, supposed that the tasks before them
        are evicted."""
        breaking = np.zeros(len(slots), np.bool_)
        if not self._breaking:
            return breaking
        surplus = SurplusCounter()
        order = np.argsort(ranks)
        for position, task in zip(order.tolist(), self.tasks(slots[order]), strict=True):
            gang = task.gang
            broken = gang is not None and gang.counts.ready < gang.min_member
            breaking[position] = not broken and not surplus.consume(task)
        return breaking

    def _above_guarantee(self, victims: Sequence[Task]) -> list[Task]:
        """Return the tasks without which their queues still have what they are guaranteed."""
        allocated: dict[str, Amounts] = {}
        permitted = []
        for task in victims:
            queue = self._queue_of(task)
            left = dict(allocated.get(queue.name, queue.allocated))
            add_amounts(left, task.eq_class.request, -1)
            guarantee = amounts(queue.object.spec.guarantee.resource) if queue.object else {}
            requested = task.eq_class.request
            if all(left.get(name, 0) >= n for name, n in guarantee.items() if name in requested):
                allocated[queue.name] = left
                permitted.append(task)
        return permitted

    def _conflicts(self, slots: IntVector, eq_class: EquivalenceClass) -> BoolVector:
        """Return which tasks use a host port of *eq_class*."""
        if not eq_class.host_ports:
            return np.zeros(len(slots), np.bool_)
        conflicts = [uses_port_of(task, eq_class) for task in self.tasks(slots)]
        return np.array(conflicts, np.bool_)

    def _queue_of(self, task: Task) -> QueueInfo:
        if task.gang is None:
            return self._queue
        return self._cache.queues.of(task.gang)


def uses_port_of(task: Task, eq_class: EquivalenceClass) -> bool:
    """Return whether *task* uses a host port of *eq_class*."""
    return any(
        mine[:2] == other[:2] and mine.overlaps(other)
        for mine in eq_class.host_ports
        for other in task.eq_class.host_ports
    )
