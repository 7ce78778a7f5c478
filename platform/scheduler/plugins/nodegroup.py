"""``nodegroup``: queues whose pods run on certain groups of nodes.

The label of a node names its group; ``spec.affinity`` of a queue lists the groups that it requires,
prefers and avoids. An annotation of the queue may limit what its pods request in a group together.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

import msgspec
import numpy as np

from ...model.quantity import QuantityError, parse
from ...model.queue import QueueAffinity
from ..state.cache.cache import SchedulerCache
from ..state.gangs.diagnosis import Stage
from ..state.gangs.gang import Gang
from ..state.nodes.node_matrix import NodeInfo, NodeMatrix
from ..state.podinfo.equivalence import EquivalenceClass
from ..state.podinfo.pod_traits import GROUP_LIMITS
from ..state.resources import Amounts, amounts
from .arguments import boolean
from .extension_points import RejectedNodes, Rejection, Scores

GROUP_LABEL = "volcano.sh/nodegroup-name"
NOT_IN_GROUP = "node(s) were not in a node group of the queue"
GROUP_FULL = "node(s) were in a node group of which the queue has reached its limit"

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
        """Reject gangs of queues whose limits for node groups are malformed."""
        if gang.single or self._cache is None:
            return None
        queue = self._cache.queues.of(gang)
        annotations = queue.object.metadata.annotations if queue.object is not None else {}
        if GROUP_LIMITS not in annotations or _parse_limits(annotations[GROUP_LIMITS]) is not None:
            return None
        message = (
            f'queue "{queue.name}": annotation {GROUP_LIMITS} must be a JSON object with a list of '
            "resources for each node group"
        )
        return Rejection("InvalidAnnotation", message, Stage.QUEUE)

    def filter_node(self, eq_class: EquivalenceClass, node: NodeInfo) -> str | None:
        """Exclude nodes of other groups."""
        group = node.labels.get(GROUP_LABEL, "")
        return None if self._is_allowed(self.affinity(eq_class), group) else NOT_IN_GROUP

    def depends_on_pods(self, eq_class: EquivalenceClass) -> bool:
        """Return whether the queue of the pods has limits for node groups."""
        return bool(eq_class.traits.group_limits[0])

    def pod_filters(self, eq_class: EquivalenceClass, nodes: NodeMatrix) -> Iterator[RejectedNodes]:
        """Yield the nodes of groups in which one more pod would exceed the limit of the queue."""
        queue, text = eq_class.traits.group_limits
        if not queue:
            return
        domains = nodes.topology.domains(GROUP_LABEL)
        rejected = np.zeros(nodes.columns, np.bool_)
        for group, limits in (_parse_limits(text) or {}).items():
            domain = domains.id_of(group)
            for resource, limit in limits.items():
                request = eq_class.request.get(resource, 0)
                used = nodes.topology.sums(nodes.topology.queue_use(queue, resource), GROUP_LABEL)
                if domain is not None and request and used.get(domain, 0) + request > limit:
                    rejected |= domains.ids == domain
        yield RejectedNodes(rejected, GROUP_FULL)

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


@lru_cache(maxsize=1024)
def _parse_limits(text: str) -> Mapping[str, Amounts] | None:
    """Return the limits of a queue by group; ``None`` if they are malformed."""
    try:
        groups = msgspec.json.decode(text, type=dict[str, dict[str, str | int | float]])
        for resources in groups.values():
            for quantity in resources.values():
                parse(quantity)
    except (msgspec.DecodeError, QuantityError):
        return None
    return {group: amounts(resources) for group, resources in groups.items()}


class HierarchicalNodeGroupPlugin(NodeGroupPlugin):
    """The same with ``enableHierarchy``: a queue without an affinity has that of its nearest
    ancestor with one."""

    def affinity(self, eq_class: EquivalenceClass) -> QueueAffinity | None:
        """Return the affinity of the queue of pods of *eq_class*, or of an ancestor."""
        return eq_class.traits.node_groups or eq_class.traits.inherited_node_groups
