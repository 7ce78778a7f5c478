"""Nodes that two schedulers have filled at once.

A pod of another scheduler, or a binding of a former leader, may arrive at a node whose resources
this scheduler has given to its own pods. The kubelet then rejects one of them; where none does so
within a delay, the youngest pods that this scheduler has bound are evicted, and their controllers
create them again. Only shortages that arrivals have caused lead to evictions
(:mod:`..state.arrivals`), not smaller allocatable resources, nor a resized pod.
"""

import numpy as np

from ..plugins.placement import GangRef
from ..state.gangs.gang import Task, TaskStatus
from ..state.resources import IntVector
from .decision import Eviction
from .plugin_calls import PluginError
from .session import Session

NODE_OVERCOMMITTED = "NodeOvercommitted"
"""Reason of the condition of evicted pods."""

KUBELET_DELAY = 5.0
"""Seconds in which a kubelet is expected to reject a pod."""

_BOUND_STATUSES = (TaskStatus.BOUND, TaskStatus.RUNNING)


class OvercommittedNodes:
    """Evicts pods from overcommitted nodes."""

    def __init__(self) -> None:
        """Start without any."""
        self._since: dict[int, float] = {}
        """Since when nodes are overcommitted, by index."""

        self._rechecks: dict[str, float] = {}

    def run(self, session: Session, *, now: float) -> None:
        """Evict what is necessary; to be called before the actions of a cycle."""
        self._rechecks = {}
        arrivals = session.cache.arrivals
        for node_index in [index for index in self._since if index not in arrivals]:
            del self._since[node_index]
        for node_index in arrivals:
            if not self._check(session, node_index, now):
                arrivals.forget(node_index)
                self._since.pop(node_index, None)

    def rechecks(self) -> dict[str, float]:
        """Return the seconds until gangs on overcommitted nodes are to be checked, by key."""
        return self._rechecks

    def _check(self, session: Session, node_index: int, now: float) -> bool:
        """Evict from one node; returns whether it may still be overcommitted."""
        victims = _victims(session, node_index)
        if not victims:
            # What is lacking is still caused by arrivals if a pod of this scheduler arrives, too.
            self._since.pop(node_index, None)
            return bool(session.cache.arrivals.lacking(node_index).any())
        left = self._since.setdefault(node_index, now) + KUBELET_DELAY - now
        if left > 0:
            self._rechecks[_key(victims[0])] = left
            return True
        name = session.cache.node_matrix.names[node_index]
        evicted = [_evict(session, task, name) for task in victims]
        return not all(evicted)


def _victims(session: Session, node_index: int) -> list[Task]:
    """Return the pods of this scheduler that have to leave a node. They are chosen from the
    youngest on among those that use what is lacking; then those are left out without which the
    others suffice."""
    resource_index = session.cache.node_matrix.resource_index
    lacking = session.cache.arrivals.lacking(node_index)
    rows = np.flatnonzero(lacking)
    lacking = lacking[rows]

    def request(task: Task) -> IntVector:
        return task.eq_class.request_vector(resource_index)[rows]

    on_node = session.cache.task_table.tasks_on(node_index)
    bound = (task for task in on_node if task.status in _BOUND_STATUSES and task.gang is not None)
    victims: list[Task] = []
    for task in sorted(bound, key=lambda task: (task.created, task.uid), reverse=True):
        if (request(task)[lacking > 0] > 0).any():
            victims.append(task)
            lacking = lacking - request(task)
    for task in reversed(victims):
        if (lacking + request(task) <= 0).all():
            victims.remove(task)
            lacking = lacking + request(task)
    return victims


def _key(task: Task) -> str:
    return task.gang.key if task.gang is not None else task.key


def _evict(session: Session, task: Task, node: str) -> bool:
    gang = task.gang
    if gang is None:
        return False
    try:
        with session.statement(gang) as statement:
            statement.evict(task)
            session.commit(gang, statement)
    except PluginError as error:
        session.reject_failed(gang, error)
        return False
    session.evictions.append(
        Eviction(
            namespace=task.namespace,
            name=task.name,
            uid=task.uid,
            message=f"node {node} is overcommitted, and this is the youngest pod of this scheduler",
            reason=NODE_OVERCOMMITTED,
            replaced=True,
            gang=None if gang.single else GangRef(gang.key, gang.podgroup),
        )
    )
    return True
