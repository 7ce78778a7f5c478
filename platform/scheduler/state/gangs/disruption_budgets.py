"""PodDisruptionBudgets: how many of the pods that they select may be evicted now."""

from dataclasses import dataclass

import numpy as np

from ....model.base import ApiStruct
from ....model.meta import LabelSelector, ObjectMeta
from ....model.selectors import Selector, from_label_selector
from ..resources import IntVector
from .gang import Task
from .task_table import TaskTable

_COLUMN = "disruption budget"


class PodDisruptionBudgetSpec(ApiStruct, frozen=True):
    """The spec of a budget."""

    selector: LabelSelector | None = None


class PodDisruptionBudgetStatus(ApiStruct, frozen=True):
    """The status of a budget; maintained by a controller of Kubernetes."""

    disruptions_allowed: int = 0
    disrupted_pods: dict[str, str] = {}
    """When pods were evicted that still exist, by name."""


class PodDisruptionBudget(ApiStruct, frozen=True):
    """A PodDisruptionBudget."""

    metadata: ObjectMeta = ObjectMeta()
    spec: PodDisruptionBudgetSpec = PodDisruptionBudgetSpec()
    status: PodDisruptionBudgetStatus = PodDisruptionBudgetStatus()


@dataclass(frozen=True, slots=True)
class Budget:
    """One budget."""

    name: str
    selector: Selector
    allowed: int
    disrupted: frozenset[str]
    """Names of pods that are counted as evicted already."""


UNSELECTED, SEVERAL = -1, -2
"""Numbers of budgets: no budget selects a pod, or several do."""


class DisruptionBudgets:
    """Budgets by namespace, and a column of the task table with the number of the budget that
    selects a pod."""

    def __init__(self, task_table: TaskTable) -> None:
        """Start without budgets, for the tasks of *task_table*."""
        self._by_namespace: dict[str, dict[str, Budget]] = {}
        self._task_table = task_table
        self._numbers: dict[tuple[str, str], int] = {}
        self._is_column_outdated = False
        task_table.add_column(_COLUMN, np.int32, self._number)

    def update(self, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None) -> bool:
        """Add, update or delete a budget; returns whether it may allow more evictions now."""
        changed = new or old
        if changed is None:
            return False
        budgets = self._by_namespace.setdefault(changed.metadata.namespace, {})
        before = budgets.pop(changed.metadata.name, None)
        after = None if new is None else _budget(new)
        if before is None or after is None or str(after.selector) != str(before.selector):
            self._is_column_outdated = True
        if after is not None:
            budgets[after.name] = after
        if not budgets:
            del self._by_namespace[changed.metadata.namespace]
        if before is None:
            return False
        return (
            after is None
            or after.allowed > before.allowed
            or str(after.selector) != str(before.selector)
        )

    def numbers(self, slots: IntVector) -> IntVector:
        """Return the number of the budget that selects each task of *slots*, :data:`UNSELECTED` or
        :data:`SEVERAL`."""
        if self._is_column_outdated:
            self._is_column_outdated = False
            keys = (
                (space, name) for space in self._by_namespace for name in self._by_namespace[space]
            )
            self._numbers = {key: number for number, key in enumerate(keys)}
            self._task_table.update_column(_COLUMN)
        numbers: IntVector = self._task_table.column(_COLUMN)[slots].astype(np.int64)
        return numbers

    def numbered(self) -> list[tuple[str, Budget]]:
        """Return all budgets with their namespaces, by number; to be called after
        :meth:`numbers`."""
        return [(space, self._by_namespace[space][name]) for space, name in self._numbers]

    def _number(self, task: Task) -> int:
        selecting = self.selecting(task)
        if not selecting:
            return UNSELECTED
        if len(selecting) > 1:
            return SEVERAL
        return self._numbers.get((task.namespace, selecting[0].name), UNSELECTED)

    def selecting(self, task: Task) -> list[Budget]:
        """Return the budgets that select the pod of *task*."""
        budgets = self._by_namespace.get(task.namespace)
        if not budgets:
            return []
        return [each for each in budgets.values() if each.selector.matches(task.traits.labels)]


def _budget(budget: PodDisruptionBudget) -> Budget:
    return Budget(
        budget.metadata.name,
        from_label_selector(budget.spec.selector),
        max(budget.status.disruptions_allowed, 0),
        frozenset(budget.status.disrupted_pods),
    )
