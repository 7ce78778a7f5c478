"""Reservations: resources of nodes that are held for pending tasks of a gang across cycles.

A gang for which pods were evicted gets what they release, and not the gang that happens to be first
in the cycle after. The requests count as pipelined in the node matrix, so that other gangs see only
what is idle beyond them, and the pods count in the filters by other pods: a pod that does not go
with them is not scheduled there either, such as the successor of one that was evicted for that. A
reservation ends when its tasks are allocated or deleted, when it expires, or when a gang that
outranks its own takes it.

After a restart reservations are restored from ``status.nominatedNodeName`` of pending pods.
"""

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum

import numpy as np

from ..gangs.gang import Gang, QueueInfo, Task, TaskStatus, sum_amounts
from ..nodes.node_matrix import NodeMatrix
from ..podinfo.equivalence import EquivalenceClass
from ..resources import Amounts, IntVector, Matrix

EXPIRY_MARGIN = 30.0
"""Seconds after the grace period of victims for which their resources are held."""


class Purpose(Enum):
    """Why resources are held."""

    PREEMPTION = "preemption"
    """Pods were evicted for the gang."""

    STRANDED = "stranded"
    """Members of the gang are bound and would be useless without the others."""

    NOMINATED = "nominated"
    """Another scheduler evicted pods for one of its pods."""

    PLANNED = "planned"
    """The pods were planned, but were created without their nodes."""

    KEPT = "kept"
    """Pods of the gang that used them were deleted or have failed; the holds are by their uids."""


@dataclass(frozen=True, slots=True)
class Hold:
    """Resources on a node for one task."""

    eq_class: EquivalenceClass
    node_index: int


@dataclass(slots=True)
class Reservation:
    """What is held for one gang."""

    gang: Gang
    holds: dict[str, Hold]
    """By uid of the task."""

    until: float
    """When it expires, as Unix time."""

    purpose: Purpose
    queue_name: str = ""
    """Queue in which it counts as allocated, if the pods have left theirs."""

    counted: bool = True
    """Whether it counts in the node matrix and in its queue now."""

    backed: bool = True
    """Whether its nodes had what is held, or were to have it, when that was last checked."""

    chosen_at: float = 0.0
    """When its nodes were chosen, as Unix time, if these may change."""

    def requested(self) -> Amounts:
        """Return what is held in total."""
        return sum_amounts(hold.eq_class.request for hold in self.holds.values())


class Reservations:
    """All reservations, one for each gang at most."""

    def __init__(self, node_matrix: NodeMatrix, find_task: Callable[[str], Task | None]) -> None:
        """Start without any; *find_task* returns the task of a uid."""
        self._node_matrix = node_matrix
        self._find_task = find_task
        self._by_gang: dict[str, Reservation] = {}
        self._gang_by_uid: dict[str, str] = {}
        self._ended: list[Reservation] = []
        self._gangs_by_node: dict[int, set[str]] = {}
        """Keys of the gangs with reservations on a node; a key may be outdated."""
        self._position = node_matrix.usage_changes.position
        self._nominated: dict[str, str] = {}
        """Nodes of pending tasks by uid, as found after a restart."""
        self.on_end: Callable[[Reservation], object] | None = None
        """Called if what was freed for a gang by evictions, or kept for it, is not held any more,
        or not all of it."""
        self.charge: Callable[[str, Amounts, int], object] | None = None
        """Called with the name of a queue, amounts that are kept for a gang of it, and 1 or -1."""

    def __bool__(self) -> bool:
        """Return whether there are any."""
        return bool(self._by_gang)

    def __iter__(self) -> Iterator[Reservation]:
        """Return all of them."""
        return iter(self._by_gang.values())

    def get(self, gang_key: str) -> Reservation | None:
        """Return the reservation of a gang."""
        return self._by_gang.get(gang_key)

    def hold(
        self, gang: Gang, nodes: Mapping[str, int], *, until: float, purpose: Purpose
    ) -> Reservation | None:
        """Hold resources for pending tasks of *gang*, instead of what was held for it.

        *nodes* are by uid of the task. If a node lacks the resources, what becomes free there is
        held until they suffice.
        """
        self.drop(gang.key)
        tasks = ((self._pending_task(uid), index) for uid, index in nodes.items())
        holds = {task.uid: Hold(task.eq_class, index) for task, index in tasks if task is not None}
        if not holds:
            return None
        reservation = self._by_gang[gang.key] = Reservation(gang, holds, until, purpose)
        self._gang_by_uid.update(dict.fromkeys(holds, gang.key))
        for hold in holds.values():
            self._gangs_by_node.setdefault(hold.node_index, set()).add(gang.key)
        self._count(reservation, holds.values(), 1)
        return reservation

    def keep(self, gang: Gang, task: Task, node_index: int, *, queue_name: str) -> None:
        """Hold what *task* of *gang* used on a node that it has left, and in queue *queue_name*,
        until the next cycle limits that, unless something is held for pending tasks of *gang*."""
        known = self._by_gang.get(gang.key)
        if known is None:
            known = Reservation(gang, {}, math.inf, Purpose.KEPT, queue_name)
            self._by_gang[gang.key] = known
        elif known.purpose is not Purpose.KEPT:
            return
        known.until = math.inf
        hold = known.holds[task.uid] = Hold(task.eq_class, node_index)
        self._gang_by_uid[task.uid] = gang.key
        self._gangs_by_node.setdefault(node_index, set()).add(gang.key)
        self._count(known, (hold,), 1)

    def next_due(self) -> float | None:
        """Return when nodes are not kept any more, in Unix time."""
        kept = (each.until for each in self._by_gang.values() if each.purpose is Purpose.KEPT)
        return min(kept, default=None)

    def drop(self, gang_key: str) -> Reservation | None:
        """End the reservation of a gang; returns it, or ``None`` if there is none."""
        reservation = self._by_gang.pop(gang_key, None)
        if reservation is None:
            return None
        if reservation.counted:
            self._count(reservation, reservation.holds.values(), -1)
        for uid, hold in reservation.holds.items():
            del self._gang_by_uid[uid]
            self._gangs_by_node.get(hold.node_index, set()).discard(gang_key)
        self._report_end(reservation)
        return reservation

    def freed_in(self, queue_of: Callable[[Gang], QueueInfo], queue: QueueInfo) -> Amounts:
        """Return what is held for gangs of *queue* for which pods were evicted, and not lent."""
        return sum_amounts(
            each.requested()
            for each in self._by_gang.values()
            if each.counted and each.purpose is Purpose.PREEMPTION and queue_of(each.gang) is queue
        )

    def expire(self, now: float) -> list[Reservation]:
        """End and return the reservations whose time is over at *now*."""
        expired = [each for each in self._by_gang.values() if each.until <= now]
        for each in expired:
            self.drop(each.gang.key)
        self._ended += expired
        return expired

    def pop_ended(self) -> list[Reservation]:
        """Return the reservations that expired since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def is_backed(self, reservation: Reservation) -> bool:
        """Return whether its nodes have what is held, once evicted pods are deleted."""
        indexes = np.array([each.node_index for each in reservation.holds.values()], np.int64)
        requested = self._node_matrix.pipelined[:, indexes] > 0
        future_idle = self._node_matrix.future_idle(indexes) + self._yielding(reservation, indexes)
        alive = self._node_matrix.alive[indexes].all()
        return bool(alive and (future_idle[requested] >= 0).all())

    def is_free(self, reservation: Reservation) -> bool:
        """Return whether its nodes have what is held now."""
        indexes = np.array([each.node_index for each in reservation.holds.values()], np.int64)
        pipelined = self._node_matrix.pipelined[:, indexes]
        idle = self._node_matrix.idle[:, indexes] + self._yielding(reservation, indexes)
        return bool((idle >= pipelined)[pipelined > 0].all())

    def _yielding(self, reservation: Reservation, indexes: IntVector) -> Matrix:
        """Return what is held on nodes that *reservation* need not leave: an incomplete gang waits
        for what becomes free, but not for what pods were evicted for."""
        found = np.zeros((len(self._node_matrix.idle), len(indexes)), np.int64)
        if reservation.purpose is not Purpose.PREEMPTION:
            return found
        keys = {
            key for index in set(indexes.tolist()) for key in self._gangs_by_node.get(index, ())
        }
        others = (each for key in keys if (each := self._by_gang.get(key)) is not None)
        for each in others:
            if each.purpose is Purpose.STRANDED and each.counted:
                for hold in each.holds.values():
                    request = hold.eq_class.request_vector(self._node_matrix.resource_index)
                    found[: len(request), indexes == hold.node_index] += request[:, None]
        return found

    def changed(self) -> list[Reservation]:
        """Return the reservations on nodes that have changed since the last call."""
        log = self._node_matrix.usage_changes
        indexes = log.since(self._position)
        self._position = log.position
        if indexes is None:
            return list(self._by_gang.values())
        keys = {key: None for index in set(indexes) for key in self._gangs_by_node.get(index, ())}
        return [self._by_gang[key] for key in keys if key in self._by_gang]

    @contextmanager
    def lent(self, gang_keys: Collection[str]) -> Iterator[None]:
        """Let the block use what is held for these gangs.

        Afterwards it is held again, apart from tasks that were allocated.
        """
        found = [each for key in gang_keys if (each := self._by_gang.get(key)) is not None]
        lent = [each for each in found if each.counted]
        for each in lent:
            self._count(each, each.holds.values(), -1)
            each.counted = False
        try:
            yield
        finally:
            for each in lent:
                if self._by_gang.get(each.gang.key) is not each:
                    continue
                if not each.counted:
                    self._count(each, each.holds.values(), 1)
                    each.counted = True
                for uid in list(each.holds):
                    self.observe(uid)

    def recount(self, gang_keys: Iterable[str]) -> list[Reservation]:
        """Hold again what was lent, if it is still there; the other reservations end and are
        returned. To be called at the end of a block of :meth:`lent` that may have used something.
        """
        dropped = []
        for key in gang_keys:
            reservation = self._by_gang.get(key)
            if reservation is None or reservation.counted:
                continue
            self._count(reservation, reservation.holds.values(), 1)
            reservation.counted = True
            if not self.is_backed(reservation):
                self.drop(key)
                dropped.append(reservation)
        return dropped

    def observe(self, uid: str) -> None:
        """End what is held for a task that is not pending any more."""
        key = self._gang_by_uid.get(uid)
        reservation = self._by_gang.get(key) if key is not None else None
        if reservation is None or not reservation.counted:
            return
        if reservation.purpose is Purpose.KEPT or self._pending_task(uid) is not None:
            return
        self._count(reservation, (reservation.holds.pop(uid),), -1)
        del self._gang_by_uid[uid]
        if not reservation.holds:
            del self._by_gang[reservation.gang.key]
        self._report_end(reservation)

    def reclassify(self, task: Task) -> None:
        """Count what is held for *task* by its class, which has changed; its request has not."""
        reservation = self._by_gang.get(self._gang_by_uid.get(task.uid, ""))
        if reservation is None:
            return
        before = reservation.holds[task.uid]
        after = reservation.holds[task.uid] = Hold(task.eq_class, before.node_index)
        if reservation.counted:
            self._count(reservation, (before,), -1)
            self._count(reservation, (after,), 1)

    def drop_node(self, node_index: int) -> None:
        """End what is held on a node that is removed."""
        for reservation in list(self._by_gang.values()):
            for uid, hold in list(reservation.holds.items()):
                if hold.node_index == node_index:
                    self._count(reservation, (reservation.holds.pop(uid),), -1)
                    del self._gang_by_uid[uid]
                    self._report_end(reservation)
            if not reservation.holds:
                del self._by_gang[reservation.gang.key]

    # -- restart -------------------------------------------------------------------------------

    def add_nominated(self, uid: str, node: str) -> None:
        """Note a task that has a nominated node when it is first seen."""
        self._nominated[uid] = node

    def restore(
        self, *, now: float, longest_grace: Callable[[Collection[int]], float]
    ) -> list[Reservation]:
        """Hold resources for the tasks that had a nominated node when they were first seen.

        *longest_grace* returns the longest grace period of terminating pods on some nodes.
        """
        by_gang: dict[str, tuple[Gang, dict[str, int]]] = {}
        for uid, name in self._nominated.items():
            task, index = self._pending_task(uid), self._node_matrix.index_of(name)
            if task is None or task.gang is None or index is None:
                continue
            if task.gang.key not in self._by_gang:
                by_gang.setdefault(task.gang.key, (task.gang, {}))[1][uid] = index
        self._nominated.clear()
        restored = (
            self.hold(
                gang,
                nodes,
                until=now + longest_grace(nodes.values()) + EXPIRY_MARGIN,
                purpose=Purpose.PREEMPTION,
            )
            for gang, nodes in by_gang.values()
        )
        return [each for each in restored if each is not None]

    # -- private -------------------------------------------------------------------------------

    def _pending_task(self, uid: str) -> Task | None:
        task = self._find_task(uid)
        return task if task is not None and task.status in _WAITING_STATUSES else None

    def _report_end(self, reservation: Reservation) -> None:
        if self.on_end is not None and reservation.purpose in (Purpose.PREEMPTION, Purpose.KEPT):
            self.on_end(reservation)

    def _count(self, reservation: Reservation, holds: Collection[Hold], sign: int) -> None:
        if self.charge is not None and reservation.purpose is Purpose.KEPT:
            amounts = sum_amounts(hold.eq_class.request for hold in holds)
            self.charge(reservation.queue_name, amounts, sign)
        indexes: dict[EquivalenceClass, list[int]] = {}
        for hold in holds:
            indexes.setdefault(hold.eq_class, []).append(hold.node_index)
        for eq_class, node_indexes in indexes.items():
            self._node_matrix.add_pipelined(eq_class, node_indexes, sign)
            self._node_matrix.add_occupancy(eq_class, node_indexes, sign)
            if sign < 0:
                for node_index in set(node_indexes):
                    self._node_matrix.free_if_empty(node_index)


_WAITING_STATUSES = (TaskStatus.PENDING, TaskStatus.PIPELINED)
