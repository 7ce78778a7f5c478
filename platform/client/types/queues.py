"""Queues and PodGroups."""

from datetime import datetime

from .base import Page, Record


class Queue(Record, frozen=True):
    """State of a queue."""

    name: str
    uid: str = ""
    state: str = ""
    parent: str = ""
    created_at: datetime | None = None


class QueuePage(Page[Queue], frozen=True):
    """One page of queues."""

    items: list[Queue] = []


class ResourceUsage(Record, frozen=True):
    """Amounts of one resource in a queue."""

    allocated: str | None = None
    deserved: str | None = None
    capability: str | None = None
    guarantee: str | None = None


class QueueUsage(Record, frozen=True):
    """What a queue uses."""

    resources: dict[str, ResourceUsage] = {}


class PodGroup(Record, frozen=True):
    """State of a PodGroup."""

    namespace: str
    name: str
    uid: str = ""


class PodGroupPage(Page[PodGroup], frozen=True):
    """One page of PodGroups."""

    items: list[PodGroup] = []
