"""How many pods the nodes could take of each class that rejected gangs wait for.

The numbers are updated for the columns of the node matrix that changed since, for all classes at
once. They may be too large (then a gang is tried in vain), never too small.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from ..podinfo.equivalence import EquivalenceClass
from ..resources import CPU, MAX_AMOUNT, MEMORY, BoolVector, IntVector, Matrix
from .node_matrix import NodeMatrix

FeasibleColumns = Callable[[EquivalenceClass, IntVector], BoolVector]
"""Returns which columns are feasible for a class, apart from amounts."""

_MAX_CELLS = 1_000_000
"""Columns times classes up to which capacities are updated; beyond, they are unknown."""

_MAX_MASKS = 200
"""Distinct constraints up to which feasible columns are distinguished."""

_UNKNOWN = MAX_AMOUNT


@dataclass(frozen=True, slots=True)
class _Constraints:
    """The distinct constraints of the classes."""

    first: list[EquivalenceClass]
    """A class with each of them."""

    rows: IntVector
    """The constraints of each class, as a position in :attr:`first`."""


def _number(classes: Iterable[EquivalenceClass]) -> _Constraints:
    numbers: dict[bytes, int] = {}
    first: list[EquivalenceClass] = []
    rows = []
    for eq_class in classes:
        number = numbers.get(eq_class.constraints_key)
        if number is None:
            number = numbers[eq_class.constraints_key] = len(first)
            first.append(eq_class)
        rows.append(number)
    return _Constraints(first, np.array(rows, np.int64))


class NeededCapacity:
    """The capacity of all nodes, in pods of each class that gangs wait for."""

    def __init__(self, node_matrix: NodeMatrix) -> None:
        """Start without classes."""
        self._matrix = node_matrix
        self._seen: Matrix = node_matrix.available().copy()
        """The available amounts that the capacities are of."""
        self._usage_position = node_matrix.usage_changes.position
        self._node_position = node_matrix.node_changes.position
        self._classes: list[EquivalenceClass] = []
        self._rows: dict[EquivalenceClass, int] = {}
        self._requests: Matrix = np.zeros((0, 0), np.int64)
        self._capacity: IntVector = np.zeros(0, np.int64)
        self._numbered: _Constraints | None = None

    @property
    def is_outdated(self) -> bool:
        """Whether nodes have changed since the last update."""
        return self._usage_position != self._matrix.usage_changes.position

    def set_capacity(self, eq_class: EquivalenceClass, capacity: int) -> None:
        """Set the capacity for *eq_class* as of the last :meth:`update`."""
        row = self._rows.get(eq_class)
        if row is None:
            row = self._rows[eq_class] = len(self._classes)
            self._classes.append(eq_class)
            if row >= len(self._capacity):
                size = max(2 * len(self._capacity), 16)
                self._capacity = np.resize(self._capacity, size)
                requests = np.zeros((len(self._matrix.resource_index), size), np.int64)
                requests[: self._requests.shape[0], : self._requests.shape[1]] = self._requests
                self._requests = requests
            self._add_missing_rows()
            self._requests[:, row] = eq_class.request_vector(self._matrix.resource_index)
        self._capacity[row] = capacity

    def get(self, eq_class: EquivalenceClass) -> int:
        """Return the capacity for *eq_class* as of the last :meth:`update`, or more."""
        row = self._rows.get(eq_class)
        return _UNKNOWN if row is None else int(self._capacity[row])

    def keep(self, classes: Iterable[EquivalenceClass]) -> None:
        """Forget all classes but *classes*, if they are much fewer."""
        wanted = set(classes)
        if len(self._classes) <= 2 * len(wanted) + 64:
            return
        known = [(each, int(self._capacity[self._rows[each]])) for each in self._classes]
        self._classes, self._rows, self._numbered = [], {}, None
        for eq_class, capacity in known:
            if eq_class in wanted:
                self.set_capacity(eq_class, capacity)

    def update(self, feasible: FeasibleColumns) -> tuple[list[tuple[EquivalenceClass, int]], bool]:
        """Update the capacities for the columns that changed.

        Returns the classes of which more pods fit than before, with their capacity, and whether any
        amount on any node grew.
        """
        matrix = self._matrix
        matrix.add_missing_rows()
        usage = matrix.usage_changes.since(self._usage_position)
        nodes = matrix.node_changes.since(self._node_position)
        self._usage_position = matrix.usage_changes.position
        self._node_position = matrix.node_changes.position
        if not usage and not nodes and usage is not None and nodes is not None:
            return [], False
        available = matrix.available()
        if self._seen.shape != available.shape:
            missing = [
                new - old for new, old in zip(available.shape, self._seen.shape, strict=True)
            ]
            self._seen = np.pad(self._seen, [(0, each) for each in missing])
        if usage is None or nodes is None:
            columns = np.arange(available.shape[1])
        else:
            columns = np.array(sorted({*usage, *nodes}), np.int64)
        before, after = self._seen[:, columns], available[:, columns]
        if nodes is None:
            before[:] = -1
        elif nodes:
            before[:, np.isin(columns, nodes)] = -1
        grown: BoolVector = np.any(after > before, axis=0)
        self._seen[:, columns] = after
        if not self._classes:
            return [], bool(grown.any())
        return self._update_classes(columns, before, after, grown, feasible), bool(grown.any())

    # -- private -------------------------------------------------------------------------------

    def _update_classes(
        self,
        columns: IntVector,
        before: Matrix,
        after: Matrix,
        grown: BoolVector,
        feasible: FeasibleColumns,
    ) -> list[tuple[EquivalenceClass, int]]:
        count = len(self._classes)
        if len(columns) * count > _MAX_CELLS:
            columns, before, after = columns[grown], before[:, grown], after[:, grown]
        if not len(columns):
            return []
        if len(columns) * count > _MAX_CELLS:
            self._capacity[:count] = _UNKNOWN
            return [(each, _UNKNOWN) for each in self._classes]
        self._add_missing_rows()
        requests = self._requests[:, :count]
        difference = _capacities(requests, after) - _capacities(requests, before)
        masks = self._feasible(columns, feasible)
        if masks is None:
            np.maximum(difference, 0, out=difference)
        else:
            difference *= masks
        changed = difference.sum(axis=1)
        self._capacity[:count] = np.minimum(self._capacity[:count] + changed, _UNKNOWN)
        return [
            (self._classes[row], int(self._capacity[row]))
            for row in np.flatnonzero((difference > 0).any(axis=1))
        ]

    def _feasible(self, columns: IntVector, feasible: FeasibleColumns) -> BoolVector | None:
        """Return a row per class: which of *columns* are feasible for it, if that is known."""
        numbered = self._numbered
        if numbered is None or len(numbered.rows) != len(self._classes):
            numbered = self._numbered = _number(self._classes)
        if len(numbered.first) > _MAX_MASKS:
            return None
        masks = np.array([feasible(each, columns) for each in numbered.first])
        result: BoolVector = masks[numbered.rows]
        return result

    def _add_missing_rows(self) -> None:
        missing = len(self._matrix.resource_index) - self._requests.shape[0]
        if missing > 0:
            self._requests = np.pad(self._requests, ((0, missing), (0, 0)))


def _capacities(requests: Matrix, free: Matrix) -> Matrix:
    """Return how many pods of each class (row) fit each column of *free*."""
    capacity = np.full((requests.shape[1], free.shape[1]), MAX_AMOUNT // 2**20, np.int64)
    for resource in range(len(requests)):
        request = requests[resource]
        asking = np.flatnonzero(request)
        if len(asking):
            fitting = free[resource][None, :] // request[asking][:, None]
            capacity[asking] = np.minimum(capacity[asking], fitting)
        if resource in (CPU, MEMORY):
            overcommitted = np.flatnonzero(free[resource] < 0)
            if len(overcommitted):
                capacity[:, overcommitted] = 0
    return np.maximum(capacity, 0, out=capacity)
