"""``nodegroup``: queues whose pods run on certain groups of nodes.

The label of a node names its group; ``spec.affinity`` of a queue lists the groups that it requires,
prefers and avoids.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from ...model.queue import QueueAffinity
from ..state.cache.cache import SchedulerCache
from ..state.gangs.diagnosis import Stage
from ..state.gangs.gang import Gang
from ..state.nodes.node_matrix import NodeInfo
from ..state.podinfo.equivalence import EquivalenceClass
from .arguments import boolean
from .extension_points import Rejection, Scores

GROUP_LABEL = "volcano.sh/nodegroup-name"
LIMITS_ANNOTATION = "volcano.sh/nodegroup-resource-limits"
NOT_IN_GROUP = "node(s) were not in a node group of the queue"

_REQUIRED, _PREFERRED, _AVOIDED = 100.0, 50.0, -1.0


class NodeGroupPlugin:
    """Filters and scores nodes by their group."""

    def __init__(self, arguments: Mapping[str, object]) -> None:
        """Parse the arguments."""
        self._strict = boolean(arguments, "strict", default=True)
        self._ordered = boolean(arguments, "enablePreferredOrder", default=False)
        self._cache: SchedulerCache | None = None

    def on_session_open(self, cache: SchedulerCache) -> None:
        """Keep the queues."""
        self._cache = cache

    def job_valid(self, gang: Gang) -> Rejection | None:
        """Reject gangs of queues with limits for node groups, which are not supported."""
        if gang.single or self._cache is None:
            return None
        queue = self._cache.queues.of(gang)
        if queue.object is None or LIMITS_ANNOTATION not in queue.object.metadata.annotations:
            return None
        message = f'queue "{queue.name}": annotation {LIMITS_ANNOTATION} is not supported'
        return Rejection("UnsupportedField", message, Stage.QUEUE)

    def filter_node(self, eq_class: EquivalenceClass, node: NodeInfo) -> str | None:
        """Exclude nodes of other groups."""
        group = node.labels.get(GROUP_LABEL, "")
        return None if self._is_allowed(self.affinity(eq_class), group) else NOT_IN_GROUP

    def static_score(self, eq_class: EquivalenceClass, nodes: Sequence[NodeInfo]) -> Scores | None:
        """Prefer groups that are required, then those that are preferred."""
        affinity = self.affinity(eq_class)
        if affinity is None:
            return None
        return np.array([self._score(affinity, node.labels.get(GROUP_LABEL, "")) for node in nodes])

    def affinity(self, eq_class: EquivalenceClass) -> QueueAffinity | None:
        """Return the affinity of the queue of pods of *eq_class*."""
        return eq_class.traits.node_groups

    # -- private -------------------------------------------------------------------------------

    def _is_allowed(self, affinity: QueueAffinity | None, group: str) -> bool:
        if not group:
            return affinity is None and not self._strict
        if affinity is None:
            return False
        # A group that is only avoided is still allowed, unless it is excluded by requirement.
        return group not in affinity.node_group_anti_affinity.required and (
            group in affinity.node_group_affinity.required
            or group in affinity.node_group_affinity.preferred
            or group in affinity.node_group_anti_affinity.preferred
        )

    def _score(self, affinity: QueueAffinity, group: str) -> float:
        if group in affinity.node_group_anti_affinity.preferred:
            return _AVOIDED
        score = _REQUIRED if group in affinity.node_group_affinity.required else 0.0
        preferred = affinity.node_group_affinity.preferred
        if group in preferred:
            rank = preferred.index(group) if self._ordered else 0
            score += _PREFERRED * (len(preferred) - rank) / len(preferred)
        return score


class HierarchicalNodeGroupPlugin(NodeGroupPlugin):
    """The same with ``enableHierarchy``: a queue without an affinity has that of its nearest
    ancestor with one."""

    def affinity(self, eq_class: EquivalenceClass) -> QueueAffinity | None:
        """Return the affinity of the queue of pods of *eq_class*, or of an ancestor."""
        return eq_class.traits.node_groups or eq_class.traits.inherited_node_groups
