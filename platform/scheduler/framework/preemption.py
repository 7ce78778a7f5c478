"""Pipeline a gang on resources of other pods, which are evicted for it: for two actions.

All or nothing: the statement is committed only if the gang is ready once its tasks need not wait
any more. Tasks that fit without evictions get what is free first. Gangs are left below their
minimum in a second attempt only, if the first one fails.
"""

from collections.abc import Iterator, Sequence
from itertools import groupby

import numpy as np

from ..plugins.extension_points import NOT_ENOUGH_RESOURCES, Preemptor
from ..plugins.gang import SurplusCounter, gangs_with_surplus
from ..plugins.queue_state import queue_state_rejection
from ..state.diagnosis import Diagnosis
from ..state.equivalence import EquivalenceClass
from ..state.gangs import Gang, QueueInfo, Task, TaskStatus, add_amounts
from ..state.reservations import EXPIRY_MARGIN, Purpose, Reservation
from ..state.resources import CPU, MEMORY, Amounts, BoolVector, IntVector, amounts
from ..state.task_table import TaskTable
from ..state.victim_columns import PREEMPTABLE, PROTECTED_UNTIL, STARTED
from ..state.waiting import Waits
from .decision import Eviction, GangRef
from .reservation_upkeep import clear_nominations_of, forget_reservation, longest_grace
from .session import Session
from .statement import MissingMembers, OperationKind, Statement, grouped
from .victim_plan import Candidates, NodeOption, choose_victims, pods_fitting
from .victims import Reach
from .waits import ANY_NODE_CHANGE

_MAX_ROUNDS = 64
"""Plans that are tried for the pods of one class: each pipelines a pod or excludes a victim."""

_MAX_CLEARED = 32
"""Pods that are evicted from one node at most because a pod does not go with them."""

_RECHECK_DELAY = 1.0
"""Seconds after which a gang is tried again whose victims are not running yet."""


class Preemption:
    """One attempt to schedule a gang by evictions, within one statement."""

    def __init__(
        self, session: Session, statement: Statement, gang: Gang, reach: Reach, *, breaking: bool
    ) -> None:
        """Prepare the attempt; *breaking* permits to leave gangs below their minimum."""
        self.retry_at: float | None = None
        """When a task may be evicted that may not be now, as Unix time."""

        self.breaks_gangs = False
        """Whether tasks were left out because their gangs need them."""

        self._session = session
        self._cache = session.cache
        self._statement = statement
        self._gang = gang
        self._queue = session.cache.queue_of(gang)
        self._reach = reach
        self._breaking = breaking
        self._search = session.starving.search(reach.value, gang)
        self._excluded = self._search.slots(breaking=breaking)
        """Slots of tasks that plugins did not permit."""

    def run(self) -> bool:
        """Pipeline what the gang needs to be ready; returns whether it is."""
        if not self._gang.single and queue_state_rejection(self._queue):
            return False
        missing = MissingMembers(self._gang)
        tasks = [task for task in self._session.tasks(self._gang) if self._may_preempt(task)]
        if missing.satisfied or not missing.is_satisfiable(tasks):
            return False
        if missing.total >= len(tasks):
            tasks = grouped(tasks)
        done = 0
        for eq_class, run in _runs(tasks):
            done += len(run)
            wanted = run[: missing.needed(run[0].role, len(run))]
            pipelined = self._pipeline_class(eq_class, wanted)
            missing.consume(run[0].role, pipelined)
            if missing.satisfied:
                break
            if pipelined < len(wanted) and not missing.is_satisfiable(tasks[done:]):
                return False
        return missing.satisfied and self._session.votes.job_pipelined(self._gang)

    # -- private -------------------------------------------------------------------------------

    def _may_preempt(self, task: Task) -> bool:
        return (
            task.traits.may_preempt
            and not task.eq_class.unsupported_fields
            and not self._session.pvc_rejection(task)
        )

    def _pipeline_class(self, eq_class: EquivalenceClass, tasks: Sequence[Task]) -> int:
        """Pipeline as many of *tasks* as possible; returns how many."""
        tasks = tasks[: self._queue_limit(eq_class, len(tasks))]
        if not eq_class.sees_pods:
            return self._pipeline_group(eq_class, tasks)
        for pipelined, task in enumerate(tasks):  # each may change where the next one fits
            fits = self._pipeline_group(eq_class, (task,)) or self._pipeline_on_cleared_node(task)
            if not fits:
                return pipelined
        return len(tasks)

    def _pipeline_group(self, eq_class: EquivalenceClass, tasks: Sequence[Task]) -> int:
        """Pipeline as many of *tasks* as possible, at once; returns how many."""
        pipelined = self._pipeline_free(eq_class, tasks)
        for _ in range(_MAX_ROUNDS):
            if pipelined >= len(tasks):
                break
            known = len(self._excluded)
            added = self._pipeline_round(eq_class, tasks[pipelined:])
            pipelined += added
            if not added and len(self._excluded) == known:
                break
        return pipelined

    def _queue_limit(self, eq_class: EquivalenceClass, count: int) -> int:
        """Return how many of *count* pods the queue may get."""
        if self._reach is Reach.PREEMPT or self._gang.single:
            return count
        return min(count, self._session.votes.preemptive_count(self._queue, eq_class))

    def _pipeline_free(self, eq_class: EquivalenceClass, tasks: Sequence[Task]) -> int:
        """Pipeline tasks on what is idle or about to be; returns how many."""
        free = np.minimum(self._free_pods(eq_class), self._limits(eq_class))
        free[~self._feasible(eq_class)] = 0
        indexes = np.flatnonzero(free)
        chosen = np.repeat(indexes, free[indexes])[: len(tasks)].tolist()
        return self._pipeline(tasks, chosen)

    def _pipeline_round(self, eq_class: EquivalenceClass, tasks: Sequence[Task]) -> int:
        """Choose victims for *tasks*, and pipeline those whose victims are permitted."""
        options = self._plan(eq_class, len(tasks))
        preemptor = self._preemptor(eq_class, tasks)
        victims = [task for option in options for task in self._tasks(option.slots)]
        permitted = self._permitted(preemptor, victims)
        savepoint = self._statement.savepoint()
        nodes: list[int] = []
        rejected: set[int] = set()
        for option in options:
            chosen = self._tasks(option.slots)
            refused = {task.slot for task in chosen if task.uid not in permitted}
            if refused:
                rejected |= refused
                continue
            before = self._statement.savepoint()
            for task in self._needed(eq_class, option, chosen):
                self._statement.evict(task)
            if eq_class.sees_pods and not self._feasible(eq_class)[option.node]:
                self._statement.rollback_to(before)  # the pods need one that was evicted
                rejected |= {task.slot for task in chosen}
                continue
            nodes += [option.node] * option.pods
        nodes = nodes[: len(tasks)]
        pipelined = self._pipeline(tasks, nodes)
        if pipelined < len(nodes):  # evict for the pods only that the queue may get
            self._statement.rollback_to(savepoint)
            return self._pipeline_round(eq_class, tasks[:pipelined]) if pipelined else 0
        if not pipelined and not rejected <= self._excluded:
            self._excluded |= rejected
            ruled_out = self._tasks(np.array(sorted(rejected), np.int64))
            self._search.rule_out(ruled_out, breaking=self._breaking)
            self._session.starving.check_time()
        return pipelined

    def _pipeline_on_cleared_node(self, task: Task) -> bool:
        """Pipeline *task* on a node that is infeasible because of other pods, by evicting them.

        Returns whether that is possible.
        """
        eq_class = task.eq_class
        feasible = self._session.feasible(eq_class) & ~self._feasible(eq_class)
        slots = self._candidates(eq_class, feasible)
        if not len(slots):
            return False
        order = np.lexsort((self._ranks(slots), self._cache.task_table.node[slots]))
        by_node: dict[int, list[Task]] = {}
        for candidate in self._tasks(slots[order]):
            by_node.setdefault(candidate.node_index, []).append(candidate)
        preemptor = self._preemptor(eq_class, (task,))
        for node_index, victims in sorted(by_node.items(), key=lambda each: len(each[1])):
            before = self._statement.savepoint()
            for victim in victims[:_MAX_CLEARED]:
                if not self._permitted(preemptor, (victim,)):
                    continue
                self._statement.evict(victim)
                if self._fits(eq_class, node_index) and self._pipeline((task,), [node_index]):
                    return True
            self._statement.rollback_to(before)
        return False

    def _fits(self, eq_class: EquivalenceClass, node_index: int) -> bool:
        free = min(self._free_pods(eq_class)[node_index], self._limits(eq_class)[node_index])
        return bool(free > 0 and self._feasible(eq_class)[node_index])

    def _feasible(self, eq_class: EquivalenceClass) -> BoolVector:
        """Return which nodes are feasible apart from amounts, given the pods that are there now."""
        feasible = self._session.feasible(eq_class)
        if not eq_class.sees_pods:
            return feasible
        accepted: BoolVector = feasible & ~self._session.rejected_by_pods(eq_class)
        return accepted

    def _pipeline(self, tasks: Sequence[Task], nodes: list[int]) -> int:
        """Pipeline one task on each of *nodes*, as far as the queue permits; returns how many."""
        if not nodes:
            return 0
        eq_class = tasks[0].eq_class
        count = len(nodes)
        if self._reach is Reach.PREEMPT and not self._gang.single and not eq_class.best_effort:
            count = self._free_quota(eq_class, tasks[:count])
        self._statement.pipeline(list(tasks[:count]), nodes[:count])
        return count

    # -- victims -------------------------------------------------------------------------------

    def _plan(self, eq_class: EquivalenceClass, count: int) -> list[NodeOption]:
        slots = self._candidates(eq_class, self._feasible(eq_class))
        if not len(slots):
            return []
        request, rows = self._request(eq_class)
        future_idle = self._cache.node_matrix.future_idle()[rows]
        limits = self._limits(eq_class)
        free = np.minimum(pods_fitting(request, future_idle), limits)
        left = np.maximum(limits - free, 0)
        candidates = self._columns(slots, rows, eq_class)
        left[candidates.nodes[candidates.required]] = 1
        return choose_victims(
            candidates, request, future_idle - request[:, None] * free, left, count
        )

    def _columns(self, slots: IntVector, rows: IntVector, eq_class: EquivalenceClass) -> Candidates:
        table = self._cache.task_table
        ranks = self._ranks(slots)
        return Candidates(
            slots=slots,
            nodes=table.node[slots].astype(np.int64),
            requests=table.requests(slots)[rows],
            breaking=self._breaking_mask(slots, ranks),
            ranks=ranks,
            required=self._conflicts(slots, eq_class),
        )

    def _candidates(self, eq_class: EquivalenceClass, nodes: BoolVector | None) -> IntVector:
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
            best_effort = [task.eq_class.best_effort for task in self._tasks(slots)]
            slots = slots[np.array(best_effort, np.bool_)]
        slots = self._without_refused(slots)
        preemptor = self._preemptor(eq_class, ())
        permitted = self._session.votes.mask(self._reach, preemptor, table, slots)
        self._note_protected(slots[~permitted])
        slots = slots[permitted]
        if not self._breaking:
            with_surplus = np.isin(table.gang[slots], gangs_with_surplus(table, slots))
            self.breaks_gangs |= not with_surplus.all()
            slots = slots[with_surplus]
        return slots

    def _queue_mask(self, table: TaskTable) -> BoolVector:
        """Return which tasks are in a queue from which the gang may take resources."""
        if self._reach is Reach.PREEMPT:
            lower = table.gang_priority[table.gang] < self._gang.priority
            own: BoolVector = lower & (table.queue == table.queue_id(self._queue.name))
            return own
        others = [
            table.queue_id(queue.name)
            for queue in self._cache.queues.values()
            if queue is not self._queue
            and queue.object is not None
            and queue.object.spec.reclaimable is not False
            and queue.allocated
        ]
        return np.isin(table.queue, [number for number in others if number >= 0])

    def _without_refused(self, slots: IntVector) -> IntVector:
        """Return *slots* without tasks whose eviction was refused."""
        excluded = set(self._excluded)
        for uid, until in self._cache.refused_evictions.items():
            task = self._cache.task(uid)
            if task is not None and until > self._cache.cycle_time:
                excluded.add(task.slot)
                self._retry_after(until)
        return slots[~np.isin(slots, list(excluded))] if excluded else slots

    def _note_protected(self, slots: IntVector) -> None:
        """Note when the first of *slots* that is protected for a time may be evicted."""
        until = PROTECTED_UNTIL.values(self._cache.task_table, slots)
        until = until[until > self._cache.cycle_time]
        if len(until):
            self._retry_after(float(until.min()))

    def _retry_after(self, time: float) -> None:
        self.retry_at = time if self.retry_at is None else min(self.retry_at, time)

    def _ranks(self, slots: IntVector) -> IntVector:
        """Return the preference of each of *slots*: by queue, priority, and work lost."""
        table = self._cache.task_table
        queues = np.zeros(len(slots), np.int64)
        if self._reach is Reach.RECLAIM:
            numbers, first = np.unique(table.queue[slots], return_index=True)
            found = [self._queue_of(task) for task in self._tasks(slots[first])]
            by_number = self._session.votes.queue_ranks(found, self._queue)
            queues = np.array(by_number)[np.searchsorted(numbers, table.queue[slots])]
        order = np.lexsort(
            (
                slots,
                -STARTED.values(table, slots),
                table.priority[slots],
                table.gang_priority[table.gang[slots]],
                queues,
            )
        )
        ranks = np.empty(len(slots), np.int64)
        ranks[order] = np.arange(len(slots))
        return ranks

    def _breaking_mask(self, slots: IntVector, ranks: IntVector) -> BoolVector:
        """Return which tasks their gangs need for the minimum, if those before are evicted."""
        breaking = np.zeros(len(slots), np.bool_)
        if not self._breaking:
            return breaking
        surplus = SurplusCounter()
        order = np.argsort(ranks)
        for position, task in zip(order.tolist(), self._tasks(slots[order]), strict=True):
            gang = task.gang
            broken = gang is not None and gang.counts.ready < gang.min_member
            breaking[position] = not broken and not surplus.consume(task)
        return breaking

    def _permitted(self, preemptor: Preemptor, victims: Sequence[Task]) -> set[str]:
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

    def _needed(
        self, eq_class: EquivalenceClass, option: NodeOption, victims: list[Task]
    ) -> list[Task]:
        """Return *victims* without those that are unnecessary, the preferred ones
        first."""
        if len({task.eq_class for task in victims}) == 1:
            return victims  # the last one of equal victims is needed
        request, rows = self._request(eq_class)
        resource_index = self._cache.node_matrix.resource_index
        left = self._cache.node_matrix.future_idle(np.array([option.node]))[rows, 0]
        left = left - request * option.pods
        for task in victims:
            left = left + task.eq_class.request_vector(resource_index)[rows]
        needed = list(victims)
        for task in reversed(victims):
            freed = task.eq_class.request_vector(resource_index)[rows]
            if self._conflicts_with(task, eq_class) or (left < freed).any():
                continue
            left = left - freed
            needed.remove(task)
        return needed

    def _free_quota(self, eq_class: EquivalenceClass, tasks: Sequence[Task]) -> int:
        """Evict tasks on any node until the queue may allocate *tasks*; returns how many it may."""
        allowed = self._session.allocatable_count(self._queue, eq_class)
        if allowed >= len(tasks):
            return len(tasks)
        slots = self._candidates(eq_class, None)
        candidates = self._columns(slots, np.flatnonzero(self._vector(eq_class)), eq_class)
        request = self._vector(eq_class)
        request = request[request > 0]
        useful = np.minimum(candidates.requests / request[:, None], 1).sum(axis=0)
        order = np.lexsort((candidates.ranks, -useful, candidates.breaking))
        freed = np.zeros(len(request), np.int64)
        needed = request * len(tasks)
        preemptor = self._preemptor(eq_class, tasks)
        for position in order[useful[order] > 0].tolist():
            if allowed >= len(tasks) or (freed >= needed).all():
                break
            (task,) = self._tasks(slots[position : position + 1])
            if self._permitted(preemptor, (task,)):
                self._statement.evict(task)
                freed += candidates.requests[:, position]
                allowed = self._session.allocatable_count(self._queue, eq_class)
        return min(allowed, len(tasks))

    # -- nodes ---------------------------------------------------------------------------------

    def _vector(self, eq_class: EquivalenceClass) -> IntVector:
        return eq_class.request_vector(self._cache.node_matrix.resource_index)

    def _request(self, eq_class: EquivalenceClass) -> tuple[IntVector, IntVector]:
        """Return the request in the rows that count, and these rows."""
        request = self._vector(eq_class)
        rows = np.union1d(np.flatnonzero(request), (CPU, MEMORY))
        return request[rows], rows

    def _free_pods(self, eq_class: EquivalenceClass) -> IntVector:
        request, rows = self._request(eq_class)
        return pods_fitting(request, self._cache.node_matrix.future_idle()[rows])

    def _limits(self, eq_class: EquivalenceClass) -> IntVector:
        """Return how many more pods each node accepts, apart from amounts."""
        return self._session.node_limit(eq_class)

    def _conflicts(self, slots: IntVector, eq_class: EquivalenceClass) -> BoolVector:
        """Return which tasks use a host port of *eq_class*."""
        if not eq_class.host_ports:
            return np.zeros(len(slots), np.bool_)
        conflicts = [self._conflicts_with(task, eq_class) for task in self._tasks(slots)]
        return np.array(conflicts, np.bool_)

    @staticmethod
    def _conflicts_with(task: Task, eq_class: EquivalenceClass) -> bool:
        return any(
            mine[:2] == other[:2] and mine.overlaps(other)
            for mine in eq_class.host_ports
            for other in task.eq_class.host_ports
        )

    # -- lookups -------------------------------------------------------------------------------

    def _preemptor(self, eq_class: EquivalenceClass, tasks: Sequence[Task]) -> Preemptor:
        priority = min((task.priority for task in tasks), default=self._gang.priority)
        return Preemptor(self._gang, self._queue, eq_class, len(tasks), priority)

    def _tasks(self, slots: IntVector) -> list[Task]:
        tasks = self._cache.task_table.tasks
        return [task for slot in slots.tolist() if (task := tasks[slot]) is not None]

    def _queue_of(self, task: Task) -> QueueInfo:
        if task.gang is None:
            return self._queue
        return self._cache.queue_of(task.gang)


def evict_for(session: Session, gang: Gang, reach: Reach) -> bool:
    """Evict pods for *gang* if it can start then; returns whether it can.

    A gang that waits for evicted pods already is left alone.

    Raises:
        PluginError: a plugin raised.
        SearchInterruptedError: the search is to be continued in the next cycle.
    """
    reservations = session.cache.reservations
    held = reservations.get(gang.key)
    if held is not None and _is_waiting(session, held):
        _reject_waiting(session, gang, until=held.until)
        return False
    outranked = [each.gang.key for each in reservations if _outranks(session, gang, each)]
    retry_at: list[float] = []
    for breaking in (False, True):
        with (
            session.statement(gang) as statement,
            reservations.lent((gang.key, *outranked)),
        ):
            attempt = Preemption(session, statement, gang, reach, breaking=breaking)
            # Without victims it would hold resources of pods that may never terminate.
            if attempt.run() and (outranked or _evicts(statement)):
                _commit(session, gang, statement, reach)
                for dropped in reservations.recount(outranked):
                    forget_reservation(session, dropped)
                return True
        retry_at += [] if attempt.retry_at is None else [attempt.retry_at]
        if not attempt.breaks_gangs:
            break
    if retry_at:
        session.cache.waiting.starving.retry_at(min(retry_at))
    return False


def _is_waiting(session: Session, reservation: Reservation) -> bool:
    """Return whether enough is held for a gang, which only waits until it is free."""
    gang = reservation.gang
    return (
        reservation.purpose is Purpose.PREEMPTION
        and len(reservation.holds) >= gang.min_member - gang.counts.ready
        and session.cache.reservations.is_backed(reservation)
    )


def _outranks(session: Session, gang: Gang, reservation: Reservation) -> bool:
    """Return whether *gang* may take what is held by *reservation*."""
    holder = reservation.gang
    return (
        reservation.purpose is Purpose.PREEMPTION
        and holder.priority < gang.priority
        and session.cache.queue_of(holder) is session.cache.queue_of(gang)
    )


def _commit(session: Session, gang: Gang, statement: Statement, reach: Reach) -> None:
    """Commit *statement*: request the evictions, and hold the resources for *gang*."""
    cache = session.cache
    nodes: dict[str, int] = {}
    waiting: list[Task] = []
    victims: list[Task] = []
    for operation in statement.operations:
        tasks, indexes = operation.change.tasks, operation.change.node_indexes
        if operation.kind is OperationKind.EVICT:
            victims += tasks
        else:
            waiting += tasks
            nodes.update(zip((task.uid for task in tasks), indexes, strict=True))
    grace = max(
        max((task.traits.grace_period for task in victims), default=0),
        longest_grace(cache, nodes.values()),
    )
    message = f"evicted for {_described(gang)} ({reach.value})"
    session.evictions += [
        Eviction(
            namespace=task.namespace,
            name=task.name,
            uid=task.uid,
            message=message,
            gang=_gang_ref(task.gang),
            timeout=EXPIRY_MARGIN,
        )
        for task in victims
    ]
    session.commit(gang, statement)
    before = cache.reservations.drop(gang.key)
    if before is not None:
        clear_nominations_of(session, before)
    until = cache.cycle_time + grace + EXPIRY_MARGIN
    session.reserve(gang, nodes, until=until)
    for task in waiting:
        session.nominate(task, cache.node_matrix.names[nodes[task.uid]])
    _reject_waiting(session, gang, until=until)


def _evicts(statement: Statement) -> bool:
    return any(each.kind is OperationKind.EVICT for each in statement.operations)


def _reject_waiting(session: Session, gang: Gang, *, until: float) -> None:
    """Let *gang* wait until the evicted pods have terminated, or until it fits elsewhere."""
    message = "waits until the pods that are evicted for it have terminated"
    diagnosis = Diagnosis(NOT_ENOUGH_RESOURCES, message)
    session.reject(gang, diagnosis, Waits(ANY_NODE_CHANGE), retry_at=until)


def _described(gang: Gang) -> str:
    if not gang.single:
        return f"gang {gang.key}"
    return next((f"pod {task.key}" for task in gang.tasks.values()), gang.key)


def _gang_ref(gang: Gang | None) -> GangRef | None:
    return None if gang is None or gang.single else GangRef(gang.key, gang.podgroup)


def _runs(tasks: Sequence[Task]) -> Iterator[tuple[EquivalenceClass, list[Task]]]:
    for (eq_class, _), run in groupby(tasks, key=lambda task: (task.eq_class, task.role)):
        yield eq_class, list(run)
