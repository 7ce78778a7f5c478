"""``capacity`` with ``enableHierarchy``: a tree of queues by ``spec.parent``.

Jobs are in leaves. What a leaf has counts in all its ancestors, and every limit on the way to the
root applies. A queue whose parents are invalid (missing, or a cycle) takes no pods, and neither do
the queues below it; the rest of the tree is not affected.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ...model.names import ROOT_QUEUE
from ...model.queue import QueueSpec
from ..state.cache.cache import SchedulerCache
from ..state.gangs.diagnosis import Stage
from ..state.gangs.gang import Gang, QueueInfo, add_amounts, sum_amounts
from ..state.queue.scheduling_queue import ClusterEvent
from ..state.resources import Amounts, amounts
from .capacity import CapacityPlugin, QueueLevel
from .extension_points import Allocation, Rejection
from .queue_limits import QueueLimits, guarantee_of, real_capability, unguaranteed

INVALID_QUEUE = "InvalidQueue"


@dataclass(slots=True)
class TreeQueue(QueueLevel):
    """A queue in the tree; its sums include those of all queues below it."""

    parent: "TreeQueue | None" = None
    children: list["TreeQueue"] = field(default_factory=list)
    problem: str = ""

    def with_ancestors(self) -> list["TreeQueue"]:
        """Return it and its ancestors, the root last."""
        path, level = [], self
        while True:
            path.append(level)
            if level.parent is None:
                return path
            level = level.parent


_NO_LIMITS = QueueLimits({}, {}, {})


class HierarchicalCapacityPlugin(CapacityPlugin):
    """Limits and orders queues that form a tree."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Parse the arguments."""
        super().__init__(arguments)
        self._tree: dict[str, TreeQueue] = {}
        self._paths: dict[str, list[TreeQueue]] = {}
        self._counted: dict[str, tuple[Amounts, ...]] = {}
        """What each queue itself contributes to the sums of its path."""
        self._stale: set[str] = set()
        """Queues whose contribution may have changed."""
        self._position = -1

    def on_session_open(self, cache: SchedulerCache) -> None:
        """Compute limits and sums of what has changed."""
        super().on_session_open(cache)
        changed = cache.queues.log.since(self._position)
        self._position = cache.queues.log.position
        if changed is None or self._devices is not None:
            self._stale.update(cache.queues.by_name)
        else:
            self._stale.update(changed)
        self._add_up()

    def queue_order(self, queue: QueueInfo) -> tuple[float, ...]:
        """Higher priority first, then the order of the first level below the root that differs."""
        levels = self.levels(queue)
        priority = levels[0].limits.priority if levels else 0
        return (-priority, *(key for level in reversed(levels[:-1]) for key in level.order_key()))

    def allocated(self, change: Allocation) -> None:
        """Count *change* at the next comparison."""
        super().allocated(change)
        self._stale.add(change.queue.name)

    def deallocated(self, change: Allocation) -> None:
        """Count *change* at the next comparison."""
        super().deallocated(change)
        self._stale.add(change.queue.name)

    def problem(self, queue: QueueInfo) -> Rejection | None:
        """Reject queues with invalid parents, and queues that have children."""
        level = self._tree.get(queue.name)
        if level is None:
            return None
        if level.problem:
            return _rejection(queue, level.problem)
        if level.children:
            child = min(each.name for each in level.children)
            return _rejection(queue, f'queue "{child}" is below it')
        return None

    def levels(self, queue: QueueInfo) -> Sequence[QueueLevel]:
        """Return *queue* with its current sums, followed by its ancestors."""
        self._stale.add(queue.name)
        self._add_up()
        self._stale.add(queue.name)  # it may change without another comparison
        return self._paths.get(queue.name, ())

    def limit_need(self, gang: Gang, queue: QueueInfo, gained: frozenset[ClusterEvent]) -> None:
        """Return nothing: the sums of ancestors are added up in sessions only."""

    def reclaim_levels(self, queue: QueueInfo) -> Sequence[QueueLevel]:
        """Return *queue*, and the ancestors below the root that the argument includes."""
        levels = self.levels(queue)
        return levels[: min(1 + self.ancestor_reclaim_level, max(len(levels) - 1, 1))]

    def losing_levels(self, queue: QueueInfo, gaining: QueueInfo) -> Sequence[QueueLevel]:
        """Return *queue*, and the ancestors that the argument includes and *gaining* has not."""
        kept = {level.name for level in self.levels(gaining)}
        levels = self.levels(queue)[: 1 + self.ancestor_reclaim_level]
        return [level for level in levels if level.name not in kept]

    def victim_queue_order(self, queue: QueueInfo, preemptor: QueueInfo) -> float:
        """Queues first that have most ancestors in common with that of the *preemptor*."""
        own = {level.name for level in self.levels(preemptor)}
        return -float(sum(level.name in own for level in self.levels(queue)))

    # -- private -------------------------------------------------------------------------------

    def _compute_limits(self) -> None:
        """Build the tree."""
        root_spec = self._specs.get(ROOT_QUEUE, QueueSpec())
        tree = {name: TreeQueue(name, _NO_LIMITS) for name in {*self._specs, ROOT_QUEUE}}
        for name, spec in sorted(self._specs.items()):
            if name == ROOT_QUEUE:
                continue
            parent_name = spec.parent or ROOT_QUEUE
            parent = tree.get(parent_name)
            if parent is None:
                tree[
                    name
                ].problem = f'parent queue "{parent_name}" of queue "{name}" does not exist'
            else:
                tree[name].parent = parent
                parent.children.append(tree[name])
        self._tree = tree
        self._set_limits(tree[ROOT_QUEUE], root_spec)
        self._reject_unreachable()
        self._paths = {
            name: level.with_ancestors() for name, level in tree.items() if not level.problem
        }
        self._counted = {}
        self._stale = set(self._specs)

    def _set_limits(self, root: TreeQueue, spec: QueueSpec) -> None:
        """Set the limits from the root downwards."""
        guaranteed = self._guaranteed(root)
        deserved = sum_amounts(amounts(self._specs[child.name].deserved) for child in root.children)
        capability = real_capability(spec, {}, self._total)
        root.limits = QueueLimits(guaranteed, deserved, capability, spec.priority)
        level = [root]
        while level:
            for parent in level:
                guaranteed = self._guaranteed(parent)
                for child in parent.children:
                    child.limits = self._child_limits(child, parent, guaranteed)
            level = [child for parent in level for child in parent.children]

    def _guaranteed(self, parent: TreeQueue) -> Amounts:
        return sum_amounts(guarantee_of(self._specs[child.name]) for child in parent.children)

    def _child_limits(
        self, child: TreeQueue, parent: TreeQueue, guaranteed: Amounts
    ) -> QueueLimits:
        spec = self._specs[child.name]
        guarantee = guarantee_of(spec)
        deserved = amounts(spec.deserved)
        for name, units in guarantee.items():
            deserved[name] = max(deserved.get(name, 0), units)
        left = unguaranteed(parent.limits.real_capability, guaranteed)
        capability = real_capability(spec, guarantee, left)
        return QueueLimits(guarantee, deserved, capability, spec.priority)

    def _reject_unreachable(self) -> None:
        """Give each queue without a path to the root the reason."""
        reachable = set(_subtree(self._tree[ROOT_QUEUE]))
        for name, level in sorted(self._tree.items()):
            if level.problem:
                for below in _subtree(level):
                    if below != name:
                        self._tree[below].problem = level.problem
                    reachable.add(below)
        for name in sorted(self._tree.keys() - reachable):
            self._tree[name].problem = "its parent queues form a cycle"

    def _add_up(self) -> None:
        """Count what queues that may have changed contribute to themselves and their ancestors."""
        cache = self._cache
        while self._stale and cache is not None:
            name = self._stale.pop()
            queue, path = cache.queues.by_name.get(name), self._paths.get(name, ())
            before = self._counted.get(name, _NOTHING)
            now = (self._allocated_of(queue), queue.reserved, queue.elastic) if queue else _NOTHING
            if now == before:
                continue
            for level in path:
                for total, old, new in zip(level.sums, before, now, strict=True):
                    add_amounts(total, old, -1)
                    add_amounts(total, new)
            self._counted[name] = tuple(map(dict, now))


def _rejection(queue: QueueInfo, problem: str) -> Rejection:
    message = f'queue "{queue.name}" takes no jobs: {problem}'
    return Rejection(INVALID_QUEUE, message, Stage.QUEUE)


_NOTHING: tuple[Amounts, ...] = ({}, {}, {})


def _subtree(root: TreeQueue) -> Iterator[str]:
    """Yield the names of *root* and of all queues below it, each once even in a cycle."""
    seen, waiting = {root.name}, [root]
    while waiting:
        level = waiting.pop()
        yield level.name
        unseen = [child for child in level.children if child.name not in seen]
        seen.update(child.name for child in unseen)
        waiting += unseen
