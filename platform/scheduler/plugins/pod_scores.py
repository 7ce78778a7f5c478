"""Scores by the pods on all nodes: preferred inter-pod affinity, and soft topology spread.

As in kube-scheduler, each is normalized to 0 to 100 over the candidates.
"""

from collections.abc import Sequence

import numpy as np

from ..state.nodes.node_matrix import NodeMatrix
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.podinfo.pod_topology import domain_keys
from ..state.resources import BoolVector, FloatVector, IntVector
from .pod_filters import domain_counts

_HOSTNAME = "kubernetes.io/hostname"


def affinity_scores(
    eq_class: EquivalenceClass, nodes: NodeMatrix, candidates: IntVector
) -> IntVector | None:
    """Score *candidates* by preferred affinity and anti-affinity, of the pods and to them."""
    weights = np.zeros(len(candidates), np.int64)
    topology = nodes.topology
    for term in eq_class.terms.preferred:
        values = topology.values(term.selector.targets, term.topology_key)
        weights += term.weight * values[candidates]
    for selector in eq_class.matched_by:
        for key, counts in domain_keys(selector.preferences):
            weights += topology.values(counts, key)[candidates]
    lowest, highest = int(weights.min()), int(weights.max())
    if lowest == highest:
        return None
    scores: IntVector = (100 * ((weights - lowest) / (highest - lowest))).astype(np.int64)
    return scores


def spread_scores(
    eq_class: EquivalenceClass,
    nodes: NodeMatrix,
    candidates: IntVector,
    included: Sequence[BoolVector],
) -> IntVector:
    """Score *candidates* by ``ScheduleAnyway`` constraints; *included* are the nodes for each."""
    constraints, topology = eq_class.terms.soft_spread, nodes.topology
    is_scored = np.ones(len(candidates), np.bool_)
    for term in constraints:
        if not term.is_optional:
            is_scored &= topology.domains(term.topology_key).exists()[candidates]
    scored = candidates[is_scored]
    scores = np.zeros(len(candidates), np.int64)
    if not len(scored):
        return scores
    sums: FloatVector = np.zeros(len(scored))
    for term, mask in zip(constraints, included, strict=True):
        has_domain = np.ones(len(scored), np.bool_)
        if term.topology_key == _HOSTNAME:
            counts = term.selector.targets.dense(nodes.columns)[scored]
            counts = counts if term.counts_pods else np.zeros(len(scored), np.int64)
            domains = len(scored)
        else:
            ids = topology.domains(term.topology_key).ids[scored]
            has_domain = ids >= 0
            if not has_domain.any():
                continue
            counts = domain_counts(term, nodes, mask)[0][ids]
            domains = len(np.unique(ids[has_domain]))
        sums += np.where(has_domain, counts * np.log(domains + 2) + (term.max_skew - 1), 0)
    rounded = np.floor(sums + 0.5).astype(np.int64)
    highest = int(rounded.max())
    scores[is_scored] = (
        100 * (highest + int(rounded.min()) - rounded) // highest if highest else 100
    )
    return scores
