"""PodDisruptionBudgets: how many of the pods that they select may be evicted now."""

from dataclasses import dataclass

from ...model.base import ApiStruct
from ...model.meta import LabelSelector, ObjectMeta
from ...model.selectors import Selector, from_label_selector
from .gangs import Task


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


class DisruptionBudgets:
    """Budgets by namespace."""

    def __init__(self) -> None:
        """Start without budgets."""
        self._by_namespace: dict[str, dict[str, Budget]] = {}

    def update(self, old: PodDisruptionBudget | None, new: PodDisruptionBudget | None) -> bool:
        """Add, update or delete a budget; returns whether it may allow more evictions now."""
        changed = new or old
        if changed is None:
            return False
        budgets = self._by_namespace.setdefault(changed.metadata.namespace, {})
        before = budgets.pop(changed.metadata.name, None)
        after = None if new is None else _budget(new)
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
