"""Queues and PodGroups."""

from datetime import datetime

from .base import Page, Record
from .jobs import Explanation, PodGroupCondition


class Queue(Record, frozen=True):
    """State of a queue."""

    name: str
    uid: str = ""
    resource_version: str = ""
    """Its ETag, for ``if_match``."""
    state: str = ""
    """``Open``, ``Closed``, ``Closing`` or ``Unknown``."""
    parent: str = ""
    """Empty for the root queue."""
    weight: int = 1
    priority: int = 0
    reclaimable: bool = True
    """Whether other queues may reclaim what it has borrowed."""
    dequeue_strategy: str = ""
    capability: dict[str, str] = {}
    """Limit of each resource."""
    guarantee: dict[str, str] = {}
    """Reserved amount of each resource."""
    deserved: dict[str, str] = {}
    """Share that the spec sets, if it does."""
    allocated: dict[str, str] = {}
    """What the pods of the queue have."""
    podgroups: dict[str, int] = {}
    """Number of PodGroups by phase."""
    labels: dict[str, str] = {}
    created_at: datetime | None = None
    deleting: bool = False


class QueuePage(Page[Queue], frozen=True):
    """One page of queues."""

    items: list[Queue] = []


class ResourceUsage(Record, frozen=True):
    """One resource of a queue; ``None`` where the spec sets nothing."""

    allocated: str = ""
    deserved: str | None = None
    capability: str | None = None
    guarantee: str | None = None


class QueueUsage(Record, frozen=True):
    """What a queue has and may have."""

    name: str = ""
    state: str = ""
    resources: dict[str, ResourceUsage] = {}
    jobs: dict[str, int] = {}
    """Number of jobs of all kinds by phase."""
    podgroups: dict[str, int] = {}
    """Number of PodGroups by phase."""
    children: list[str] = []


class Owner(Record, frozen=True):
    """The object that a PodGroup was created for."""

    kind: str = ""
    name: str = ""


class PodGroup(Record, frozen=True):
    """A gang of pods."""

    namespace: str
    name: str
    uid: str = ""
    resource_version: str = ""
    queue: str = ""
    phase: str = ""
    min_member: int = 0
    min_resources: dict[str, str] = {}
    priority_class_name: str = ""
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    owner: Owner | None = None
    conditions: list[PodGroupCondition] = []
    explanation: Explanation | None = None
    labels: dict[str, str] = {}
    created_at: datetime | None = None
    deleting: bool = False


class PodGroupPage(Page[PodGroup], frozen=True):
    """One page of PodGroups."""

    items: list[PodGroup] = []
