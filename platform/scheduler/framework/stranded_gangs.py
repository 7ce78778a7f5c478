"""Gangs with fewer members than they need, of which some are bound.

A gang is bound as a whole, but a crash between two bindings, or a rejected one, may leave a part of
it bound, which uses resources without running. Such a gang was never complete: it is *stranded*.

1. Stranded gangs are allocated before all others, the oldest first. What they lack is reserved.
2. After a timeout their bound members are evicted, and the gang is allocated again as a whole. The
   pods are marked as replaced, so that the job controller counts no retry and applies no policy.
   The timeout is not reset while bindings are in progress: they may be refused repeatedly.
3. A gang that was complete once keeps its members. If it loses some, what their replacements lack
   is reserved for a limited time, and not a second time before the gang was ready again.

A reservation does not precede gangs of a higher priority, nor those of queues that are first
(:mod:`.reservation_order`).

Whether a gang was complete is part of the status of its PodGroup, so that it outlives this process.
The timeout begins when a gang is first observed, so a restart begins it again.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from ..plugins.placement import GangRef
from ..state.gangs.diagnosis import Stage
from ..state.gangs.gang import Gang, Task, TaskStatus
from ..state.planning.reservations import Purpose, Reservation
from ..state.queue.scheduling_queue import RESYNC_SECONDS
from ..state.resources import BoolVector
from .completeness import has_bound_tasks, was_complete
from .decision import Eviction, IncompleteEviction
from .gang_domains import EVERYWHERE
from .missing_members import MissingMembers
from .plugin_calls import PluginError
from .session import Session
from .statement import OperationKind
from .sub_group_units import needed_tasks

GANG_INCOMPLETE = "GangIncomplete"
"""Reason of the condition of evicted members."""

DEFAULT_TIMEOUT = 60.0
"""Seconds after which the members of a stranded gang are evicted."""

REPLACEMENT_SECONDS = 300.0
"""For how long resources are reserved for replacements of lost members."""

_BOUND_STATUSES = (TaskStatus.BOUND, TaskStatus.RUNNING)


@dataclass(slots=True)
class _Stranded:
    """A gang that was never complete."""

    since: float
    """By the monotonic clock."""

    in_progress: bool = False
    """Whether bindings are in progress by which it becomes complete."""

    was_last_try: bool = False
    """Whether it was allocated after the timeout, so that another refusal is the last one."""


class StrandedGangs:
    """Allocates incomplete gangs before all others, and evicts those that stay incomplete."""

    def __init__(self, *, timeout: float = DEFAULT_TIMEOUT) -> None:
        """Evict the members of a gang that is stranded for *timeout* seconds."""
        self.timeout = timeout
        self.evicted: list[IncompleteEviction] = []
        """Evictions of the last cycle."""

        self._stranded: dict[str, _Stranded] = {}
        self._replacing: dict[str, float] = {}
        """Since when gangs that were complete wait for replacements, as Unix time."""

    @property
    def count(self) -> int:
        """Number of stranded gangs."""
        return len(self._stranded)

    def run(self, session: Session, *, now: float) -> None:
        """Allocate or evict incomplete gangs; to be called before the actions of a cycle.

        *now* is a reading of a monotonic clock.
        """
        self.evicted = []
        is_known = self._stranded.keys() | self._replacing.keys()
        for gang in list(session.cache.changes.gangs()):
            # Most gangs that have changed are complete, or have no bound task.
            if gang.key in is_known or (not gang.is_ready() and has_bound_tasks(gang)):
                self._observe(session, gang, now)
        for gang in self._in_order(session, self._stranded):
            self._allocate_or_evict(session, gang, now)
        for gang in self._in_order(session, self._replacing):
            _allocate(session, gang, until=self._replacing[gang.key] + REPLACEMENT_SECONDS)

    def rechecks(self, *, now: float) -> dict[str, float]:
        """Return the seconds until each stranded gang is to be evicted, by key."""
        return {
            key: max(each.since + self.timeout - now, 0.0)
            for key, each in self._stranded.items()
            if not each.in_progress
        }

    def _observe(self, session: Session, gang: Gang, now: float) -> None:
        key = gang.key
        if not _is_incomplete(gang):
            self._stranded.pop(key, None)
        elif key in self._stranded or not gang.is_ready():
            known = self._stranded.setdefault(key, _Stranded(now))
            known.in_progress = gang.is_ready()
        if _needs_replacements(gang):
            self._replacing.setdefault(key, session.cache.cycle_time)
        else:
            self._replacing.pop(key, None)
        if gang.is_ready() or (key not in self._stranded and key not in self._replacing):
            reservation = session.cache.reservations.get(key)
            if reservation is not None and reservation.purpose is Purpose.STRANDED:
                session.cache.reservations.drop(key)

    @staticmethod
    def _in_order(session: Session, keys: Iterable[str]) -> list[Gang]:
        gangs = (session.cache.gangs.get(key) for key in keys)
        found = [gang for gang in gangs if gang is not None]
        return sorted(found, key=lambda gang: (gang.created, gang.key))

    def _allocate_or_evict(self, session: Session, gang: Gang, now: float) -> None:
        known = self._stranded[gang.key]
        if known.in_progress:
            return
        left = known.since + self.timeout - now
        if left > 0:
            known.in_progress = _allocate(session, gang, until=session.cache.cycle_time + left)
        elif not known.was_last_try and _allocate(session, gang, until=None):
            known.in_progress = known.was_last_try = True
        else:
            self._evict(session, gang)

    def _evict(self, session: Session, gang: Gang) -> None:
        bound = [task for task in gang.tasks.values() if task.status in _BOUND_STATUSES]
        message = (
            f"gang {gang.key} was never complete: {len(bound)} of the {gang.min_member} pods that "
            f"it needs were bound for {self.timeout:g} s"
        )
        gang_ref = GangRef(gang.key, gang.podgroup)
        try:
            with session.statement(gang) as statement:
                for task in bound:
                    statement.evict(task)
                session.commit(gang, statement)
        except PluginError as error:
            session.reject_failed(gang, error)
            return
        session.cache.reservations.drop(gang.key)
        session.evictions += [
            Eviction(
                namespace=task.namespace,
                name=task.name,
                uid=task.uid,
                message=message,
                reason=GANG_INCOMPLETE,
                replaced=True,
                gang=gang_ref,
            )
            for task in bound
        ]
        self.evicted.append(IncompleteEviction(gang_ref, message))
        del self._stranded[gang.key]


def _is_incomplete(gang: Gang) -> bool:
    """Return whether members are bound of a gang that was never complete."""
    if gang.single or gang.podgroup is None or was_complete(gang):
        return False
    return has_bound_tasks(gang)


def _needs_replacements(gang: Gang) -> bool:
    if gang.single or gang.podgroup is None or not was_complete(gang):
        return False
    return bool(gang.pending_tasks) and has_bound_tasks(gang) and not gang.is_ready()


def _allocate(session: Session, gang: Gang, *, until: float | None) -> bool:
    """Allocate what *gang* lacks; where that is not possible, reserve it until the Unix time
    *until*. Returns whether it is allocated."""
    if session.can_skip(gang):
        return False
    session.cache.scheduling_queue.activate(
        gang
    )  # on its own: the others of a woken group are tried, too
    rejection = session.job_valid(gang)
    if rejection:
        if not gang.is_pending:  # else it is to be admitted first, so that its pods are created
            session.reject(gang, rejection.diagnosis())
        return False
    try:
        if gang.is_pending:
            session.enqueue(gang)  # it was admitted before a restart lost that
        return _allocate_missing(session, gang, until)
    except PluginError as error:
        session.reject_failed(gang, error)
        return False


def _allocate_missing(session: Session, gang: Gang, until: float | None) -> bool:
    tasks = session.tasks(gang)
    missing = MissingMembers(gang)
    fitting: dict[str, int] = {}
    with session.lend(gang), session.statement(gang) as statement:
        statement.allocate_minimum(tasks, missing)
        if missing.satisfied:
            session.commit(gang, statement)
            return True
        diagnosis = statement.diagnosis()
        for operation in statement.operations:
            if operation.kind is OperationKind.ALLOCATE:
                uids = (task.uid for task in operation.change.tasks)
                fitting.update(zip(uids, operation.change.node_indexes, strict=True))
    if until is not None and until <= session.cache.cycle_time:
        until = None
    session.reject(gang, diagnosis, retry_at=until)
    reservations = session.cache.reservations
    known = reservations.get(gang.key)
    if known is not None and known.purpose in (Purpose.PREEMPTION, Purpose.KEPT):
        return False  # pods were evicted for it, or it has what its former pods used
    is_limited = any(each.stage is not Stage.NODES for each in diagnosis.fit_errors.values())
    if is_limited or until is None:
        reservations.drop(gang.key)
        return False
    _hold(session, gang, needed_tasks(gang, tasks), fitting, known, until)
    return False


def _hold(
    session: Session,
    gang: Gang,
    needed: Sequence[Task],
    fitting: dict[str, int],
    known: Reservation | None,
    until: float,
) -> None:
    """Hold resources for the *needed* tasks of *gang*; *known* is what is held for it now."""
    domains = session.domains_of(gang)
    option = EVERYWHERE if domains is None else domains.widest()
    holds: dict[str, int] = {}
    if option is not None:
        with session.within(option):
            if known is not None and _is_suitable(session, known, needed):
                return  # to choose again would wake other gangs, whose choices wake this one
            holds = _choose_nodes(session, needed, fitting)
    reservations = session.cache.reservations
    reservations.drop(gang.key)
    if holds:
        held = reservations.hold(gang, holds, until=until, purpose=Purpose.STRANDED)
        if held is not None:
            held.chosen_at = session.cache.cycle_time


def _is_suitable(session: Session, reservation: Reservation, tasks: Sequence[Task]) -> bool:
    """Return whether *reservation* is for *tasks*, is on nodes that could take them if they were
    empty, and is recent. An old one is chosen again, as other nodes may lack less by now."""
    holds = reservation.holds
    is_recent = session.cache.cycle_time < reservation.chosen_at + RESYNC_SECONDS
    return (
        is_recent
        and holds.keys() == {task.uid for task in tasks}
        and all(
            holds[task.uid].eq_class is task.eq_class
            and _possible_nodes(session, task)[holds[task.uid].node_index]
            for task in tasks
        )
    )


def _possible_nodes(session: Session, task: Task) -> BoolVector:
    """Return the nodes that could take *task* if they were empty, in the domain of its sub-group
    if that has to be in one."""
    matrix = session.cache.node_matrix
    request = task.eq_class.request_vector(matrix.resource_index)
    enough: BoolVector = np.all(matrix.allocatable >= request[:, None], axis=0)
    enough &= session.feasible(task.eq_class)
    if task.gang is None or task.sub_group is None or task.sub_group.policy.topology is None:
        return enough
    domains = session.domains_of(task.gang, task.sub_group)
    option = EVERYWHERE if domains is None else domains.widest()
    if option is None:
        return np.zeros_like(enough)
    return enough if option.allowed is None else enough & option.allowed


def _choose_nodes(
    session: Session, tasks: Sequence[Task], fitting: dict[str, int]
) -> dict[str, int]:
    """Return a node for each of *tasks*: where it fits, else the feasible node that lacks least.

    Empty if a task fits no node even when that is empty.
    """
    matrix = session.cache.node_matrix
    free = matrix.future_idle()
    order = matrix.tie_breakers()
    chosen: dict[str, int] = {}
    for task in sorted(tasks, key=lambda task: task.uid not in fitting):
        request = task.eq_class.request_vector(matrix.resource_index)
        node_index = fitting.get(task.uid)
        if node_index is None:
            nodes = np.flatnonzero(_possible_nodes(session, task))
            if not len(nodes):
                return {}
            rows = np.flatnonzero(request)
            lacks = np.maximum(request[rows, None] - free[np.ix_(rows, nodes)], 0)
            shares = (lacks / request[rows, None]).max(axis=0, initial=0.0)
            node_index = int(nodes[np.lexsort((-order[nodes], shares))[0]])
        chosen[task.uid] = node_index
        free[:, node_index] -= request
    return chosen
