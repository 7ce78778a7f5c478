"""Policies of the gangs inside a gang: ``subGroupPolicy`` of a PodGroup.

A pod is in the sub-group of the first policy whose selector matches it, if it has all labels of
``matchLabelKeys``; pods with equal values of these labels are one sub-group. Other pods
are in none. A sub-group is allocated with ``subGroupSize`` pods at least, or not at all, and the
gang needs ``minSubGroups`` of each policy.
"""

from collections.abc import Mapping

from ....model.podgroup import SubGroupPolicy as PolicySpec
from ....model.selectors import NOTHING, Selector, SelectorError, from_label_selector
from ..topology.constraint import TopologyConstraint, constraint_from

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
