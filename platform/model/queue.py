"""Volcano's Queue (``scheduling.volcano.sh/v1beta1``): hierarchical cluster quota."""

from enum import StrEnum

import msgspec

from .base import ApiStruct
from .meta import ObjectMeta

Quantities = dict[str, str | int | float]


class QueueState(StrEnum):
    """``status.state`` of a Queue; empty counts as OPEN."""

    OPEN = "Open"
    CLOSED = "Closed"
    CLOSING = "Closing"
    UNKNOWN = "Unknown"


class Guarantee(ApiStruct, frozen=True):
    """Resources reserved for the queue even while it is idle."""

    resource: Quantities = {}


class NodeGroupTerms(ApiStruct, frozen=True):
    """Names of node groups."""

    required: tuple[str, ...] = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=()
    )
    preferred: tuple[str, ...] = msgspec.field(
        name="preferredDuringSchedulingIgnoredDuringExecution", default=()
    )


class QueueAffinity(ApiStruct, frozen=True):
    """Groups of nodes that the queue's pods run on, or avoid."""

    node_group_affinity: NodeGroupTerms = NodeGroupTerms()
    node_group_anti_affinity: NodeGroupTerms = NodeGroupTerms()


class QueueSpec(ApiStruct, frozen=True):
    """Desired state of a queue."""

    weight: int = 0
    capability: Quantities = {}
    reclaimable: bool | None = None
    guarantee: Guarantee = Guarantee()
    deserved: Quantities = {}
    parent: str = ""
    priority: int = 0
    type: str = ""
    dequeue_strategy: str = ""
    affinity: QueueAffinity | None = None


class QueueStatus(ApiStruct, frozen=True):
    """State and counts (by the queue controller) and *allocated* (by the scheduler)."""

    state: str = ""
    unknown: int = 0
    pending: int = 0
    running: int = 0
    inqueue: int = 0
    completed: int = 0
    allocated: Quantities = {}


class Queue(ApiStruct, frozen=True):
    """A Volcano queue."""

    metadata: ObjectMeta = ObjectMeta()
    spec: QueueSpec = QueueSpec()
    status: QueueStatus = QueueStatus()
