"""What planned members and described PodGroups need of the scheduler cache, which contains them."""

from collections.abc import Mapping
from typing import Protocol

from ....model.podgroup import PodGroup
from ..core_types import Pod
from ..gangs.gang import Gang, Task
from ..gangs.task_table import TaskTable
from ..nodes.node_matrix import NodeMatrix
from ..podinfo.equivalence import EquivalenceClass
from .reservations import Reservations


class ChangedGangs(Protocol):
    """The record of the gangs that have changed."""

    def mark(self, gang: Gang) -> None:
        """Record that *gang* has changed."""
        ...


class PlanningCache(Protocol):
    """The scheduler cache, as planning sees it."""

    cycle_time: float

    @property
    def gangs(self) -> Mapping[str, Gang]: ...

    @property
    def changes(self) -> ChangedGangs: ...

    @property
    def node_matrix(self) -> NodeMatrix: ...

    @property
    def task_table(self) -> TaskTable: ...

    @property
    def reservations(self) -> Reservations: ...

    def update_pod(self, old: Pod | None, new: Pod | None) -> None: ...

    def update_podgroup(self, old: PodGroup | None, new: PodGroup | None) -> None: ...

    def schedules(self, pod: Pod) -> bool: ...

    def is_of_gang_scheduler(self, pod: Pod) -> bool: ...

    def forget(self, uid: str) -> Gang | None: ...

    def add_member(self, gang: Gang, pod: Pod, *, like: Task | None = None) -> Task: ...

    def allocate_member(self, gang: Gang, task: Task, node: str) -> None: ...

    def adopt_member(self, gang: Gang, member: Task, pod: Pod) -> bool: ...

    def remove_member(self, task: Task) -> None: ...

    def classify_member(self, gang: Gang, pod: Pod) -> EquivalenceClass: ...

    def add_assumed_pod(self, uid: str, node: str, eq_class: EquivalenceClass) -> None: ...

    def remove_assumed_pod(self, uid: str) -> None: ...
