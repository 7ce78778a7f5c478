"""Undo unnecessary evictions: those of victims of the highest level first.

A victim may be unnecessary because one that was chosen later frees enough for both purposes, such
as a node and the limit of a queue. What is left is minimal: the gang does not fit without any of
the victims.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np

from ..state.gangs.gang import Gang, Task, add_amounts
from ..state.podinfo.equivalence import EquivalenceClass
from .future_fit import FutureFit
from .session import Session
from .statement import Operation, OperationKind, Statement
from .victim_candidates import VictimCandidates

_Group = tuple[EquivalenceClass, int, list[Task]]
"""Waiting tasks of one class on one node."""


class VictimPruning:
    """Undoes evictions of a statement that has let a gang wait for resources."""

    def __init__(
        self, session: Session, statement: Statement, gang: Gang, candidates: VictimCandidates
    ) -> None:
        """Prune what is evicted by *statement* for *gang*."""
        self._session = session
        self._cache = session.cache
        self._statement = statement
        self._gang = gang
        self._queue = session.cache.queues.of(gang)
        self._candidates = candidates
        self._fit = FutureFit(session)
        self._groups: list[_Group] = []
        """In the order in which they got their nodes, on which affinity may depend."""

        self._by_node: dict[int, list[int]] = {}
        """Positions of the groups on each node."""

        self._seeing: list[int] = []
        """Positions of the groups that other pods may exclude from their nodes."""

        self._counts: dict[EquivalenceClass, int] = {}

    def run(self) -> None:
        """Take back what is unnecessary."""
        victims = victims_of(self._statement.operations)
        self._note_waiting_tasks()
        levels, ranks = self._candidates.order(np.array([task.slot for task in victims], np.int64))
        order = np.lexsort((ranks, levels))[::-1]
        for position in order.tolist():
            victim = victims[position]
            if self._needs_amounts_of(victim):
                continue  # as most victims
            self._statement.try_without_eviction(victim, partial(self._fits_with, victim))

    # -- private -------------------------------------------------------------------------------

    def _note_waiting_tasks(self) -> None:
        for operation in self._statement.operations:
            if operation.kind is not OperationKind.PIPELINE:
                continue
            change = operation.change
            eq_class = change.eq_class
            self._counts[eq_class] = self._counts.get(eq_class, 0) + len(change.tasks)
            by_node: dict[int, list[Task]] = {}
            for task, node_index in zip(change.tasks, change.node_indexes, strict=True):
                by_node.setdefault(node_index, []).append(task)
            for node_index, tasks in by_node.items():
                self._by_node.setdefault(node_index, []).append(len(self._groups))
                if eq_class.sees_pods:
                    self._seeing.append(len(self._groups))
                self._groups.append((eq_class, node_index, tasks))

    def _fits_with(self, victim: Task) -> bool:
        """Return whether the waiting tasks fit although *victim* stays."""
        return self._is_within_queue() and self._fits_nodes(victim)

    def _is_within_queue(self) -> bool:
        """Return whether the queue may have all waiting tasks."""
        if self._gang.single:
            return True
        allocated = self._queue.allocated
        for eq_class, count in self._counts.items():
            if eq_class.best_effort:
                continue
            add_amounts(allocated, eq_class.request, -count)
            try:
                allowed = self._session.allocatable_count(self._queue, eq_class)
            finally:
                add_amounts(allocated, eq_class.request, count)
            if allowed < count:
                return False
        return True

    def _fits_nodes(self, victim: Task) -> bool:
        """Return whether the tasks that *victim* may concern fit their nodes, one by one."""
        positions = set(self._by_node.get(victim.node_index, ()))
        if victim.eq_class.sees_pods:
            positions.update(self._seeing)
        groups = [self._groups[position] for position in sorted(positions)]
        for group in groups:
            self._count(group, -1)
        fits = True
        for group in groups:
            fits = fits and self._fits_again(group)
            if not fits:
                self._count(group, 1)
        return fits

    def _needs_amounts_of(self, victim: Task) -> bool:
        """Return whether the tasks that wait for the node of *victim* have too little if it
        stays."""
        matrix = self._cache.node_matrix
        left = matrix.future_idle(np.array([victim.node_index]))[:, 0]
        left -= victim.eq_class.request_vector(matrix.resource_index)
        groups = (self._groups[position] for position in self._by_node.get(victim.node_index, ()))
        return any((left[self._fit.request(eq_class)[1]] < 0).any() for eq_class, _, _ in groups)

    def _fits_again(self, group: _Group) -> bool:
        """Count waiting tasks again if they fit; returns whether they do."""
        eq_class, node_index, tasks = group
        if not eq_class.sees_pods:
            fits = self._fit.fits(eq_class, node_index, len(tasks))
            if fits:
                self._count(group, 1)
            return fits
        for done, task in enumerate(tasks):
            if not self._fit.fits(eq_class, node_index):
                self._count((eq_class, node_index, tasks[:done]), -1)
                return False
            self._count((eq_class, node_index, [task]), 1)
        return True

    def _count(self, group: _Group, sign: int) -> None:
        eq_class, node_index, tasks = group
        if tasks:
            nodes = [node_index] * len(tasks)
            self._cache.node_matrix.add_pipelined(eq_class, nodes, sign)
            self._cache.node_matrix.add_occupancy(eq_class, nodes, sign)


def victims_of(operations: Sequence[Operation]) -> list[Task]:
    """Return the tasks that are evicted, in order."""
    evictions = (each for each in operations if each.kind is OperationKind.EVICT)
    return [task for each in evictions for task in each.change.tasks]
