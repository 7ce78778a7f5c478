"""One attempt to schedule a gang by evictions, within one statement.

What fits without evictions is used first. Then victims are chosen: of the lowest levels first
(:mod:`.victim_candidates`), then as few as possible. Where there are several ways to free what a
task needs, the one of lower levels is taken. At the end, unnecessary evictions are undone.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby

import numpy as np

from ..plugins.queue_state import queue_state_rejection
from ..state.gangs.gang import Gang, SubGroup, Task, TaskStatus
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.resources import BoolVector, IntVector
from .domain_capacities import eviction_domains_of
from .future_fit import FutureFit
from .gang_domains import EVERYWHERE, Option
from .missing_members import MissingMembers
from .session import Session
from .statement import Operation, Statement
from .sub_group_units import try_units
from .task_runs import grouped
from .victim_candidates import VictimCandidates, uses_port_of
from .victim_plan import NodeOption, choose_victims
from .victim_pruning import VictimPruning, victims_of
from .victims import Reach

_MAX_ROUNDS = 64
"""Plans that are tried for the pods of one class: each pipelines a pod or excludes a victim."""

_EVICTED_WITH_OTHERS = (TaskStatus.BINDING, TaskStatus.BOUND, TaskStatus.RUNNING)

_MAX_CLEARED = 32
"""Pods that are evicted from one node at most because a pod does not go with them."""


class PreemptionAttempt:
    """Pipelines what a gang lacks on resources of other pods."""

    def __init__(
        self,
        session: Session,
        statement: Statement,
        gang: Gang,
        reach: Reach,
        *,
        breaking: bool,
        compares: bool = False,
    ) -> None:
        """Prepare the attempt; *breaking* permits to leave gangs below their minimum. With
        *compares*, a sub-group is put into the domain that loses least, and not into the first that
        fits."""
        self.candidates = VictimCandidates(session, gang, reach, breaking=breaking)
        self._session = session
        self._cache = session.cache
        self._statement = statement
        self._gang = gang
        self._queue = session.cache.queues.of(gang)
        self._reach = reach
        self._breaking = breaking
        self._compares = compares
        self._search = session.starving.search(reach.value, gang)
        self._failed_before = self._search.failed_nodes(breaking=breaking)
        self.candidates.excluded |= self._search.slots(breaking=breaking)
        self._fit = FutureFit(session)
        self._lacks_quota = False
        """Whether the queue could not have had what the gang lacks without evictions."""
        self._has_refused_gang = False
        """Whether victims were chosen whose whole gang may not be evicted."""

    def run(self) -> bool:
        """Pipeline what the gang needs to be ready; returns whether it is.

        Raises:
            PluginError: a plugin raised.
            SearchInterruptedError: the time of the cycle is over.
        """
        if not self._gang.single and queue_state_rejection(self._queue):
            return False
        done = self._pipeline_and_evict_whole()
        if not self._lacks_quota:
            return done
        return self._cheaper(0, done, lambda: self._pipeline_and_evict_whole(quota_first=True))

    # -- private -------------------------------------------------------------------------------

    def _pipeline_and_evict_whole(self, *, quota_first: bool = False) -> bool:
        """The same as :meth:`_pipeline_missing`, again without the gangs that may not be evicted
        whole."""
        start = self._statement.savepoint()
        while True:
            self._has_refused_gang = False
            if self._pipeline_missing(quota_first=quota_first):
                return True
            if not self._has_refused_gang:
                return False
            self._statement.rollback_to(start)

    def _pipeline_missing(self, *, quota_first: bool = False) -> bool:
        """Pipeline what the gang needs; with *quota_first*, evict for the limit of its queue before
        a node is chosen, as one victim may suffice for both."""
        missing = MissingMembers(self._gang)
        if self._gang.native is not None and self._gang.native.never_preempts:
            return False
        tasks = [task for task in self._session.tasks(self._gang) if self._may_preempt(task)]
        if missing.satisfied or not missing.is_satisfiable(tasks):
            return False
        if self._gang.sub_groups is not None:
            whole = partial(self._pipeline_whole, quota_first)
            single = partial(self._pipeline_in_sub_group, missing, quota_first)
            try_units(tasks, missing, whole, single)
        else:
            grouped_tasks = grouped(tasks) if missing.total >= len(tasks) else tasks
            self._pipeline_tasks(grouped_tasks, missing, quota_first=quota_first)
        if not missing.satisfied or not self._session.votes.job_pipelined(self._gang):
            return False
        VictimPruning(self._session, self._statement, self._gang, self.candidates).run()
        return self._evict_whole_gangs(tasks[0].eq_class)

    def _evict_whole_gangs(self, eq_class: EquivalenceClass) -> bool:
        """Evict all other tasks of gangs that are evicted whole, for pods of *eq_class*; returns
        whether that is possible. If it is not, their tasks are not considered again."""
        victims = victims_of(self._statement.operations)
        gangs = {each.gang.key: each.gang for each in victims if each.gang is not None}
        whole = [each for each in gangs.values() if each.is_evicted_whole]
        if not whole:
            return True
        allowed = set(self.candidates.slots(eq_class, None).tolist())
        preemptor = self.candidates.preemptor(eq_class, ())
        for gang in whole:
            others = [each for each in gang.tasks.values() if each.status in _EVICTED_WITH_OTHERS]
            permitted = self.candidates.permitted(preemptor, others)
            if any(each.slot not in allowed or each.uid not in permitted for each in others):
                self._has_refused_gang = True
                self.candidates.excluded |= {each.slot for each in gang.tasks.values()}
                self._rule_out(list(gang.tasks.values()))
                return False
            for each in others:
                self._statement.evict(each)
        return True

    def _pipeline_tasks(
        self, tasks: Sequence[Task], missing: MissingMembers, *, quota_first: bool
    ) -> None:
        """Pipeline tasks until *missing* is satisfied or cannot be satisfied."""
        done, are_all = 0, self._gang.sub_groups is None
        for eq_class, run in _runs(tasks):
            done += len(run)
            wanted = run[: missing.needed(run[0].role, len(run))]
            pipelined = self._pipeline_run(eq_class, wanted, quota_first=quota_first)
            missing.consume(run[0].role, pipelined)
            if missing.satisfied:
                return
            is_short = are_all and pipelined < len(wanted)
            if is_short and not missing.is_satisfiable(tasks[done:]):
                return

    def _pipeline_run(
        self, eq_class: EquivalenceClass, tasks: Sequence[Task], *, quota_first: bool
    ) -> int:
        """Pipeline as many of *tasks* as possible; returns how many."""
        if quota_first and tasks and self._has_quota(eq_class):
            self._free_quota(eq_class, tasks)
        return self._pipeline_class(eq_class, tasks)

    def _pipeline_in_sub_group(
        self,
        missing: MissingMembers,
        quota_first: bool,
        sub_group: SubGroup | None,
        tasks: Sequence[Task],
    ) -> None:
        """Pipeline what *missing* needs of *tasks*, one by one, in one domain of *sub_group*."""
        needs = [(tasks[0].eq_class, 1)]
        options = (
            (EVERYWHERE,)
            if sub_group is None
            else eviction_domains_of(self._session, self._gang, sub_group, needs)
        )
        for option in options[:1]:
            with self._session.within(option):
                self._pipeline_tasks(tasks, missing, quota_first=quota_first)

    def _pipeline_whole(
        self, quota_first: bool, sub_group: SubGroup, tasks: Sequence[Task]
    ) -> bool:
        """Pipeline all *tasks* of *sub_group*, by which it becomes whole, in one of its domains;
        returns whether one takes them."""
        if len(tasks) < sub_group.missing:
            return False
        needs = list(Counter(task.eq_class for task in tasks).items())
        start, done = self._statement.savepoint(), False

        def pipeline(option: Option) -> bool:
            with self._session.within(option):
                return all(
                    self._pipeline_run(eq_class, run, quota_first=quota_first) == len(run)
                    for eq_class, run in _runs(grouped(tasks))
                )

        for option in eviction_domains_of(self._session, self._gang, sub_group, needs):
            done = self._cheaper(start, done, partial(pipeline, option))
            if done and not self._compares:
                break
        return done

    def _may_preempt(self, task: Task) -> bool:
        return (
            task.traits.may_preempt
            and not task.eq_class.unsupported_fields
            and not self._session.claim_rejection(task)
        )

    def _pipeline_class(self, eq_class: EquivalenceClass, tasks: Sequence[Task]) -> int:
        """Pipeline as many of *tasks* as possible; returns how many."""
        tasks = tasks[: self._queue_limit(eq_class, len(tasks))]
        if not eq_class.sees_pods:
            return self._pipeline_group(eq_class, tasks)
        for pipelined, task in enumerate(tasks):  # each may change where the next one fits
            if not self._pipeline_seeing(task):
                return pipelined
        return len(tasks)

    def _pipeline_seeing(self, task: Task) -> bool:
        """Pipeline a task that other pods may exclude from nodes; returns whether that is
        possible."""
        if self._pipeline_free(task.eq_class, (task,)):
            return True
        start = self._statement.savepoint()
        done = self._pipeline_group(task.eq_class, (task,)) > 0
        return self._cheaper(start, done, lambda: self._pipeline_on_cleared_node(task))

    def _cheaper(self, start: int, done: bool, other: Callable[[], bool]) -> bool:
        """Compare two ways and keep the cheaper one: what was *done* since savepoint *start*, or
        *other*, if that succeeds and evicts tasks of lower levels or fewer tasks. Returns whether
        one of the two succeeded."""
        first = tuple(self._statement.operations[start:])
        self._statement.rollback_to(start)
        succeeds = other()
        second = tuple(self._statement.operations[start:])
        if succeeds and not done:
            return True
        self._statement.rollback_to(start)
        if done:
            is_cheaper = succeeds and self._costs_less(second, than=first)
            self._statement.redo(second if is_cheaper else first)
        return done

    def _costs_less(self, operations: Sequence[Operation], *, than: Sequence[Operation]) -> bool:
        victims, others = victims_of(operations), victims_of(than)
        slots = {task.slot: None for task in (*victims, *others)}
        levels, _ = self.candidates.order(np.array(list(slots), np.int64))
        by_slot = dict(zip(slots, levels.tolist(), strict=True))
        costs = [
            sorted((by_slot[task.slot] for task in each), reverse=True)
            for each in (victims, others)
        ]
        return costs[0] < costs[1]

    def _pipeline_group(self, eq_class: EquivalenceClass, tasks: Sequence[Task]) -> int:
        """Pipeline as many of *tasks* as possible, at once; returns how many."""
        pipelined = self._pipeline_free(eq_class, tasks)
        for _ in range(_MAX_ROUNDS):
            if pipelined >= len(tasks):
                break
            known = len(self.candidates.excluded)
            added = self._pipeline_round(eq_class, tasks[pipelined:])
            pipelined += added
            if not added and len(self.candidates.excluded) == known:
                break
        return pipelined

    def _pipeline_free(self, eq_class: EquivalenceClass, tasks: Sequence[Task]) -> int:
        """Pipeline tasks on what is idle or about to be; returns how many."""
        free = np.minimum(self._fit.free_pods(eq_class), self._fit.limits(eq_class))
        free[~self._fit.feasible(eq_class)] = 0
        indexes = np.flatnonzero(free)
        chosen = np.repeat(indexes, free[indexes])[: len(tasks)].tolist()
        return self._pipeline(tasks, chosen)

    def _pipeline_round(self, eq_class: EquivalenceClass, tasks: Sequence[Task]) -> int:
        """Choose victims for *tasks*, and pipeline those whose victims are permitted."""
        options = self._plan(eq_class, len(tasks))
        preemptor = self.candidates.preemptor(eq_class, tasks)
        victims = [task for option in options for task in self.candidates.tasks(option.slots)]
        permitted = self.candidates.permitted(preemptor, victims)
        savepoint = self._statement.savepoint()
        nodes: list[int] = []
        rejected: set[int] = set()
        for option in options:
            chosen = self.candidates.tasks(option.slots)
            refused = {task.slot for task in chosen if task.uid not in permitted}
            if refused:
                rejected |= refused
                continue
            before = self._statement.savepoint()
            for task in self._needed(eq_class, option, chosen):
                self._statement.evict(task)
            if eq_class.sees_pods and not self._fit.feasible(eq_class)[option.node]:
                self._statement.rollback_to(before)  # the pods need one that was evicted
                rejected |= {task.slot for task in chosen}
                continue
            nodes += [option.node] * option.pods
        nodes = nodes[: len(tasks)]
        pipelined = self._pipeline(tasks, nodes)
        if pipelined < len(nodes):  # evict for the pods only that the queue may get
            self._statement.rollback_to(savepoint)
            return self._pipeline_round(eq_class, tasks[:pipelined]) if pipelined else 0
        if not pipelined and not rejected <= self.candidates.excluded:
            self.candidates.excluded |= rejected
            self._rule_out(self.candidates.tasks(np.array(sorted(rejected), np.int64)))
        return pipelined

    def _rule_out(self, tasks: Sequence[Task]) -> None:
        """Do not consider *tasks* if the search is continued in the next cycle.

        Raises:
            SearchInterruptedError: it is.
        """
        self._search.rule_out(tasks, breaking=self._breaking)
        self._session.starving.check_time()

    def _plan(self, eq_class: EquivalenceClass, count: int) -> list[NodeOption]:
        slots = self.candidates.slots(eq_class, self._fit.feasible(eq_class))
        if not len(slots):
            return []
        request, rows = self._fit.request(eq_class)
        future_idle = self._cache.node_matrix.future_idle()[rows]
        limits = self._fit.limits(eq_class)
        free = np.minimum(self._fit.free_pods(eq_class), limits)
        left = np.maximum(limits - free, 0)
        candidates = self.candidates.columns(slots, rows, eq_class)
        left[candidates.nodes[candidates.required]] = 1
        return choose_victims(
            candidates, request, future_idle - request[:, None] * free, left, count
        )

    def _needed(
        self, eq_class: EquivalenceClass, option: NodeOption, victims: list[Task]
    ) -> list[Task]:
        """Return the *victims* that are necessary on their node, those to be evicted first at the
        front."""
        if len({task.eq_class for task in victims}) == 1:
            return victims  # the last one of equal victims is needed
        request, rows = self._fit.request(eq_class)
        resource_index = self._cache.node_matrix.resource_index
        left = self._cache.node_matrix.future_idle(np.array([option.node]))[rows, 0]
        left = left - request * option.pods
        for task in victims:
            left = left + task.eq_class.request_vector(resource_index)[rows]
        needed = list(victims)
        for task in reversed(victims):
            freed = task.eq_class.request_vector(resource_index)[rows]
            if uses_port_of(task, eq_class) or (left < freed).any():
                continue
            left = left - freed
            needed.remove(task)
        return needed

    # -- pods that do not go together ----------------------------------------------------------

    def _pipeline_on_cleared_node(self, task: Task) -> bool:
        """Pipeline *task* on a node that is infeasible because of other pods, by evicting them.

        Returns whether that is possible.
        """
        eq_class = task.eq_class
        rejected = self._session.feasible(eq_class) & ~self._fit.feasible(eq_class)
        slots = self.candidates.slots(eq_class, rejected)
        slots = slots[self._excludes(slots, eq_class)]
        levels, ranks = self.candidates.order(slots)
        order = np.lexsort((ranks, levels))
        by_node: dict[int, list[tuple[int, Task]]] = {}
        tasks = self.candidates.tasks(slots[order])
        for level, victim in zip(levels[order].tolist(), tasks, strict=True):
            by_node.setdefault(victim.node_index, []).append((level, victim))

        def cost(node_index: int) -> list[int]:
            return [level for level, _ in reversed(by_node[node_index])]

        for node_index in sorted(by_node, key=cost):
            if (eq_class, node_index) in self._failed_before:
                continue
            before = self._statement.savepoint()
            victims = [victim for _, victim in by_node[node_index]]
            if self._clear(task, node_index, victims) and self._pipeline((task,), [node_index]):
                return True
            self._statement.rollback_to(before)
            self._search.fail_node(eq_class, node_index, breaking=self._breaking)
            self._session.starving.check_time()
        return False

    def _excludes(self, slots: IntVector, eq_class: EquivalenceClass) -> BoolVector:
        """Return which tasks may exclude pods of *eq_class* from nodes."""
        table = self._cache.task_table
        numbers, first = np.unique(table.eq_class[slots], return_index=True)
        excluding = [
            number
            for number, task in zip(
                numbers.tolist(), self.candidates.tasks(slots[first]), strict=True
            )
            if _may_exclude(task.eq_class, eq_class)
        ]
        return np.isin(table.eq_class[slots], excluding)

    def _clear(self, task: Task, node_index: int, victims: Sequence[Task]) -> bool:
        """Evict *victims*, and others if necessary, until *task* fits a node; returns whether it
        does."""
        eq_class = task.eq_class
        evicted = self._evict_until(
            lambda: bool(self._fit.feasible(eq_class)[node_index]), task, victims
        )
        if evicted is None:
            return False
        if not self._fit.fits(eq_class, node_index):
            on_node = np.zeros(self._cache.node_matrix.columns, np.bool_)
            on_node[node_index] = True
            slots = self.candidates.slots(eq_class, on_node)
            levels, ranks = self.candidates.order(slots)
            others = self.candidates.tasks(slots[np.lexsort((ranks, levels))])
            more = self._evict_until(lambda: self._fit.fits(eq_class, node_index), task, others)
            if more is None:
                return False
            evicted += more
        slots = np.array([victim.slot for victim in evicted], np.int64)
        levels, ranks = self.candidates.order(slots)
        for position in np.lexsort((ranks, levels))[::-1].tolist():
            self._statement.try_without_eviction(
                evicted[position], lambda: self._fit.fits(eq_class, node_index)
            )
        return True

    def _evict_until(
        self, is_done: Callable[[], bool], task: Task, victims: Sequence[Task]
    ) -> list[Task] | None:
        """Evict *victims* in order until *is_done*; returns them, or ``None`` if all of them do not
        suffice."""
        preemptor = self.candidates.preemptor(task.eq_class, (task,))
        evicted: list[Task] = []
        for victim in victims:
            if is_done():
                break
            if len(evicted) >= _MAX_CLEARED:
                return None
            if self.candidates.permitted(preemptor, (victim,)):
                self._statement.evict(victim)
                evicted.append(victim)
        return evicted if is_done() else None

    # -- limits of the queue -------------------------------------------------------------------

    def _has_quota(self, eq_class: EquivalenceClass) -> bool:
        return not self._gang.single and not eq_class.best_effort

    def _queue_limit(self, eq_class: EquivalenceClass, count: int) -> int:
        """Return how many of *count* pods the queue may get."""
        if self._reach is Reach.PREEMPT or self._gang.single:
            return count
        return min(count, self._session.votes.preemptive_count(self._queue, eq_class))

    def _pipeline(self, tasks: Sequence[Task], nodes: list[int]) -> int:
        """Pipeline one task on each of *nodes*, as far as the queue permits; returns how many."""
        if not nodes:
            return 0
        eq_class = tasks[0].eq_class
        count = len(nodes)
        if self._has_quota(eq_class):
            count = self._free_quota(eq_class, tasks[:count])
        self._statement.pipeline(list(tasks[:count]), nodes[:count])
        return count

    def _free_quota(self, eq_class: EquivalenceClass, tasks: Sequence[Task]) -> int:
        """Evict tasks on any node until the queue may allocate *tasks*; returns how many it may."""
        allowed = self._session.allocatable_count(self._queue, eq_class)
        if allowed >= len(tasks):
            return len(tasks)
        self._lacks_quota = True
        slots = self.candidates.slots(eq_class, None)
        request = eq_class.request_vector(self._cache.node_matrix.resource_index)
        candidates = self.candidates.columns(slots, np.flatnonzero(request), eq_class)
        request = request[request > 0]
        useful = np.minimum(candidates.requests / request[:, None], 1).sum(axis=0)
        order = np.lexsort((candidates.ranks, -useful, candidates.levels))
        freed = np.zeros(len(request), np.int64)
        needed = request * len(tasks)
        preemptor = self.candidates.preemptor(eq_class, tasks)
        helpful = self._statement.savepoint()
        for position in order[useful[order] > 0].tolist():
            if allowed >= len(tasks) or (freed >= needed).all():
                break
            (task,) = self.candidates.tasks(slots[position : position + 1])
            if not self.candidates.permitted(preemptor, (task,)):
                self._rule_out((task,))
                continue
            self._statement.evict(task)
            freed += candidates.requests[:, position]
            before = allowed
            allowed = self._session.allocatable_count(self._queue, eq_class)
            if allowed > before:
                helpful = self._statement.savepoint()
        self._statement.rollback_to(helpful)
        return min(allowed, len(tasks))


def _may_exclude(there: EquivalenceClass, pending: EquivalenceClass) -> bool:
    """Return whether a pod of one class may exclude pods of another from nodes."""
    return (
        not there.matched_by.isdisjoint(pending.terms.selectors)
        or not pending.matched_by.isdisjoint(there.terms.selectors)
        or bool(there.volumes and pending.volumes)
        or bool(there.devices.held and pending.devices.pending)
    )


def _runs(tasks: Sequence[Task]) -> Iterator[tuple[EquivalenceClass, list[Task]]]:
    for (eq_class, _), run in groupby(tasks, key=lambda task: (task.eq_class, task.role)):
        yield eq_class, list(run)
