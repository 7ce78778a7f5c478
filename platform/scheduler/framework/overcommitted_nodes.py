"""Nodes that two schedulers have filled at once.

A pod of another scheduler, or a binding of a former leader, may arrive at a node whose resources
this scheduler has given to its own pods. The kubelet then rejects one of them; where none does so
within a delay, the youngest pod that this scheduler has bound is evicted, and its controller
creates it again. A node whose allocatable resources shrink is not overcommitted in this sense.
"""

from ..state.gangs import Task, TaskStatus
from ..state.resources import BoolVector, IntVector
from .decision import Eviction, GangRef
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
        suspects = session.cache.overcommitted_nodes
        for node_index in [index for index in self._since if index not in suspects]:
            del self._since[node_index]
        for node_index in list(suspects):
            if not self._check(session, node_index, now):
                suspects.discard(node_index)
                self._since.pop(node_index, None)

    def rechecks(self) -> dict[str, float]:
        """Return the seconds until gangs on overcommitted nodes are to be checked, by key."""
        return self._rechecks

    def _check(self, session: Session, node_index: int, now: float) -> bool:
        """Evict from one node; returns whether it may still be overcommitted."""
        matrix = session.cache.node_matrix
        while matrix.alive[node_index] and _lacking(session, node_index).any():
            task = _youngest(session, node_index)
            if task is None or task.gang is None:
                return False  # no pod of this scheduler: the next arrival is checked again
            left = self._since.setdefault(node_index, now) + KUBELET_DELAY - now
            if left > 0:
                self._rechecks[task.gang.key] = left
                return True
            if not _evict(session, task, matrix.names[node_index]):
                return True
        return False


def _lacking(session: Session, node_index: int) -> BoolVector:
    """Return of which resources a node has too little, once terminating pods are deleted.

    No pod has to go for one that does not exist.
    """
    matrix = session.cache.node_matrix
    idle: IntVector = matrix.idle[:, node_index] + matrix.releasing[:, node_index]
    if (idle < 0).any():
        idle = idle + session.cache.planned.without_pods(node_index)
    return idle < 0


def _youngest(session: Session, node_index: int) -> Task | None:
    """Return the youngest pod on a node that uses something of which there is too little."""
    matrix = session.cache.node_matrix
    lacking = _lacking(session, node_index)
    candidates = (
        task
        for task in session.cache.task_table.tasks_on(node_index)
        if task.status in _BOUND_STATUSES
        and task.eq_class.request_vector(matrix.resource_index)[lacking].any()
    )
    return max(candidates, key=lambda task: (task.created, task.uid), default=None)


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
