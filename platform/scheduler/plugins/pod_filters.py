"""Filters by the pods on all nodes: inter-pod affinity and anti-affinity, and topology spread.

Each returns masks over the columns of the node matrix; the counts behind them are kept up to date
with every pod (see :mod:`..state.pod_topology`), so a mask costs one pass over the nodes.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from ..state.nodes.node_matrix import NodeInfo, NodeMatrix
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.podinfo.pod_terms import PodSelector, SpreadTerm
from ..state.podinfo.pod_topology import domain_keys
from ..state.resources import BoolVector, IntVector
from .extension_points import RejectedNodes

AFFINITY_MISMATCH = "node(s) didn't match pod affinity rules"
ANTI_AFFINITY_MISMATCH = "node(s) didn't match pod anti-affinity rules"
EXISTING_ANTI_AFFINITY = "node(s) didn't satisfy existing pods anti-affinity rules"
MISSING_TOPOLOGY_LABEL = (
    "node(s) didn't match pod topology spread constraints (missing required label)"
)
SPREAD_MISMATCH = "node(s) didn't match pod topology spread constraints"


NodeCheck = Callable[[EquivalenceClass, NodeInfo], bool]


def affinity_filters(eq_class: EquivalenceClass, nodes: NodeMatrix) -> Iterator[RejectedNodes]:
    """Yield what required affinity, anti-affinity, and that of existing pods reject."""
    terms = eq_class.terms
    if terms.affinity is not None:
        rejected = _without_affinity(eq_class, terms.affinity, nodes)
        yield RejectedNodes(rejected, AFFINITY_MISMATCH)
    rejected = np.zeros(nodes.columns, np.bool_)
    for term in terms.anti_affinity:
        rejected |= nodes.topology.values(term.selector.targets, term.topology_key) > 0
    if terms.anti_affinity:
        yield RejectedNodes(rejected, ANTI_AFFINITY_MISMATCH)
    existing: BoolVector | None = None
    for selector in eq_class.matched_by:
        for key, counts in domain_keys(selector.holders):
            found = nodes.topology.values(counts, key) > 0
            existing = found if existing is None else existing | found
    if existing is not None:
        yield RejectedNodes(existing, EXISTING_ANTI_AFFINITY)


def _without_affinity(
    eq_class: EquivalenceClass, selector: PodSelector, nodes: NodeMatrix
) -> BoolVector:
    """Return the nodes that have not all topology labels, or lack a pod in one of the domains.

    If there is no such pod at all, the first pod of a group with affinity to itself fits.
    """
    keys, topology = eq_class.terms.affinity_keys, nodes.topology
    in_domains = np.ones(nodes.columns, np.bool_)
    satisfied = np.ones(nodes.columns, np.bool_)
    for key in keys:
        in_domains &= topology.domains(key).exists()
        satisfied &= topology.values(selector.targets, key) > 0
    is_first = not any(topology.sums(selector.targets, key) for key in keys)
    if is_first and selector in eq_class.matched_by:
        return ~in_domains
    return ~(in_domains & satisfied)


def spread_filters(
    eq_class: EquivalenceClass, nodes: NodeMatrix, included: Sequence[BoolVector]
) -> Iterator[RejectedNodes]:
    """Yield what ``DoNotSchedule`` constraints reject; *included* are the nodes for each."""
    missing = np.zeros(nodes.columns, np.bool_)
    skewed = np.zeros(nodes.columns, np.bool_)
    for term, mask in zip(eq_class.terms.spread, included, strict=True):
        has_domain = nodes.topology.domains(term.topology_key).exists()
        # Of several constraints, the first that a node violates gives the reason.
        missing |= ~has_domain & ~skewed
        skewed |= has_domain & ~missing & _skewed(eq_class, term, nodes, mask)
    yield RejectedNodes(missing, MISSING_TOPOLOGY_LABEL)
    yield RejectedNodes(skewed, SPREAD_MISMATCH)


def _skewed(
    eq_class: EquivalenceClass, term: SpreadTerm, nodes: NodeMatrix, included: BoolVector
) -> BoolVector:
    """Return the nodes on which one more pod exceeds the maximum skew."""
    counts, present = domain_counts(term, nodes, included)
    minimum = 0
    if np.count_nonzero(present) >= term.min_domains and present.any():
        minimum = int(counts[present].min())
    itself = int(term.selector in eq_class.matched_by)
    by_node: IntVector = np.append(counts, 0)[nodes.topology.domains(term.topology_key).ids]
    result: BoolVector = by_node + itself - minimum > term.max_skew
    return result


def domain_counts(
    term: SpreadTerm, nodes: NodeMatrix, included: BoolVector
) -> tuple[IntVector, BoolVector]:
    """Return for each domain the pods on nodes *included*, and whether it has such a node."""
    domains = nodes.topology.domains(term.topology_key)
    ids, size = domains.ids[included], len(domains)
    present: BoolVector = np.bincount(ids, minlength=size).astype(np.bool_)
    counts: IntVector = np.zeros(size, np.int64)
    if term.counts_pods and term.selector.targets.by_node:
        dense = term.selector.targets.dense(nodes.columns)
        counts = np.bincount(ids, weights=dense[included], minlength=size).astype(np.int64)
    return counts, present


def nodes_included(
    eq_class: EquivalenceClass,
    constraints: Sequence[SpreadTerm],
    nodes: NodeMatrix,
    *,
    matches_affinity: NodeCheck,
    tolerates_taints: NodeCheck,
) -> list[BoolVector]:
    """Return for each of *constraints* the nodes that count: those that have the labels of all
    constraints, and that its policies include."""
    labelled = nodes.alive.copy()
    for term in constraints:
        if not term.is_optional:
            labelled &= nodes.topology.domains(term.topology_key).exists()
    checks: dict[NodeCheck, BoolVector] = {}
    masks = []
    for term in constraints:
        mask = labelled
        if term.is_optional:
            mask = mask & nodes.topology.domains(term.topology_key).exists()
        for check, is_honored in (
            (matches_affinity, term.honors_affinity),
            (tolerates_taints, term.honors_taints),
        ):
            if is_honored:
                if check not in checks:
                    checks[check] = _checked(eq_class, nodes, check)
                mask = mask & checks[check]
        masks.append(mask)
    return masks


def _checked(eq_class: EquivalenceClass, nodes: NodeMatrix, check: NodeCheck) -> BoolVector:
    mask = np.zeros(nodes.columns, np.bool_)
    for node_index in np.flatnonzero(nodes.alive).tolist():
        node = nodes.node_infos[node_index]
        mask[node_index] = node is not None and check(eq_class, node)
    return mask
