"""Choose victims for pods of one equivalence class: those of the lowest levels, then the fewest,
then those that are preferred.

One victim of a higher level is worse than any number of lower ones: its gang is broken, or it has a
higher priority.

It works on arrays only: the candidates of all nodes are compared at once.

1. The candidates of a node are put in order: by level, then those that are useful for one more pod
   first, equal ones by preference. Evicting the first *k* of them lets some pods fit; each *k* that
   lets more pods fit is an *option* of that node.
2. At most one option is chosen for each node, so that enough pods fit at the lowest cost: exactly
   by dynamic programming if that is small enough, else by cost for each pod.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..state.resources import BoolVector, IntVector, Matrix

MAX_EXACT_STEPS, _MAX_EXACT_OPTIONS = 400_000, 2_000
"""Options times pods, and options, up to which the choice is exact; for one pod it always is."""

_INFINITE = np.iinfo(np.int64).max // 4
_MAX_COST = int(_INFINITE) // 2
_MAX_RANKS = 2**24
"""Sum of all preferences at most; ranks are divided to stay below."""


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tasks that may be evicted, as columns."""

    slots: IntVector
    nodes: IntVector
    requests: Matrix
    """A column each, in the rows that are compared."""

    levels: IntVector
    """One victim costs more than any number of victims of lower levels."""

    ranks: IntVector
    """Preference: the task with the lowest is evicted first."""

    required: BoolVector
    """Whether no pod fits the node before the task is evicted."""


@dataclass(frozen=True, slots=True)
class NodeOption:
    """Victims on one node, and how many more pods fit there without them."""

    node: int
    pods: int
    slots: IntVector


@dataclass(frozen=True, slots=True)
class _Options:
    """Options as columns; position *at* evicts the candidates ``first[at]`` to ``last[at]``."""

    node: IntVector
    pods: IntVector
    first: IntVector
    last: IntVector
    cost: IntVector


def choose_victims(
    candidates: Candidates,
    request: IntVector,
    future_idle: Matrix,
    limits: IntVector,
    count: int,
) -> list[NodeOption]:
    """Return victims whose eviction lets *count* more pods fit, or as many as possible.

    Args:
        candidates: the tasks that may be evicted.
        request: what one pod requests, in the rows that are compared.
        future_idle: what each node has left, without the pods that fit it already.
        limits: how many more pods each node accepts apart from resources, once required victims
            are evicted.
        count: the number of pods.
    """
    if not len(candidates.slots) or count <= 0:
        return []
    order, useful = _order(candidates, request, future_idle)
    options = _options(candidates, order[useful[order]], request, future_idle, limits)
    if not len(options.node):
        return []
    steps = len(options.node) * min(count, int(options.pods.max()) * len(options.node))
    chosen = (
        _choose_exactly(options, count)
        if steps <= MAX_EXACT_STEPS and len(options.node) <= _MAX_EXACT_OPTIONS
        else _choose_by_density(options, count)
    )
    kept = order[useful[order]]
    return [
        NodeOption(
            int(options.node[at]),
            int(options.pods[at]),
            candidates.slots[kept[options.first[at] : options.last[at] + 1]],
        )
        for at in chosen
    ]


def pods_fitting(request: IntVector, amounts: Matrix) -> IntVector:
    """Return how many pods with *request* fit each column of *amounts*; none if one is negative."""
    requested = request > 0
    fitting: IntVector = (amounts[requested] // request[requested, None]).min(
        axis=0, initial=_INFINITE
    )
    fitting[(amounts[~requested] < 0).any(axis=0)] = 0
    return np.maximum(fitting, 0, out=fitting)


def _order(
    candidates: Candidates, request: IntVector, future_idle: Matrix
) -> tuple[IntVector, BoolVector]:
    """Return the positions of the candidates by node, in the order in which they are evicted, and
    whether each is useful at all."""
    lacking = np.maximum(request[:, None] - future_idle, 0)[:, candidates.nodes]
    helps = np.minimum(candidates.requests, lacking) / np.maximum(lacking, 1)
    usefulness = helps.sum(axis=0)
    order = np.lexsort(
        (
            candidates.ranks,
            -usefulness,
            candidates.levels,
            ~candidates.required,
            candidates.nodes,
        )
    )
    helpful = (candidates.requests[request > 0] > 0).any(axis=0) | (usefulness > 0)
    return order, helpful | candidates.required


def _options(
    candidates: Candidates,
    order: IntVector,
    request: IntVector,
    future_idle: Matrix,
    limits: IntVector,
) -> _Options:
    """Return the options of all nodes; *order* has the candidates by node."""
    nodes = candidates.nodes[order]
    starts_node = np.ones(len(order), np.bool_)
    starts_node[1:] = nodes[1:] != nodes[:-1]
    first = np.maximum.accumulate(np.where(starts_node, np.arange(len(order)), 0))
    freed = _cumulative(candidates.requests[:, order], first)
    pods = pods_fitting(request, future_idle[:, nodes] + freed)
    required = candidates.required[order].astype(np.int64)
    totals = np.bincount(nodes, weights=required, minlength=len(limits)).astype(np.int64)
    complete = _cumulative(required[None], first)[0] == totals[nodes]
    pods = np.where(complete, np.minimum(pods, limits[nodes]), 0)
    before = np.zeros(len(order), np.int64)
    before[1:] = pods[:-1]
    before[starts_node] = 0
    at = np.flatnonzero(pods > before)
    return _Options(nodes[at], pods[at], first[at], at, _costs(candidates, order, first)[at])


def _costs(candidates: Candidates, order: IntVector, first: IntVector) -> IntVector:
    """Return the cost of the victims up to each position: one victim outweighs all preferences, and
    all victims of lower levels."""
    ranks = np.argsort(np.argsort(candidates.ranks[order], kind="stable"), kind="stable")
    ranks //= int(ranks.sum()) // _MAX_RANKS + 1
    each = ranks + _weights(candidates.levels[order], int(ranks.sum()) + 1)
    costs: IntVector = _cumulative(each[None], first)[0]
    return costs


def _weights(levels: IntVector, victim: int) -> IntVector:
    """Return what a victim of each of *levels* costs, where one of the lowest level costs *victim*.
    If the sum of all would be too large, the lowest levels are treated as one.
    """
    _, of_level, numbers = np.unique(levels, return_inverse=True, return_counts=True)
    counts = [int(number) for number in numbers]
    for merged in range(1, len(counts) + 1):
        weights = [victim] * merged
        below = victim * (sum(counts[:merged]) + 1)
        for number in counts[merged:]:
            weights.append(below)
            below *= number + 1
        if below <= _MAX_COST:
            break
    return np.array(weights, np.int64)[of_level]


def _cumulative(values: Matrix, first: IntVector) -> Matrix:
    """Return sums along the columns that start again at each position of *first*."""
    sums = np.cumsum(values, axis=1)
    before: Matrix = sums[:, first] - values[:, first]
    return sums - before


def _choose_exactly(options: _Options, count: int) -> list[int]:
    """Return the options with the lowest total cost by which *count* pods fit."""
    total = int(_best_per_node(options).sum())
    count = min(count, total)
    costs = np.full(count + 1, _INFINITE, np.int64)
    costs[0] = 0
    chosen: list[IntVector] = []
    wanted = np.arange(count + 1)
    for start, end in _groups(options.node):
        before = costs
        costs, choice = before.copy(), np.full(count + 1, -1, np.int64)
        for at in range(start, end):
            with_option = before[np.maximum(wanted - options.pods[at], 0)] + options.cost[at]
            with_option[0] = 0
            better = with_option < costs
            costs[better], choice[better] = with_option[better], at
        chosen.append(choice)
    result = []
    left = count
    for choice in reversed(chosen):
        at = int(choice[left])
        if at >= 0:
            result.append(at)
            left = max(left - int(options.pods[at]), 0)
    return result[::-1]


def _choose_by_density(options: _Options, count: int) -> list[int]:
    """Return options by which *count* pods fit, the cheapest for each pod first."""
    density = options.cost / np.minimum(options.pods, count)
    order = np.lexsort((options.node, density)).tolist()
    taken: dict[int, int] = {}
    left = count
    for is_upgrade in (
        False,
        True,
    ):  # larger options of the same nodes only if the others are short
        for at in order:
            node = int(options.node[at])
            known = int(options.pods[taken[node]]) if node in taken else 0
            if left > 0 and (known < options.pods[at] if is_upgrade else not known):
                taken[node] = at
                left -= int(options.pods[at]) - known
    for node, at in sorted(taken.items(), key=lambda each: -int(options.cost[each[1]])):
        pods = int(options.pods[at])
        if left + pods <= 0:  # not needed after all
            del taken[node]
            left += pods
    return sorted(taken.values())


def _best_per_node(options: _Options) -> IntVector:
    """Return the most pods that fit by an option of each node."""
    starts = [start for start, _ in _groups(options.node)]
    best: IntVector = np.maximum.reduceat(options.pods, starts)
    return best


def _groups(nodes: IntVector) -> Sequence[tuple[int, int]]:
    """Return the ranges of equal *nodes*."""
    edges = np.flatnonzero(np.diff(nodes)) + 1
    starts = [0, *edges.tolist()]
    return list(zip(starts, [*starts[1:], len(nodes)], strict=True))
