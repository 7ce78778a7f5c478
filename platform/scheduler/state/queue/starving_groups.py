"""The groups of rejected gangs for which pods may be evicted, and when that is tried.

Each action that evicts pods has to try each group that is rejected, in any order of the
actions and however many cycles it takes. Whether victims can be found depends on nearly
everything in the cluster. So after any event all unschedulable groups are tried again, but
not more often than once in :data:`RETRY_INTERVAL`, and not before each of them was tried.
"""

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field

from ..gangs.gang import Gang, Task
from ..podinfo.equivalence import EquivalenceClass

RETRY_INTERVAL = 1.0
"""Seconds after which all unschedulable groups are tried again at the earliest."""


@dataclass(slots=True)
class VictimSearch:
    """A search for victims for one gang, which may take several cycles."""

    gang: Gang
    ruled_out: dict[bool, list[Task]] = field(default_factory=dict)
    """Tasks that plugins did not permit, by whether gangs may be left below their minimum."""

    cleared_in_vain: dict[bool, set[tuple[EquivalenceClass, int]]] = field(default_factory=dict)
    """Nodes that pods of a class cannot use even if pods are evicted there, likewise."""

    def slots(self, *, breaking: bool) -> set[int]:
        """Return the slots of the tasks that were ruled out and still exist."""
        return {task.slot for task in self.ruled_out.get(breaking, ()) if task.slot >= 0}

    def rule_out(self, tasks: Iterable[Task], *, breaking: bool) -> None:
        """Do not consider *tasks* again."""
        self.ruled_out.setdefault(breaking, []).extend(tasks)

    def failed_nodes(self, *, breaking: bool) -> frozenset[tuple[EquivalenceClass, int]]:
        """Return the nodes that need not be tried again, each for pods of a class."""
        return frozenset(self.cleared_in_vain.get(breaking, ()))

    def fail_node(self, eq_class: EquivalenceClass, node_index: int, *, breaking: bool) -> None:
        """Do not try a node again for pods of *eq_class*."""
        self.cleared_in_vain.setdefault(breaking, set()).add((eq_class, node_index))


class StarvingGroups:
    """Which groups, by demand, each of the actions that evict pods has yet to try."""

    def __init__(self, unschedulable: Collection[Hashable]) -> None:
        """Start without actions; *unschedulable* are the demands of all groups at any time."""
        self.interrupted: dict[str, VictimSearch] = {}
        """By action, the search that is to be continued in the next cycle."""
        self._unschedulable = unschedulable
        self._untried: dict[str, dict[Hashable, None]] = {}
        self._is_retry_needed = False
        self._retry_at: float | None = None
        self._retried_at = -RETRY_INTERVAL

    @property
    def actions(self) -> Collection[str]:
        """Names of the actions that evict pods."""
        return self._untried.keys()

    @property
    def has_untried(self) -> bool:
        """Whether an action has yet to try a group."""
        return any(self._untried.values())

    def set_actions(self, actions: Iterable[str]) -> None:
        """Use other actions; nothing is left to be tried."""
        self._untried = {action: {} for action in actions}
        self.interrupted.clear()

    def add(self, action: str, demand: Hashable) -> None:
        """Let *action* try the group with *demand*."""
        self._untried[action][demand] = None

    def untried(self, action: str) -> list[Hashable]:
        """Return the demands of the groups that *action* has yet to try."""
        return list(self._untried.get(action, ()))

    def is_untried(self, demand: Hashable) -> bool:
        """Return whether an action has yet to try the group with *demand*."""
        return any(demand in untried for untried in self._untried.values())

    def mark_tried(self, action: str, demand: Hashable) -> None:
        """Record that *action* has tried the group with *demand*, or need not."""
        self._untried[action].pop(demand, None)

    def forget(self, demand: Hashable) -> None:
        """Forget a group that does not exist any more."""
        for untried in self._untried.values():
            untried.pop(demand, None)

    # -- retries -------------------------------------------------------------------------------

    def retry(self) -> None:
        """Let all unschedulable groups be tried again."""
        self._is_retry_needed = True

    def retry_at(self, time: float) -> None:
        """Let all unschedulable groups be tried again at Unix time *time*."""
        self._retry_at = time if self._retry_at is None else min(time, self._retry_at)

    def start_due_retry(self, now: float) -> None:
        """Let the actions try all unschedulable groups, if that is due at Unix time *now*."""
        if self._retry_at is not None and self._retry_at <= now:
            self._is_retry_needed, self._retry_at = True, None
        self.drop_needless_retry()
        if not self._is_retry_needed or self.has_untried:
            return
        if self._retried_at + RETRY_INTERVAL <= now or now < self._retried_at:
            self._is_retry_needed, self._retried_at = False, now
            for untried in self._untried.values():
                untried.update(dict.fromkeys(self._unschedulable))

    def drop_needless_retry(self) -> None:
        """Retry nothing if no group is unschedulable: other gangs are tried anyway."""
        self._is_retry_needed &= bool(self._unschedulable)

    def next_due(self) -> float | None:
        """Return when :meth:`start_due_retry` is to be called next, in Unix time."""
        if not self._untried or not self._unschedulable:
            return None
        earliest = self._retried_at + RETRY_INTERVAL
        if self._is_retry_needed:
            return earliest
        return None if self._retry_at is None else max(self._retry_at, earliest)
