"""``drf`` with ``enableHierarchy``: dominant resource fairness in a tree of queues with weights.

Annotations of the queues give the tree; gangs are its leaves. A gang is *saturated* if it has all
that it requests of a resource, or requests one of which the cluster has nothing left; a queue is,
if all below it are. Of two queues the unsaturated one is first, then that with the smaller share
for its weight, both compared from the root downwards.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..state.cache.cache import SchedulerCache
from ..state.gangs.gang import Gang, QueueInfo, Task, add_amounts, sum_amounts
from ..state.nodes.node_matrix import NodeMatrix
from ..state.resources import (
    Amounts,
    BoolVector,
    FloatMatrix,
    FloatVector,
    IntVector,
    ResourceIndex,
)
from .drf import DrfPlugin
from .extension_points import Allocation
from .queue_limits import Claimant

HIERARCHY, WEIGHTS = "volcano.sh/hierarchy", "volcano.sh/hierarchy-weights"
ROOT = "root"

Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Children:
    """The children of a node in the tree: a row for each."""

    saturated: BoolVector
    shares: FloatVector
    allocated: FloatMatrix


@dataclass(frozen=True, slots=True)
class SubtreeUsage:
    """What a node of the tree has, with its unsaturated children scaled to the smallest."""

    saturated: bool = False
    share: float = 0.0
    """Its dominant share of the cluster."""
    allocated: FloatVector | None = None


class GangRows:
    """What the gangs of one node have and request: a row for each."""

    def __init__(self) -> None:
        """Start without gangs."""
        self._rows: dict[str, int] = {}
        self._free: list[int] = []
        self._amounts = np.zeros((2, 8, 3), np.int64)

    def set(self, key: str, allocated: IntVector, requested: IntVector) -> None:
        """Add or replace a gang."""
        row = self._rows.get(key)
        if row is None:
            row = self._rows[key] = self._free.pop() if self._free else len(self._rows)
        _, rows, columns = self._amounts.shape
        if row >= rows or len(allocated) > columns:
            more_rows = rows if row >= rows else 0
            more_columns = max(len(allocated) - columns, 0)
            self._amounts = np.pad(self._amounts, ((0, 0), (0, more_rows), (0, more_columns)))
        self._amounts[:, row] = 0
        self._amounts[0, row, : len(allocated)] = allocated
        self._amounts[1, row, : len(requested)] = requested

    def remove(self, key: str) -> None:
        """Remove a gang, if it is there."""
        row = self._rows.pop(key, None)
        if row is not None:
            self._amounts[:, row] = 0
            self._free.append(row)

    def children(self, total: IntVector, exhausted: BoolVector) -> Children:
        """Return the gangs that have or request anything."""
        columns = self._amounts.shape[2]
        allocated, requested = self._amounts[:, self._amounts.any(axis=(0, 2))]
        has_all = (allocated > 0) & (requested > 0) & (allocated >= requested)
        saturated = has_all | (exhausted[:columns] & (requested > 0))
        shares = _shares(allocated.astype(np.float64), total[:columns])
        padding = ((0, 0), (0, len(total) - columns))
        return Children(
            saturated.any(axis=1), shares, np.pad(allocated.astype(np.float64), padding)
        )


class HierarchicalDrfPlugin(DrfPlugin):
    """Orders queues by their path in the tree, gangs by their dominant share."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Ignore the arguments: there are none."""
        super().__init__(arguments)
        self._annotations: dict[str, tuple[str, str]] = {}
        self._paths: dict[str, Path] = {}
        self._weights: dict[Path, float] = {}
        self._below: dict[Path, set[Path]] = {}
        self._gangs: dict[Path, GangRows] = {}
        self._path_of_gang: dict[str, Path] = {}
        self._usages: dict[Path, SubtreeUsage] = {}
        self._nodes = NodeMatrix()
        self._totals: IntVector = np.zeros(0, np.int64)
        self._exhausted: BoolVector = np.zeros(0, np.bool_)
        self._cache: SchedulerCache | None = None
        self._is_new = True
        self._version = self._total_version = -1

    def on_session_open(self, cache: SchedulerCache) -> None:
        """Read the annotations, and the gangs that have changed."""
        super().on_session_open(cache)
        self._cache = cache
        self._nodes = cache.node_matrix
        rows = len(cache.node_matrix.allocatable)
        if cache.node_matrix.total_version != self._total_version or rows != len(self._totals):
            self._total_version = cache.node_matrix.total_version
            self._totals = cache.node_matrix.allocatable.sum(axis=1)
            self._usages.clear()
        rebuild = cache.queues.version != self._version and self._update_tree(cache)
        rebuild = rebuild or self._is_new
        self._version = cache.queues.version
        if rebuild:
            self._is_new = False
            self._usages.clear()
            self._gangs.clear()
            self._path_of_gang.clear()
        for gang in cache.gangs.values() if rebuild else cache.changes.gangs():
            self._update_gang(gang, cache.queues.of(gang).name)

    def queue_order(self, queue: QueueInfo) -> tuple[float, ...]:
        """Return a pair of numbers for each level below the root."""
        exhausted = self._nodes.idle.sum(axis=1) <= 0
        if not np.array_equal(exhausted, self._exhausted):
            self._exhausted = exhausted
            self._usages.clear()
        path = self._path_of(queue.name)
        keys: list[float] = []
        for depth in range(2, len(path) + 1):
            usage = self._usage(path[:depth])
            keys += (float(usage.saturated), usage.share / self._weights.get(path[:depth], 1.0))
        return tuple(keys)

    def reclaimable(self, preemptor: Claimant, candidates: Sequence[Task]) -> Sequence[Task] | None:
        """Permit tasks as long as the queue that gets their resources stays before the one that
        loses them."""
        cache = self._cache
        if cache is None:
            return None
        index = self._nodes.resource_index
        changed = {preemptor.gang.key: preemptor.gang}
        moved: dict[str, Amounts] = {}
        victims: list[Task] = []
        for task in candidates:
            gang = task.gang
            if gang is None:
                continue
            changed[gang.key] = gang
            moves = ((preemptor.gang, 1), (gang, -1))
            for each, sign in moves:
                add_amounts(moved.setdefault(each.key, {}), task.eq_class.request, sign)
                self._set_gang(each, sum_amounts((each.allocated, moved[each.key])), index)
            if self.queue_order(preemptor.queue) < self.queue_order(cache.queues.of(gang)):
                victims.append(task)
                continue
            for each, sign in moves:
                add_amounts(moved[each.key], task.eq_class.request, -sign)
                self._set_gang(each, sum_amounts((each.allocated, moved[each.key])), index)
        for gang in changed.values():
            self._update_gang(gang, cache.queues.of(gang).name)
        return victims

    def allocated(self, change: Allocation) -> None:
        """Count *change*."""
        self._update_gang(change.gang, change.queue.name)

    def deallocated(self, change: Allocation) -> None:
        """Count *change*."""
        self._update_gang(change.gang, change.queue.name)

    # -- private -------------------------------------------------------------------------------

    def _update_tree(self, cache: SchedulerCache) -> bool:
        """Rebuild the tree if an annotation has changed; returns whether one has."""
        annotations = {
            name: (
                queue.object.metadata.annotations.get(HIERARCHY, ""),
                queue.object.metadata.annotations.get(WEIGHTS, ""),
            )
            for name, queue in cache.queues.by_name.items()
            if queue.object is not None
        }
        if annotations == self._annotations:
            return False
        self._annotations = annotations
        self._paths.clear()
        self._weights.clear()
        self._below.clear()
        for name, (hierarchy, weights) in sorted(annotations.items()):
            path = tuple(hierarchy.split("/")) if hierarchy else (ROOT, name)
            self._paths[name] = path
            given = weights.split("/")
            for depth in range(2, len(path) + 1):
                self._below.setdefault(path[: depth - 1], set()).add(path[:depth])
                weight = _weight(given[depth - 1] if depth <= len(given) else "")
                self._weights.setdefault(path[:depth], weight)
        return True

    def _path_of(self, queue: str) -> Path:
        return self._paths.get(queue) or (ROOT, queue)

    def _update_gang(self, gang: Gang, queue: str) -> None:
        path, before = self._path_of(queue), self._path_of_gang.get(gang.key)
        if before is not None and before != path:
            self._gangs[before].remove(gang.key)
            self._forget(before)
        self._path_of_gang[gang.key] = path
        rows = self._gangs.setdefault(path, GangRows())
        if gang.requested or gang.allocated:
            index = self._nodes.resource_index
            rows.set(gang.key, index.vector(gang.allocated), index.vector(gang.requested))
        else:
            rows.remove(gang.key)
            del self._path_of_gang[gang.key]
        self._forget(path)

    def _set_gang(self, gang: Gang, allocated: Amounts, index: ResourceIndex) -> None:
        """Assume that *gang* has *allocated*."""
        path = self._path_of_gang.get(gang.key)
        if path is not None:
            self._gangs[path].set(gang.key, index.vector(allocated), index.vector(gang.requested))
            self._forget(path)

    def _forget(self, path: Path) -> None:
        for depth in range(1, len(path) + 1):
            self._usages.pop(path[:depth], None)

    def _usage(self, path: Path) -> SubtreeUsage:
        usage = self._usages.get(path)
        if usage is None:
            size = len(self._totals)
            exhausted = self._exhausted[:size]
            below = [self._usage(each) for each in sorted(self._below.get(path, ()))]
            children = [_stacked(below, size)]
            if path in self._gangs:
                children.append(self._gangs[path].children(self._totals, exhausted))
            usage = self._usages[path] = _combined(children, self._totals)
        return usage


def _weight(text: str) -> float:
    try:
        return max(float(text), 1.0)
    except ValueError:
        return 1.0


def _stacked(usages: list[SubtreeUsage], size: int) -> Children:
    allocated = [np.zeros(size) if each.allocated is None else each.allocated for each in usages]
    return Children(
        np.array([each.saturated for each in usages], np.bool_),
        np.array([each.share for each in usages], np.float64),
        np.array(allocated, np.float64).reshape(len(usages), size),
    )


def _combined(children: list[Children], total: IntVector) -> SubtreeUsage:
    """Return the usage of a node, given its children."""
    saturated = np.concatenate([each.saturated for each in children])
    shares = np.concatenate([each.shares for each in children])
    allocated = np.concatenate([each.allocated for each in children])
    if not len(shares):
        return SubtreeUsage()
    scaled = (shares > 0) & ~saturated
    smallest = min(float(shares[scaled].min()), 1.0) if scaled.any() else 1.0
    factors = np.where(scaled, smallest / np.where(shares > 0, shares, 1.0), 1.0)
    sums = factors @ allocated
    return SubtreeUsage(bool(saturated.all()), float(_shares(sums[None], total)[0]), sums)


def _shares(allocated: FloatMatrix, total: IntVector) -> FloatVector:
    """Return the dominant share of each row."""
    fractions = np.where(total > 0, allocated / np.maximum(total, 1), 0.0)
    shares: FloatVector = fractions.max(axis=1, initial=0.0)
    return shares
