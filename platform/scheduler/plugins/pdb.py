"""``pdb``: victims are chosen within their disruption budgets.

Without the plugin an eviction that a budget does not allow is tried and refused. The plugin
excludes victims, it never proposes any.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from ..state.cache.cache import SchedulerCache
from ..state.gangs.disruption_budgets import Budget
from ..state.gangs.gang import Task, TaskStatus
from ..state.gangs.task_table import TaskTable
from ..state.resources import BoolVector, IntVector
from .extension_points import Allocation, Preemptor


class PdbPlugin:
    """Excludes pods whose budget allows no more disruptions."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Ignore the arguments: there are none."""
        self._cache: SchedulerCache | None = None
        self._evicted: dict[str, Task] = {}
        """Tasks that are evicted, as far as the budgets may not count them yet, by uid."""

    def on_session_open(self, cache: SchedulerCache) -> None:
        """Keep *cache*, which has the budgets."""
        self._cache = cache
        self._evicted = {
            uid: task
            for uid, task in self._evicted.items()
            if cache.task(uid) is task
            and task.evicting
            and task.pod_status is not TaskStatus.RELEASING
        }

    def allocated(self, change: Allocation) -> None:
        """Forget evictions that are undone."""
        for task in change.tasks:
            self._evicted.pop(task.uid, None)

    def deallocated(self, change: Allocation) -> None:
        """Count evictions."""
        for task in change.tasks:
            if task.status is TaskStatus.RELEASING:
                self._evicted[task.uid] = task

    def preemptable(self, preemptor: Preemptor, candidates: Sequence[Task]) -> list[Task]:
        """Permit pods as long as their budgets allow it, evictions in progress included.

        The API server evicts no pod that several budgets select.
        """
        if self._cache is None:
            return []
        left: dict[tuple[str, str], int] = {}
        permitted = []
        for task in candidates:
            budgets = self._cache.disruption_budgets.selecting(task)
            if len(budgets) > 1:
                continue
            for budget in budgets:
                key = (task.namespace, budget.name)
                if key not in left:
                    left[key] = budget.allowed - self._evicting(task.namespace, budget)
                if left[key] <= 0:
                    break
                left[key] -= 1
            else:
                permitted.append(task)
        return permitted

    reclaimable = preemptable

    def victim_mask(
        self, preemptor: Preemptor, table: TaskTable, slots: IntVector
    ) -> BoolVector | None:
        """Exclude pods whose budget allows nothing, and those that several budgets select."""
        if self._cache is None:
            return None
        numbers = self._cache.disruption_budgets.numbers(slots)
        allows = [
            budget.allowed > self._evicting(namespace, budget)
            for namespace, budget in self._cache.disruption_budgets.numbered()
        ]
        # The last two values are those of the two negative numbers.
        by_number = np.array([*allows, False, True], np.bool_)
        permitted: BoolVector = by_number[numbers]
        return permitted

    def _evicting(self, namespace: str, budget: Budget) -> int:
        """Return how many evictions *budget* does not count yet."""
        return sum(
            task.namespace == namespace
            and task.name not in budget.disrupted
            and budget.selector.matches(task.traits.labels)
            for task in self._evicted.values()
        )
