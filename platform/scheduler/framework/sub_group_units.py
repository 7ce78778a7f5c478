"""In which order the sub-groups of a gang are allocated, and the pods that are in none."""

from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass

from ..state.gangs.gang import Gang, SubGroup, Task
from .missing_members import MissingMembers

TryWhole = Callable[[SubGroup, Sequence[Task]], bool]
"""Allocates the tasks that a sub-group lacks, all or none; returns whether it has. There may be too
few."""

TrySingle = Callable[[SubGroup | None, Sequence[Task]], None]
"""Allocates what is needed of tasks, one by one: of a sub-group that is whole, or of none."""


@dataclass(frozen=True, slots=True)
class Unit:
    """Pending tasks of one sub-group, or those that are in none."""

    sub_group: SubGroup | None
    tasks: Sequence[Task]
    """In task order."""

    required: Sequence[Task]
    """The first of them, by which the sub-group becomes whole. Empty if it is."""

    @property
    def others(self) -> Sequence[Task]:
        """The tasks that are allocated one by one, once the sub-group is whole."""
        return self.tasks[len(self.required) :]

    @property
    def demand(self) -> Hashable:
        """What decides whether a sub-group fits; equal for those without pods on nodes that are
        equal."""
        if self.sub_group is None or self.sub_group.counts.ready:
            return self.sub_group
        classes = Counter(task.eq_class for task in self.required)
        return self.sub_group.policy.position, frozenset(classes.items())


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
    order = sorted(members, key=lambda each: each.order)
    units = [Unit(each, members[each], members[each][: each.missing]) for each in order]
    started = [each for each in units if each.sub_group and each.sub_group.counts.ready]
    fresh = [each for each in units if each.sub_group and not each.sub_group.counts.ready]
    return [*started, *([Unit(None, single, ())] if single else ()), *fresh]


def try_units(
    tasks: Sequence[Task], missing: MissingMembers, whole: TryWhole, single: TrySingle
) -> None:
    """Try *tasks* in units until *missing* is satisfied: by *whole*, which is counted here, and by
    *single*, which counts what it allocates."""
    units, failed = units_of(tasks), set[Hashable]()
    done: list[Unit] = []
    for unit in _needed_first(units, missing):
        if missing.satisfied:
            return
        if unit.sub_group is None:
            single(None, unit.tasks)
        elif not unit.required:
            done.append(unit)
        elif unit.demand not in failed:
            if not whole(unit.sub_group, unit.required):
                failed.add(unit.demand)
                continue
            missing.complete(unit.sub_group, unit.required)
            done.append(unit)
    for unit in done:
        if unit.others and not missing.satisfied:
            single(unit.sub_group, unit.others)


def _needed_first(units: Sequence[Unit], missing: MissingMembers) -> Iterator[Unit]:
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

    def whole(sub_group: SubGroup, found: Sequence[Task]) -> bool:
        if len(found) < sub_group.missing:
            return False
        needed.extend(found)
        return True

    def single(_: SubGroup | None, found: Sequence[Task]) -> None:
        for task in found:
            if not missing.satisfied and missing.needed(task.role, 1):
                missing.consume(task.role, 1)
                needed.append(task)

    try_units(tasks, missing, whole, single)
    return needed if missing.satisfied else []
