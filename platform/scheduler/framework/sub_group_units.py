"""In which order the sub-groups of a gang are allocated, and the pods that are in none."""

from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from ..state.gangs.gang import Gang, Task
from ..state.gangs.sub_groups import SubGroup
from .missing_members import MissingMembers


@dataclass(frozen=True, slots=True)
class Unit:
    """Pending tasks of one sub-group, or those that are in none."""

    sub_group: SubGroup | None
    tasks: Sequence[Task]
    """In task order."""

    required: Sequence[Task]
    """The first of them, by which the sub-group becomes whole: they are allocated together. Empty
    if it is whole already, or lacks more tasks than there are."""

    @property
    def others(self) -> Sequence[Task]:
        """The tasks that are allocated one by one, once the sub-group is whole."""
        return self.tasks[len(self.required) :]

    @property
    def is_incomplete(self) -> bool:
        """Whether the sub-group cannot become whole, because pods of it do not exist."""
        return self.sub_group is not None and self.sub_group.missing > len(self.tasks)

    @property
    def demand(self) -> Hashable:
        """What decides whether a sub-group without pods on nodes fits; equal for equal ones."""
        position = self.sub_group.policy.position if self.sub_group is not None else None
        return position, frozenset(Counter(task.eq_class for task in self.required).items())


def units_of(tasks: Sequence[Task]) -> list[Unit]:
    """Return *tasks* of a gang in units, in the order in which they are allocated: sub-groups with
    pods on nodes, then tasks that are in no sub-group, then the other sub-groups."""
    members: dict[SubGroup, list[Task]] = {}
    single: list[Task] = []
    for task in tasks:
        if task.sub_group is None:
            single.append(task)
        else:
            members.setdefault(task.sub_group, []).append(task)
    units = []
    for sub_group in sorted(members, key=lambda each: each.order):
        own, missing = members[sub_group], sub_group.missing
        units.append(Unit(sub_group, own, own[:missing] if missing <= len(own) else ()))
    started = [each for each in units if each.sub_group and each.sub_group.counts.ready]
    fresh = [each for each in units if each.sub_group and not each.sub_group.counts.ready]
    return [*started, *([Unit(None, single, ())] if single else ()), *fresh]


def needed_first(units: Sequence[Unit], missing: MissingMembers) -> Iterator[Unit]:
    """Yield *units*: sub-groups that *missing* needs by then before all others."""
    later = []
    for unit in units:
        sub_group = unit.sub_group
        if sub_group is not None and sub_group.policy.position in missing.sub_groups:
            yield unit
        else:
            later.append(unit)
    yield from later


def in_unit_order(gang: Gang, tasks: Sequence[Task]) -> list[Task]:
    """Return *tasks* of *gang* with those of each sub-group together."""
    if gang.sub_groups is None:
        return list(tasks)
    return [task for unit in units_of(tasks) for task in unit.tasks]


def needed_tasks(gang: Gang, tasks: Sequence[Task]) -> list[Task]:
    """Return those of *tasks*, in order, that *gang* needs to be ready; none if they do not
    suffice."""
    missing = MissingMembers(gang)
    needed: list[Task] = []

    def take(found: Sequence[Task]) -> None:
        for task in found:
            if not missing.satisfied and missing.needed(task.role, 1):
                missing.consume(task.role, 1)
                needed.append(task)

    if gang.sub_groups is None:
        take(tasks)
        return needed if missing.satisfied else []
    units = units_of(tasks)
    for unit in needed_first(units, missing):
        if missing.satisfied:
            break
        for task in unit.required:
            missing.consume(task.role, 1)
            needed.append(task)
        if unit.sub_group is not None and unit.required:
            missing.complete(unit.sub_group)
        elif unit.sub_group is None:
            take(unit.tasks)
    for unit in units:
        if unit.sub_group is not None and not unit.is_incomplete:
            take(unit.others)
    return needed if missing.satisfied else []
