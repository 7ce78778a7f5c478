"""Allocates the sub-groups of a gang: each whole or not at all, and within one domain.

The sub-groups that the gang needs are tried first. One that does not fit is skipped, since another
one may, which has lost fewer pods, or may be elsewhere.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import islice

from ..state.gangs.diagnosis import FitError, Stage
from ..state.gangs.gang import Gang, SubGroup, Task
from ..state.podinfo.equivalence import EquivalenceClass
from .affinity_order import in_affinity_order
from .gang_domains import EVERYWHERE, GangDomains, Option
from .missing_members import MissingMembers
from .session_view import OpenStatement, SessionView
from .sub_group_units import try_units, units_of
from .task_runs import grouped, runs
from .unfit_tasks import Failures

_ALL = (EVERYWHERE,)


class SubGroupAllocation:
    """Allocates tasks of one gang that has sub-groups."""

    def __init__(self, statement: OpenStatement, session: SessionView, gang: Gang) -> None:
        """Allocate by *statement* for *gang*."""
        self._statement = statement
        self._session = session
        self._gang = gang

    def try_minimum(self, tasks: Sequence[Task], missing: MissingMembers) -> None:
        """Allocate *tasks*, which are not blocked, until *missing* is satisfied, on the nodes that
        may be used now."""
        single = partial(self._allocate_needed, missing)
        try_units(tasks, missing, self._allocate_whole, single)

    def allocate_extra(self, tasks: Sequence[Task], at_most: int) -> int:
        """Allocate up to *at_most* of *tasks*, which are not blocked, in the domains of the gang
        and of their sub-groups. Returns how many."""
        allocated = 0
        for unit in units_of(tasks):
            sub_group, required = unit.sub_group, unit.required
            if self._statement.has_failed(unit.tasks[0]) or allocated + len(required) > at_most:
                continue
            if sub_group is not None and required:
                if not self._extend_whole(sub_group, required):
                    continue
                allocated += len(required)
            for _, run in runs(in_affinity_order(unit.others)):
                allocated += self._extend(sub_group, run[: at_most - allocated])
        return allocated

    # -- private -------------------------------------------------------------------------------

    def _allocate_needed(
        self, missing: MissingMembers, sub_group: SubGroup | None, tasks: Sequence[Task]
    ) -> None:
        """Allocate what *missing* needs of *tasks*, one by one, in one domain of *sub_group*."""
        for option in islice(self._options(sub_group, tasks[:1]) if sub_group else _ALL, 1):
            with self._session.within(option):
                self._allocate_runs(missing, tasks)

    def _allocate_runs(self, missing: MissingMembers, tasks: Sequence[Task]) -> None:
        for eq_class, run in runs(in_affinity_order(tasks)):
            desired = run[: missing.needed(run[0].role, len(run))]
            if missing.satisfied or not desired or self._statement.has_failed(run[0]):
                continue
            count = self._statement.fitting_count(eq_class, desired)
            self._statement.allocate_best(desired[:count])
            missing.consume(run[0].role, count)

    def _extend_whole(self, sub_group: SubGroup, tasks: Sequence[Task]) -> bool:
        failures = self._statement.failures()
        for option in self._options(None, tasks):
            self._statement.set_failures(failures)
            with self._session.within(option):
                if self._allocate_whole(sub_group, tasks):
                    return True
        if not self._statement.has_failed(tasks[0]):
            self._record(self._domain_error(None, tasks), sub_group, tasks)
        return False

    def _extend(self, sub_group: SubGroup | None, tasks: Sequence[Task]) -> int:
        """Allocate as many of *tasks*, of one class, as possible; returns how many."""
        allocated = 0
        if tasks and not self._statement.has_failed(tasks[0]):
            failures = self._statement.failures()
            while left := tasks[allocated:]:
                count = self._extend_in_one(sub_group, left, failures)
                if not count:
                    break
                allocated += count
        return allocated

    def _extend_in_one(
        self, sub_group: SubGroup | None, tasks: Sequence[Task], failures: Failures
    ) -> int:
        """Allocate as many of *tasks* as the first domain with capacity takes; returns how many."""
        is_within = is_tried = False
        for outer in self._options(None, tasks[:1]):
            is_within = True
            with self._session.within(outer):
                for option in self._options(sub_group, tasks[:1]) if sub_group else _ALL:
                    is_tried = True
                    self._statement.set_failures(failures)
                    with self._session.within(option):
                        count = self._statement.fitting_count(tasks[0].eq_class, tasks)
                        self._statement.allocate_best(tasks[:count])
                    if count:
                        return count
        if not is_tried:
            self._statement.set_failures(failures)
            error = self._domain_error(sub_group if is_within else None, tasks[:1])
            self._record(error, sub_group, tasks)
        return 0

    def _record(self, error: FitError, sub_group: SubGroup | None, tasks: Sequence[Task]) -> None:
        """Record *error* of *tasks*, with the name of their sub-group."""
        if sub_group is not None:
            message = f"sub-group {sub_group.name}: {error.message}"
            error = replace(error, message=message, sub_group=sub_group.name)
        task = next((each for each in tasks if each.uid == error.uid), tasks[0])
        self._statement.add_failure(task, error)

    def _allocate_whole(self, sub_group: SubGroup, tasks: Sequence[Task]) -> bool:
        """Allocate all *tasks* of *sub_group*, by which it becomes whole, in the first of its
        domains that takes them; returns whether one does."""
        if len(tasks) < sub_group.missing:
            self._record_incomplete(sub_group, tasks)
            return False
        statement = self._statement
        start, failures = statement.savepoint(), statement.failures()
        first: FitError | None = None
        for option in self._options(sub_group, tasks):
            statement.set_failures(replace(failures, fit_errors={}))
            with self._session.within(option):
                if self._try_all(tasks):
                    statement.set_failures(failures)
                    return True
            statement.rollback_to(start)
            first = first or next(iter(statement.failures().fit_errors.values()))
        error = first or self._domain_error(sub_group, tasks)
        statement.set_failures(failures)
        self._record(error, sub_group, tasks)
        return False

    def _try_all(self, tasks: Sequence[Task]) -> bool:
        for eq_class, run in runs(in_affinity_order(grouped(tasks))):
            if self._statement.fitting_count(eq_class, run) < len(run):
                return False
            self._statement.allocate_best(run)
        return True

    def _options(self, sub_group: SubGroup | None, tasks: Sequence[Task]) -> Iterable[Option]:
        """Return the domains of the gang, or of *sub_group*, that may take *tasks*."""
        domains = self._domains(sub_group)
        if domains is None:
            return _ALL
        fits = domains.fitting(_needs(tasks), self._session.capacities)
        return domains.options(fits, self._session.total_request(tasks))

    def _domains(self, sub_group: SubGroup | None) -> GangDomains | None:
        if sub_group is not None and sub_group.policy.topology is None:
            return None
        return self._session.domains_of(self._gang, sub_group)

    def _domain_error(self, sub_group: SubGroup | None, tasks: Sequence[Task]) -> FitError:
        """Return why no domain of the gang, or of *sub_group*, may take *tasks*."""
        domains = self._domains(sub_group)
        if domains is None:
            raise AssertionError("tasks that may go everywhere were tried nowhere")
        shortage = domains.shortage(_needs(tasks), self._session.capacities)
        task = next((each for each in tasks if each.eq_class is shortage.eq_class), tasks[0])
        self._statement.unfit.in_domains = True
        return FitError(task.name, task.uid, shortage.message, domains=shortage.fit)

    def _record_incomplete(self, sub_group: SubGroup, tasks: Sequence[Task]) -> None:
        """Record that *tasks* are too few: others do not exist, have gates, or are blocked."""
        counts, size = sub_group.counts, sub_group.policy.size
        what = "exist" if counts.valid < size else "can be scheduled"
        message = f"{counts.ready + len(tasks)} of the {size} pods that it needs {what}"
        self._record(FitError(tasks[0].name, tasks[0].uid, message, Stage.GANG), sub_group, tasks)


def _needs(tasks: Sequence[Task]) -> list[tuple[EquivalenceClass, int]]:
    return list(Counter(task.eq_class for task in tasks).items())
