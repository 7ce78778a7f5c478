"""Allocates tasks of a gang with a constraint on the network in the domain that suits best."""

from collections.abc import Sequence

from ..state.gangs.diagnosis import FitError
from ..state.gangs.gang import Gang, Task
from .affinity_order import in_affinity_order
from .gang_domains import EVERYWHERE, GangDomains, Needs, Option
from .missing_members import MissingMembers, required_tasks
from .session_view import OpenStatement, SessionView
from .task_runs import runs
from .unfit_tasks import Failures


class DomainAllocation:
    """Allocates tasks of one gang within a domain."""

    def __init__(self, statement: OpenStatement, session: SessionView, gang: Gang) -> None:
        """Allocate by *statement* for *gang*."""
        self._statement = statement
        self._session = session
        self._gang = gang

    def allocate_minimum(
        self, domains: GangDomains, tasks: Sequence[Task], missing: MissingMembers
    ) -> None:
        """Allocate *tasks*, which are not blocked, in the first of *domains* in which *missing* can
        be satisfied."""
        statement = self._statement
        if not tasks or (statement.unfit.blocked and not missing.is_satisfiable(tasks)):
            return
        needs = list(required_tasks(tasks, missing))
        start, before, failures = statement.savepoint(), missing.copy(), statement.failures()
        fits = domains.fitting(needs, self._session.capacities)
        limited: Option | None = None
        for option in domains.options(fits, self._session.total_request(tasks)):
            missing.set_to(before.copy())
            statement.set_failures(failures)
            self._try_minimum(option, tasks, missing)
            if missing.satisfied or option is EVERYWHERE:
                return
            # Again at the end, to record the limit of the queue, or which sub-group does not fit.
            is_named = statement.unfit.limits or self._gang.sub_groups is not None
            limited = limited or (option if is_named else None)
            statement.rollback_to(start)
        missing.set_to(before)
        statement.set_failures(failures)
        if limited is None:
            self._record_shortage(domains, tasks, needs)
        else:
            self._try_minimum(limited, tasks, missing)

    def _try_minimum(self, option: Option, tasks: Sequence[Task], missing: MissingMembers) -> None:
        with self._session.within(option):
            self._statement.try_minimum(tasks, missing)

    def allocate_extra(self, tasks: Sequence[Task], at_most: int) -> int:
        """Allocate up to *at_most* of *tasks*, which are not blocked: each in the domain of the
        lowest tier that fits it and the gang. Returns how many."""
        allocated = 0
        for _, run in runs(in_affinity_order(tasks)):
            left = run[: at_most - allocated]
            if not left or self._statement.has_failed(left[0]):
                continue
            failures = self._statement.failures()
            while left and (count := self._extend(left, failures)):
                allocated += count
                left = left[count:]
        return allocated

    def _extend(self, tasks: Sequence[Task], failures: Failures) -> int:
        """Allocate as many of *tasks*, of one class, as the first domain with capacity takes.

        Returns how many.
        """
        domains = self._session.domains_of(self._gang)
        if domains is None:
            return 0
        needs = [(tasks[0].eq_class, 1)]
        fits = domains.fitting(needs, self._session.capacities)
        is_tried = False
        for option in domains.options(fits, self._session.total_request(tasks[:1])):
            is_tried = True
            self._statement.set_failures(failures)
            with self._session.within(option):
                if count := self._statement.try_extra(tasks, len(tasks)):
                    return count
        if not is_tried:
            self._statement.set_failures(failures)
            self._record_shortage(domains, tasks, needs)
        return 0

    def _record_shortage(self, domains: GangDomains, tasks: Sequence[Task], needs: Needs) -> None:
        """Record that no domain fits *needs* of *tasks*."""
        shortage = domains.shortage(needs, self._session.capacities)
        task = next((task for task in tasks if task.eq_class is shortage.eq_class), tasks[0])
        error = FitError(task.name, task.uid, shortage.message, domains=shortage.fit)
        self._statement.add_failure(task, error)
        self._statement.unfit.in_domains = True
