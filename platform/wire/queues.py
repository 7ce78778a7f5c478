"""Queues and PodGroups."""

from datetime import datetime
from typing import Annotated, Literal

from ..model.podgroup import PodGroupPhase
from ..model.queue import QueueState
from .base import CountedPage, Record, Sends, SentTime
from .jobs import Explanation, PodGroupCondition


class Queue(Record, frozen=True):
    """A queue."""

    name: str
    uid: str = ""
    resource_version: str = ""
    """For ``If-Match``."""
    state: Annotated[str, Sends(QueueState)] = ""
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
    podgroups: Annotated[dict[str, int], Sends(dict[PodGroupPhase, int])] = {}
    """Number of PodGroups by phase, as the queue controller reports it."""
    labels: dict[str, str] = {}
    default_image: str = ""
    """Image of jobs that `batholith submit` is given none for."""
    workdir_claim: str = ""
    """Claim in the namespace of a job for the working directory that `batholith submit` packs."""
    created_at: datetime | None = None
    deleting: bool = False
    """Whether the queue is being deleted."""


class QueuePage(CountedPage[Queue], frozen=True):
    """One page of queues."""


class ResourceUsage(Record, frozen=True):
    """One resource of a queue. A quantity is null where none is set."""

    allocated: str = ""
    """What the pods of the queue and of its descendants have."""
    deserved: str | None = None
    """As in the spec. Without it the scheduler derives a share from the weights, which it does not
    publish."""
    capability: str | None = None
    """Limit, as in the spec."""
    guarantee: str | None = None
    """Reserved amount, as in the spec."""


class PastQueueUsage(Record, frozen=True):
    """What a queue and those below it have used, by which plugin `fairshare` orders queues."""

    resource_hours: dict[str, float] = {}
    """By resource: cores, bytes or devices, times hours; what was used longer ago counts less."""
    half_life_seconds: float = 0.0
    """After this time usage counts half."""
    at: SentTime = None
    """As of when the scheduler has written it, which it does once a minute."""


class BudgetAmounts(Record, frozen=True):
    """One resource of a budget, in units of it times hours."""

    used: float = 0.0
    limit: float = 0.0


class QueueBudget(Record, frozen=True):
    """What a queue and those below it may use in the current window of its budget."""

    policy: Annotated[str, Sends(Literal["hard", "soft"])] = ""
    """Whether gangs wait once it is used up, or are last."""
    starts_at: SentTime = None
    ends_at: SentTime = None
    resource_hours: dict[str, BudgetAmounts] = {}
    """By resource."""


class QueueUsage(Record, frozen=True):
    """What a queue has and may have."""

    name: str = ""
    state: Annotated[str, Sends(QueueState)] = ""
    resources: dict[str, ResourceUsage] = {}
    jobs: dict[str, int] = {}
    """Number of jobs of all kinds by phase."""
    podgroups: dict[str, int] = {}
    """Number of PodGroups by phase."""
    children: list[str] = []
    """Names of the child queues."""
    past: PastQueueUsage | None = None
    """Null unless the scheduler records usage, which plugin `fairshare` lets it do."""
    budget: QueueBudget | None = None
    """Null if the queue has no budget, or the scheduler records no usage."""


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
    phase: Annotated[str, Sends(PodGroupPhase)] = ""
    min_member: int = 0
    min_resources: dict[str, str] = {}
    priority_class_name: str = ""
    running: int = 0
    succeeded: int = 0
    failed: int = 0
    owner: Owner | None = None
    conditions: list[PodGroupCondition] = []
    explanation: Explanation | None = None
    """Why it waits; null unless Batholith's scheduler has written it."""
    labels: dict[str, str] = {}
    created_at: datetime | None = None
    deleting: bool = False


class PodGroupPage(CountedPage[PodGroup], frozen=True):
    """One page of PodGroups."""
