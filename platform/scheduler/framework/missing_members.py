"""The members that a gang needs to be ready, counted down as tasks are allocated."""

from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy

from ..state.gangs.gang import Gang, SubGroup, Task
from ..state.podinfo.equivalence import EquivalenceClass


class MissingMembers:
    """The members that a gang needs to be ready, counted down as tasks are allocated."""

    def __init__(self, gang: Gang) -> None:
        """Count the members that *gang* needs beyond its ready ones."""
        self.total = max(gang.min_member - gang.counts.ready, 0)
        self.by_role: dict[str, int] = {}
        for role, minimum in gang.role_minima.items():
            if minimum > gang.role_counts(role).ready:
                self.by_role[role] = minimum - gang.role_counts(role).ready
        self.sub_groups: dict[int, int] = {}
        """How many more whole sub-groups are needed, by the position of their policy."""
        if gang.sub_groups is not None:
            self.sub_groups = gang.sub_groups.short(lambda each: not each.missing)

    @property
    def satisfied(self) -> bool:
        """Whether no member is missing."""
        return not self.total and not self.by_role and not self.sub_groups

    def copy(self) -> "MissingMembers":
        """Return a copy that is counted down apart from this."""
        other = copy(self)
        other.by_role, other.sub_groups = dict(self.by_role), dict(self.sub_groups)
        return other

    def set_to(self, other: "MissingMembers") -> None:
        """Count from now on as *other*, which is not to be used any more."""
        self.total, self.by_role = other.total, other.by_role
        self.sub_groups = other.sub_groups

    def needed(self, role: str, available: int) -> int:
        """Return how many of *available* tasks of *role* are needed for the gang to be ready."""
        own = self.by_role.get(role, 0)
        others = len(self.by_role) - (role in self.by_role)
        return available if others else min(max(self.total, own), available)

    def consume(self, role: str, count: int) -> None:
        """Count *count* tasks of *role* as allocated."""
        self.total = max(self.total - count, 0)
        left = self.by_role.pop(role, 0) - count
        if left > 0:
            self.by_role[role] = left

    def complete(self, sub_group: SubGroup, tasks: Sequence[Task]) -> None:
        """Count *tasks* as allocated, by which *sub_group* is whole."""
        for task in tasks:
            self.consume(task.role, 1)
        left = self.sub_groups.pop(sub_group.policy.position, 0) - 1
        if left > 0:
            self.sub_groups[sub_group.policy.position] = left

    def is_satisfiable(self, rest: Sequence[Task]) -> bool:
        """Return whether *rest* has enough tasks of each role, and in total; sub-groups do not
        count."""
        available: dict[str, int] = {}
        for task in rest:
            available[task.role] = available.get(task.role, 0) + 1
        return len(rest) >= self.total and all(
            available.get(role, 0) >= count for role, count in self.by_role.items()
        )


def required_tasks(
    tasks: Sequence[Task], missing: MissingMembers
) -> Iterable[tuple[EquivalenceClass, int]]:
    """Yield how many tasks of which class the gang cannot do without."""
    counts = Counter(task.eq_class for task in tasks)
    if missing.total >= len(tasks):
        yield from counts.items()
        return
    if len(counts) == 1:
        needed = max(missing.total, sum(missing.by_role.values()))
        yield next(iter(counts)), needed
        return
    for role, count in missing.by_role.items():
        classes = {task.eq_class for task in tasks if task.role == role}
        if len(classes) == 1:
            yield classes.pop(), count
