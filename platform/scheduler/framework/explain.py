"""The fit error of a pod: why no node fits it, with counts and the nearest node."""

from collections.abc import Iterator, Sequence

import numpy as np

from ..plugins.extension_points import NodeLimitPlugin, PodFilterPlugin, RejectedNodes
from ..state.gangs.diagnosis import NearestNode, NodeFit
from ..state.nodes.node_matrix import NodeMatrix
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.resources import CPU, MEMORY, BoolVector, IntVector, Matrix, format_amount
from .feasibility import FEASIBLE, FeasibilityCache
from .plugin_calls import PluginError


def explain(
    node_matrix: NodeMatrix,
    feasibility: FeasibilityCache,
    eq_class: EquivalenceClass,
    limits: Sequence[NodeLimitPlugin] = (),
    pod_filters: Sequence[PodFilterPlugin] = (),
) -> NodeFit:
    """Return why no node fits one more pod of *eq_class*.

    Nodes that fit such pods count as filled with them: the result is for the pod after the last
    one that fits.

    Raises:
        PluginError: a filter or limit raised.
    """
    nodes = len(node_matrix)
    if not nodes:
        return NodeFit("0/0 nodes are available: the cluster has no nodes")
    request = eq_class.request_vector(node_matrix.resource_index)
    alive = np.flatnonzero(node_matrix.alive)
    reasons = list(feasibility.reasons)
    codes = feasibility.get(eq_class).codes[alive]
    capacity = node_matrix.capacity(request, alive)
    for rejected in _excluded_by_pods(node_matrix, eq_class, pod_filters):
        excludes = (codes == FEASIBLE) & rejected.mask[alive]
        codes = np.where(excludes, len(reasons), codes)
        reasons.append(rejected.reason)
    for plugin in limits:
        reached, reason = _reached(plugin, node_matrix, eq_class, alive, capacity)
        codes = np.where((codes == FEASIBLE) & reached, len(reasons), codes)
        reasons.append(reason)
    # Resources are what is left to lack on nodes that nothing else excludes.
    lacking = codes == FEASIBLE
    left = node_matrix.available(alive) - request[:, None] * np.where(lacking, capacity, 0)
    excluded = {
        reasons[code]: int(count) for code, count in enumerate(np.bincount(codes)) if code and count
    }
    lines = [f"{count} {reason}" for reason, count in excluded.items()]
    for reason, detail, count in _insufficient_resources(node_matrix, request, left[:, lacking]):
        excluded[reason] = count
        lines.append(f"{count} {reason} ({detail})")
    nearest = _nearest(node_matrix, request, alive, left, lacking if lacking.any() else ~lacking)
    code = codes[nearest]
    return NodeFit(
        f"0/{nodes} nodes are unavailable: {', '.join(sorted(lines))}.",
        nodes,
        excluded,
        NearestNode(
            node_matrix.names[alive[nearest]],
            _lacks(node_matrix, request, left[:, nearest]),
            reasons[code],
        ),
    )


def _excluded_by_pods(
    node_matrix: NodeMatrix, eq_class: EquivalenceClass, pod_filters: Sequence[PodFilterPlugin]
) -> Iterator[RejectedNodes]:
    """Yield the nodes that filters by other pods reject."""
    for plugin in pod_filters:
        try:
            yield from plugin.pod_filters(eq_class, node_matrix)
        except Exception as error:
            raise PluginError(plugin, "pod_filters") from error


def _reached(
    plugin: NodeLimitPlugin,
    node_matrix: NodeMatrix,
    eq_class: EquivalenceClass,
    node_indexes: IntVector,
    capacity: IntVector,
) -> tuple[BoolVector, str]:
    """Return which nodes reach the limit of *plugin* before that of their resources, and why."""
    try:
        limit = plugin.node_limit(eq_class, node_matrix, node_indexes)
        reason = plugin.node_limit_reason(eq_class)
    except Exception as error:
        raise PluginError(plugin, "node_limit") from error
    if limit is None:
        return np.zeros(len(capacity), np.bool_), reason
    return limit <= capacity, reason


def _insufficient_resources(
    node_matrix: NodeMatrix, request: IntVector, left: Matrix
) -> list[tuple[str, str, int]]:
    """Count the nodes by the first resource that is insufficient: reason, amounts and count."""
    if not left.shape[1]:
        return []
    rows = _compared_rows(request)
    first = rows[(left[rows] < request[rows, None]).argmax(axis=0)]
    found = []
    for row in np.unique(first):
        amounts = left[row, first == row]
        name = node_matrix.resource_index.names[row]
        label = "most free" if len(amounts) > 1 else "free"
        free = f"{label} {format_amount(name, int(amounts.max()))}"
        detail = f"requested {format_amount(name, int(request[row]))}, {free}"
        found.append((f"Insufficient {name}", detail, len(amounts)))
    return found


def _nearest(
    node_matrix: NodeMatrix,
    request: IntVector,
    node_indexes: IntVector,
    left: Matrix,
    candidates: BoolVector,
) -> int:
    """Return the position of the candidate with the smallest relative shortage, the first name
    among equals."""
    rows = _compared_rows(request)
    wanted = request[rows, None]
    shortage = np.maximum(wanted - left[rows], 0) / np.maximum(wanted, 1)
    worst = np.where(candidates, shortage.max(axis=0), np.inf)
    ties = np.flatnonzero(worst == worst.min())
    return int(ties[node_matrix.tie_breakers()[node_indexes[ties]].argmax()])


def _lacks(
    node_matrix: NodeMatrix, request: IntVector, left: IntVector
) -> dict[str, tuple[int, int]]:
    """Return what a node with *left* lacks, by resource."""
    rows = _compared_rows(request)
    return {
        node_matrix.resource_index.names[row]: (int(request[row]), int(left[row]))
        for row in rows
        if left[row] < request[row]
    }


def _compared_rows(request: IntVector) -> IntVector:
    """Return the requested resources, and CPU and memory, which always count."""
    return np.union1d(np.flatnonzero(request), (CPU, MEMORY))
