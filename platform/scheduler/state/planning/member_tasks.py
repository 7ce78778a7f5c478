"""Tasks of members without a pod, and nodes that are charged for pods that may be created."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from ..cache.queue_sums import QueueSums
from ..core_types import Pod
from ..gangs.foreign_pods import ForeignPod, ForeignPods
from ..gangs.gang import Gang, Task, TaskStatus
from ..gangs.pod_classes import PodClasses
from ..podinfo.equivalence import EquivalenceClass
from ..podinfo.pod_traits import PodTraits


class MemberTasks(QueueSums, ABC):
    """What planned members need of the scheduler cache."""

    pod_classes: PodClasses
    _foreign_pods: ForeignPods

    def add_member(self, gang: Gang, pod: Pod, *, like: Task | None = None) -> Task:
        """Add a member of *gang* that is to become *pod*; returns its task, which is pending.

        *like* is that of another member with the same spec.
        """
        if like is None:
            eq_class = self.pod_classes.register(pod, self._traits(pod, gang))
        else:
            eq_class = self.pod_classes.register_like(pod, like.eq_class)
        task = Task(pod, eq_class, planned=True)
        self._add_task(gang, task)
        return task

    def allocate_member(self, gang: Gang, task: Task, node: str) -> None:
        """Assume that a pending member is created on *node*."""
        task.node_index = self._add_to_node(node, task.eq_class, releasing=False)
        task.node = node
        self.set_task_statuses(gang, (task,), TaskStatus.BINDING)
        self._mark_allocation_changed(gang)

    @abstractmethod
    def adopt_member(self, gang: Gang, member: Task, pod: Pod) -> bool:
        """Replace *member* on its node by its *pod*; returns whether it can."""
        ...

    def remove_member(self, task: Task) -> None:
        """Remove a member that has become a pod, or will not."""
        if task.gang is not None:
            self._mark_allocation_changed(task.gang)
        self._remove_pod(task.uid)

    def classify_member(self, gang: Gang, pod: Pod) -> EquivalenceClass:
        """Return the class that *pod*, which is not known, has as a member of *gang*."""
        return self.pod_classes.get(pod, self._traits(pod, gang))

    def add_possible_pod(self, uid: str, node: str, eq_class: EquivalenceClass) -> None:
        """Charge *node* for a pod that may be created there."""
        node_index = self._add_to_node(node, eq_class, releasing=False)
        self._foreign_pods.by_uid[uid] = ForeignPod(node_index, eq_class, releasing=False)

    def remove_possible_pod(self, uid: str) -> None:
        """Undo :meth:`add_possible_pod`."""
        self._remove_pod(uid)

    # -- of the whole cache --------------------------------------------------------------------

    @abstractmethod
    def set_task_statuses(self, gang: Gang, tasks: Sequence[Task], status: TaskStatus) -> None:
        """Set the status of *tasks*."""
        ...

    @abstractmethod
    def _traits(self, pod: Pod, gang: Gang) -> PodTraits: ...

    @abstractmethod
    def _add_task(self, gang: Gang, task: Task) -> None: ...

    @abstractmethod
    def _remove_pod(self, uid: str) -> None: ...

    @abstractmethod
    def _add_to_node(self, name: str, eq_class: EquivalenceClass, *, releasing: bool) -> int: ...
