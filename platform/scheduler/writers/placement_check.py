"""Whether a placement still holds when it is about to be sent.

The binder may send a placement long after its cycle: while the API server was slow, a node may
have been deleted or cordoned. Objects are compared with what the cycle has seen, so that
a placement that ignores a taint by configuration is not rejected.
"""

from collections.abc import Callable
from dataclasses import dataclass

from ...model.meta import HasMeta
from ...model.names import Resource
from ...model.native_podgroup import NativePodGroup
from ...model.podgroup import PodGroup
from ..plugins.placement import Placement
from ..plugins.predicates import tolerates_cordon, untolerated
from ..state.core_types import Node, Pod
from ..state.gangs.native_gang import TranslatedPodGroup

NODE_DELETED, NODE_UNSCHEDULABLE = "NodeDeleted", "NodeUnschedulable"
NODE_TAINTED, PODGROUP_DELETED = "NodeTainted", "PodGroupDeleted"


@dataclass(frozen=True, slots=True)
class StalePlacement:
    """Why a placement does not hold any more."""

    reason: str
    message: str


class PlacementCheck:
    """Compares placements with the newest objects of informers."""

    def __init__(
        self,
        *,
        nodes: Callable[[str], Node | None],
        pods: Callable[[str], Pod | None],
        podgroups: Callable[[str], PodGroup | None],
        native_podgroups: Callable[[Resource, str], NativePodGroup | None] | None = None,
    ) -> None:
        """Use these listers, which return the object of a key; the last one that of a version."""
        self._nodes = nodes
        self._pods = pods
        self._podgroups = podgroups
        self._native_podgroups = native_podgroups

    def __call__(self, placement: Placement) -> StalePlacement | None:
        """Return why *placement* does not hold any more, or ``None`` if it does."""
        expected = placement.gang.podgroup if placement.gang is not None else None
        if expected is not None and self._is_deleted(expected):
            message = f"PodGroup {expected.metadata.name} was deleted"
            return StalePlacement(PODGROUP_DELETED, message)
        node = self._nodes(placement.node)
        if node is None:
            return StalePlacement(NODE_DELETED, f"node {placement.node} was deleted")
        return self._check_node(placement, node)

    def _is_deleted(self, expected: PodGroup) -> bool:
        key = expected.metadata.key
        found: HasMeta | None
        if isinstance(expected, TranslatedPodGroup) and self._native_podgroups is not None:
            found = self._native_podgroups(expected.resource, key)
        elif expected.is_stored:
            found = self._podgroups(key)
        else:
            return False
        return found is None or found.metadata.uid != expected.metadata.uid

    def _check_node(self, placement: Placement, node: Node) -> StalePlacement | None:
        observed = placement.node_info
        if observed is None:
            return None
        added = [taint for taint in node.spec.taints if taint not in observed.taints]
        cordoned = node.spec.unschedulable and not observed.unschedulable
        if not added and not cordoned:
            return None
        pod = self._pods(f"{placement.namespace}/{placement.name}")
        tolerations = pod.spec.tolerations if pod is not None else ()
        name = node.metadata.name
        if cordoned and not tolerates_cordon(tolerations):
            return StalePlacement(NODE_UNSCHEDULABLE, f"node {name} was cordoned")
        if (taint := untolerated(tolerations, added)) is not None:
            return StalePlacement(NODE_TAINTED, f"node {name} was tainted {taint.key}")
        return None
