"""What plugins of other packages import: the names that docs/scheduler-plugins.md promises.

Any other module of the scheduler may change with each release.
"""

from .plugins.arguments import (
    ArgumentError,
    boolean,
    duration,
    integer,
    mapping,
    number,
    require_read,
    text,
)
from .plugins.extension_points import (
    Allocation,
    NodeAmounts,
    Preemptor,
    RejectedNodes,
    Rejection,
    Scores,
    VictimTask,
)
from .plugins.handle import Handle
from .plugins.placement import GangRef, Placement
from .state.cache.cache import SchedulerCache
from .state.gangs.diagnosis import Shortage, Stage
from .state.gangs.gang import Gang, QueueInfo, Task, TaskStatus
from .state.nodes.node_matrix import NodeInfo, NodeMatrix
from .state.podinfo.declared_fields import PodFields, UndeclaredFieldError
from .state.podinfo.equivalence import EquivalenceClass
from .state.queue.scheduling_queue import ClusterEvent

API_VERSION = (1, 4)
"""Grows in its second number with additions, and in its first with any other change."""

__all__ = [
    "API_VERSION",
    "Allocation",
    "ArgumentError",
    "ClusterEvent",
    "EquivalenceClass",
    "Gang",
    "GangRef",
    "Handle",
    "NodeAmounts",
    "NodeInfo",
    "NodeMatrix",
    "Placement",
    "PodFields",
    "Preemptor",
    "QueueInfo",
    "RejectedNodes",
    "Rejection",
    "SchedulerCache",
    "Scores",
    "Shortage",
    "Stage",
    "Task",
    "TaskStatus",
    "UndeclaredFieldError",
    "VictimTask",
    "boolean",
    "duration",
    "integer",
    "mapping",
    "number",
    "require_read",
    "text",
]
