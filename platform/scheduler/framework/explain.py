"""The fit error of a pod: why no node fits it, with counts."""

from collections.abc import Sequence

import numpy as np

from ..plugins.extension_points import NodeLimitPlugin, PodFilterPlugin
from ..state.equivalence import EquivalenceClass
from ..state.node_matrix import NodeMatrix
from ..state.resources import CPU, MEMORY, BoolVector, IntVector, format_amount
from .feasibility import FEASIBLE, FeasibilityCache
from .plugin_calls import PluginError


def explain(
    node_matrix: NodeMatrix,
    feasibility: FeasibilityCache,
    eq_class: EquivalenceClass,
    limits: Sequence[NodeLimitPlugin] = (),
    pod_filters: Sequence[PodFilterPlugin] = (),
) -> str:
    """Return why no node fits one more pod of *eq_class*, with the number of nodes per reason.

    Nodes that fit such pods count as filled with them: the message is for the pod after the last
    one that fits.

    Raises:
        PluginError: a filter or limit raised.
    """
    mask = feasibility.get(eq_class)
    nodes = len(node_matrix)
    if not nodes:
        return "0/0 nodes are available: the cluster has no nodes"
    counts = np.bincount(mask.codes[node_matrix.alive], minlength=len(feasibility.reasons))
    reasons = [
        f"{counts[code]} {feasibility.reasons[code]}"
        for code in np.flatnonzero(counts)
        if code > FEASIBLE
    ]
    feasible = mask.feasible.copy()
    reasons += _excluded_by_pods(node_matrix, feasible, eq_class, pod_filters)
    reasons += _full_nodes(node_matrix, feasible, eq_class, limits)
    return f"0/{nodes} nodes are unavailable: {', '.join(sorted(reasons))}."


def _excluded_by_pods(
    node_matrix: NodeMatrix,
    feasible: BoolVector,
    eq_class: EquivalenceClass,
    pod_filters: Sequence[PodFilterPlugin],
) -> list[str]:
    """Count the nodes that pods on nodes exclude, which *feasible* then excludes as well."""
    messages = []
    for plugin in pod_filters:
        try:
            for rejected in plugin.pod_filters(eq_class, node_matrix):
                count = np.count_nonzero(feasible & rejected.mask)
                feasible &= ~rejected.mask
                messages += [f"{count} {rejected.reason}"] if count else []
        except Exception as error:
            raise PluginError(plugin, "pod_filters") from error
    return messages


def _full_nodes(
    node_matrix: NodeMatrix,
    feasible: BoolVector,
    eq_class: EquivalenceClass,
    limits: Sequence[NodeLimitPlugin],
) -> list[str]:
    """Count the feasible nodes by the first limit that is reached, or resource that is missing."""
    node_indexes = np.flatnonzero(feasible)
    request = eq_class.request_vector(node_matrix.resource_index)
    capacity = node_matrix.capacity(request, node_indexes)
    messages = []
    for plugin in limits:
        try:
            limit = plugin.node_limit(eq_class, node_matrix, node_indexes)
            reason = plugin.node_limit_reason(eq_class)
        except Exception as error:
            raise PluginError(plugin, "node_limit") from error
        reached = limit <= capacity if limit is not None else np.zeros(len(capacity), np.bool_)
        if reached.any():
            messages.append(f"{np.count_nonzero(reached)} {reason}")
            node_indexes, capacity = node_indexes[~reached], capacity[~reached]
    return messages + _insufficient_resources(node_matrix, eq_class, node_indexes, capacity)


def _insufficient_resources(
    node_matrix: NodeMatrix,
    eq_class: EquivalenceClass,
    node_indexes: IntVector,
    capacity: IntVector,
) -> list[str]:
    """Count *node_indexes* by the first resource that is insufficient."""
    if not len(node_indexes):
        return []
    request = eq_class.request_vector(node_matrix.resource_index)
    left = node_matrix.idle[:, node_indexes] - request[:, None] * capacity
    rows = np.union1d(np.flatnonzero(request), (CPU, MEMORY))
    first = rows[(left[rows] < request[rows, None]).argmax(axis=0)]
    messages = []
    for row in np.unique(first):
        amounts = left[row, first == row]
        name = node_matrix.resource_index.names[row]
        label = "most free" if len(amounts) > 1 else "free"
        free = f"{label} {format_amount(name, int(amounts.max()))}"
        requested = format_amount(name, int(request[row]))
        messages.append(f"{len(amounts)} Insufficient {name} (requested {requested}, {free})")
    return messages
