"""Pending pods of other schedulers for which pods were evicted on a node.

kube-scheduler writes the node into ``status.nominatedNodeName``. What the evicted pods release is
reserved for such a pod, so that only gangs of a higher priority take it.
"""

import math

from ..core_types import Pod
from ..gangs.gang import Gang, Task
from ..gangs.pod_classes import PodClasses
from ..nodes.node_matrix import NodeMatrix
from .reservations import Purpose, Reservations


class NominatedPods:
    """All such pods, each as a separate gang that is never scheduled here."""

    def __init__(
        self, node_matrix: NodeMatrix, pod_classes: PodClasses, reservations: Reservations
    ) -> None:
        """Start without any."""
        self._node_matrix = node_matrix
        self._pod_classes = pod_classes
        self._reservations = reservations
        self._tasks: dict[str, Task] = {}

    def task(self, uid: str) -> Task | None:
        """Return the task of such a pod."""
        return self._tasks.get(uid)

    def update(self, pod: Pod) -> None:
        """Reserve what *pod*, of another scheduler, is to get on the node it is nominated for."""
        meta, node = pod.metadata, pod.status.nominated_node_name
        known = self._tasks.get(meta.uid)
        is_waiting = not pod.spec.node_name and not meta.deletion_timestamp
        node_index = self._node_matrix.index_of(node) if node and is_waiting else None
        if node_index is None:
            self.remove(meta.uid)
            return
        if known is not None and known.nominated_node == node:
            return
        self.remove(meta.uid)
        task = Task(pod, self._pod_classes.get(pod))
        gang = Gang(f"{meta.namespace}/pod:{meta.uid}", single=True)
        gang.priority = task.priority
        gang.add_task(task)
        self._tasks[meta.uid] = task
        nodes = {meta.uid: node_index}
        self._reservations.hold(gang, nodes, until=math.inf, purpose=Purpose.NOMINATED)

    def remove(self, uid: str) -> None:
        """End the reservation for the pod with *uid*, if there is one."""
        task = self._tasks.pop(uid, None)
        if task is not None and task.gang is not None:
            self._reservations.drop(task.gang.key)
