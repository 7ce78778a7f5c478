"""Pods of other schedulers that are on nodes."""

from dataclasses import dataclass

from ....model.pod import FINISHED
from ..core_types import Pod
from ..nodes.node_matrix import NodeMatrix
from ..podinfo.equivalence import EquivalenceClass
from .pod_classes import PodClasses


@dataclass(slots=True)
class ForeignPod:
    """A pod of another scheduler that uses resources of a node."""

    node_index: int
    eq_class: EquivalenceClass
    releasing: bool


class ForeignPods:
    """All such pods."""

    def __init__(self, node_matrix: NodeMatrix, pod_classes: PodClasses) -> None:
        """Start without pods."""
        self.by_uid: dict[str, ForeignPod] = {}
        self._node_matrix = node_matrix
        self._pod_classes = pod_classes

    def update(self, pod: Pod) -> bool:
        """Apply an update that changes neither node nor resources, as most updates do.

        Returns whether *pod* is such an update.
        """
        known = self.by_uid.get(pod.metadata.uid)
        if known is None or pod.status.phase in FINISHED:
            return False
        name = self._node_matrix.names[known.node_index]
        eq_class = self._pod_classes.get(pod)
        if pod.spec.node_name != name or eq_class is not known.eq_class:
            return False
        self._pod_classes.update(pod, eq_class)
        releasing = bool(pod.metadata.deletion_timestamp)
        if releasing is not known.releasing:
            sign = 1 if releasing else -1
            self._node_matrix.add_releasing(eq_class, (known.node_index,), sign)
            known.releasing = releasing
        return True
