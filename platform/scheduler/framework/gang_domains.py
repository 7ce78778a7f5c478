"""The domains of the network into which the pods of a gang may go.

A gang with a hard constraint stays within one domain of an allowed tier: that of its pods that
have a node already. The lowest tier with the capacity is chosen first; of the domains of one tier,
the one that plugins score highest, so that others stay empty for large gangs.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..plugins.extension_points import Scores
from ..state.gangs.diagnosis import DomainFit
from ..state.gangs.gang import Gang, SubGroup, TaskStatus
from ..state.nodes.node_matrix import NodeMatrix
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.resources import BoolVector, IntVector, Matrix
from ..state.topology.constraint import TopologyConstraint
from ..state.topology.domains import DomainTable

_USING = (
    TaskStatus.BINDING, TaskStatus.BOUND, TaskStatus.RUNNING, TaskStatus.UNKNOWN,
    TaskStatus.ALLOCATED, TaskStatus.PIPELINED,
)  # fmt: skip
"""Statuses of the tasks that the others have to be close to: not of those that go away."""

Needs = Sequence[tuple[EquivalenceClass, int]]
"""How many pods of which class are needed."""

CapacitiesOf = Callable[[EquivalenceClass], IntVector]
"""Returns how many more pods of a class fit on each node."""

ScoreDomains = Callable[[IntVector, Matrix, Matrix], Scores]
"""Returns a score for each domain by what is requested of it, and what it has and uses."""


@dataclass(frozen=True, slots=True)
class DomainShortage:
    """Why no domain fits a gang."""

    message: str
    fit: DomainFit
    eq_class: EquivalenceClass | None = None
    """The class of the pods that do not fit, if it is one."""


@dataclass(frozen=True, slots=True)
class Option:
    """Nodes that may be tried."""

    allowed: BoolVector | None
    """``None`` for all."""

    name: str = ""
    """Of the domain."""


EVERYWHERE = Option(None)


def used_nodes(gang: Gang | SubGroup) -> set[int]:
    """Return the columns of the nodes of the tasks of *gang*, without those that go away."""
    counts = gang.counts.by_status
    if not any(counts[status] for status in _USING):
        return set()
    return {task.node_index for task in gang.tasks.values() if task.status in _USING}


class GangDomains:
    """The domains that a gang, or a sub-group of one, may use."""

    def __init__(
        self,
        table: DomainTable,
        gang: Gang | SubGroup,
        constraint: TopologyConstraint,
        node_matrix: NodeMatrix,
        score: ScoreDomains,
    ) -> None:
        """Find the domains of *table* that *constraint* of *gang* allows, by where its tasks are;
        *score* orders those of one tier."""
        self._table = table
        self._constraint = constraint
        self._node_matrix = node_matrix
        self._score = score
        self.is_hard = constraint.is_hard
        self._tasks_on_nodes = used_nodes(gang)
        self._allowed = table.containing(self._tasks_on_nodes, node_matrix.columns)
        self._allowed &= table.allowed(constraint)

    def fitting(self, needs: Needs, capacities_of: CapacitiesOf) -> BoolVector:
        """Return which domains fit the *needs* of each class, apart from the others."""
        fits = self._allowed.copy()
        for eq_class, count in needs:
            if not fits.any():
                break
            fits &= self._table.sums(capacities_of(eq_class)) >= count
        return fits

    def options(self, fits: BoolVector, request: IntVector) -> Iterator[Option]:
        """Yield the domains that are to be tried, in order; a soft constraint allows all nodes in
        the end. *request* is that of all pods together."""
        for tier in np.unique(self._table.tiers[fits]).tolist():
            domains = np.flatnonzero(fits & (self._table.tiers == tier))
            for domain in self._by_score(domains, request):
                yield self._option(domain)
        if not self.is_hard:
            yield EVERYWHERE

    def _by_score(self, domains: IntVector, request: IntVector) -> list[int]:
        if len(domains) < 2:
            return [int(each) for each in domains]
        matrix = self._node_matrix
        rows = len(request)
        allocatable = self._table.row_sums(matrix.allocatable[:rows], domains)
        used = allocatable - self._table.row_sums(matrix.idle[:rows], domains)
        scores = np.round(self._score(request, allocatable, used), 6)
        return [int(domains[at]) for at in np.lexsort((domains, -scores))]

    def widest(self) -> Option | None:
        """Return the domain of the highest tier that has all tasks which have a node, and the most
        nodes; ``None`` if there is none. Without a hard constraint, all nodes."""
        if not self.is_hard:
            return EVERYWHERE
        allowed = np.flatnonzero(self._allowed)
        if not len(allowed):
            return None
        order = np.lexsort((-self._table.sizes[allowed], -self._table.tiers[allowed]))
        return self._option(int(allowed[order[0]]))

    def possible(
        self, needs: Needs, empty: CapacitiesOf, now: CapacitiesOf, at_most: int | None
    ) -> list[Option]:
        """Return the domains that fit *needs* if *empty*, those of low tiers and with the largest
        capacity *now* first."""
        if not self.is_hard:
            return [EVERYWHERE]
        domains = np.flatnonzero(self.fitting(needs, empty))
        if not len(domains):
            return []
        free = np.zeros(len(self._table), np.int64)
        for eq_class, count in needs:
            free += np.minimum(self._table.sums(now(eq_class)), count)
        order = np.lexsort((domains, -free[domains], self._table.tiers[domains]))
        return [self._option(int(each)) for each in domains[order[:at_most]]]

    def largest(self, capacities: IntVector) -> int:
        """Return the most of what a domain has of *capacities*."""
        if not self._allowed.any():
            return 0
        return int(self._table.sums(capacities)[self._allowed].max())

    def shortage(self, needs: Needs, capacities_of: CapacitiesOf) -> DomainShortage:
        """Return why no domain fits *needs*."""
        tier = self._constraint.described_tier
        if not self._table.has_tier(self._constraint):
            return DomainShortage(
                f"no HyperNode has a tier with the name {tier!r}", DomainFit(tier)
            )
        if not self._allowed.any():
            where = "with all pods of the gang that run" if self._tasks_on_nodes else "with nodes"
            text = f"there is no {self._constraint.described_domains()} {where}"
            return DomainShortage(text, DomainFit(tier))
        for eq_class, count in needs:
            sums = np.where(self._allowed, self._table.sums(capacities_of(eq_class)), -1)
            nearest = int(sums.argmax())
            if sums[nearest] < count:
                return self._lacking(eq_class, count, nearest, int(sums[nearest]))
        number = int(self._allowed.sum())
        kinds = self._constraint.described_domains(2)
        text = f"none of the {number} {kinds} fits all pods"
        return DomainShortage(f"{text} of the gang together", DomainFit(tier))

    def _lacking(
        self, eq_class: EquivalenceClass, count: int, nearest: int, fitting: int
    ) -> DomainShortage:
        tier, name = self._constraint.described_tier, self._table.domains[nearest].name
        pods = "1 more pod" if count == 1 else f"{count} more pods"
        kind = self._constraint.described_domains()
        message = f"no {kind} fits {pods}: the most, {fitting}, fit in {name}"
        return DomainShortage(message, DomainFit(tier, name, count, fitting), eq_class)

    def _option(self, domain: int) -> Option:
        mask = self._table.mask(domain, self._node_matrix.columns)
        return Option(mask, self._table.domains[domain].name)


def lowest_domain(gang: Gang, table: DomainTable, columns: int) -> str:
    """Return the domain of the lowest tier that has all nodes of *gang*; empty if none has, or the
    gang has no node."""
    nodes = used_nodes(gang)
    if not nodes or not len(table):
        return ""
    found = np.flatnonzero(table.containing(nodes, columns))
    if not len(found):
        return ""
    order = np.lexsort((table.sizes[found], table.tiers[found]))
    return table.domains[int(found[order[0]])].name
