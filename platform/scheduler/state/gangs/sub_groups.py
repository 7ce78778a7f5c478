"""Gangs inside a gang: the sub-groups of a PodGroup by ``subGroupPolicy``.

A pod is in the sub-group of the first policy whose selector matches it, if it has all labels of
``matchLabelKeys``; pods with equal values of these labels are one sub-group. Other pods
are in none. A sub-group is allocated with ``subGroupSize`` pods at least, or not at all, and the
gang needs ``minSubGroups`` of each policy.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from ....model.podgroup import PodGroupSpec
from ....model.podgroup import SubGroupPolicy as PolicySpec
from ....model.selectors import NOTHING, Selector, SelectorError, from_label_selector
from ..topology.constraint import TopologyConstraint, constraint_from

if TYPE_CHECKING:
    from .gang import Task, TaskCounts

SubGroupKey = tuple[int, tuple[str, ...]]
"""Position of the policy, and values of its labels."""


class SubGroupPolicy:
    """What the sub-groups of one policy have in common."""

    def __init__(self, position: int, spec: PolicySpec) -> None:
        """Compile *spec*, which is at *position* of its list."""
        self.position = position
        self.name = spec.name or str(position)
        self.size = max(spec.sub_group_size, 1)
        """How many pods are allocated together."""
        self.minimum = spec.min_sub_groups
        """How many sub-groups the gang needs."""
        self.keys = spec.match_label_keys
        self.topology: TopologyConstraint | None = constraint_from(spec.network_topology)
        self._selector = _selector_of(spec)

    def values(self, labels: Mapping[str, str]) -> tuple[str, ...] | None:
        """Return which sub-group a pod with *labels* is in; ``None`` if it is in none."""
        values = tuple(labels.get(key, "") for key in self.keys)
        return values if all(values) and self._selector.matches(labels) else None


def _selector_of(spec: PolicySpec) -> Selector:
    """Return the selector of pods; a policy without ``matchLabelKeys`` selects none, like one with
    a malformed selector, which the schema of PodGroups does not exclude."""
    if not spec.match_label_keys:
        return NOTHING
    try:
        return from_label_selector(spec.label_selector)
    except SelectorError:
        return NOTHING


class SubGroup:
    """Pods that are allocated together, within their gang."""

    __slots__ = ("counts", "policy", "tasks", "values")

    def __init__(self, policy: SubGroupPolicy, values: tuple[str, ...], counts: "TaskCounts"):
        """Start without tasks; *counts* are to be zero."""
        self.policy = policy
        self.values = values
        self.counts = counts
        self.tasks: dict[str, Task] = {}

    @property
    def name(self) -> str:
        """The name of the policy, and the values of its labels."""
        return "-".join((self.policy.name, *self.values))

    @property
    def missing(self) -> int:
        """How many pods it lacks to be whole."""
        return max(self.policy.size - self.counts.ready, 0)

    @property
    def order(self) -> tuple[object, ...]:
        """The order of sub-groups: one that has lost pods first, then the highest priority, then
        the first value as a number."""
        priority = max((task.priority for task in self.tasks.values()), default=0)
        first = self.values[0]
        index = int(first) if first.isascii() and first.isdecimal() else 0
        has_lost = 0 < self.counts.ready < self.policy.size
        return (not has_lost, -priority, self.policy.position, index, self.values)


class SubGroups:
    """The sub-groups of a gang."""

    def __init__(self, spec: PodGroupSpec, new_counts: Callable[[], "TaskCounts"]) -> None:
        """Compile the policies of *spec*; there are no sub-groups yet."""
        self.policies = [
            SubGroupPolicy(position, each) for position, each in enumerate(spec.sub_group_policy)
        ]
        self._new_counts = new_counts
        self._by_key: dict[SubGroupKey, SubGroup] = {}

    def __iter__(self) -> Iterator[SubGroup]:
        return iter(self._by_key.values())

    def key_of(self, labels: Mapping[str, str]) -> SubGroupKey | None:
        """Return the key of the sub-group of a pod with *labels*; ``None`` if it is in none."""
        for policy in self.policies:
            values = policy.values(labels)
            if values is not None:
                return policy.position, values
        return None

    def add(self, task: "Task") -> None:
        """Add *task* to its sub-group."""
        key = self.key_of(task.labels)
        if key is None:
            return
        known = self._by_key.get(key)
        if known is None:
            policy = self.policies[key[0]]
            known = self._by_key[key] = SubGroup(policy, key[1], self._new_counts())
        task.sub_group = known
        known.tasks[task.uid] = task
        known.counts.by_status[task.status] += 1

    def remove(self, task: "Task") -> None:
        """Remove *task* from its sub-group."""
        known, task.sub_group = task.sub_group, None
        if known is None:
            return
        del known.tasks[task.uid]
        known.counts.by_status[task.status] -= 1
        if not known.tasks:
            del self._by_key[known.policy.position, known.values]

    def short(self, is_whole: Callable[[SubGroup], bool]) -> dict[int, int]:
        """Return how many more sub-groups are needed for which *is_whole*, by the position of the
        policy, where some are."""
        needed = {each.position: each.minimum for each in self.policies if each.minimum}
        for each in self._by_key.values() if needed else ():
            position = each.policy.position
            if position in needed and is_whole(each):
                needed[position] -= 1
        return {position: count for position, count in needed.items() if count > 0}

    def is_ready(self) -> bool:
        """Return whether as many sub-groups as needed are whole."""
        return not self.short(lambda each: each.counts.ready >= each.policy.size)
