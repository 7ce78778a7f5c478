"""The domains of the network, as columns of the node matrix.

A domain is a HyperNode with all its nodes. In a cluster without HyperNodes, nodes with the same
value of a label may form domains instead: each label is a tier.
"""

from collections.abc import Collection, Sequence

import numpy as np

from ....model.hypernode import Domain, HyperNode, HyperNodes
from ..core_types import Node
from ..nodes.node_matrix import NodeMatrix
from ..resources import BoolVector, IntVector, Matrix
from .constraint import TopologyConstraint

_MAX_LABELS = 64
"""Maximum number of labels whose domains are kept, since users choose the labels."""


class DomainTable:
    """Domains with nodes, by tier and name; sums over their nodes."""

    def __init__(self, domains: Collection[Domain], node_matrix: NodeMatrix) -> None:
        """Take those of *domains* that have nodes."""
        self.is_known = bool(domains)
        """Whether anything is known about the network, even if no domain has nodes."""
        indexes: list[list[int]] = []
        found: list[Domain] = []
        for domain in sorted(domains, key=lambda each: (each.tier, each.name)):
            own = sorted(
                index for each in domain.nodes if (index := node_matrix.index_of(each)) is not None
            )
            if own:
                found.append(domain)
                indexes.append(own)
        self.domains: Sequence[Domain] = found
        self.tiers: IntVector = np.array([each.tier for each in found], np.int64)
        self._members: IntVector = np.array([each for own in indexes for each in own], np.int64)
        sizes = [len(own) for own in indexes]
        self._starts: IntVector = np.cumsum([0, *sizes[:-1]]) if sizes else np.zeros(0, np.int64)
        self.sizes: IntVector = np.array(sizes, np.int64)
        self._by_tier_name: dict[str, BoolVector] = {}

    def __len__(self) -> int:
        """Return the number of domains."""
        return len(self.domains)

    def sums(self, values: IntVector) -> IntVector:
        """Return for each domain the sum of *values*, which has one for each column."""
        sums: IntVector = np.add.reduceat(values[self._members], self._starts)
        return sums

    def row_sums(self, values: Matrix, domains: IntVector) -> Matrix:
        """Return the sums of each row of *values*: a column for each of *domains*."""
        members = np.concatenate([self.members(int(each)) for each in domains])
        starts = np.cumsum(self.sizes[domains]) - self.sizes[domains]
        sums: Matrix = np.add.reduceat(values[:, members], starts, axis=1)
        return sums

    def members(self, domain: int) -> IntVector:
        """Return the columns of the nodes of a domain."""
        start = int(self._starts[domain])
        return self._members[start : start + int(self.sizes[domain])]

    def mask(self, domain: int, columns: int) -> BoolVector:
        """Return which of *columns* are nodes of a domain."""
        mask = np.zeros(columns, np.bool_)
        mask[self.members(domain)] = True
        return mask

    def containing(self, nodes: Collection[int], columns: int) -> BoolVector:
        """Return which domains have all *nodes*."""
        if not nodes:
            return np.ones(len(self), np.bool_)
        is_used = np.zeros(columns, np.int64)
        is_used[list(nodes)] = 1
        contains: BoolVector = self.sums(is_used) == len(set(nodes))
        return contains

    def allowed(self, constraint: TopologyConstraint) -> BoolVector:
        """Return which domains *constraint* allows, wherever the gang has tasks.

        A name is that of a tier in each tree of HyperNodes, which may be another number there: a
        HyperNode with this name is allowed, and each of a lower tier within it.
        """
        if not constraint.is_hard or constraint.label:
            return np.ones(len(self), np.bool_)
        if constraint.highest_tier is not None:
            return self.tiers <= constraint.highest_tier
        return self._within(constraint.highest_tier_name)

    def has_tier(self, constraint: TopologyConstraint) -> bool:
        """Return whether a domain has the highest tier of *constraint*, if that is a name."""
        return not self._is_named(constraint) or bool(self.allowed(constraint).any())

    def _is_named(self, constraint: TopologyConstraint) -> bool:
        by_number = constraint.label or constraint.highest_tier is not None
        return constraint.is_hard and not by_number

    def _within(self, tier_name: str) -> BoolVector:
        """Return which domains are within one of the tier *tier_name*."""
        found = self._by_tier_name.get(tier_name)
        if found is not None:
            return found
        within = np.zeros(len(self), np.bool_)
        named = [at for at, each in enumerate(self.domains) if each.tier_name == tier_name]
        for at in named:
            nodes = np.zeros(int(self._members.max()) + 1, np.int64)
            nodes[self.members(at)] = 1
            within |= (self.sums(nodes) == self.sizes) & (self.tiers <= self.tiers[at])
        if named:  # users choose names
            self._by_tier_name[tier_name] = within
        return within


class Domains:
    """The domains of the scheduler cache."""

    def __init__(self, node_matrix: NodeMatrix) -> None:
        """Start without domains."""
        self._node_matrix = node_matrix
        self._hypernodes = HyperNodes()
        self._label_tiers: tuple[str, ...] = ()
        self._table: DomainTable | None = None
        self._tables_by_label: dict[str, DomainTable] = {}

    def update_hypernode(self, old: HyperNode | None, new: HyperNode | None) -> bool:
        """Add, update or delete a HyperNode; returns whether domains may have changed."""
        name = (new or old or HyperNode()).metadata.name
        return self._changed(self._hypernodes.update(name, new))

    def update_node(self, old: Node | None, new: Node | None) -> bool:
        """Add, update or delete a node; returns whether domains may have changed."""
        name = (new or old or Node()).metadata.name
        labels = None if new is None else new.metadata.labels
        return self._changed(self._hypernodes.update_node(name, labels))

    def set_label_tiers(self, labels: Sequence[str]) -> None:
        """Use *labels* as tiers 1, 2, and so on, as long as there are no HyperNodes."""
        self._changed(self._label_tiers != tuple(labels))
        self._label_tiers = tuple(labels)

    def table(self, label: str = "") -> DomainTable:
        """Return the domains, until they change; those of the values of *label*, if it is given."""
        if label:
            return self._table_of(label)
        if self._table is None:
            found = (
                list(self._hypernodes.domains().values())
                if self._hypernodes
                else self._label_domains(self._label_tiers)
            )
            self._table = DomainTable(found, self._node_matrix)
        return self._table

    def _table_of(self, label: str) -> DomainTable:
        """Return the domains of the values of *label*."""
        if label not in self._tables_by_label:
            if len(self._tables_by_label) >= _MAX_LABELS:
                self._tables_by_label.clear()
            found = self._label_domains((label,))
            self._tables_by_label[label] = DomainTable(found, self._node_matrix)
        return self._tables_by_label[label]

    def _changed(self, changed: bool) -> bool:
        if changed:
            self._table = None
            self._tables_by_label.clear()
        return changed

    def _label_domains(self, labels: Sequence[str]) -> list[Domain]:
        found: list[Domain] = []
        for tier, key in enumerate(labels, 1):
            by_value: dict[str, set[str]] = {}
            for name, own in self._hypernodes.labels.items():
                if key in own:
                    by_value.setdefault(own[key], set()).add(name)
            found += [
                Domain(f"{key}={value}", tier, key, frozenset(nodes))
                for value, nodes in by_value.items()
            ]
        return found
