"""What the allocation of a gang needs of the session and of its statement, which import it."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from ..plugins.extension_points import Allocation, Rejection
from ..state.cache.cache import SchedulerCache
from ..state.gangs.diagnosis import FitError, NodeFit
from ..state.gangs.gang import Gang, QueueInfo, SubGroup, Task
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.queue.scheduling_queue import ClusterEvent
from ..state.resources import IntVector
from .gang_domains import GangDomains, Option
from .missing_members import MissingMembers
from .placer import Placer
from .pod_aware_placer import PodAwarePlacer
from .unfit_tasks import Failures, UnfitTasks


class SessionView(Protocol):
    """What a statement, and the allocations that it delegates to, need of their session."""

    cache: SchedulerCache
    is_restricted: bool
    """Whether only some nodes may be chosen now."""

    def notify_listeners(self, change: Allocation, *, allocated: bool) -> None:
        """Call the listeners: *change* is allocated, or else deallocated."""
        ...

    def revert_listeners(self, change: Allocation, *, allocated: bool) -> None:
        """Call the listeners for an operation that is undone."""
        ...

    def placer(self, eq_class: EquivalenceClass) -> Placer | PodAwarePlacer:
        """Return the placer of *eq_class* in this session."""
        ...

    def allocatable_count(self, queue: QueueInfo, eq_class: EquivalenceClass) -> int:
        """Return how many more pods of *eq_class* the queue may allocate."""
        ...

    def queue_rejection(self, queue: QueueInfo, eq_class: EquivalenceClass) -> Rejection | None:
        """Return why the queue allocates no more pods of *eq_class*, or ``None`` if it does."""
        ...

    def counted(
        self, queue: QueueInfo, eq_class: EquivalenceClass, count: int
    ) -> AbstractContextManager[object]:
        """Count *count* pods of *eq_class* in the block as allocated in *queue*."""
        ...

    def limit_events(self, queue: QueueInfo) -> frozenset[ClusterEvent]:
        """Return what may raise the limits of *queue*."""
        ...

    def claim_rejection(self, task: Task) -> str:
        """Return which PVC or claim of devices blocks *task* and why; empty if none does."""
        ...

    def explain(self, eq_class: EquivalenceClass) -> NodeFit:
        """Return why no node fits another pod of *eq_class*."""
        ...

    def domains_of(self, gang: Gang, sub_group: SubGroup | None = None) -> GangDomains | None:
        """Return the domains of the network into which *gang*, or *sub_group*, may go; ``None`` for
        everywhere."""
        ...

    def capacities(self, eq_class: EquivalenceClass) -> IntVector:
        """Return how many more pods of *eq_class* fit on each node, apart from other pods."""
        ...

    def total_request(self, tasks: Sequence[Task]) -> IntVector:
        """Return what *tasks* request together."""
        ...

    def kept_nodes(self, gang: Gang) -> Option | None:
        """Return the nodes that are kept for *gang*; ``None`` if there are none."""
        ...

    def within(self, option: Option) -> AbstractContextManager[None]:
        """Return the context in which the nodes of *option* alone are used."""
        ...


class OpenStatement(Protocol):
    """What the allocations that a statement delegates to need of it."""

    unfit: UnfitTasks

    def savepoint(self) -> int:
        """Return a point to which :meth:`rollback_to` returns."""
        ...

    def rollback_to(self, savepoint: int) -> None:
        """Undo the operations after *savepoint*."""
        ...

    def try_minimum(self, tasks: Sequence[Task], missing: MissingMembers) -> None:
        """Allocate tasks until *missing* is satisfied or cannot be satisfied."""
        ...

    def try_extra(self, tasks: Sequence[Task], at_most: int) -> int:
        """Allocate up to *at_most* tasks; returns how many."""
        ...

    def fitting_count(self, eq_class: EquivalenceClass, tasks: Sequence[Task]) -> int:
        """Return how many of *tasks* fit queue and nodes; records the first that does not fit."""
        ...

    def allocate_best(self, tasks: Sequence[Task]) -> None:
        """Allocate *tasks* on the best nodes."""
        ...

    def has_failed(self, task: Task) -> bool:
        """Return whether *task* is blocked, or its sub-group, or another task of its role, did not
        fit."""
        ...

    def failures(self) -> Failures:
        """Return which tasks did not fit, and why."""
        ...

    def set_failures(self, failures: Failures) -> None:
        """Forget which tasks did not fit since then."""
        ...

    def add_failure(self, task: Task, error: FitError) -> None:
        """Record that *task* does not fit because of *error*."""
        ...
